"""The record of a lock whose presence is the lock: what `soft` and its like publish and find.

Promise: one JSON object of fixed size (`jq . build.lock` works), whole from the instant at which it
has its name, with numbers of fixed width, so that a renewal is one small write in place. The token
stands in it twice: a torn write is seen.
Read here too: what older tools leave under such a name, a bare process number, or JSON with `pid`
and `created`. Whatever else is there is never taken for nothing: somebody may mean it as a lock.
"""

from __future__ import annotations

import os

from ..core.errors import CorruptRecord
from ..core.owner import Owner
from ..core.value import as_dict, value
from . import record as form
from .ground import LOCAL
from .loading import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.deadline import Terms
    from .ground import Place

SIZE = form.SIZE
WIDTH = form.WIDTH
FRONT = b'{"lifehold":%d,"kind":"%s","renewals":'
# Where the two numbers of a renewal stand, in a record of a kind with a name of so many letters.
AGE = b',"created":'

OURS, OLDER, NEWER, UNREADABLE = "ours", "older", "newer", "unreadable"


@value
class Marker:
    """A record as found.

    `state`: OURS, whole and of a known version; OLDER, another tool's, which names a process;
    NEWER, of a version this one does not know; UNREADABLE. `kind` of lock; `ground`: the file
    system that its writer saw; `witness`: whether its writer keeps flock(2) on it while it lives;
    `key` tells this very grant and renewal from every other.
    """

    state: str
    content: bytes
    kind: str = ""
    owner: Owner | None = None
    since: float | None = None
    token: int | None = None
    nonce: str | None = None
    ttl: float | None = None
    ground: str | None = None
    witness: bool = False

    @property
    def one_kernel(self) -> bool:
        """Whether its writer saw a file system that one kernel alone can mount (L2).

        A file server sees what it exports as a local disk, so this is one view of two.
        """
        return self.state == OLDER or self.ground in LOCAL


class Text:
    """All of a record but its numbers and its nonce. Made once for a thread, label and file system.

    `numbered(...)`: a whole record; `renewed(...)`: the bytes of a renewal, and where they go.
    """

    __slots__ = ("_constant", "_front")

    def __init__(
        self, kind: str, owner: Owner, terms: Terms | None, place: Place, *, witness: bool
    ) -> None:
        known = as_dict(owner)
        self._front = FRONT % (form.VERSION, kind.encode())
        ttl = "null" if terms is None else repr(terms.ttl)
        text = f',"ttl":{ttl},"ground":"{place.kind}","witness":{str(witness).lower()}'
        text += "".join(
            f',"{key}":{"null" if known[key] is None else known[key]}' for key in form.NUMBERS
        )
        fixed = len(self._front) + len(AGE) + 6 * WIDTH + 32 + len('"ino,token,acquired_at_us,') * 2
        room = SIZE - fixed - len(text) - len(',"nonce":"","end":}\n')
        for left, key in zip(range(len(form.STRINGS) - 1, -1, -1), form.STRINGS, strict=True):
            item = f',"{key}":{form._clipped(known[key], room - len(key) - 4 - left * 24)}'
            text += item
            room -= len(item)
        self._constant = text.encode()

    def numbered(self, ino: int, nonce: str, token: int, stamp: int) -> bytes:
        """A whole record. `stamp`: UTC microseconds."""
        text = b'%s%20d%s%20d,"ino":%20d,"token":%20d,"acquired_at_us":%20d,"nonce":"%s"%s' % (
            self._front, 0, AGE, stamp // 1_000_000, ino, token, stamp, nonce.encode(),
            self._constant,
        )  # fmt: skip
        end = b',"end":%20d}' % token
        return text + end + b" " * (SIZE - len(text) - len(end) - 1) + b"\n"

    def renewed(self, renewals: int, stamp: int) -> tuple[bytes, int]:
        """The bytes of the n-th renewal, and their place. Older tools go by `created`."""
        return b"%20d%s%20d" % (renewals, AGE, stamp // 1_000_000), len(self._front)


def read(content: bytes) -> Marker:
    """What is in the first bytes of a file that may be a lock."""
    if not content.startswith(form.MAGIC):
        return _older(content)
    version = content[len(form.MAGIC) :].partition(b",")[0]
    if version.isdigit() and int(version) > form.VERSION:
        return Marker(NEWER, content)
    try:
        whole = form.parse(content)
        found: dict[str, Any] = loads(content[:SIZE].partition(b"\n")[0])
    except (CorruptRecord, ValueError, RecursionError):
        return Marker(UNREADABLE, content)
    if whole is None or whole.torn:
        return Marker(UNREADABLE, content)
    kind, ttl, ground = found.get("kind", "kernel"), found.get("ttl"), found.get("ground")
    right = type(kind) is str and type(ttl) in (float, int, type(None))
    if (
        not right
        or (ttl is not None and not 0 < ttl < 1e10)
        or type(ground) not in (str, type(None))
    ):
        return Marker(UNREADABLE, content)
    return Marker(
        OURS, content, kind, whole.owner, whole.acquired_at, whole.token or None, whole.nonce,
        None if ttl is None else float(ttl), ground, found.get("witness") is True,
    )  # fmt: skip


def _older(content: bytes) -> Marker:
    """A bare number, alone or on the first of some lines; JSON with `pid`."""
    try:
        text = content.decode("ascii").strip()
    except ValueError:
        return Marker(UNREADABLE, content)
    if text.startswith("{"):
        return _older_json(content, text)
    lines = text.split("\n")
    number = lines[0].strip()
    if not number.isdigit() or len(number) > 10 or len(content) >= SIZE:
        return Marker(UNREADABLE, content)
    host = lines[1].strip() if len(lines) > 1 else None
    return Marker(OLDER, content, "pid", Owner(int(number), host=host or None))


def _older_json(content: bytes, text: str) -> Marker:
    try:
        found = loads(text)
        pid, created = found.get("pid"), found.get("created")
        host = found.get("host", found.get("hostname"))
    except (ValueError, AttributeError, RecursionError):
        return Marker(UNREADABLE, content)
    if type(pid) is not int or not 0 < pid < 1 << 31:
        return Marker(UNREADABLE, content)
    since = float(created) if type(created) in (int, float) and 0 < created < 1e11 else None
    owner = Owner(pid, host=host if type(host) is str else None)
    return Marker(OLDER, content, "json", owner, since)


def temporary(path: str, nonce: str) -> str:
    """A name beside a lock that nobody has used before; short, whatever the lock's name is."""
    return f"{os.path.dirname(path)}/{TEMPORARY}{nonce}"


TEMPORARY = ".lifehold-"


def is_temporary(name: str) -> bool:
    """Whether a file name is one of `temporary`'s."""
    nonce = name[len(TEMPORARY) :]
    return name.startswith(TEMPORARY) and len(nonce) == 32 and not nonce.strip("0123456789abcdef")
