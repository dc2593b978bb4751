"""The runtime of the blocking face: its ports block the calling thread instead of suspending.

`finish` runs a coroutine of the core to its end in one step. That is the whole trick by which one
source serves threads and event loops (ADR 0001): 0.3-0.5 us, no generated code, no thread pool, no
portal.
"""

from __future__ import annotations

import _thread

from . import clock, fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    from ..core.acquire import Ask
    from . import change_wait, flock_wait, greenlets, heartbeat, holder_for_notices

    T = TypeVar("T")
else:
    change_wait = fork.later("lifehold.runtime.change_wait", globals())
    flock_wait = fork.later("lifehold.runtime.flock_wait", globals())
    greenlets = fork.later("lifehold.runtime.greenlets", globals())
    heartbeat = fork.later("lifehold.runtime.heartbeat", globals())
    holder_for_notices = fork.later("lifehold.runtime.holder_for_notices", globals())

LONGEST = 3600.0  # seconds of one sleep: lock.acquire(timeout=...) overflows at 292 years


def finish(work: Coroutine[object, None, T]) -> T:
    """The result of a coroutine whose ports never suspend."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError(
        "a blocking port suspended: a mechanism awaited something that is not a port"
    )


class ThreadWakeup:
    """Wakes one sleeping thread. Ringing twice is ringing once."""

    __slots__ = ("_generation", "_lock")

    def __init__(self) -> None:
        self._generation = fork.here()
        self._lock = native.allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # rung already

    def wait(self, seconds: float) -> None:
        """Sleep until it rings, at most `seconds`. Signal handlers run meanwhile.

        L9  A child that one of them forks is rung: what its parent waits for never rings here. So
        is one that was forked since this was made, before anybody could see it asleep.
        """
        if seconds > 0:
            _asleep.add(self)
            try:
                if self._generation == fork.here():
                    self._lock.acquire(timeout=min(seconds, LONGEST))
                self._generation = fork.generation
            finally:
                _asleep.discard(self)


def wakeup_here() -> Any:
    """What the caller sleeps on: of a greenlet, one that lets the others run."""
    if native.is_replaced():
        if (way := greenlets.way()) is not None:
            return greenlets.GreenletWakeup(way)
    return ThreadWakeup()


_asleep: set[ThreadWakeup] = set()


@fork.in_child
def _awake() -> None:
    """L9  What the copies of the parent's waits sleep on is rung once: nobody else would."""
    for wakeup in list(_asleep):
        wakeup.ring()
    _asleep.clear()


class BlockingRuntime:
    """Clock, sleep and waiting for a program of threads. One for all: it has no state."""

    __slots__ = ()

    now = staticmethod(clock.now)

    def at(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        return heartbeat.at(instant, call)

    def __reduce__(self) -> str:
        return "BLOCKING"  # of a copied lock too it is this one

    async def sleep(self, seconds: float) -> None:
        clock.pause(seconds)

    async def block(self, ask: Ask, slot: Any, operation: int, until: float) -> bool:
        here: Any = ask.place
        # No greenlet beside us.
        lonely = not native.is_replaced() or type(wakeup_here()) is ThreadWakeup
        if here is None and flock_wait.has_timers and lonely:
            # A short wait, the beginning of a long one.
            here = ask.place = flock_wait.FlockInPlace(slot, operation)
            came = here.wait(ask, until)
            if came:
                ask.place = None
                return True
            over = ask.cancelled or clock.now() >= ask.deadline or here.forked
            if came is not None and over:
                return False
            # Else a notice is due: a helper thread stands in the queue while it is given (L10).
        wakeup = wakeup_here()
        waiter = here
        if waiter is None or type(waiter) is flock_wait.FlockInPlace:
            waiter = flock_wait.FlockThread(slot, operation, wakeup.ring, here and here.turn)
            ask.place = waiter  # before it starts, so that an exception in between can end it
            waiter.start()
        else:
            waiter.ring = wakeup.ring  # before the look at `over`, so that none is missed
        if ask.cancel is not None:
            ask.cancel.attach(wakeup.ring)
        try:
            while not waiter.over and not ask.cancelled and (left := until - clock.now()) > 0:
                if not waiter.ours:
                    break
                wakeup.wait(left)
        finally:
            if ask.cancel is not None:
                ask.cancel.detach(wakeup.ring)
        if not waiter.over or not waiter.ours:
            return False  # L9  a child: the thread that stands there is not here, nor what it got
        if waiter.error:
            raise flock_wait.refused(waiter)
        ask.place = None
        return True

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        if ask.pause:
            clock.pause(max(0.0, min(ask.pause, until - clock.now())))
        watching = change_wait.of(ask, path, blind, pid)
        if watching is not None:  # else it was armed only now
            until = watching.limit(until)
            replaced = _thread.get_ident is not native.get_ident  # threads are greenlets
            if replaced or not change_wait.slept(ask, watching, until):
                await self.rung(ask, watching, until)

    async def rung(self, ask: Ask, place: Any, until: float) -> None:
        wakeup = wakeup_here()
        place.ring = wakeup.ring  # before the look at `rung`, so that none is missed
        if ask.cancel is not None:
            ask.cancel.attach(wakeup.ring)
        try:
            while not place.rung and not ask.cancelled and (left := until - clock.now()) > 0:
                if not getattr(place, "ours", True):
                    break  # L9  forked meanwhile: it never rings here
                wakeup.wait(left)
        finally:
            if ask.cancel is not None:
                ask.cancel.detach(wakeup.ring)
        place.rung = False  # before the caller looks: what comes from here on is told next time

    async def look(self, mechanism: Any) -> Any:
        return await holder_for_notices.shared(self, mechanism)

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        if not native.is_replaced() or type(wakeup := wakeup_here()) is ThreadWakeup:
            return call()  # the caller's own thread may block
        return greenlets.in_thread(call, undo, wakeup)

    async def shield(self, work: Coroutine[object, None, T]) -> T:
        return await work


BLOCKING = BlockingRuntime()
