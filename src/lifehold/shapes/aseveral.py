"""`lock_all` for tasks of asyncio and trio: several locks at once, all of them or none."""

from __future__ import annotations

from ..aio import AsyncLock
from ..core.deadline import seconds
from ..core.errors import NotAcquired
from ..runtime import clock
from ..runtime.eventloop import EVENT_LOOP
from .several import Leases, in_order, locks_of, of_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from types import EllipsisType, TracebackType
    from typing import Any

    from ..aio import AsyncLease

    Name = str | os.PathLike[str] | AsyncLock


class AsyncLeases(Leases):
    """The leases of several locks, in the order in which those were named."""

    __slots__ = ()

    async def checked(self) -> None:
        """`check()` by looks that are made now, awaited: a file server may take its time."""
        for lease in self._leases:
            await lease.checked()
        for lease in self._leases:  # L8  the look at another may have taken long
            if (why := lease._why_over()) is not None:
                raise lease._error(why)

    async def release(self) -> None:  # type: ignore[override]
        """Let all of them go. Raises the first error, when all have been seen to."""
        first: BaseException | None = None
        for lease in self._leases[::-1]:
            try:
                await EVENT_LOOP.shield(lease.release())
            except BaseException as error:  # noqa: BLE001 - raised when the others are free
                first = first or error
        if first is not None:
            raise first


def lock_all(names: Iterable[Name], *, wait: float | None = None, **options: Any) -> AsyncAll:
    """As `lifehold.lock_all`, for `async with`; `names` are paths or `AsyncLock` objects."""
    return AsyncAll(locks_of(names, AsyncLock, options), wait)


class AsyncAll:
    """Several locks that are taken together."""

    __slots__ = ("_held", "_locks", "_wait")

    def __init__(self, locks: list[AsyncLock], wait: float | None) -> None:
        self._locks = locks
        self._wait = None if wait is None else seconds("wait", wait)
        self._held: list[AsyncLeases] = []

    async def acquire(self, wait: float | None | EllipsisType = ...) -> AsyncLeases:
        """The leases of all. Raises NotAcquired, which names the first that is held."""
        patience = self._wait if wait is ... else seconds("wait", wait)
        until = None if patience is None else clock.now() + patience
        taken: dict[AsyncLock, AsyncLease] = {}
        try:
            for lock in in_order(self._locks):
                left = None if until is None else max(0.0, until - clock.now())
                taken[lock] = await lock.acquire(left if patience else patience)
            return AsyncLeases([taken[lock] for lock in self._locks])
        except BaseException as error:
            try:
                await AsyncLeases(list(taken.values())).release()
            except Exception as other:  # noqa: BLE001 - the first error matters more
                error.add_note(str(other))
            if isinstance(error, NotAcquired):
                of_all(error, self._locks, list(taken))
            raise

    async def __aenter__(self) -> AsyncLeases:
        leases = await self.acquire()
        self._held.append(leases)
        return leases

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leases = self._held.pop()
        try:
            await leases.release()
        except Exception as lost:
            if error is None:
                raise
            error.add_note(str(lost))  # what the block raised matters more
