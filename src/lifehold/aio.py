"""The async faces, for asyncio and trio: `AsyncLock`, its `AsyncLease`, and the other shapes.

The same mechanism and the same wait loop as the blocking face, awaited instead of finished. A
cancelled wait leaves nothing held: the helper thread inside flock(2) is interrupted before the
cancellation goes on.
"""

from __future__ import annotations

import sys

from .core import events
from .core.acquire import TURN, Ask, acquire, waiting
from .core.deadline import TRY, seconds
from .core.errors import SystemRefused, WouldBlock
from .core.grant import Bound, Grant, Held
from .core.ports import is_asking, is_mixing, is_remote
from .described import ASYNC, ASYNC_LEASE, OF_LEASE, OtherFace, strange
from .lease import (
    AsyncTried,
    BlockEntry,
    Holding,
    OfShape,
    Owning,
    aexit_method,
    begun,
    entering,
    exiting,
    of_shape,
    renamed,
    unwound,
)
from .lock import (
    LockFace,
    fill,
    out_of_reach,
    polled,
)
from .runtime import fork
from .runtime.eventloop import EVENT_LOOP, AsyncLostSignal, LossScope, current_task, to_await
from .runtime.held_here import this_thread
from .shapes import (
    ReadWriteFace,
    SemaphoreFace,
    SlotHolding,
    block_wait,
    cure_of,
    downgradable,
    interrupted,
    mechanism,
    mechanisms,
    moved,
    refuse_oneself,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import EllipsisType, TracebackType
    from typing import Any, Never, ParamSpec, TypeVar

    from . import decorated, words
    from . import per as args
    from .core.grant import Lost, Unknown
    from .core.ports import Downgradable
    from .per import AsyncPerArguments, AsyncReadWritePer

    P = ParamSpec("P")
    R = TypeVar("R")
    T = TypeVar("T")
else:
    decorated = fork.later("lifehold.decorated", globals())
    args = fork.later("lifehold.per", globals(), "args")
    words = fork.later("lifehold.words", globals())


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
        return await EVENT_LOOP.until(call, lost._waiting, lambda: lost.is_set() or lost._over)

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

    async def release(self, *more: Never, **unknown: Never) -> None:
        """Let the lock go.

        Raises NotHeld when that was done before or belongs to a parent process, LeaseLost
        when the lock was lost meanwhile.
        """
        if more or unknown:
            raise words.wrong("release()", more, unknown)
        if self._depth:
            self._depth -= 1
            return
        if self._kept is not None:
            self._kept.why_not()  # L5, L8  a deadline that passed unnoticed is told
        self._forget()
        try:
            if self._lock._far and not self._of_parent():
                await self._lock._runtime.shield(self._from_afar())
                return
            # plain code: no step waits, so no cancellation comes in between
            found = self._lock._mechanism.drop(self._grant)
        except BaseException as error:
            unwound(error)
            if isinstance(error, SystemRefused):
                self._refused(error)
            raise
        if found is not None or self._lost or self._kept or events.listeners:
            self._ended(found)

    async def _from_afar(self) -> None:
        """L5  To its end, with the telling: whoever is cancelled meanwhile comes back no more."""
        mechanism = self._lock._mechanism

        def drop() -> Lost | Unknown | None:
            found: Lost | Unknown | None = mechanism.drop(self._grant)
            return found

        try:
            if is_remote(mechanism):
                found = await mechanism.release(self._grant)
            else:
                found = await self._lock._runtime.in_thread(drop, lambda _: None)
        except SystemRefused as error:
            self._refused(error)
            raise
        self._ended(found)

    async def _leave(self, error: BaseException | None) -> None:
        """Release at the end of a block, which `error` has ended, or None."""
        try:
            await self.release()
        except BaseException as other:
            if not self._excused(other, error):
                raise

    if not TYPE_CHECKING:
        __enter__ = ASYNC_LEASE

    async def __aenter__(self) -> AsyncLease:
        self._check_entry()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._leave(error)


strange(AsyncLease, OF_LEASE)


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

    async def _acquire(
        self, wait: float | None | EllipsisType = ..., *more: object, **unknown: object
    ) -> AsyncLease:
        """The lease, once the lock is ours.

        `wait` in seconds: None until acquired, 0 for one try; left out: the lock's own.

        Raises Timeout or WouldBlock, which name the holder; SelfDeadlock when this task holds the
        lock itself and would wait for ever; SystemRefused, CorruptRecord, UnsafeGround.
        """
        if more or unknown:
            raise words.wrong("acquire()", more, unknown, words.OF_TASK, wait)
        task = current_task()
        block: Any = None
        asker = this_thread.key, task
        asked: object = wait
        if type(asked) is BlockEntry:
            wait, block = asked.wait, asked.block
            if block is None:
                block = this_thread.begun()
                if block is not None and block.task is not task:
                    block = None  # of another task, which has not entered its own yet
                if block is None or block.one is not self or block.lease is not None:
                    block = begun(self, block, asker)
        patience = self._wait if wait is ... else seconds("wait", wait)
        if self._reentrant and (mine := self._of_task(task)) is not None and mine._lasts():
            mine._depth += 1
            if block is not None:
                block.lease = mine
            return mine
        answer: Any = None
        waited = 0.0
        try:
            if self._name in waiting and patience != 0:
                await self._give_turn()
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

    if TYPE_CHECKING:

        async def acquire(self, wait: float | None | EllipsisType = ...) -> AsyncLease:
            """The lease, once the lock is ours."""
            ...

    else:
        acquire = renamed(_acquire, "acquire")

    @to_await
    async def try_acquire(self, *more: Never, **unknown: Never) -> AsyncLease | None:
        """The lease when the lock is free, None when it is held. As `Lock.try_acquire`."""
        if more or unknown:
            raise words.of_try("try_acquire", unknown, more)
        try:
            got: Any = await self.acquire(TRY)
        except WouldBlock:
            return None
        if not isinstance(got, Holding):  # a class of a user's
            got = self.lease
        self._give_away(got)
        return got  # type: ignore[no-any-return]

    def attempt(
        self, *more: Never, **unknown: Never
    ) -> AbstractAsyncContextManager[AsyncLease | None, None]:
        """`async with lock.attempt() as lease: if lease:` the lease, or None when it is held."""
        if more or unknown:
            raise words.of_try("attempt", unknown, more)
        return AsyncAttempt(self.acquire)

    if not TYPE_CHECKING:
        on_file = OtherFace(
            "on_file() is of Lock alone: await asyncio.to_thread(Lock.on_file(file).acquire)"
        )

    @classmethod
    def per(cls, template: str, *more: Any, **options: Any) -> AsyncPerArguments:
        """`@AsyncLock.per("user-{user_id}.lock")` on a coroutine function. As `Lock.per`."""
        return args.AsyncPerArguments(
            template,
            lambda name: cls(name, *more, **options),
            cls,
            keep=bool(options.get("reentrant")),
        )

    async def _give_turn(self) -> None:
        """Let the loop come to those who wait; in a store their line sees to that.

        A task that lets go and asks again without a pause would always come before them.
        """
        if not is_remote(self._mechanism):
            await self._runtime.sleep(TURN)

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
        ask, started = self._asked(answer, patience, None)
        found: Grant | Held | Unknown = answer
        if not self._far and is_mixing(self._mechanism):
            self._mechanism.refuse_mixed()
        if patience != 0:
            if patience is None and isinstance(answer, Held):
                self._refuse_self_deadlock(answer.key, this_thread.key, current_task())
            try:
                found = await acquire(self._mechanism, self._runtime, ask, answer)
            except (ImportError, SystemRefused) as error:
                if not out_of_reach(error):
                    raise
                found = await polled(self._mechanism, self._runtime, ask, answer)
        return self._outcome(found, ask, patience, started)

    def _task(self) -> object:
        return current_task()

    async def release(self, *more: Never, **unknown: Never) -> None:
        """Release the lease of this task, the last one that it took. Raises NotHeld for none.

        A lock that is passed on to another task is released there by its lease (L5, L9).
        """
        if more or unknown:
            raise words.wrong("release()", more, unknown)
        lease = self._of_task(current_task())
        if lease is None:
            raise words.not_mine(self, "task")
        await lease.release()

    @property
    def lease(self) -> AsyncLease | None:
        """The lease that this task holds, the last one that it took; None for none."""
        return self._of_task(current_task())

    def _of_task(self, task: object) -> AsyncLease | None:
        found: AsyncLease
        for found in (self._all() if self._tried else self._leases)[::-1]:
            if found._key[1] is task and found._here():  # type: ignore[index]
                return found
        return None

    if TYPE_CHECKING:
        __aenter__ = acquire
    else:
        __aenter__ = entering(acquire, "__aenter__")
    __aexit__ = exiting(AsyncBlock, aexit_method)

    def __call__(
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[object, None, R]]:
        """Decorator: each call of the coroutine function holds the lock. For others: `Lock`."""
        return decorated.awaiting(function, lambda _, __: self, "AsyncLock", "Lock")


# ------------------------------------------------------------------------------------------------
# `AsyncReadWriteLock`: the reader/writer lock for tasks of asyncio and trio.


class AsyncReadWriteLease(AsyncLease):
    """A reader's or a writer's lock in hand. `lease.exclusive` tells which."""

    __slots__ = ()

    async def downgrade(self) -> None:
        """Turn a writer into a reader, in one step: no other writer comes in between.

        As `ReadWriteLease.downgrade()`.
        """
        step = self._downgraded(downgradable(self))
        await (self._lock._runtime.shield(step) if self._lock._far else step)

    async def _downgraded(self, mechanism: Downgradable) -> None:
        """L5  One step, with the telling: whoever is cancelled meanwhile comes back no more."""
        lock, grant = self._lock, self._grant
        try:
            if lock._far:
                found = await lock._runtime.in_thread(
                    lambda: mechanism.downgrade(grant), lambda _: None
                )
            else:
                found = mechanism.downgrade(grant)
            moved(self, found)
        except BaseException as error:
            interrupted(self, error)
            raise


class AsyncLockSide(AsyncLock):
    """The readers, or the writers, of one `AsyncReadWriteLock`."""

    __slots__ = ("_other",)
    _hand = AsyncReadWriteLease
    _other: AsyncLockSide
    if not TYPE_CHECKING:
        _cure = property(cure_of)

    def __init__(self, *parts: Any) -> None:
        fill(self, *parts)
        if is_asking(self._mechanism):
            self._mechanism.asked_by(lambda: (this_thread.key, current_task()))

    async def _contend(self, answer: Held | Unknown, patience: float | None) -> tuple[Grant, float]:
        refuse_oneself(self, answer, patience, this_thread.key, current_task())
        return await super()._contend(answer, patience)

    def _of_asker(self, _thread: int, task: object) -> AsyncLease | None:
        return self._of_task(task)


class AsyncOfShape(OfShape):
    """The same for `async with`."""

    __slots__ = ()

    async def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """What stands for `__aexit__`."""
        try:
            lease = self.ended(None)
            if lease is not None:
                await lease._leave(error)
            self.lease = None
        except BaseException as other:
            self.undo(other)
            raise


class AsyncAttempt(AsyncTried):
    """What `attempt()` of an async lock answers: `async with` it."""

    __slots__ = ("_take",)
    _kind: type[OfShape] = AsyncOfShape

    def __init__(self, take: Callable[[Any], Awaitable[object]]) -> None:
        self._take = take  # acquires, told of a block
        self._blind: list[OfShape] = []

    if not TYPE_CHECKING:
        __enter__ = ASYNC

    async def __aenter__(self) -> Any:
        block = of_shape(self, self._kind)
        try:
            return await self._take(BlockEntry(TRY, block))
        except WouldBlock:
            return None
        except BaseException as error:
            block.undo(error)
            raise

    __aexit__ = exiting(AsyncOfShape, aexit_method)


class AsyncReadWriteBlock(Bound):
    """What `reading()` and `writing()` answer: `async with` it. Each block ends its own lease."""

    __slots__ = ("_blind", "_side", "_wait")
    _refusal = "a block cannot be copied or pickled: hand on the lock"

    def __init__(self, side: AsyncLockSide, wait: float | None | EllipsisType) -> None:
        self._side, self._wait = side, wait
        self._blind: list[AsyncOfShape] = []

    def __call__(
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[object, None, R]]:
        """Decorator: each call of the coroutine function is made in a block of its own."""
        side, wait = self._side, self._wait
        return decorated.awaiting(
            function,
            lambda _, __: AsyncReadWriteBlock(side, wait),
            "AsyncReadWriteLock",
            "ReadWriteLock",
        )

    if not TYPE_CHECKING:
        __enter__ = ASYNC

    async def __aenter__(self) -> AsyncReadWriteLease:
        block = of_shape(self, AsyncOfShape)
        entry: Any = BlockEntry(self._wait, block)
        try:
            lease: Any = await self._side.acquire(entry)
            return lease  # type: ignore[no-any-return]
        except BaseException as error:
            block.undo(error)
            raise

    __aexit__ = exiting(AsyncOfShape, aexit_method)


class AsyncReadWriteLock(ReadWriteFace):
    """Many readers or one writer, on a file, for tasks; excludes threads and processes as well.

    The arguments are those of `ReadWriteLock`, without `cancel`: cancel the task instead. A task
    that reads may read again.
    """

    __slots__ = ()
    _runtime = EVENT_LOOP
    _side = AsyncLockSide
    _reads: AsyncLockSide
    _writes: AsyncLockSide

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str = "auto",
        wait: float | None = None,
        label: str = "",
        reentrant: bool = False,
        max_hold: float | None = None,
        mode: int | None = None,
        shared: bool = False,
        ttl: float | None = None,
        heartbeat: float | None = None,
        margin: float | None = None,
        notify: float | None = None,
        singleton: bool = False,
    ) -> None:
        terms = ttl, heartbeat, margin
        name, reads, writes = mechanisms(path, EVENT_LOOP, kind, label, mode, shared, terms)
        self._stand_on(name, reads, writes, wait, None, max_hold, reentrant, notify)

    def reading(
        self, wait: float | None | EllipsisType = ..., *more: Never, **unknown: Never
    ) -> AsyncReadWriteBlock:
        """`async with lock.reading() as lease:` beside other readers, without a writer."""
        if more or unknown:
            raise words.wrong("reading()", more, unknown, words.OF_TASK, wait)
        if wait is not ...:
            wait = block_wait("reading", wait)
        return AsyncReadWriteBlock(self._reads, wait)

    def writing(
        self, wait: float | None | EllipsisType = ..., *more: Never, **unknown: Never
    ) -> AsyncReadWriteBlock:
        """`async with lock.writing() as lease:` alone."""
        if more or unknown:
            raise words.wrong("writing()", more, unknown, words.OF_TASK, wait)
        if wait is not ...:
            wait = block_wait("writing", wait)
        return AsyncReadWriteBlock(self._writes, wait)

    async def acquire_read(
        self, wait: float | None | EllipsisType = ..., *more: Never, **unknown: Never
    ) -> AsyncReadWriteLease:
        """A reader's lease, as of `ReadWriteLock.acquire_read`; the asker is the task."""
        if more or unknown:
            raise words.wrong("acquire_read()", more, unknown, words.OF_TASK, wait)
        return await self._reads.acquire(wait)  # type: ignore[return-value]

    async def acquire_write(
        self, wait: float | None | EllipsisType = ..., *more: Never, **unknown: Never
    ) -> AsyncReadWriteLease:
        """The writer's lease, as of `ReadWriteLock.acquire_write`; the asker is the task."""
        if more or unknown:
            raise words.wrong("acquire_write()", more, unknown, words.OF_TASK, wait)
        return await self._writes.acquire(wait)  # type: ignore[return-value]

    @classmethod
    def per(cls, template: str, **options: Any) -> AsyncReadWritePer:
        """`@AsyncReadWriteLock.per("config-{name}.lock").reading()`. As `ReadWriteLock.per`."""
        return args.AsyncReadWritePer(
            template,
            lambda name: cls(name, **options),
            cls,
            keep=bool(options.get("reentrant")),
        )

    @to_await
    async def try_acquire_read(self, *more: Never, **unknown: Never) -> AsyncReadWriteLease | None:
        """A reader's lease, or None while somebody writes. As `ReadWriteLock.try_acquire_read`."""
        if more or unknown:
            raise words.of_try("try_acquire_read", unknown, more)
        return await self._reads.try_acquire()  # type: ignore[return-value]

    @to_await
    async def try_acquire_write(self, *more: Never, **unknown: Never) -> AsyncReadWriteLease | None:
        """The writer's lease, or None while somebody reads or writes."""
        if more or unknown:
            raise words.of_try("try_acquire_write", unknown, more)
        return await self._writes.try_acquire()  # type: ignore[return-value]

    def attempt_read(
        self, *more: Never, **unknown: Never
    ) -> AbstractAsyncContextManager[AsyncReadWriteLease | None, None]:
        """`async with lock.attempt_read() as lease: if lease:` beside other readers."""
        if more or unknown:
            raise words.of_try("attempt_read", unknown, more)
        return AsyncAttempt(self._reads.acquire)

    def attempt_write(
        self, *more: Never, **unknown: Never
    ) -> AbstractAsyncContextManager[AsyncReadWriteLease | None, None]:
        """`async with lock.attempt_write() as lease: if lease:` alone."""
        if more or unknown:
            raise words.of_try("attempt_write", unknown, more)
        return AsyncAttempt(self._writes.acquire)

    @property
    def lease(self) -> AsyncReadWriteLease | None:
        """The lease that this task holds, to write or to read; None for none."""
        return self._writes.lease or self._reads.lease  # type: ignore[return-value]

    async def release(self, *more: Never, **unknown: Never) -> None:
        """Release the lease of this task. Raises NotHeld for none."""
        if more or unknown:
            raise words.wrong("release()", more, unknown)
        await (self._reads if self._writes.lease is None else self._writes).release()


# ------------------------------------------------------------------------------------------------
# `AsyncSemaphore`: the semaphore for tasks of asyncio and trio.


class AsyncSlotLease(SlotHolding, AsyncLease):
    """One of the N permits in hand."""

    __slots__ = ()


class AsyncSemaphore(SemaphoreFace, AsyncLock):
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
        notify: float | None = None,
        singleton: bool = False,
    ) -> None:
        made = mechanism(path, EVENT_LOOP, permits, label, mode, shared)
        fill(self, *made, wait, None, max_hold, False, notify)

    if TYPE_CHECKING:

        async def acquire(self, wait: float | None | EllipsisType = ...) -> AsyncSlotLease: ...

        async def try_acquire(self, *more: Never, **unknown: Never) -> AsyncSlotLease | None: ...

        def attempt(
            self, *more: Never, **unknown: Never
        ) -> AbstractAsyncContextManager[AsyncSlotLease | None, None]: ...

        @property
        def lease(self) -> AsyncSlotLease | None: ...

        __aenter__ = acquire


if TYPE_CHECKING:
    from .astores import aconnect as aconnect  # noqa: PLC0414
    from .data_file_async import alocked_file as locked_file  # noqa: F401
    from .recipes.once_async import aonce as aonce  # noqa: PLC0414
    from .several_async import lock_all as lock_all  # noqa: PLC0414
else:  # a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        """The rest of the async faces, under the names that they have in `lifehold`."""
        if name in ("aconnect", "aonce"):
            return getattr(sys.modules["lifehold"], name)
        if name in ("lock_all", "locked_file"):
            return getattr(sys.modules["lifehold"], f"a{name}")
        raise AttributeError(f"module 'lifehold.aio' has no attribute {name!r}")
