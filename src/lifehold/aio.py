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
from .core.errors import InvalidArgument, NotHeld, SystemRefused
from .core.grant import Grant, Held
from .core.ports import is_remote
from .face import (
    LockFace,
    began_at,
    is_coroutine_function,
    out_of_reach,
    polled,
    refuse_generators,
)
from .lease import Holding, unwound
from .runtime import fork
from .runtime.aloss import AsyncLostSignal, LossScope
from .runtime.eventloop import EVENT_LOOP, current_task
from .runtime.held_here import this_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import functools
    from collections.abc import Awaitable, Callable, Coroutine
    from types import EllipsisType, TracebackType
    from typing import Any, ParamSpec, TypeVar

    from .core.grant import Lost, Unknown

    P = ParamSpec("P")
    R = TypeVar("R")
    T = TypeVar("T")
else:
    functools = fork.later("functools", globals())


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

    def check(self) -> None:
        """Raises LeaseLost once we may no longer hold it, NotHeld when we let it go ourselves.

        It never waits: where the look may have to wait for a file server the clock is asked, and
        what was found by the look that was made last, in a thread apart. `checked()` looks now.
        Between this and your write anything may happen: only the token, checked at the data,
        protects that gap.
        """
        super().check()

    async def checked(self) -> None:
        """`check()` by a look that is made now, awaited: a file server may take its time.

        Raises as `check()`, and of a lease with a ttl at its deadline at the latest.
        """
        why = None
        if self._looks_afar() and self._here():
            why = await self._beside_the_loop(self._looked)
            why = why or self._why_over()  # L8  it may have been over before there was an answer
        if why is None and not (self._looks_afar() and self._here()):
            why = self._looked()  # no file is asked, or one on a disk of our own
        if why is not None:
            raise self._error(why)

    def _looked(self) -> str | None:
        return Holding._why_not(self)

    async def verify(self) -> None:
        """`checked()`, and where the lease is kept it is renewed first: one round trip of a store.

        Raises as `checked()`; StoreUnavailable when no answer came: the lease may hold still, until
        its deadline.
        """
        cause = None
        if self._kept is not None and self._here():
            cause = await self._beside_the_loop(self._kept.verify)
        await self.checked()
        if cause is not None:
            raise self._unanswered(cause) from cause

    async def _beside_the_loop(self, call: Callable[[], T]) -> T | None:
        """`call()` in a helper thread. L8  None when the lease is over before it answers."""
        lost = self.lost
        return await EVENT_LOOP.until(call, lost._bells, lambda: lost.is_set() or lost._over)

    def _looks_afar(self) -> bool:
        return self._lock._far and not is_remote(self._lock._mechanism)

    def _why_not(self) -> str | None:
        """L9  A look that may have to wait is made in a thread apart: the loop goes on."""
        if not self._looks_afar() or not self._here():
            return super()._why_not()
        why = self._why_over()
        if why is None:
            self.lost._look()
            why = self._why_over()
        return why

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
        if self._kept is not None:
            self._kept.why_not()  # L5, L8  a deadline that passed unnoticed is told
        self._forget()
        try:
            if self._lock._far and not self._of_parent():
                found = await self._lock._runtime.shield(self._from_afar())
            else:  # plain code: no step waits, so no cancellation comes in between
                found = self._lock._mechanism.drop(self._grant)
        except BaseException as error:
            unwound(error)
            if isinstance(error, SystemRefused):
                self._refused(error)
            raise
        if found is not None or self._lost or self._kept or events.listeners:
            self._ended(found)

    async def _from_afar(self) -> Lost | Unknown | None:
        mechanism = self._lock._mechanism
        if is_remote(mechanism):
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
        except BaseException as other:
            if not self._excused(other, error):
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
        try:
            lease = self.lease
            if lease is None or not (lease._depth or lease in lease._lock._leases):
                lease = self.ended((this_thread.key, current_task()))
            if lease is not None:
                await lease._leave(error)
            self.lease = None
        except BaseException as other:
            self.undo(other)  # L6  the body is over: nobody comes back to it
            raise


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
        answer: Any = None
        waited = 0.0
        try:
            answer = await self._attempt_afar() if self._far else self._mechanism.attempt()
            if type(answer) is not Grant:
                answer, waited = await self._contend(answer, patience)
            lease = self._hand(self, answer, asker, waited)
            if block is not None:
                lease._way, block.lease = block.way, lease
            self._leases.append(lease)
        except BaseException as error:
            self._undo(answer, error)
            raise
        return lease

    async def _attempt_afar(self) -> Grant | Held | Unknown:
        """One try in a helper thread, so that a slow file server does not stop the event loop.

        L6  When the task is cancelled meanwhile, a grant that comes late is undone there.
        """
        mechanism = self._mechanism
        if is_remote(mechanism):  # it can be awaited itself
            return await mechanism.try_acquire(Ask(self._name))

        def undo(answer: Grant | Held | Unknown) -> None:
            if isinstance(answer, Grant):
                mechanism.drop(answer)

        return await self._runtime.in_thread(mechanism.attempt, undo)

    async def _contend(self, answer: Held | Unknown, patience: float | None) -> tuple[Grant, float]:
        """The wait of a lock that is held."""
        started = began_at(answer) or self._runtime.now()
        ask = Ask(self._name, deadline_of(patience, started), None, self._tell_waiting)
        found: Grant | Held | Unknown = answer
        if not self._far:
            registry.refuse_mixed(self._mechanism)
        if patience != 0:
            if patience is None and isinstance(answer, Held):
                self._refuse_self_deadlock(answer.key, this_thread.key, current_task())
            try:
                found = await acquire(self._mechanism, self._runtime, ask, answer)
            except (ImportError, SystemRefused) as error:
                if not out_of_reach(error):
                    raise
                found = await polled(self._mechanism, self._runtime, ask, answer)
        try:
            waited = self._runtime.now() - started
            if isinstance(found, Grant):
                return found, waited
        except BaseException as error:
            self._undo(found, error)
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

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorator: each call of the coroutine function holds the lock. For others: `Lock`."""
        refuse_generators(function)
        if not is_coroutine_function(function):
            raise InvalidArgument(
                f"@AsyncLock on {getattr(function, '__name__', function)!r}, which is no coroutine "
                "function: use @Lock"
            )

        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        functools.update_wrapper(locked, function)
        return locked


if TYPE_CHECKING:
    from .recipes.once_async import aonce as aonce  # noqa: PLC0414
    from .shapes.areadwrite import AsyncReadWriteLock as AsyncReadWriteLock  # noqa: PLC0414
    from .shapes.asemaphore import AsyncSemaphore as AsyncSemaphore  # noqa: PLC0414
    from .shapes.aseveral import lock_all as lock_all  # noqa: PLC0414
    from .stores import aconnect as aconnect  # noqa: PLC0414
else:  # a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        """`lifehold.aio.lock_all`, and the rest under the names they have in `lifehold`."""
        rooms = {
            "lock_all": "shapes.aseveral",
            "AsyncReadWriteLock": "shapes.areadwrite",
            "AsyncSemaphore": "shapes.asemaphore",
            "aconnect": "stores",
            "aonce": "recipes.once_async",
        }
        if name not in rooms:
            raise AttributeError(f"module 'lifehold.aio' has no attribute {name!r}")
        return getattr(fork.lazily(f"lifehold.{rooms[name]}"), name)
