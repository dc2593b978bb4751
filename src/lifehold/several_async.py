"""`lock_all` for tasks of asyncio and trio: several locks at once, all of them or none."""

from __future__ import annotations

from .aio import AsyncAttempt, AsyncLock
from .core.deadline import TRY, seconds
from .core.errors import NotAcquired, WouldBlock
from .described import ASYNC, explained
from .lease import BlockEntry, aexit_method, exiting, of_shape, part
from .runtime import clock, fork
from .runtime.eventloop import EVENT_LOOP, to_await
from .several import LEAST, LeaseGroup, OfAll, had, held, in_order, locks_of, of_all, undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import EllipsisType, TracebackType
    from typing import Any, Never, ParamSpec, Self, TypeVar

    from . import decorated, words
    from .aio import AsyncLease
    from .lease import Block

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    decorated = fork.later("lifehold.decorated", globals())
    words = fork.later("lifehold.words", globals())


class AsyncLeaseGroup(LeaseGroup):
    """The leases of several locks, in the order in which those were named."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __getitem__(self, index: int) -> AsyncLease: ...  # type: ignore[override]

        def __iter__(self) -> Iterator[AsyncLease]: ...  # type: ignore[override]

    if not TYPE_CHECKING:
        __enter__ = ASYNC

    async def __aenter__(self) -> Self:
        return self._begin()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            await self.release()
        except Exception as other:
            if not self._excused(other, error):
                raise

    async def checked(self) -> None:
        """`check()` by looks that are made now, awaited: a file server may take its time."""
        for lease in self._leases:
            await lease.checked()
        for lease in self._leases:  # L8  the look at another may have taken long
            if (why := lease._why_over()) is not None:
                raise lease._error(why)

    async def release(self, **unknown: Never) -> None:  # type: ignore[override]
        """Let all of them go. Raises the first error, when all have been seen to.

        A cancellation comes before an error: it is told no second time.
        """
        if unknown:
            raise words.unknown("release()", unknown)
        first: BaseException | None = None
        try:
            for lease in self._leases[::-1]:
                try:
                    await EVENT_LOOP.shield(self._end(lease))
                except Exception as error:  # noqa: BLE001 - raised when the others are free
                    first = first or error
                except BaseException as error:  # noqa: BLE001 - the same, and it goes first
                    error.__cause__ = error.__cause__ or first
                    first = error
            if first is not None:
                raise first
        except BaseException as error:
            if not isinstance(error, Exception):
                self._give_up(error)
            raise

    async def _end(self, lease: AsyncLease) -> None:
        """One step for whoever is cancelled meanwhile."""
        if lease._depth and lease in self._left:
            lease._depth -= 1  # no call in between, where a signal could come
            self._left.remove(lease)
        else:
            await lease.release()


@explained(
    "lock_all()",
    "lock_all(['a.lock', 'b.lock'])",
    "name it, for example lock_all([...], wait={value})",
    "give the names in a list, lock_all([{all}])",
)
def lock_all(
    names: Iterable[str | os.PathLike[str] | AsyncLock],
    *,
    wait: float | None = None,
    **options: Any,
) -> AsyncAll:
    """As `lifehold.lock_all`, for `async with`; `names` are paths or `AsyncLock` objects."""
    return AsyncAll(locks_of(names, AsyncLock, options), wait)


alock_all = lock_all  # its name in `lifehold`


class AsyncOfAll(OfAll):
    """One `async with` block of several locks."""

    __slots__ = ()

    async def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """What stands for `__aexit__`."""
        leases = None
        try:
            leases = self.ended(None)
            if leases is not None:
                await leases.release()
            self.lease = None  # else it is ended once more when this block is dropped
        except Exception as other:
            if leases is not None:
                self.lease = None  # all of them have been seen to
            if leases is None or not leases._excused(other, error):
                raise
        except BaseException as other:
            self.undo(other)
            raise


class AsyncAllAttempt(AsyncAttempt):
    """What `attempt()` of several locks answers: `async with` it."""

    __slots__ = ()
    _kind = AsyncOfAll
    __aexit__ = exiting(AsyncOfAll, aexit_method)


class AsyncAll:
    """Several locks that are taken together."""

    __slots__ = ("_blind", "_locks", "_wait")

    def __init__(self, locks: list[AsyncLock], wait: float | None) -> None:
        self._locks = locks
        self._wait = None if wait is None else seconds("wait", wait)
        self._blind: list[AsyncOfAll] = []

    async def acquire(
        self, wait: float | None | EllipsisType = ..., **unknown: Never
    ) -> AsyncLeaseGroup:
        """The leases of all. Raises as `All.acquire`."""
        if unknown:
            raise words.unknown("acquire()", unknown, ("wait",))
        return await self._taken(wait, None)

    @to_await
    async def try_acquire(self, **unknown: Never) -> AsyncLeaseGroup | None:
        """The leases of all, None when one of them is held."""
        if unknown:
            raise words.of_try("try_acquire", unknown)
        try:
            leases = await self._taken(TRY, None)
        except WouldBlock:
            return None
        for lease in leases:
            lease._lock._give_away(lease)
        return leases

    def attempt(
        self, **unknown: Never
    ) -> AbstractAsyncContextManager[AsyncLeaseGroup | None, None]:
        """`async with lock_all(names).attempt() as leases: if leases:` all of them, or None."""
        if unknown:
            raise words.of_try("attempt", unknown)
        return AsyncAllAttempt(lambda entry: self._taken(entry.wait, entry.block))

    def __call__(
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[object, None, R]]:
        """Decorator: each call of the coroutine function holds all of them."""
        return decorated.awaiting(
            function, lambda _, __: self, "lock_all of lifehold.aio", "lock_all"
        )

    if not TYPE_CHECKING:
        __enter__ = ASYNC

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._locks, self._wait)

    async def _taken(
        self, wait: float | None | EllipsisType, block: AsyncOfAll | None
    ) -> AsyncLeaseGroup:
        patience = self._wait if wait is ... else seconds("wait", wait)
        until = None if patience is None else clock.now() + patience
        parts = {lock: part() for lock in in_order(self._locks)}
        try:
            for lock, each in parts.items():
                left = None if until is None else max(LEAST, until - clock.now())
                entry = BlockEntry(left if patience else patience, each)
                await lock.acquire(entry)
            leases = AsyncLeaseGroup([parts[lock].lease for lock in self._locks])
            await leases.checked()  # L8  one may have been lost while another was waited for
            if block is not None:
                block.lease = leases
            return leases
        except BaseException as error:
            try:
                taken = had(parts)
                await let_go(parts, error)
            finally:
                undo(parts, error)
            if isinstance(error, NotAcquired):
                of_all(error, self._locks, taken)
            raise

    async def release(self, **unknown: Never) -> None:
        """Release what this task holds of these locks. Raises NotHeld for nothing."""
        if unknown:
            raise words.unknown("release()", unknown)
        await AsyncLeaseGroup(held(self._locks)).release()

    async def __aenter__(self) -> AsyncLeaseGroup:
        block = of_shape(self, AsyncOfAll)
        try:
            await self._taken(..., block)
            return block.lease  # type: ignore[no-any-return]
        except BaseException as error:
            block.undo(error)
            raise

    __aexit__ = exiting(AsyncOfAll, aexit_method)


async def let_go(parts: dict[AsyncLock, Block], error: BaseException) -> None:
    """Not all could be had: those that were taken are let go of."""
    stopped: BaseException | None = None
    for each in list(parts.values())[::-1]:
        try:
            await EVENT_LOOP.shield(_let_go_of(each))
        except Exception as other:  # noqa: BLE001 - the first error matters more
            error.add_note(str(other))
        except BaseException as other:  # noqa: BLE001 - raised when the others are free
            stopped = stopped or other
    if stopped is not None:
        raise stopped


async def _let_go_of(part: Block) -> None:
    """One step for whoever is cancelled meanwhile."""
    lease = part.lease
    if lease is not None and lease._depth:
        lease._depth -= 1  # no call in between, where a signal could come
        part.lease = None  # it is an outer block's alone
    elif lease is not None:
        await lease.release()
