"""The runtime of the async face: asyncio, or trio where trio runs the caller.

A wait on flock(2) stands in a helper thread (runtime/flock_wait.py) and the task sleeps on an
event; when the task is cancelled the thread is interrupted before the cancellation goes on, so
nothing is held afterwards. Trio is used directly: it is there when it runs us, and a user of anyio
on trio is a user of trio.
"""

from __future__ import annotations

import _thread
import asyncio
import errno
import sys
from typing import Any
from weakref import WeakKeyDictionary

from ..core.errors import SystemRefused
from . import clock, fork, heartbeat, native
from .flock_wait import Waiter, refused
from .greenlets import Errand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent import futures
    from typing import TypeVar

    from ..core.acquire import Ask

    T = TypeVar("T")


def running_trio() -> Any:
    """The trio module if a trio task calls us, else None."""
    trio: Any = sys.modules.get("trio")
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
    task: Any = _current_task()
    if task is None:
        return None
    key = _keys.get(task)
    if key is None:
        key = _keys[task] = TaskKey()
    return key


def _current_task() -> object:
    trio: Any = sys.modules.get("trio")
    if trio is not None:
        try:
            return trio.lowlevel.current_task()
        except RuntimeError:
            pass  # imported, but it is not what runs us
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs: a forked child leaves the block of its parent's task
        return None


class Signal:
    """An event of the caller's loop that any thread can set."""

    def __init__(self) -> None:
        self.trio = running_trio()
        self.set: Callable[[], object]
        if self.trio is None:
            self.loop = asyncio.get_running_loop()
            self.event: Any = asyncio.Event()
        else:
            self.token = self.trio.lowlevel.current_trio_token()
            self.event = self.trio.Event()

    def ring(self) -> None:
        try:
            if self.trio is None:
                self.loop.call_soon_threadsafe(self.event.set)
            else:
                self.token.run_sync_soon(self.event.set)
        except RuntimeError:
            pass  # the loop is closed: nobody listens (trio.RunFinishedError is one too)

    async def wait(self, seconds: float) -> None:
        """Until it rings, at most `seconds`."""
        if seconds == float("inf"):
            await self.event.wait()
        elif self.trio is not None:
            with self.trio.move_on_after(seconds):
                await self.event.wait()
        else:
            alarm = self.loop.call_later(min(seconds, 86400.0), self.event.set)
            try:
                await self.event.wait()
            finally:
                alarm.cancel()


def _begin(errand: Errand) -> None:
    try:
        native.start_new_thread(errand.run, ())
    except RuntimeError as error:
        raise SystemRefused(
            f"no thread to ask in beside the event loop ({error}): raise the limit of "
            "processes (ulimit -u)", errno=errno.EAGAIN, filename="",
        ) from error  # fmt: skip


class EventLoopRuntime:
    """Clock, sleep and waiting for tasks of asyncio or trio. One for all: it has no state."""

    __slots__ = ()

    now = staticmethod(clock.now)
    at = staticmethod(heartbeat.at)

    def __reduce__(self) -> str:
        return "EVENT_LOOP"  # of a copied lock too it is this one

    async def sleep(self, seconds: float) -> None:
        trio = running_trio()
        await (asyncio.sleep(seconds) if trio is None else trio.sleep(seconds))

    async def block(self, ask: Ask, slot: Any, operation: int, until: float) -> bool:
        waiter: Any = ask.place
        signal = Signal()
        if waiter is None:
            waiter = Waiter(slot, operation, signal.ring)
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
        lookouts: Any = fork.lazily("lifehold.runtime.change_wait")
        lookout: Any = lookouts.of(ask, path, blind, pid)
        if lookout is not None:  # else it was armed only now
            await self.rung(ask, lookout, lookout.limit(until))

    async def rung(self, ask: Ask, place: Any, until: float) -> None:
        signal = Signal()
        place.ring = signal.ring  # before the look at `rung`, so that none is missed
        left = until - clock.now()
        if not place.rung and left > 0:
            await signal.wait(left)  # a cancellation leaves from here, and `acquire` leaves
        place.rung = False  # before the caller looks: what comes from here on is told next time

    async def look(self, mechanism: Any) -> Any:
        looks: Any = fork.lazily("lifehold.runtime.looks")
        return await looks.shared(self, mechanism)

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        signal = Signal()
        errand = Errand(call, undo, signal.ring)
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
        self, call: Callable[[], T], bells: list[Callable[[], object]], over: Callable[[], bool]
    ) -> T | None:
        """`call()` in a helper thread, which leaves nothing behind; None once `over()`.

        That is asked at the beginning and when somebody rings one of `bells`.
        """
        signal = Signal()
        errand = Errand(call, lambda _: None, signal.ring)
        bells.append(signal.ring)
        try:
            if over():
                return None
            _begin(errand)
            await signal.wait(float("inf"))
        finally:
            bells.remove(signal.ring)
        if not errand.done:
            return None
        if errand.error is not None:
            raise errand.error
        return errand.result  # type: ignore[no-any-return]

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        trio = running_trio()
        if trio is not None:
            with trio.CancelScope(shield=True):
                return await work
        task = asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                if task.cancelled():
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return task.result()


EVENT_LOOP = EventLoopRuntime()


# ------------------------------------------------------------------------------------------------
# Executors, for faces whose callers hand one in or expect one of their own.
#
# Nothing of ours waits in one: a cancelled waiter's thread would take its lock and keep it. Who
# uses this sees to that: what is begun is awaited to its end, and undone.


def one_thread() -> futures.Executor:
    """An executor of one thread, which ends with it."""
    pools: Any = fork.lazily("concurrent.futures")
    return pools.ThreadPoolExecutor(max_workers=1)  # type: ignore[no-any-return]


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


def begin(loop: Any, executor: Any, call: Callable[[], Any]) -> asyncio.Future[Any]:
    """`call()` in an executor; None for that of the loop; loop None for the running one."""
    events: Any = fork.lazily("asyncio")
    running = loop or events.get_running_loop()
    return running.run_in_executor(executor, call)  # type: ignore[no-any-return]


async def ended(begun: asyncio.Future[Any]) -> BaseException | None:
    """Wait for it without touching it. The cancellation when the caller was cancelled meanwhile."""
    events: Any = fork.lazily("asyncio")
    if not begun.done():
        try:
            await events.wait((begun,))
        except events.CancelledError as error:
            return error  # type: ignore[no-any-return]
    return None
