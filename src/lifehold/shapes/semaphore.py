"""`Semaphore`: N holders at once, each with a slot of its own.

gpus = Semaphore("gpu.lock", 4)
with gpus as lease:
    lease.slot       # 0 to 3: nobody else has it meanwhile
"""

from __future__ import annotations

from ..lock import Lease, Lock
from ..runtime.blocking import BLOCKING
from .permits import fence_name, mechanism, refuse_oneself, slot_number, slotted, with_slots
from .sides import fill

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Hashable
    from types import EllipsisType

    from ..core.acquire import Ask, Cancel
    from ..core.errors import LifeholdError
    from ..core.grant import Held, Unknown


class SlotLease(Lease):
    """One of the N permits in hand."""

    __slots__ = ()

    @property
    def slot(self) -> int:
        """Which of the slots it is, from 0. Nobody else has it meanwhile."""
        return slot_number(self)

    @property
    def path(self) -> str:
        """The file of the slot."""
        return slotted(self._lock._mechanism).slots[self.slot].path

    @property
    def fences(self) -> str:
        """`name#slot`: the name under which guards compare the token, which grows per slot."""
        return fence_name(self)


class Semaphore(Lock):
    """At most `permits` holders at once, among threads, processes and containers of one machine.

    `path`: the semaphore's file; beside it one for each slot, `gpu#0.lock` for `gpu.lock`.
    `permits`: 1 to 512; all who use the path must give the same number, which changes only while
    nobody holds or waits. The other arguments are those of `Lock`.

    First come, first served among those who wait. Raises InvalidArgument; UnsafeGround on a file
    server. See docs/explanation/semaphore.md.
    """

    __slots__ = ()
    _hand = SlotLease

    def __init__(
        self,
        path: str | os.PathLike[str],
        permits: int,
        *,
        wait: float | None = None,
        cancel: Cancel | None = None,
        label: str = "",
        max_hold: float | None = None,
        mode: int | None = None,
        shared: bool = False,
        singleton: bool = False,
    ) -> None:
        name, made = mechanism(path, BLOCKING, permits, label, mode, shared)
        fill(self, name, made, wait, cancel, max_hold, False)

    if TYPE_CHECKING:

        def acquire(
            self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
        ) -> SlotLease: ...

        @property
        def lease(self) -> SlotLease | None: ...

        __enter__ = acquire

    @property
    def permits(self) -> int:
        """How many may hold it at once."""
        return slotted(self._mechanism).permits

    def _many(self) -> bool:
        return True

    def _refuse_self_deadlock(self, key: Hashable, thread: int, task: object) -> None:
        refuse_oneself(self, thread, task)

    def _words(self) -> list[str]:
        """What the slots are called on a command line."""
        return [str(slot) for slot in range(self.permits)]

    def _refusal(
        self, found: Held | Unknown, ask: Ask, patience: float | None, waited: float
    ) -> LifeholdError:
        error = super()._refusal(found, ask, patience, waited)
        return error if "://" in self.path else with_slots(error, self._words())
