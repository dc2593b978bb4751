"""Known-bad rules of reader/writer locks and semaphores (mutants.py has those of every lease)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.grant import Unknown
from ...core.value import replace
from ...store.rules import HolderRow, LockState
from ..history import GENERATION, WRITE
from .judge import ORDER, STUCK
from .mutant import Mutant
from .outcome import Subject
from .party import Party
from .scenario import Scenario
from .shapes import MUTEX, PERMITS
from .vault import Vault

if TYPE_CHECKING:
    from ...core.backend import Given, Refused, Renewal, Request
    from .people import Holder


def kept_by(rule: type[LockState]) -> type[Vault]:
    """A store with another rule."""
    return type(rule.__name__, (Vault,), {"book": rule})


# ---- readers and writers


class HeadCount(LockState):
    """Heads are counted, and not their weights: a reader finds room beside a writer."""

    def _free(self) -> int:
        return self.capacity - len(self.holders)


class ReadersFirst(LockState):
    """A reader is let in beside readers, whoever waits."""

    def acquire(self, asked: Request) -> Given | Refused:
        return super().acquire(replace(asked, fair=False) if asked.shared else asked)


class StaysHeavy(LockState):
    """A writer that became a reader is told so, and is counted as a writer still."""

    def renew(self, asked: Renewal) -> bool:
        return super().renew(replace(asked, weight=None))


class EarlyToken(LockState):
    """A reader carries the token of the time at which it came, and not of that at which it got in.

    A writer may have been in between.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: dict[str, int | None] = {}

    def acquire(self, asked: Request) -> Given | Refused:
        self.seen.setdefault(asked.nonce, self.token)
        return super().acquire(asked)

    def _let_in(self, asked: Request) -> HolderRow:
        holder = super()._let_in(asked)
        if asked.shared:
            holder.token = self.seen[asked.nonce]
        return holder


class StillWriting(Party):
    """A writer that got no answer to its downgrade believes that nothing has happened."""

    async def _read_on(self, holder: Holder) -> Any:
        found = await super()._read_on(holder)
        if isinstance(found, Unknown):
            self.judge.reads_on(holder, WRITE)
            await self._change(holder)
        return found


# ---- semaphores


class OneMore(LockState):
    """Greater instead of greater or equal."""

    def _free(self) -> int:
        return super()._free() + 1


class SlotByCount(LockState):
    """The slot is how many are in: taken, when another than the last one has left."""

    def _let_in(self, asked: Request) -> HolderRow:
        holder = super()._let_in(asked)
        holder.slot = len(self.holders) - 1
        return holder


class CountsEnded(LockState):
    """Whose lease has run out is not forgotten: each crash takes a permit for ever."""

    def _in(self, holder: HolderRow) -> bool:
        return True


class Counter(LockState):
    """A number that goes up and down: a release that comes twice, or late, is another's."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.were_in: set[str] = set()

    def _let_in(self, asked: Request) -> HolderRow:
        self.were_in.add(asked.nonce)
        return super()._let_in(asked)

    def release(self, nonce: str) -> bool:
        if nonce in self.were_in and self.holders and self._holder(nonce) is None:
            del self.holders[0]
        return super().release(nonce)


READERS = Scenario(ttl=10.0, nodes=5, hours=0.1, think=1.0, hold=2.0, shape="readwrite")
SEATS = Scenario(ttl=10.0, nodes=6, hours=0.1, think=1.0, hold=2.0, shape="semaphore", permits=3)

SHAPED = (
    Mutant(Subject("heads counted, not weights", vault=kept_by(HeadCount)), (MUTEX,), READERS),
    Mutant(
        Subject("a reader before a writer in line", vault=kept_by(ReadersFirst)), (ORDER,), READERS
    ),
    Mutant(
        Subject("a lightened writer stays counted", vault=kept_by(StaysHeavy)),
        (STUCK,),
        replace(READERS, hours=0.5, hold=40.0, writers=0.5, downgrade=1.0),
    ),
    Mutant(
        Subject("a reader's token from when it came", vault=kept_by(EarlyToken)),
        (GENERATION,),
        READERS,
    ),
    Mutant(
        Subject("a writer after an unanswered downgrade", StillWriting),
        (MUTEX,),
        replace(READERS, hours=0.3, loss=0.2, downgrade=1.0, timeout=0.5),
    ),
    Mutant(Subject("one permit more", vault=kept_by(OneMore)), (PERMITS,), SEATS),
    Mutant(Subject("a slot by count", vault=kept_by(SlotByCount)), (MUTEX,), SEATS),
    Mutant(
        Subject("ended seats counted", vault=kept_by(CountsEnded)),
        (STUCK,),
        replace(SEATS, crash_every=60.0),
    ),
    Mutant(
        Subject("a counter for a semaphore", vault=kept_by(Counter)),
        (MUTEX, PERMITS),
        replace(SEATS, pause=12.0, pause_every=60.0),
    ),
)
