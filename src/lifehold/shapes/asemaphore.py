"""`AsyncSemaphore`: the semaphore for tasks of asyncio and trio."""

from __future__ import annotations

from ..aio import AsyncLease, AsyncLock
from ..runtime.eventloop import EVENT_LOOP
from .permits import fence_name, mechanism, refuse_oneself, slot_number, slotted, with_slots
from .sides import fill

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Hashable
    from types import EllipsisType

    from ..core.acquire import Ask
    from ..core.errors import LifeholdError
    from ..core.grant import Held, Unknown


class AsyncSlotLease(AsyncLease):
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


class AsyncSemaphore(AsyncLock):
    """At most `permits` holders at once, for tasks; counts threads and processes as well.

    The arguments are those of `Semaphore`, without `cancel`: cancel the task instead.
    """

    __slots__ = ()
    _hand = AsyncSlotLease

    def __init__(
        self,
        path: str | os.PathLike[str],
        permits: int,
        *,
        wait: float | None = None,
        label: str = "",
        max_hold: float | None = None,
        mode: int | None = None,
        shared: bool = False,
        singleton: bool = False,
    ) -> None:
        name, made = mechanism(path, EVENT_LOOP, permits, label, mode, shared)
        fill(self, name, made, wait, None, max_hold, False)

    if TYPE_CHECKING:

        async def acquire(self, wait: float | None | EllipsisType = ...) -> AsyncSlotLease: ...

        @property
        def lease(self) -> AsyncSlotLease | None: ...

        __aenter__ = acquire

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
