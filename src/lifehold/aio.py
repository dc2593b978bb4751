"""The async face: `AsyncLock` and its `AsyncLease`, for asyncio and trio.

The same mechanism and the same wait loop as the blocking face, awaited instead of finished. A
cancelled wait leaves nothing held: the helper thread inside flock(2) is interrupted before the
cancellation goes on.
"""

from __future__ import annotations

from . import registry
from .blocks import Entry, Exit, Owning, begun, entering
from .core import events
from .core.acquire import Ask, acquire
from .core.deadline import deadline_of, seconds
from .core.errors import InvalidArgument, LeaseLost, NotHeld
from .core.grant import Grant, Held
from .face import LockFace, is_coroutine_function, refuse_generators
from .lease import Holding
from .runtime import fork
from .runtime.aloss import AsyncLostSignal
from .runtime.eventloop import EVENT_LOOP, current_task
from .runtime.links import this_thread
from .runtime.scope import LossScope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import EllipsisType, TracebackType
    from typing import Any, ParamSpec, TypeVar

    from .core.grant import Lost, Unknown

    P = ParamSpec("P")
    R = TypeVar("R")


class AsyncLease(Holding):
    """A lock in hand: its token, `check()`, `lost`, `await release()`.

    Also an async context manager.
    """

    __slots__ = ()
    _signals = AsyncLostSignal

    @property
    def lost(self) -> AsyncLostSignal:
        """Set when we may hold the lock no more. To be awaited: `await lease.lost.wait()`."""
        found: Any = self._lost or self._made_lost()
        return found  # type: ignore[no-any-return]

    async def verify(self) -> None:
        """`check()`, and where the lease is kept it is renewed first: one round trip of a store.

        Raises as `check()`; StoreUnavailable when no answer came: the lease may hold still, until
        its deadline.
        """
        cause = None
        if self._kept is not None and self._here():
            cause = await self._lock._runtime.in_thread(self._kept.verify, lambda _: None)
        self.check()
        if cause is not None:
            raise self._unanswered(cause) from cause

    def cancel_on_loss(self) -> LossScope:
        """`with lease.cancel_on_loss():` a block that is cancelled when the lease is lost.

        The block then raises LeaseLost. It is cancelled at its next await, no earlier.
        """
        return LossScope(self.lost, lambda: self._error(self.lost.reason or "it was lost"))

    async def release(self) -> None:
        """Let the lock go.

        Raises NotHeld when that was done before or belongs to a parent process, LeaseLost
        when the lock was lost meanwhile.
        """
        if self._depth:
            self._depth -= 1
            return
        self._forget()
        if self._lock._far and not self._of_parent():
            found = await self._lock._runtime.shield(self._from_afar())
        else:  # plain code: no step waits, so no cancellation comes in between
            found = self._lock._mechanism.drop(self._grant)
        if found is not None or self._lost or self._kept or events.listeners:
            self._ended(found)

    async def _from_afar(self) -> Lost | Unknown | None:
        mechanism = self._lock._mechanism
        if getattr(mechanism, "remote", False):
            gone: Lost | Unknown | None = await mechanism.release(self._grant)
            return gone

        def drop() -> Lost | Unknown | None:
            found: Lost | Unknown | None = mechanism.drop(self._grant)
            return found

        return await self._lock._runtime.in_thread(drop, lambda _: None)

    async def _leave(self, error: BaseException | None) -> None:
        """Release at the end of a block, which `error` has ended, or None."""
        try:
            await self.release()
        except LeaseLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))  # what the block raised matters more
        except NotHeld:
            if not self._of_parent():  # a forked child leaves the block; the lock is its parent's
                raise
        except BaseException:
            if not self._depth:
                self._lock._undo(self._grant)
            raise

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class AsyncBlock(Owning):
    """One `async with` block under way, of this task."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task = current_task()

    async def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """What stands for `__aexit__`."""
        lease = self.ended((this_thread.key, current_task()))
        if lease is not None:
            await lease._leave(error)
        self.lease = None


class AsyncLock(LockFace):
    """A lock on a file for tasks of asyncio or trio, excluding threads and processes as well.

    The arguments are those of `Lock`, without `cancel`: cancel the task instead. `reentrant` is per
    task.
    """

    __slots__ = ()
    _runtime = EVENT_LOOP
    _in_loop = True
    _hand = AsyncLease  # what an acquire puts into the caller's hand

    async def acquire(self, wait: float | None | EllipsisType = ...) -> AsyncLease:
        """The lease, once the lock is ours.

        `wait` in seconds: None until acquired, 0 for one try; left out: the lock's own.

        Raises Timeout or WouldBlock, which name the holder; SelfDeadlock when this task holds the
        lock itself and would wait for ever; SystemRefused, CorruptRecord, UnsafeGround.
        """
        task = current_task()
        block: Any = None
        asker = this_thread.key, task
        asked: Any = wait
        if type(asked) is Entry:
            wait, block = asked.wait, asked.block
            if block is None:
                block = this_thread.begun()
                if block is not None and block.task is not task:
                    block = None  # of another task, which has not entered its own yet
                if block is None or block.one is not self or block.lease is not None:
                    block = begun(self, block, asker)
        patience = self._wait if wait is ... else seconds("wait", wait)
        if self._reentrant and (mine := self._of_task(task)) is not None:
            mine._depth += 1
            if block is not None:
                block.lease = mine
            return mine
        answer: Any = await self._attempt_afar() if self._far else self._mechanism.attempt()
        waited = 0.0
        try:
            if type(answer) is not Grant:
                answer, waited = await self._contend(answer, patience)
            lease = self._hand(self, answer, asker, waited)
            if block is not None:
                lease._way, block.lease = block.way, lease
            self._leases.append(lease)
        except BaseException:
            self._undo(answer)
            raise
        return lease

    async def _attempt_afar(self) -> Grant | Held | Unknown:
        """One try in a helper thread, so that a slow file server does not stop the event loop.

        L6  When the task is cancelled meanwhile, a grant that comes late is undone there.
        """
        mechanism = self._mechanism
        if getattr(mechanism, "remote", False):  # it can be awaited itself
            found: Grant | Held | Unknown = await mechanism.try_acquire(Ask(self._name))
            return found

        def undo(answer: Grant | Held | Unknown) -> None:
            if isinstance(answer, Grant):
                mechanism.drop(answer)

        return await self._runtime.in_thread(mechanism.attempt, undo)

    async def _contend(self, answer: Held | Unknown, patience: float | None) -> tuple[Grant, float]:
        """The wait of a lock that is held."""
        started = self._runtime.now()
        ask = Ask(self._name, deadline_of(patience, started), None, self._tell_waiting)
        found: Grant | Held | Unknown = answer
        if not self._far:
            registry.refuse_mixed(self._mechanism)
        if patience != 0:
            if patience is None and isinstance(answer, Held):
                self._refuse_self_deadlock(answer.key, this_thread.key, current_task())
            found = await acquire(self._mechanism, self._runtime, ask, answer)
        try:
            waited = self._runtime.now() - started
            if isinstance(found, Grant):
                return found, waited
        except BaseException:
            self._undo(found)
            raise
        raise self._refusal(found, ask, patience, waited)

    def _task(self) -> object:
        return current_task()

    async def release(self) -> None:
        """Release the lease of this task, the last one that it took. Raises NotHeld for none.

        A lock that is passed on to another task is released there by its lease (L5, L9).
        """
        lease = self._of_task(current_task())
        if lease is None:
            raise NotHeld(f"{self._name!r} is not held by this task", name=self._name)
        await lease.release()

    @property
    def lease(self) -> AsyncLease | None:
        """The lease that this task holds, the last one that it took; None for none."""
        return self._of_task(current_task())

    def _many(self) -> bool:
        """Whether one task may hold it twice, by two leases."""
        return not self._mechanism.exclusive

    def _of_task(self, task: object) -> AsyncLease | None:
        found: AsyncLease
        for found in self._leases[::-1]:
            if found._key[1] is task and found._here():  # type: ignore[index]
                return found
        return None

    if TYPE_CHECKING:
        __aenter__ = acquire

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __aenter__ = entering(acquire, "__aenter__")
        __aexit__ = Exit(AsyncBlock)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorator: each call of the coroutine function holds the lock. For others: `Lock`."""
        refuse_generators(function)
        if not is_coroutine_function(function):
            raise InvalidArgument(
                f"@AsyncLock on {getattr(function, '__name__', function)!r}, which is no coroutine "
                "function: use @Lock"
            )
        functools: Any = fork.lazily("functools")

        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        functools.update_wrapper(locked, function)
        return locked


def __getattr__(name: str) -> object:
    """`lifehold.aio.lock_all`, and the rest under the names they have in `lifehold`."""
    rooms = {"lock_all": "shapes.aseveral", "AsyncReadWriteLock": "shapes.areadwrite",
             "AsyncSemaphore": "shapes.asemaphore", "aconnect": "stores",
             "aonce": "recipes.once_async"}  # fmt: skip
    if name not in rooms:
        raise AttributeError(f"module 'lifehold.aio' has no attribute {name!r}")
    return getattr(fork.lazily(f"lifehold.{rooms[name]}"), name)
