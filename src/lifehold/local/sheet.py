"""The texts of the records that are the lock: of every kind but the kernel's.

The record of local/record.py with more members: its `kind`, the lease (`ttl`, `renewals`), whether
it is held still (`state`), whom it came after (`after`, a nonce), and on what ground its writer saw
it (`ground`, `witness`). Whoever judges it uses the weaker of both views: a file server sees as a
local disk what its clients see as a network file system.

Promise: one JSON object of fixed size (`jq . build.lock` works) with numbers of fixed width, so
that a reader sees the old or the new one, or sees that it is torn. In the files of `soft` and
`link` a line with the process number comes first, and all of it takes 1024 bytes at most:
filelock's SoftFileLock reads that as a holder on another host, whom it waits for; what it cannot
read it removes after 2 s. Reader: local/marker.py.
"""

from __future__ import annotations

import os

from ..core.fence import LARGEST
from ..core.value import as_dict
from . import record as form
from .marker import HELD, HEX, LINE, RELEASED, STAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.owner import Owner
    from .ground import Place

SIZE = form.SIZE - LINE  # of a record, so that a line before it keeps the file within 1024 bytes
FRONT = b'{"lifehold":%d,"kind":"%s","renewals":'
LONGEST_AFTER = 53  # bytes of a nonce: 32 digits, a dash, a token


class Text:
    """All of a record but its numbers and its nonce. Made once for a thread, label and file system.

    `more`: members of a kind's own, as JSON, each after a comma.
    `numbered(...)`: a whole record; `renewed(...)`: the bytes of a renewal, and where they go.
    """

    __slots__ = ("_constant", "_created", "_front", "_spare")

    def __init__(
        self, kind: str, owner: Owner, ttl: float | None, place: Place, *, witness: bool,
        line: bytes = b"", more: str = "",
    ) -> None:  # fmt: skip
        known = as_dict(owner)
        self._front = line + FRONT % (form.VERSION, kind.encode())
        self._created = 0, b"%20d" % 0  # the last second, and as it is written
        text = f',"ttl":{"null" if ttl is None else float(ttl)},"ground":"{place.kind}"'
        text += f',"witness":{str(witness).lower()}{more}' + "".join(
            f',"{key}":{"null" if known[key] is None else known[key]}' for key in form.NUMBERS
        )
        fixed = len(self._front) - len(line) + MOVING + 32 + LONGEST_AFTER
        room = SIZE - fixed - len(text)
        for left, key in zip(range(len(form.STRINGS) - 1, -1, -1), form.STRINGS, strict=True):
            item = f',"{key}":{form._clipped(known[key], room - len(key) - 4 - left * 24)}'
            text += item
            room -= len(item)
        self._constant = b'"' + text.encode() + b',"end":'
        self._spare = b" " * (room + 32 + LONGEST_AFTER)

    def numbered(
        self, ino: int, nonce: str, token: int, stamp: int, *, stage: str = HELD,
        renewals: int = 0, after: str = "",
    ) -> bytes:  # fmt: skip
        """A whole record. `stamp`: UTC microseconds."""
        second, created = self._created
        if second != stamp // 1_000_000:
            second = stamp // 1_000_000
            created = b"%20d" % second
            self._created = second, created
        shown = b"%20d" % token
        at = shown if stamp == token else b"%20d" % stamp
        count = b"%20d" % renewals if renewals else NONE
        return b"".join((
            self._front, count, b',"state":', STAGE[stage], b',"created":', created, b',"ino":',
            b"%20d" % ino, b',"token":', shown, b',"acquired_at_us":', at, b',"nonce":"',
            nonce.encode(), b'","after":"', after.encode(), self._constant, shown, b"}",
            self._spare[len(nonce) + len(after) + 1 :], b"\n",
        ))  # fmt: skip

    def drawn(self, text: bytes, nonces: int, token: int, stamp: int) -> bytes:
        """A record that `numbered` made, under a token and time. `nonces`: their length in it."""
        at = len(self._front) + BEFORE_TOKEN
        end = at + BETWEEN + nonces + len(self._constant)
        shown = b"%20d" % token
        return b"".join((
            text[:at], shown, b',"acquired_at_us":', shown if stamp == token else b"%20d" % stamp,
            text[at + STAMPED : end], shown, text[end + 20 :],
        ))  # fmt: skip

    def renewed(self, renewals: int, stamp: int) -> tuple[bytes, int]:
        """The bytes of the n-th renewal, and their place. Older tools go by `created`."""
        changing = b'%20d,"state":%b,"created":%20d' % (
            renewals, STAGE[HELD], stamp // 1_000_000,
        )  # fmt: skip
        return changing, len(self._front)


# Of constant width, so that a renewal and a release move nothing.
STAGE = {stage: b"%12s" % f'"{stage}"'.encode() for stage in STAGES}
NONE = b"%20d" % 0
STAGE_WIDTH, BEFORE_STAGE = 12, len(b'%20d,"state":' % 0)
BEFORE_TOKEN = len(b'%20d,"state":%12s,"created":%20d,"ino":%20d,"token":' % (0, b"", 0, 0))
STAMPED = len(b'%20d,"acquired_at_us":%20d' % (0, 0))
BETWEEN = len(b'%20d,"acquired_at_us":%20d,"nonce":"","after":"' % (0, 0))
# Bytes of all members that change, nonces left out, with what closes the record.
MOVING = len(
    b'%20d,"state":%12s,"created":%20d,"ino":%20d,"token":%20d,"acquired_at_us":%20d,"nonce":"",'
    b'"after":"","end":%20d}' % (0, b"", 0, 0, 0, 0, 0)
)


def given_back(content: bytes, kind: str) -> tuple[int, str] | None:
    """(token, nonce) of a record that says it is released; None: read it with care (marker.py)."""
    front = FRONT % (form.VERSION, kind.encode())
    at = len(front) + BEFORE_TOKEN
    shown, stage = content[at : at + 20], len(front) + BEFORE_STAGE
    if not content.startswith(front) or content[stage : stage + STAGE_WIDTH] != STAGE[RELEASED]:
        return None
    digits = shown.strip()
    mark = content[at + STAMPED + 10 : content.find(b'"', at + STAMPED + 10)].decode("latin-1")
    if not content.endswith(b"\n") or content.rstrip(b" }\n")[-20:] != shown:
        return None  # torn
    if not digits.isdigit() or int(digits) > LARGEST or not mark or mark.strip(HEX):
        return None
    return int(digits), f"{mark}-{int(digits)}"


class Sheet:
    """The record of one grant of numbered records or of a lock file, changed and written whole."""

    __slots__ = (
        "after", "ino", "line", "mark", "number", "renewals", "stage", "stamp", "text", "words",
    )  # fmt: skip

    def __init__(
        self, words: Text, ino: int, token: int, stamp_us: int, *, after: str = "",
        line: bytes = b"", mark: str = "",
    ) -> None:  # fmt: skip
        self.words, self.ino, self.mark = words, ino, mark or os.urandom(8).hex()
        self.number, self.stamp, self.line = token, stamp_us, line
        self.after = after if len(after) <= LONGEST_AFTER else ""
        self.renewals, self.stage = 0, HELD
        self.text = self._written()

    @property
    def nonce(self) -> str:
        return f"{self.mark}-{self.number}"

    def now(self, stage: str) -> bytes:
        """The whole record at another stage; a renewal when it is held as before."""
        self.renewals += stage == HELD
        self.stage = stage
        self.text = self._written()
        return self.text

    def renumbered(self, token: int, stamp_us: int) -> bytes:
        """The same record under a later token and time."""
        self.number, self.stamp = token, stamp_us
        self.text = self._written()
        return self.text

    def _written(self) -> bytes:
        return self.line + self.words.numbered(
            self.ino, self.mark, self.number, self.stamp, stage=self.stage,
            renewals=self.renewals, after=self.after,
        )  # fmt: skip
