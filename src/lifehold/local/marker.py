"""What is found where a lock is its record: ours of any kind, another tool's, or neither.

Promise: `read` never raises, whatever the file holds, and never takes anything for nothing:
somebody may mean it as a lock. It knows the records of every kind, with or without a process number
on a line before it; what older tools leave under such a name, a bare process number, or JSON with
`pid` and `created`; and records of a newer lifehold, of which it believes no more than their
version and their ttl (L12).
The token stands in a record twice: a torn write is seen. Writers: local/sheet.py.
"""

from __future__ import annotations

import os

from ..core.errors import CorruptRecord
from ..core.owner import Owner
from ..core.value import value
from . import record as form
from .ground import LOCAL
from .loading import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE = 12  # bytes of a first line like liblockfile's: a process number and a newline
SIZE = form.SIZE + LINE  # bytes that a reader asks for
HEX, LONGEST_NONCE = "0123456789abcdef", 85
LONGEST_TTL = 100 * 365 * 86400.0
OURS, OLDER, NEWER, UNREADABLE = "ours", "older", "newer", "unreadable"
HELD, RELEASED, VOID, WAITING = "held", "released", "void", "waiting"
STAGES = frozenset({HELD, RELEASED, VOID, WAITING})
LIVE = frozenset({HELD, WAITING})  # a process stands behind it, or has died


@value
class Marker:
    """A record as found.

    `state`: OURS, whole and of a known version; OLDER, another tool's, which names a process;
    NEWER, of a version this one does not know; UNREADABLE. `kind` of lock; `ground`: the file
    system that its writer saw; `witness`: whether its writer keeps flock(2) on it while it lives;
    `stage`: HELD, RELEASED, VOID, a number that was never held, or WAITING, in line for it;
    `after`: the nonce of the record it came after; `token`: also what can be saved of a damaged
    one.
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
    stage: str = HELD
    after: str = ""

    @property
    def one_kernel(self) -> bool:
        """Whether its writer saw a file system that one kernel alone can mount (L2).

        A file server sees what it exports as a local disk, so this is one view of two.
        """
        return self.state == OLDER or self.ground in LOCAL


def read(content: bytes) -> Marker:
    """What is in the first bytes of a file that may be a lock."""
    body = content
    if not content.startswith(form.MAGIC):
        line, _, rest = content.partition(b"\n")
        if not rest.startswith(form.MAGIC) or len(line) >= LINE:
            return _older(content)
        body = rest
    line = body[: form.SIZE].partition(b"\n")[0]
    version = line[len(form.MAGIC) :].partition(b",")[0]
    newer = version.isdigit() and len(version) < 10 and int(version) > form.VERSION
    try:
        found: Any = loads(line)
        given, ground = found.get("ttl"), found.get("ground")
        sane = type(given) in (float, int) and 0 < given <= LONGEST_TTL
        ttl = float(given) if sane else None
        if newer:
            return Marker(NEWER, content, ttl=ttl)
        whole = form.of_members(found)
        stage, after = found.get("state", HELD), found.get("after", "")
        kind = found.get("kind", "" if "state" in found else "kernel")
        texts = all(type(each) is str for each in (kind, after, "" if ground is None else ground))
        texts = texts and not str(found.get("nonce")).strip(HEX) and len(after) <= LONGEST_NONCE
        if not texts or stage not in STAGES or (given is not None and not sane):
            raise ValueError("not as lifehold writes it")
    except (CorruptRecord, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return Marker(NEWER if newer else UNREADABLE, content, token=_saved(line))
    return Marker(
        OURS, content, kind, whole.owner, whole.acquired_at, whole.token or None, whole.nonce,
        ttl, ground, found.get("witness") is True, stage, after,
    )  # fmt: skip


def _saved(body: bytes) -> int | None:
    """The token of a damaged record, as far as it can be read."""
    try:
        found = form.parse(body)
    except CorruptRecord:
        return None
    return found.token if found is not None else None


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
    if not number.isdigit() or len(number) > 10 or len(content) >= form.SIZE:
        return Marker(UNREADABLE, content)
    if not 0 < int(number) < 1 << 31:
        return Marker(UNREADABLE, content)  # 0: liblockfile's word for a holder it does not name
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
