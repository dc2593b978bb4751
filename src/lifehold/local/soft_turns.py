"""Who waits for a soft reader/writer lock, and whose turn it is.

Promise: no side starves. A writer that waits for readers keeps its claim, which keeps later readers
out. A reader that waits for a writer posts that it asks, and a writer that comes later lets it in
first. Rule: this only orders, and whoever excludes looks at nothing of it (L1): so a writer is
courteous to those alone who asked before it came, and for COURTESY seconds at most while nobody
has claimed. Who died or sleeps for ever holds nobody up.

L6  What was posted is withdrawn when its owner waits no more.
"""

from __future__ import annotations

import errno

from ..core.deadline import NEVER
from ..core.grant import Grant, Held, Lost
from .evidence import TOO_SLOW
from .hint import Hint
from .paper import look
from .soft_marker import ASKS, Claim, is_marker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ..core.acquire import Ask
    from ..core.ports import Runtime
    from .descriptors import Descriptors
    from .soft import SoftLock

    T = TypeVar("T")
    Asked = frozenset[str] | None

READERS_IN = "readers are in"
READERS_FIRST = "readers asked for it before"
COURTESY = 0.5  # seconds for which a writer lets readers go first that could
# path of who asks -> since when it could go in, and did not. For all locks of the process.
FREE_FOR: dict[str, float] = {}
MOST, LATER = 1024, 60.0  # of them at least are kept, and each for so many seconds
STRAYS = 100  # how often things may change under our hands before we say so


class Turn:
    """What a writer knows that has not claimed yet.

    `before`: the readers who asked before it; `at`: the marker of one that is to go first.
    """

    __slots__ = ("at", "before", "due")

    def __init__(self, before: frozenset[str]) -> None:
        self.before, self.due, self.at = before, NEVER, ""


class Turns:
    """How one side of the lock waits."""

    safety = 2.0  # seconds between two looks of a waiter to whom no event comes
    courtesy = COURTESY
    path: str
    folder: str
    exclusive: bool
    key: Any
    runtime: Runtime
    table: Descriptors
    files: Any
    terms: Any
    claim: SoftLock

    attempt: Callable[[], Grant | Held]
    far: Callable[[], bool]
    drop: Callable[[Grant], Lost | None]
    renew: Any
    _guarded: Callable[[Callable[[str], Any]], Any]
    _read: Callable[[str], tuple[Grant | Held, float]]
    _claim: Callable[[], tuple[Grant | Held, float]]
    _reader: Callable[[str], tuple[str, float] | None]
    _posted: Callable[[str, str], Grant | None]
    _lives: Callable[[str, str], float]
    _late: Callable[[Grant], bool]

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until something happens, or a lease runs out; then one try."""
        if ask.slot is None:
            ask.slot = self._guarded(self._begun)
        slot: Claim | Turn = ask.slot
        due = min(until, slot.due, slot.renew_at if isinstance(slot, Claim) else NEVER)
        if self.safety < NEVER:
            due = min(due, self.runtime.now() + self.safety)
        try:
            await self.runtime.changed(ask, slot.at or self.path, due, blind=self._blind())
            if isinstance(slot, Turn):
                answer = self._claims(ask, slot)
            elif not await self._kept(slot):
                self._abandon(ask)
                return Held("what we had posted ran out while we waited", self.key)
            else:
                answer = self._writes(ask, slot) if self.exclusive else self._reads(ask, slot)
        except BaseException:
            self._abandon(ask)
            raise
        if isinstance(answer, Held) and (ask.cancelled or self.runtime.now() >= ask.deadline):
            self._abandon(ask)
        return answer

    def _begun(self, at: str) -> Claim | Turn:
        """A reader asks; a writer looks who has asked before."""
        if self.exclusive:
            return Turn(self._asking(at))
        for _ in range(STRAYS):  # over NFS: posted, and it looks as if it were not
            asks = self._posted(at, ASKS)
            if asks is not None:
                return Claim(asks, self.terms, self.runtime.now())
        raise OSError(errno.ESTALE, "the folder of the markers is taken away again and again")

    # ---- readers

    def _reads(self, ask: Ask, asks: Claim) -> Grant | Held:
        answer: Grant | Held
        answer, asks.due = self._guarded(self._read)
        if isinstance(answer, Grant):
            ask.slot = None
            try:
                self.drop(asks.grant)
            except BaseException:
                self.drop(answer)
                raise
            if self._late(answer):  # L8  that was a look at the storage too
                self.drop(answer)
                return Held(TOO_SLOW, self.key, Hint(self.runtime.now()))
        return answer

    # ---- writers

    def _asking(self, at: str) -> frozenset[str]:
        return frozenset(name for name in self.files.listdir(at) if is_marker(name, ASKS))

    def _courtesy(self, at: str, known: Asked) -> tuple[str, float] | None:
        """The marker of a reader that goes first, and until when. None: nobody does."""
        asking = self._asking(at)
        names = sorted(asking if known is None else asking & known)
        if not names:
            return None
        found = look(self.table, self.path, write=False)
        if found is not None:
            found.close()
            return None  # another writes: they could not go in
        while names:
            name = names.pop()
            if self._lives(at, name):
                due = self._free_since(name) + self.courtesy
                if due > self.runtime.now():
                    return f"{self.folder}/{name}", due
        return None

    def _free_since(self, name: str) -> float:
        now = self.runtime.now()
        if len(FREE_FOR) >= MOST:
            for path, since in list(FREE_FOR.items()):
                if since + LATER < now:
                    FREE_FOR.pop(path, None)
        return FREE_FOR.setdefault(f"{self.folder}/{name}", now)

    def _claims(self, ask: Ask, turn: Turn) -> Grant | Held:
        """A writer that has not claimed yet."""
        first = self._guarded(lambda at: self._courtesy(at, turn.before)) if turn.before else None
        if first is not None:
            turn.at, turn.due = first
            return Held(READERS_FIRST, self.key)
        answer: Grant | Held
        turn.at = ""
        answer, turn.due = self._guarded(lambda _: self._claim())
        if not isinstance(answer, Grant):
            return answer
        ask.slot = claim = Claim(answer, self.terms, self.runtime.now())
        return self._writes(ask, claim)

    def _writes(self, ask: Ask, claim: Claim) -> Grant | Held:
        """A writer that has."""
        reader = self._guarded(self._reader)
        if reader is not None:
            claim.at, claim.due = reader
        elif claim.sure(self.runtime.now()):
            ask.slot = None
            return claim.grant
        return Held(READERS_IN, self.key)

    # ---- what is posted meanwhile

    async def _kept(self, claim: Claim) -> bool:
        """Renew it when it is time; whether it still stands (L8)."""
        now = self.runtime.now()
        if now < claim.renew_at:
            return claim.sure(now)
        found = await self.renew(claim.grant)
        if isinstance(found, Lost) or not claim.sure(self.runtime.now()):
            return False
        claim.renewed(found, now)
        return True

    def _abandon(self, ask: Ask) -> None:
        """L6  Nobody waits behind it any more: a claim that stood would keep readers out."""
        posted, ask.slot = ask.slot, None
        if isinstance(posted, Claim) and posted.grant.handle:
            self.drop(posted.grant)

    def _blind(self) -> bool:
        place = self.claim._place
        return self.far() if place is None else not place.one_kernel
