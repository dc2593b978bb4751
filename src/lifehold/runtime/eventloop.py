"""The runtime of the async face: asyncio, or trio where trio runs the caller.

A wait on flock(2) stands in a helper thread (runtime/flock_wait.py) and the task sleeps on an
event; when the task is cancelled the thread is interrupted before the cancellation goes on, so
nothing is held afterwards. Trio is used directly: it is there when it runs us, and a user of anyio
on trio is a user of trio.

A loop of asyncio can be closed while tasks wait: they never run again, and a lock that came to one
of them would be held by nobody (L6). The loop keeps a timer of each wait; `close()` forgets its
timers, and a weak reference tells us. Then the waiting coroutine of ours is closed, and so leaves
as if it had been cancelled. Frames of the program around it are left to the garbage collector.
"""

from __future__ import annotations

import _thread
import asyncio
import errno
import inspect
import sys
from _contextvars import ContextVar, copy_context
from collections.abc import Coroutine
from functools import update_wrapper
from typing import Any
from weakref import WeakKeyDictionary, ref

from ..core.deadline import NEVER
from ..core.errors import InvalidArgument, SystemRefused
from ..core.events import report
from . import clock, fork, heartbeat, native
from .flock_wait import FlockThread, refused
from .greenlets import PoolCall
from .held_here import running_task
from .loss import LostSignal, check_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    import gc
    from collections.abc import Callable, Generator
    from concurrent import futures
    from types import TracebackType
    from typing import TypeVar

    from ..core.acquire import Ask
    from . import change_wait, holder_for_notices

    T = TypeVar("T")
    Call = TypeVar("Call", bound=Callable[..., Coroutine[object, object, object]])
else:
    change_wait = fork.later("lifehold.runtime.change_wait", globals())
    holder_for_notices = fork.later("lifehold.runtime.holder_for_notices", globals())
    gc = fork.later("gc", globals())
    futures = fork.later("concurrent.futures", globals())


def running_trio() -> Any:
    """The trio module if a trio task calls us, else None."""
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return trio


class TaskKey:
    """What stands for one task, as long as that lives or a lease of it is remembered."""

    __slots__ = ("__weakref__",)


_keys: WeakKeyDictionary[Any, TaskKey] = WeakKeyDictionary()


def current_task() -> TaskKey | None:
    """What tells two tasks of one thread apart; None outside of any task.

    Not the task itself: a lease may be its result, and whoever remembers whose lease that was would
    keep the task, and with it a lease that was dropped, for ever.
    """
    task = running_task()
    if task is None:
        return None
    key = _keys.get(task)
    if key is None:
        key = _keys[task] = TaskKey()
    return key


DAY = 86400.0  # seconds of the longest timer
_HERE = __file__.rpartition("runtime")[0]  # the folder of our own code
_closing: set[int] = set()  # threads that close the coroutines of a loop which is over


class Signal:
    """An event of the caller's loop that any thread can set."""

    def __init__(self) -> None:
        self.trio = running_trio()
        self.set: Callable[[], object]
        if self.trio is None:
            self.loop = asyncio.get_running_loop()
            self.event = asyncio.Event()
            self._tasks: list[object] = []  # whose wait it is: one at most
            self._timer: Any = None  # weak: its death tells of the end of the loop
            self._generation = fork.generation
        else:
            self.token = self.trio.lowlevel.current_trio_token()
            self.event = self.trio.Event()

    def ring(self) -> None:
        try:
            if self.trio is None:
                self.loop.call_soon_threadsafe(self.event.set)
            else:
                self.token.run_sync_soon(self.event.set)
        except RuntimeError:  # the loop is closed (trio.RunFinishedError is one too)
            if self.trio is None:
                self._end()  # L6  of a loop that has not told us by its timers

    async def wait(self, seconds: float) -> None:
        """Until it rings, at most `seconds`."""
        if self.trio is None:
            await self._wait(seconds)
        elif seconds == float("inf"):
            await self.event.wait()
        else:
            with self.trio.move_on_after(seconds):
                await self.event.wait()

    async def _wait(self, seconds: float) -> None:
        self.watch(seconds)
        try:
            await self.event.wait()
        finally:
            self.rest()

    # ---- the end of the loop

    def watch(self, seconds: float) -> None:
        """Set the event after `seconds`; until `rest`, close our coroutine when the loop closes."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.append(task)
        self._wind(seconds)

    def rest(self) -> None:
        """Watch no more."""
        self._tasks.clear()
        timer, self._timer = self._timer, None
        handle = timer and timer()
        if handle is not None:
            handle.cancel()

    def _wind(self, seconds: float) -> None:
        due = self._due if seconds < float("inf") else self._again
        handle = self.loop.call_later(min(seconds, DAY), due)
        try:
            self._timer = ref(handle, self._dropped)
        except TypeError:  # of a loop whose timers cannot be watched: the next ring tells
            self._timer = lambda: handle

    def _due(self) -> None:
        self.event.set()
        self._again()  # the task runs later, and the loop may be closed before

    def _again(self) -> None:
        if self._timer is not None:
            self._wind(float("inf"))

    def _dropped(self, timer: object) -> None:
        """The loop has let go of a timer."""
        if timer is self._timer and self.loop.is_closed():
            self._end()

    def _end(self) -> None:
        """L6  The task will never run again: what it waits for is given up, once."""
        if self._generation != fork.here():
            return  # L9  a child has closed the copy of its parent's loop
        try:
            task = self._tasks.pop()
        except IndexError:
            return  # the wait is over
        fork.collected(lambda: _close(task))


def _close(task: object) -> None:
    """Close our part of a coroutine that will never go on."""
    coroutine, me = _ours(task), native.get_ident()
    if coroutine is None:
        return
    nested = me in _closing
    _closing.add(me)
    try:
        coroutine.close()
    except Exception as error:  # noqa: BLE001 - nobody is there to be told; the others go on
        report(error)
    finally:
        if not nested:
            _closing.discard(me)


def _ours(task: Any) -> Any:
    """The coroutine of ours in which a task waits: the outermost one that only ours are below."""
    found: Any = None
    here = task.get_coro()
    while here is not None:
        code = getattr(here, "cr_code", None) or getattr(here, "gi_code", None)
        code = code or getattr(here, "ag_code", None)
        if code is not None and not code.co_filename.startswith(asyncio.__path__[0]):
            ours = code.co_filename.startswith(_HERE)
            found = (found or here) if ours else None
        here = _awaited(here)
    return found


def _awaited(waiter: object) -> object:
    """What a coroutine, a generator or the like waits for; None at the end."""
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        if hasattr(waiter, name):
            return getattr(waiter, name)
    if isinstance(waiter, asyncio.Future):
        return None
    steps = gc.get_referents(waiter)
    return next(
        (each for each in steps if hasattr(each, "ag_await") or hasattr(each, "cr_await")), None
    )


def nobody_runs() -> bool:
    """Whether the caller's coroutine is just being closed: it can wait for nothing any more."""
    if native.get_ident() in _closing:
        return True
    if running_trio() is not None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _begin(errand: PoolCall) -> None:
    try:
        native.start_new_thread(errand.run, ())
    except RuntimeError as error:
        raise SystemRefused(
            f"no thread to ask in beside the event loop ({error}): raise the limit of "
            "processes (ulimit -u)",
            errno=errno.EAGAIN,
            filename="",
        ) from error


class Step(asyncio.Task["T"]):
    """A step that nobody cancels from outside; what it begins itself may, as a timeout in it.

    At the end of `asyncio.run` every task of the loop is cancelled. This one would leave the lock
    in the middle of its step, and its helper thread would go on without (L1).
    """

    mark: object = ...

    def cancel(self, msg: object = None) -> bool:
        return _step.get(None) is self.mark and super().cancel(msg)


# Of whose step this context is. Not the step itself, which a context may outlive.
_step: ContextVar[object] = ContextVar("lifehold_step")


def _begun(work: Coroutine[object, None, T]) -> Step[T]:
    """`work` as a step. Not by the program's task factory, whose tasks can be cancelled."""
    context, mark = copy_context(), object()
    context.run(_step.set, mark)
    step = Step(work, loop=asyncio.get_running_loop(), context=context)
    step.mark = mark
    return step


class Rest:
    """Around the wait that goes on after a cancellation: anyio repeats its own at each turn."""

    def __init__(self, cancelled: object) -> None:
        scope: Any = getattr(sys.modules.get("anyio"), "CancelScope", None) if cancelled else None
        self._scope: Any = scope and scope(shield=True)

    def __enter__(self) -> None:
        if self._scope:
            self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._scope and kind is not GeneratorExit:  # of a closed loop anyio knows no task
            self._scope.__exit__(kind, error, trace)


async def _done_here(work: Coroutine[object, None, object]) -> None:
    """L6  The loop was closed before a step had begun, as it is done for who was cancelled."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - nobody is there to be told
        report(error)


class EventLoopRuntime:
    """Clock, sleep and waiting for tasks of asyncio or trio. One for all: it has no state."""

    __slots__ = ()

    now = staticmethod(clock.now)
    at = staticmethod(heartbeat.at)

    def __reduce__(self) -> str:
        return "EVENT_LOOP"  # of a copied lock too it is this one

    async def sleep(self, seconds: float) -> None:
        trio = running_trio()
        if trio is not None:
            await trio.sleep(seconds)
        elif seconds > 0:
            signal = Signal()
            signal.watch(NEVER)
            try:
                await asyncio.sleep(seconds)
            finally:
                signal.rest()
        else:
            await asyncio.sleep(seconds)

    async def block(self, ask: Ask, slot: object, operation: int, until: float) -> bool:
        waiter: Any = ask.place
        signal = Signal()
        if waiter is None:
            waiter = FlockThread(slot, operation, signal.ring)
            ask.place = waiter  # before it starts, so that an exception in between can end it
            waiter.start()
        else:
            waiter.ring = signal.ring  # before the look at `over`, so that none is missed
        if not waiter.over and (left := until - clock.now()) > 0:
            await signal.wait(
                left
            )  # a cancellation leaves from here, and `acquire` leaves the queue
        if not waiter.over:
            return False
        if waiter.error:
            raise refused(waiter)
        ask.place = None
        return True

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        if ask.pause:
            await self.sleep(max(0.0, min(ask.pause, until - clock.now())))
        watching = change_wait.of(ask, path, blind, pid)
        if watching is not None:  # else it was armed only now
            await self.rung(ask, watching, watching.limit(until))

    async def rung(self, ask: Ask, place: Any, until: float) -> None:
        signal = Signal()
        place.ring = signal.ring  # before the look at `rung`, so that none is missed
        left = until - clock.now()
        if not place.rung and left > 0:
            await signal.wait(left)  # a cancellation leaves from here, and `acquire` leaves
        place.rung = False  # before the caller looks: what comes from here on is told next time

    async def look(self, mechanism: Any) -> Any:
        return await holder_for_notices.shared(self, mechanism)

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        if nobody_runs():
            return call()
        signal = Signal()
        errand = PoolCall(call, undo, signal.ring)
        _begin(errand)
        try:
            await signal.wait(float("inf"))
        except BaseException:
            errand.abandon()
            raise
        if errand.error is not None:
            raise errand.error
        return errand.result  # type: ignore[no-any-return]

    async def until(
        self, call: Callable[[], T], waiting: list[Callable[[], object]], over: Callable[[], bool]
    ) -> T | None:
        """`call()` in a helper thread, which leaves nothing behind; None once `over()`.

        That is asked at the beginning and when somebody calls one of `waiting`.
        """
        signal = Signal()
        errand = PoolCall(call, lambda _: None, signal.ring)
        waiting.append(signal.ring)
        try:
            if over():
                return None
            _begin(errand)
            await signal.wait(float("inf"))
        finally:
            waiting.remove(signal.ring)
        if not errand.done:
            return None
        if errand.error is not None:
            raise errand.error
        return errand.result  # type: ignore[no-any-return]

    async def shield(self, work: Coroutine[object, None, T], *, ours: bool = True) -> T:
        """As of the port. `ours`: not what a program wrote, which others may have to cancel."""
        trio = running_trio()
        if trio is not None:
            with trio.CancelScope(shield=True):
                return await work
        if nobody_runs():
            return await work
        step: asyncio.Future[T] = _begun(work) if ours else asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        signal = Signal()
        signal.watch(float("inf"))
        try:
            while not step.done():
                try:
                    with Rest(cancelled):
                        await asyncio.wait((step,))
                except asyncio.CancelledError as error:
                    cancelled = cancelled or error
        except GeneratorExit:
            if nobody_runs() and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                await _done_here(work)
            raise
        finally:
            signal.rest()
        if cancelled is None:
            return step.result()
        if not step.cancelled() and (failed := step.exception()) is not None:
            raise cancelled from failed
        raise cancelled


EVENT_LOOP = EventLoopRuntime()


def one_thread() -> futures.Executor:
    """An executor of one thread, which ends with it."""
    return futures.ThreadPoolExecutor(max_workers=1)


def mutex() -> Any:
    """A lock between threads."""
    return _thread.allocate_lock()


def aside(call: Callable[[], object]) -> Callable[[float], bool]:
    """Run `call()` in a thread of its own, which no end of the program waits for.

    The answer waits for its end, so many seconds at most, and tells whether it came. `call` raises
    nothing.
    """
    runs = _thread.allocate_lock()
    runs.acquire()

    def run() -> None:
        try:
            call()
        finally:
            runs.release()

    def ended(seconds: float) -> bool:
        if not runs.acquire(timeout=max(0.0, seconds)):
            return False
        runs.release()
        return True

    _thread.start_new_thread(run, ())
    return ended


def begin(loop: Any, executor: Any, call: Callable[[], object]) -> asyncio.Future[object]:
    """`call()` in an executor; None for that of the loop; loop None for the running one."""
    running = loop or asyncio.get_running_loop()
    return running.run_in_executor(executor, call)


async def ended(begun: asyncio.Future[object]) -> BaseException | None:
    """Wait for it without touching it. The cancellation when the caller was cancelled meanwhile."""
    if not begun.done():
        try:
            await asyncio.wait((begun,))
        except asyncio.CancelledError as error:
            return error
    return None


# ------------------------------------------------------------------------------------------------
# The signal of a loss for tasks of asyncio and trio: `await lease.lost.wait()`.


class AsyncLostSignal(LostSignal):
    """Set once when a lease is lost. Await it, or be called back (in another thread)."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        """Wait until the lease is lost, at most `timeout` seconds; whether it is.

        False as soon as it has been released: nothing can be lost any more.
        """
        check_timeout(timeout)
        if timeout is not None and timeout <= 0:  # a look, and no watch for it
            if self._path is not None and self._far():
                await EVENT_LOOP.in_thread(self._check, lambda _: None)
            else:
                self._check()
            return self.is_set()
        until = NEVER if timeout is None else clock.now() + timeout
        while True:
            signal = Signal()
            self._waiting.append(signal.ring)
            try:
                pause = self._pause()  # armed before the look, so that nothing is slept through
                held = self._look()
                left = until - clock.now()
                if self.is_set() or self._over or not held or left <= 0:
                    return self.is_set()
                await signal.wait(min(pause, left))
            finally:
                self._waiting.remove(signal.ring)
                self._rest()


class LossScope:
    """`with` it in the task that is to be cancelled. `error()`: what the block raises then."""

    def __init__(self, lost: LostSignal, error: Callable[[], BaseException]) -> None:
        self._lost, self._error = lost, error
        self._over = self._hit = False

    def __enter__(self) -> LossScope:
        self._trio = running_trio()
        self._call: Callable[..., object]
        self._task: Any = None
        self._scope: Any = None
        if self._trio is None:
            self._task = running_task()
            if self._task is None:
                raise InvalidArgument(
                    "cancel_on_loss() outside of a task, where there is nothing to cancel: use it "
                    "in the task that is to be cancelled"
                )
            self._call = asyncio.get_running_loop().call_soon_threadsafe
            self._before = self._task.cancelling()
        else:
            self._call = self._trio.lowlevel.current_trio_token().run_sync_soon
            self._scope = self._trio.CancelScope()
            self._scope.__enter__()
        self._lost.add_callback(self._ring)  # called at once when it is lost already
        return self

    def _ring(self) -> None:
        """In whatever thread notices the loss."""
        try:
            self._call(self._cancel)
        except RuntimeError:
            pass  # the loop is closed, and the block with it

    def _cancel(self) -> None:
        if self._over:
            return
        self._hit = True
        if self._scope is not None:
            self._scope.cancel()
        else:
            self._task.cancel("the lease is lost")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._over = True
        self._lost.remove_callback(self._ring)
        if self._scope is not None:
            swallowed = bool(self._scope.__exit__(kind, error, trace))
            if self._scope.cancelled_caught:
                raise self._error() from error
            return swallowed
        if self._hit and self._task.uncancel() <= self._before:
            if kind is not None and issubclass(kind, asyncio.CancelledError):
                raise self._error() from error
        return False


# ------------------------------------------------------------------------------------------------
# A try that nobody awaits is no lease.


class AwaitedTry(Coroutine[object, object, object]):
    """The coroutine of a try. A condition would take it for a lease: it refuses to be one."""

    __slots__ = ("__weakref__", "_made")

    def __init__(self, made: Coroutine[object, object, object]) -> None:
        self._made = made

    def __bool__(self) -> bool:
        call = getattr(self._made, "__name__", "try_acquire")
        raise InvalidArgument(
            f"{call}() is not awaited, and holds nothing yet: await it: (await lock.{call}())"
        )

    def __await__(self) -> Generator[object, None, object]:
        return self._made.__await__()

    def send(self, value: object) -> object:
        return self._made.send(value)

    def throw(self, *what: Any) -> object:
        return self._made.throw(*what)

    def close(self) -> None:
        self._made.close()

    def __getattr__(self, name: str) -> object:
        """`cr_frame`, `__name__` and the like, of which loops and debuggers ask."""
        return getattr(self._made, name)

    def __repr__(self) -> str:
        return repr(self._made)


def to_await(function: Call) -> Call:
    """A coroutine function whose coroutine is refused as a condition."""

    def call(*given: object, **options: object) -> AwaitedTry:
        return AwaitedTry(function(*given, **options))

    update_wrapper(call, function)
    mark = getattr(inspect, "markcoroutinefunction", None)  # since 3.12
    if mark is not None:
        mark(call)
    else:
        call._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
