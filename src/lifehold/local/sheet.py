"""The record of a lock that is there because its record is: kinds without a lock of the kernel.

The record of local/record.py with more members: the lease (`ttl`, `renewals`), whether it is held
still (`state`), whom it came after (`after`, a nonce), and on what ground its writer saw it
(`ground`, `one_kernel`, `witness`). Whoever judges it uses the weaker of both views: a file server
sees as a local disk what its clients see as a network file system.

Promise: `Sheet` writes the whole record at once, so a reader sees the old or the new one, or sees
that it is torn; `read` never raises, whatever the file holds.
"""

from __future__ import annotations

import os

from ..core.errors import CorruptRecord
from ..core.grant import Holder
from ..core.value import value
from . import record as form
from .loading import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.owner import Owner
    from .ground import Place

HELD, RELEASED, VOID, WAITING = "held", "released", "void", "waiting"
STATES = frozenset({HELD, RELEASED, VOID, WAITING})
LONGEST_TTL = 100 * 365 * 86400.0
LINE = 12  # bytes of a first line like liblockfile's: a process number and a newline


class Sheet:
    """The text of one grant's record, made once and changed in place: its state, its renewals.

    `more`: members of a kind's own, as JSON, each after a comma.
    """

    __slots__ = ("_end", "_start", "line", "mark", "number", "renewals", "stamp", "state", "text")

    def __init__(
        self, ino: int, owner: Owner, token: int, stamp_us: int, place: Place, *, witness: bool,
        ttl: float | None = None, after: str = "", line: bytes = b"", mark: str = "",
        more: str = "",
    ) -> None:  # fmt: skip
        self.mark, self.number, self.stamp = mark or os.urandom(8).hex(), token, stamp_us
        self.renewals, self.state, self.line = 0, HELD, line
        changing = self._changing()
        lease = (
            f',"ttl":{"null" if ttl is None else float(ttl)}{changing},"after":"{after}"'
            f',"ground":"{place.kind}","one_kernel":{_word(place.one_kernel)}'
            f',"witness":{_word(witness)}{more}'
        )
        text = form.numbered(form.parts(ino, self.mark, owner, lease), token, stamp_us)
        self._start = text.rindex(changing.encode())
        self._end = self._start + len(changing)
        self.text = line + text[: form.SIZE]

    @property
    def nonce(self) -> str:
        return f"{self.mark}-{self.number}"

    def now(self, state: str) -> bytes:
        """The whole record with another state; a renewal when it is held as before."""
        self.renewals += state == HELD
        self.state = state
        at, until = len(self.line) + self._start, len(self.line) + self._end
        self.text = self.text[:at] + self._changing().encode() + self.text[until:]
        return self.text

    def renumbered(self, token: int, stamp_us: int) -> bytes:
        """The same record under a later token and time."""
        for name, old, new in (
            (b"token", self.number, token), (b"end", self.number, token),
            (b"acquired_at_us", self.stamp, stamp_us),
        ):  # fmt: skip
            self.text = self.text.replace(b'"%s":%20d' % (name, old), b'"%s":%20d' % (name, new), 1)
        self.number, self.stamp = token, stamp_us
        return self.text

    def _changing(self) -> str:
        """Of constant width, so that the rest of the record keeps its place."""
        state = f'"{self.state}"'
        return f',"renewals":{self.renewals:>10},"state":{state:>10}'


def _word(claim: bool) -> str:
    return "true" if claim else "false"


@value
class Sight:
    """What was read of a record. Any part may be missing: other tools, a full disk, a torn write.

    `content`: the bytes; `record`: None when there is none of ours in it; `newer`: of a version
    that we do not know; `pid`: the process number of another tool's file, None when it has none;
    `of_kernel`: it is the record of a kernel lock, which says nothing about who holds it now.
    """

    content: bytes
    record: form.Record | None = None
    ttl: float | None = None
    state: str = HELD
    after: str = ""
    one_kernel: bool = False
    witness: bool = False
    newer: bool = False
    pid: int | None = None
    of_kernel: bool = False

    @property
    def nonce(self) -> str | None:
        return self.record.nonce if self.record is not None else None

    @property
    def ours(self) -> bool:
        """Whether lifehold wrote it and it can be read whole."""
        return self.record is not None and not self.record.torn


def read(content: bytes) -> Sight:
    """The record in the first bytes of a file, with or without a process number before it."""
    body, pid = content, None
    if not content.startswith(form.MAGIC):
        line, _, rest = content.partition(b"\n")
        pid = _process_number(line)
        if rest.startswith(form.MAGIC):
            body = rest
    try:
        found = form.parse(body)
    except CorruptRecord:
        found = form.Record(None, None, None, None, torn=True)
    if found is None:
        return Sight(content, pid=pid)
    version = body[len(form.MAGIC) :].partition(b",")[0]
    newer = version.isdigit() and len(version) < 10 and int(version) > form.VERSION
    if found.torn or newer:
        return Sight(content, found, newer=newer, pid=pid)
    more = _more(body)
    ttl, state, after = more.get("ttl"), more.get("state", HELD), more.get("after", "")
    sane = ttl is None or (type(ttl) in (int, float) and 0 < ttl <= LONGEST_TTL)
    if not sane or state not in STATES or type(after) is not str:
        return Sight(content, form.Record(found.token, None, None, None, torn=True), pid=pid)
    return Sight(
        content, found, ttl, state, after, more.get("one_kernel") is True,
        more.get("witness") is True, pid=pid, of_kernel="state" not in more,
    )  # fmt: skip


def _more(body: bytes) -> dict[str, Any]:
    """The members from `ttl` to the end of a record that was read whole already."""
    start, end = body.rfind(b'"ttl":'), body.rfind(b',"end":')
    try:
        found = loads(b"{%s}" % body[start:end])
    except ValueError:  # its members stand in another order: not as we write them
        found = loads(body[: form.SIZE].partition(b"\n")[0])
    return found if isinstance(found, dict) else {}


def _process_number(line: bytes) -> int | None:
    """A first line as liblockfile writes it: digits. 0 and what is none: None."""
    digits = line[:LINE].strip(b" \0")
    if not digits.isdigit() or len(digits) > 9:
        return None
    return int(digits) or None


def nobody_known(evidence: str) -> Holder:
    """Somebody holds it, and its record says nothing."""
    return Holder(evidence=evidence)
