"""The async face: `AsyncLock` and its `AsyncLease`, for asyncio and trio.

The same mechanism and the same wait loop as the blocking face, awaited instead of finished. A
cancelled wait leaves nothing held: the helper thread inside flock(2) is interrupted before the
cancellation goes on.
"""

from __future__ import annotations

from _thread import get_ident

from .core import events
from .core.acquire import Ask, acquire
from .core.deadline import deadline_of, seconds
from .core.errors import LeaseLost, NotHeld
from .core.grant import Grant
from .face import LockFace
from .lease import Holding, abandon
from .runtime import clock, fork
from .runtime.eventloop import EVENT_LOOP, current_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import EllipsisType, TracebackType
    from typing import Any, ParamSpec, TypeVar

    from .core.grant import Held, Unknown

    P = ParamSpec("P")
    R = TypeVar("R")


class AsyncLease(Holding):
    """A lock in hand: its token, `check()`, `lost`, `await release()`.

    Also an async context manager.
    """

    __slots__ = ()

    async def release(self) -> None:
        """Let the lock go.

        Raises NotHeld when that was done before or belongs to a parent process, LeaseLost
        when the lock was lost meanwhile.
        """
        self._let_go()

    def _let_go(self) -> None:
        # Plain code: no step of a file lock's release waits, so no cancellation can come in
        # between.
        if self._depth:
            self._depth -= 1
            return
        leases = self._lock._leases
        if self in leases:
            leases.remove(self)
        self._forget()
        found = self._lock._mechanism.drop(self._grant)
        if found is not None or self._lost is not None or events.listeners:
            self._ended(found)

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._let_go()


class AsyncLock(LockFace):
    """A lock on a file for tasks of asyncio or trio, excluding threads and processes as well.

    The arguments are those of `Lock`, without `cancel`: cancel the task instead. `reentrant` is per
    task.
    """

    __slots__ = ()
    _runtime = EVENT_LOOP

    async def acquire(self, wait: float | None | EllipsisType = ...) -> AsyncLease:
        """The lease, once the lock is ours.

        `wait` in seconds: None until acquired, 0 for one try; left out: the lock's own.

        Raises Timeout or WouldBlock, which name the holder; SelfDeadlock when this task holds the
        lock itself and would wait for ever; SystemRefused, CorruptRecord, UnsafeGround.
        """
        if self._reentrant and (mine := self._of_task()) is not None:
            mine._depth += 1
            return mine
        answer = self._mechanism.attempt()
        waited = 0.0
        try:
            if answer.__class__ is not Grant:
                answer, waited = await self._contend(answer, wait)
            lease = AsyncLease(self, answer, (get_ident(), current_task()), waited)
            self._leases.append(lease)
        except BaseException:
            if isinstance(answer, Grant):
                abandon(answer)  # a signal handler has raised
            raise
        return lease

    async def _contend(
        self, answer: Held, wait: float | None | EllipsisType
    ) -> tuple[Grant, float]:
        """The wait of a lock that is held."""
        patience = self._wait if wait is ... else seconds("wait", wait)
        started = clock.now()
        ask = Ask(self._name, deadline_of(patience, started), None, self._tell_waiting)
        found: Grant | Held | Unknown = answer
        if patience != 0:
            if patience is None:
                self._refuse_self_deadlock(answer.key, get_ident(), current_task())
            found = await acquire(self._mechanism, self._runtime, ask, answer)
        try:
            waited = clock.now() - started
            if isinstance(found, Grant):
                return found, waited
        except BaseException:
            if isinstance(found, Grant):
                abandon(found)  # a signal handler has raised
            raise
        raise self._refusal(found, ask, patience, waited)

    async def release(self) -> None:
        """Release the lease of this task; where it has none, the only one there is.

        Raises NotHeld.
        """
        lease = self.lease
        if lease is None:
            raise NotHeld(f"{self._name!r} is not held by this task", name=self._name)
        if not lease._depth:
            self._leases.remove(lease)
        lease._let_go()

    @property
    def lease(self) -> AsyncLease | None:
        """The lease that this task holds, else the only one of this object, else None."""
        return self._of_task() or (self._leases[0] if len(self._leases) == 1 else None)

    def _of_task(self) -> AsyncLease | None:
        task = current_task()
        found: AsyncLease
        for found in reversed(self._leases):
            if found._key[1] is task and found._here():  # type: ignore[index]
                return found
        return None

    async def __aenter__(self) -> AsyncLease:
        return await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leases, task = self._leases, current_task()
        index = len(leases) - 1
        while index >= 0 and leases[index]._key[1] is not task:
            index -= 1
        if index < 0:
            return  # released by hand inside the block
        lease = leases[index]
        try:
            if not lease._depth:
                del leases[index]
            lease._let_go()
        except LeaseLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))  # what the block raised matters more
        except NotHeld:
            if not lease._of_parent():  # a forked child leaves the block; the lock is its parent's
                raise
        except BaseException:
            if not lease._depth:
                abandon(lease._grant)  # a signal handler has raised
            raise

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorator: each call of the coroutine function holds the lock."""
        functools: Any = fork.lazily("functools")

        @functools.wraps(function)  # type: ignore[untyped-decorator]
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        return locked
