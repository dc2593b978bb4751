"""filelock's names for tasks: `from lifehold.compat.filelock import AsyncFileLock`.

`loop`, `run_in_executor` and `executor` are taken as filelock takes them. The native lock needs no
thread pool: its wait ends by an event, and a task that is cancelled holds nothing afterwards.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import math
import sys
from concurrent import futures
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from ...core.acquire import TURN, waiting
from ...core.grant import Grant
from ...runtime import clock, fork
from ...runtime.eventloop import EVENT_LOOP, Signal, current_task, running_trio
from . import construction, pollers, waits
from .api import (
    AsyncAcquireReturnProxy,
    BaseFileLock,
    MechanismFileLock,
    from_the_start,
    leave_awaited,
)
from .construction import FileLockMeta, absolute, construct
from .errors import BODY, CANCELLED, RELEASE, AcquireErrors, Timeout, by_policy, grouped, raised
from .lease import SoftFileLease
from .native import UnixFileLock, WindowsFileLock
from .soft import SoftFileLock
from .strict import StrictSoftFileLock
from .system_calls import has_fcntl
from .waits import DEBUG, LOGGER

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    import os
    from collections.abc import Callable, Coroutine
    from types import TracebackType
    from typing import NoReturn, Self

    from .construction import CloseErrorPolicy, ContextErrorPolicy
    from .waits import AcquireRequest, LockHold

    _ExtraValue = Any
else:
    inspect = fork.later("inspect", globals())


_of_tasks: WeakKeyDictionary[object, dict[int, str]] = WeakKeyDictionary()


def held_by_task() -> dict[int, str]:
    """The paths that the running task holds: a wait for oneself never ends."""
    task = current_task()
    return {} if task is None else _of_tasks.setdefault(task, {})


def told(
    lock: object, text: str, cancelled: BaseException | None, failed: BaseException | None
) -> None:
    """Raise what a step has met, by the lock's policy."""
    if cancelled is not None and failed is not None:
        by_policy(lock, text, cancelled, failed)
    error = cancelled or failed
    if error is not None:
        raised(error)


async def awaiting(begun: Any) -> Any:
    """A step in an executor. Raises RuntimeError when that was closed before it began."""
    try:
        return await asyncio.wrap_future(begun)
    except asyncio.CancelledError:
        if not begun.cancelled():
            raise
        raise RuntimeError("the executor shut down before running a step of the lock") from None


async def caught(work: Any, answer: list[BaseException | None]) -> None:
    """`work`, with its exception as a value: a cancellation that it raises is not the caller's."""
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - raised again by who asked
        answer.append(error)
    else:
        answer.append(None)


_AT = TypeVar("_AT")
DEFAULTS = construction.DEFAULTS | {
    "thread_local": False,
    "loop": None,
    "run_in_executor": True,
    "executor": None,
}


class AsyncFileLockMeta(FileLockMeta):
    """The metaclass of all locks for tasks but reader/writer locks."""

    def __call__(
        cls: type[_AT],  # noqa: N805 - a metaclass's
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = -1,
        thread_local: bool = False,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        run_in_executor: bool = True,
        executor: futures.Executor | None = None,
        **kwargs: _ExtraValue,
    ) -> _AT:
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        if thread_local and run_in_executor:
            raise ValueError("run_in_executor is not supported when thread_local is True")
        made: _AT = construct(cls, lock_file, given, DEFAULTS, kwargs)
        return made


class BaseAsyncFileLock(BaseFileLock, metaclass=AsyncFileLockMeta):
    """The base of the locks for tasks. Also an async context manager."""

    _runtime = EVENT_LOOP
    _executor: Any
    _run_in_executor: bool

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = -1,
        thread_local: bool = False,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        run_in_executor: bool = True,
        executor: futures.Executor | None = None,
    ) -> None:
        super().__init__(
            lock_file,
            timeout,
            mode,
            thread_local,
            blocking=blocking,
            is_singleton=is_singleton,
            poll_interval=poll_interval,
            lifetime=lifetime,
            context_error_policy=context_error_policy,
            close_error_policy=close_error_policy,
            fallback_to_soft=fallback_to_soft,
            preserve_lock_file=preserve_lock_file,
            on_acquired=on_acquired,
        )
        self._gate = None  # tasks take turns (asyncio.py)
        self._loop, self._run_in_executor, self._executor = loop, run_in_executor, executor

    @property
    def run_in_executor(self) -> bool:
        """Whether what a subclass brings runs in the executor."""
        return self._run_in_executor

    @property
    def executor(self) -> futures.Executor | None:
        """The executor that was given; None for a helper thread."""
        return self._executor  # type: ignore[no-any-return]

    @executor.setter
    def executor(self, value: futures.Executor | None) -> None:
        self._executor = value

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that was given. The lock works with any that runs the caller."""
        return self._loop

    async def acquire(  # type: ignore[override]
        self,
        timeout: float | None = None,
        poll_interval: float | None = None,
        *,
        blocking: bool | None = None,
        cancel_check: Callable[[], bool] | None = None,
    ) -> AsyncAcquireReturnProxy:
        """Hold the lock, waiting up to `timeout` seconds; below zero without a limit.

        Held already by this object: counted up, whichever task asks. Cancelled: nothing is held.

        Raises Timeout, which names the holder; RuntimeError for a wait for oneself, or in a forked
        child; OSError.
        """
        want = waits.AcquireRequest(self._context, timeout, poll_interval, blocking, cancel_check)
        want.mine = held_by_task()
        self._refuse_child()
        await self._acquired(want)
        return AsyncAcquireReturnProxy(self)

    async def release(self, force: bool = False) -> None:  # type: ignore[override]
        """Give back one hold; at the last, or with `force`, the lock itself. Unheld: nothing."""
        await self._released(force)

    def __del__(self, *bound: Any) -> None:
        if not later(self):
            super().__del__(*bound)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await leave_awaited(self, exc_value)

    def __enter__(self) -> NoReturn:
        raise use_async_with(self)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise use_async_with(self)

    # --------------------------------------------------------------------------------------------
    # `BaseAsyncFileLock`: the locks of this face for tasks of asyncio, and of trio.
    #
    # Promise: a task that is cancelled while it acquires holds nothing afterwards, and a release
    # that was begun is done. Rule: ours needs no thread pool. One try is plain code, the wait
    # sleeps on an event of the loop, and only what may wait for a file server goes to a helper
    # thread. `executor` runs what subclasses bring, and `on_acquired`; where the caller has given
    # one, the first try and every release too.

    async def _acquired(self, want: waits.AcquireRequest) -> None:
        hold = self._context.hold
        turn = hold.turn = hold.turn or AsyncMutex()
        while True:
            if not await turn.take(want):
                raise Timeout(self.lock_file)
            try:
                if hold.counter and hold.fd is not None:
                    absolute(self._context.lock_file)
                    hold.counter += 1
                    return
                if not hold.counter and not self._first_line_said(want):
                    LOGGER.debug("Attempting to acquire lock %s on %s", id(self), self.lock_file)
                if await self._taken_first(hold, want):
                    return
            finally:
                turn.give()
            # Between two tries others may have their turn; what they get is then ours too.
            await EVENT_LOOP.sleep(waits.pause_or_refuse(self, want))
            self._still_there(want.path)

    @staticmethod
    def _first_line_said(want: waits.AcquireRequest) -> bool:
        said, want.said = want.said, True
        return said or not LOGGER.isEnabledFor(DEBUG)

    async def _taken_first(self, hold: LockHold, want: waits.AcquireRequest) -> bool:
        """Whether the lock is held now. False: try again after a pause."""
        try:
            hold.path = want.path
            await self._take_awaited(hold, want)
            hold.path = hold.path or absolute(self._context.lock_file)
            if hold.fd is None:
                waits.refuse_self(hold, hold.path, want)
                want.path, hold.path = hold.path, ""  # of this acquire, and of no other
                return False
            hold.counter = 1
            self._holds.add(hold)
            hold.mine = want.mine
            want.mine[id(hold)] = hold.path
            if LOGGER.isEnabledFor(DEBUG):
                LOGGER.debug("Lock %s acquired on %s", id(self), self.lock_file)
            if self._on_acquired is not None and hold.fd is not None:
                from_the_start(hold)
                await self._aside(self._on_acquired, hold.fd)
        except BaseException as error:
            await EVENT_LOOP.shield(self._undone(hold, error))
            raise
        return True

    async def _undone(self, hold: LockHold, error: BaseException) -> None:
        """Nothing is held after an exception; what goes wrong in that goes with it, by policy."""
        if hold.moving == "stuck":
            hold.moving, hold.counter = "", 1
            self._holds.add(hold)
            return
        if hold.fd is None:
            self._forget(hold)
            return
        try:
            await self._let_go_awaited(hold)
        except BaseException as failed:  # noqa: BLE001 - raised, with the other
            if not isinstance(error, Exception):
                by_policy(self, CANCELLED, error, failed)
            raised(grouped(BODY, error, failed))
        finally:
            kept: int | None = hold.fd
            if kept is None:
                self._forget(hold)
            else:
                hold.counter = 1  # the system did not let go of it

    async def _released(self, force: bool) -> None:
        hold = self._context.hold
        if self._generation != fork.here():
            return
        if hold.counter and hold.fd is not None and hold.moving != "release":
            turn = hold.turn = hold.turn or AsyncMutex()
            if turn.take_now():
                await self._given_back(hold, turn, force)
            else:  # whoever is cancelled while it waits for its turn has let go all the same
                ended = hold.ended
                await EVENT_LOOP.shield(self._given_back_later(hold, turn, force, ended))
        if force:
            for other in [each for each in self._holds if each.orphaned]:
                if not other.moving:  # else another task is at it
                    await self._ended(other)

    async def _given_back(self, hold: LockHold, turn: AsyncMutex, force: bool) -> None:
        try:
            if hold.counter > 1 and not force:
                hold.counter -= 1
            else:
                await self._ended(hold)
        finally:
            turn.give()

    async def _given_back_later(
        self, hold: LockHold, turn: AsyncMutex, force: bool, ended: int
    ) -> None:
        """The same after another task's step, unless that has ended the hold itself."""
        if await turn.take_while(lambda: hold.counter > 0 and hold.ended == ended):
            await self._given_back(hold, turn, force)

    async def _ended(self, hold: LockHold) -> None:
        debug = LOGGER.isEnabledFor(DEBUG)
        hold.moving = "release"
        try:
            if debug:
                LOGGER.debug("Attempting to release lock %s on %s", id(self), self.lock_file)
            try:
                await self._let_go_awaited(hold)
            finally:
                if hold.fd is None:
                    self._forget(hold)
            if debug:
                LOGGER.debug("Lock %s released on %s", id(self), self.lock_file)
        finally:
            hold.moving = ""

    async def _take_awaited(self, hold: LockHold, want: waits.AcquireRequest) -> None:
        if isinstance(self, MechanismFileLock) and not self._brings("_acquire"):
            if pollers.expected:
                await self._let_pollers_in(want)
            if self.lock_file in waiting and not want.polled:  # as AsyncLock: a turn for those
                await EVENT_LOOP.sleep(TURN)
            if self._in_executor:
                answer = await self._aside(self._attempt, hold)
            else:
                answer = await self._tried(hold)
            if type(answer) is not Grant and not want.polled:
                await self._contend(hold, want, answer)
        else:
            await self._tried_theirs(hold)

    async def _tried_theirs(self, hold: LockHold) -> None:
        """One `_acquire` of a subclass's. As `waits.tried`."""
        met = AcquireErrors()
        waits.begins(hold)
        try:
            met.cancelled, met.failed = await self._ended_step(self._acquire)
            await self._noted(hold, met)
        finally:
            waits.ended(hold)
        met.tell(self)

    async def _noted(self, hold: LockHold, met: AcquireErrors) -> None:
        if hold.fd is not None:
            try:
                self._register_context_descriptor()
            except BaseException as error:  # noqa: BLE001 - told below
                met.unnoted = error
        if met.errors and hold.fd is not None:
            fd = hold.fd
            cancelled, met.stuck = await self._ended_step(self._release)
            met.cancelled = met.cancelled or cancelled
            if met.stuck is None:
                waits.forget(fd)
            else:
                hold.moving, hold.path = "stuck", self.lock_file  # a release may end it later

    async def _let_go_awaited(self, hold: LockHold) -> None:
        if not isinstance(self, MechanismFileLock) or self._brings("_release"):
            fd = hold.fd
            cancelled, failed = await self._ended_step(self._release)
            if failed is None:
                waits.forget(fd)
            told(self, RELEASE, cancelled, failed)
        elif self._in_executor:
            await self._aside(self._let_go, hold, text=RELEASE)
        elif self._afar:
            await EVENT_LOOP.shield(
                EVENT_LOOP.in_thread(lambda: self._let_go(hold), lambda _: None)
            )
        else:
            self._let_go(hold)

    def _let_go(self, hold: LockHold) -> None:
        """Of a lock that is dropped where no loop runs: as much as can be done without."""
        if not inspect.iscoroutinefunction(self._release):
            super()._let_go(hold)
            return
        work, fd = cast("Coroutine[Any, Any, None]", self._release()), hold.fd
        try:
            work.send(None)
        except StopIteration:
            waits.forget(fd)
        finally:
            work.close()

    @property
    def _in_executor(self) -> bool:
        """Whether ours is done where the caller asks for: nowhere else by default."""
        return self._executor is not None and self._run_in_executor

    async def _aside(
        self, call: Callable[..., object], *arguments: object, text: str = CANCELLED
    ) -> object:
        """In the executor, or in a helper thread, or here when neither is wanted."""
        answer: list[object] = []
        told(self, text, *await self._ended_step(lambda: answer.append(call(*arguments))))
        return answer[0]

    async def _ended_step(
        self, call: Callable[[], object]
    ) -> tuple[BaseException | None, BaseException | None]:
        """Done, whatever is cancelled meanwhile: that, and the error of the step."""
        work: object = None
        ours = False  # a program's may be what waits for it, or for its loss
        try:
            if inspect.iscoroutinefunction(call):
                work = call()
            elif not self._run_in_executor:
                call()
            elif self._executor is None:
                work, ours = EVENT_LOOP.in_thread(call, lambda _: None), True
            else:
                work = awaiting(self._executor.submit(call))
        except BaseException as error:  # noqa: BLE001 - told by who asked
            return None, error
        if work is None:
            return None, None
        answer: list[BaseException | None] = []
        try:
            await EVENT_LOOP.shield(caught(work, answer), ours=ours)
        except BaseException as cancelled:  # noqa: BLE001 - told by who asked
            return cancelled, answer[0] if answer else None
        return None, answer[0]


def use_async_with(lock: object) -> Exception:
    return NotImplementedError(f"{type(lock).__name__} is for tasks: use `async with`, not `with`")


class AsyncUnixFileLock(UnixFileLock, BaseAsyncFileLock):
    """The native lock for tasks."""

    _runtime = BaseAsyncFileLock._runtime

    @classmethod
    def _soft(cls) -> object:
        return AsyncSoftFileLock


class AsyncSoftFileLock(SoftFileLock, BaseAsyncFileLock):
    """The soft lock for tasks."""

    _runtime = BaseAsyncFileLock._runtime


class AsyncSoftFileLease(SoftFileLease, BaseAsyncFileLock):
    """The soft lease for tasks."""

    _runtime = BaseAsyncFileLock._runtime


class AsyncStrictSoftFileLock(StrictSoftFileLock, BaseAsyncFileLock):
    """The strict soft lock for tasks."""

    _runtime = BaseAsyncFileLock._runtime


class AsyncWindowsFileLock(WindowsFileLock, BaseAsyncFileLock):
    """The native lock of Windows for tasks."""

    _runtime = BaseAsyncFileLock._runtime


AsyncFileLock = AsyncUnixFileLock
if TYPE_CHECKING:
    pass
elif sys.platform == "win32":
    AsyncFileLock = AsyncWindowsFileLock
elif not has_fcntl:
    AsyncFileLock = AsyncSoftFileLock

__all__ = [
    "AsyncAcquireReturnProxy",
    "AsyncFileLock",
    "AsyncSoftFileLease",
    "AsyncSoftFileLock",
    "AsyncStrictSoftFileLock",
    "AsyncUnixFileLock",
    "AsyncWindowsFileLock",
    "BaseAsyncFileLock",
]


def __dir__() -> list[str]:
    return sorted(__all__)


# ------------------------------------------------------------------------------------------------
# Who is in the middle of an acquire of one lock object: one task at a time, of whatever loop.
#
# Rule: a turn is given to nobody in particular. Who leaves rings all who wait, and the first to
# look takes it; so a waiter that is cancelled while it is rung takes nothing with it.


class AsyncMutex:
    """The turn at one lock object."""

    __slots__ = ("_mutex", "_taken", "_waiting")

    def __init__(self) -> None:
        self._mutex = _thread.allocate_lock()
        self._taken = False
        self._waiting: list[Any] = []

    def take_now(self, signal: object = None) -> bool:
        """Whether it is ours. Else `signal` is rung when there is something to look at."""
        with self._mutex:
            if self._taken:
                if signal is not None:
                    self._waiting.append(signal)
                return False
            self._taken = True
            return True

    async def take(self, want: AcquireRequest) -> bool:
        """Whether it is ours, within the patience of `want`."""
        if self.take_now():
            return True
        while want.blocking:
            signal = Signal()
            if self.take_now(signal):
                return True
            left = want.deadline - clock.now()
            if want.cancel is not None:
                if want.cancel():
                    return False
                left = min(left, max(want.pause, 0.001))
            if left <= 0:
                return False
            await self._rung(signal, left)
        return False

    async def take_while(self, wanted: Callable[[], bool]) -> bool:
        """Whether it is ours, as long as it is wanted: asked before and after each step."""
        while wanted():
            signal = Signal()
            if self.take_now(signal):
                if wanted():
                    return True
                self.give()
            else:
                await self._rung(signal, math.inf)
        return False

    async def _rung(self, signal: Signal, seconds: float) -> None:
        try:
            await signal.wait(seconds)
        finally:
            with self._mutex:
                if signal in self._waiting:
                    self._waiting.remove(signal)

    def give(self) -> None:
        """Let the next one look."""
        with self._mutex:
            self._taken = False
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.ring()


# ------------------------------------------------------------------------------------------------
# A lock for tasks that nobody refers to any more, while it is held.
#
# Promise: it is let go of. Rule: the collector runs in the middle of anything, so where a loop runs
# the release is a task of that; what such a task does not end, and where no loop runs, is ended at
# once. A singleton may have been handed out anew just now: it ends with its own descriptors.


_begun: set[object] = set()  # a loop keeps its tasks by weak references only


def later(lock: Any) -> bool:
    """Whether a loop sees to it."""
    loop = _loop(lock)
    if loop is None or lock._is_singleton or lock._generation != fork.here():
        return False
    if sys.is_finalizing() or not any(not hold.moving for hold in lock._holds):
        return False
    here, loop = loop
    for hold in list(lock._holds):
        if hold.mine is not None:  # whoever asks for the path now waits for the task
            hold.mine.pop(id(hold), None)
    work = _released(lock)
    try:
        pending = loop.create_task(work) if here else asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # closed just now
        work.close()
        return False
    _begun.add(pending)
    pending.add_done_callback(lambda done: _settled(lock, done))
    return True


async def _released(lock: Any) -> None:
    await lock._released(True)


def _loop(lock: Any) -> tuple[bool, Any] | None:
    """The running loop, or the one that the lock was given and another thread runs."""
    if getattr(lock, "_executor", lock) is lock or running_trio() is not None:
        return None
    try:
        return True, asyncio.get_running_loop()
    except RuntimeError:
        loop = lock._loop
        return (False, loop) if loop is not None and loop.is_running() else None


def _settled(lock: Any, done: Any) -> None:
    """Nobody awaits it: what it has left is ended here."""
    _begun.discard(done)
    with contextlib.suppress(asyncio.CancelledError, futures.CancelledError):
        if done.exception() is None:
            return
    for hold in list(lock._holds):
        with contextlib.suppress(Exception):
            lock._release_last(hold)
