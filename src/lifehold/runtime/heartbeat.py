"""One thread per process that does small things on time, whatever the program is doing (L9).

It keeps `max_hold` and the renewal of leases: neither a busy event loop nor a sleeping main thread
may delay them. It starts with the first appointment, ends a moment after the last one, and is
forgotten by a fork.

Rule: to make and to strike an appointment wakes nobody, unless it is the earliest. A lease that is
released long before its next renewal, again and again, costs two entries in a list.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from ..core.events import report
from . import clock, fork, native, own_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LINGER = 0.5  # seconds that the thread stays after the last appointment: often the next one comes
LONGEST = 60.0  # seconds of one sleep: it stands still while the machine is suspended, the clock no
SLACK = 64  # struck entries that the list may carry along


class _TimerQueue:
    """Appointments in order of time, and the thread that keeps them."""

    def __init__(self) -> None:
        self.generation = fork.generation
        self.mutex = native.RLock()  # reentrant: a signal handler may make an appointment too
        self.wakeup = native.allocate_lock()
        self.wakeup.acquire()
        self.entries: list[tuple[float, int]] = []  # those of struck appointments too
        self.calls: dict[int, Callable[[], None]] = {}  # those that stand
        self.running = False
        self.wakes_at = 0.0  # when the thread looks by itself again
        self.lingers = False
        self.count = 0

    def add(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        with self.mutex:
            if not self.running:  # first, so that a refusal leaves no appointment behind
                own_thread.start(self._keep)
                self.running, self.wakes_at, self.lingers = True, 0.0, False
            self.count += 1
            number = self.count
            self.calls[number] = call
            heappush(self.entries, (instant, number))
            if len(self.entries) > 2 * len(self.calls) + SLACK:
                self.entries = [entry for entry in self.entries if entry[1] in self.calls]
                heapify(self.entries)
            if instant < self.wakes_at:
                self._ring()
        return lambda: self._strike(number)

    def _strike(self, number: int) -> None:
        if self.generation != fork.here():
            return  # L9  it was our parent's, where a thread may have had the mutex
        with self.mutex:
            if self.calls.pop(number, None) and not self.calls and not self.lingers:
                self._ring()  # it may sleep for long, with nothing to wake for

    def _ring(self) -> None:
        try:
            self.wakeup.release()
        except RuntimeError:
            pass  # rung already

    def _keep(self) -> None:
        own_thread.hold_signals()
        while True:
            try:
                if not self._round():
                    return
            except BaseException as error:  # noqa: BLE001 - the others' appointments are kept
                report(error)

    def _round(self) -> bool:
        """One call, or one sleep. False: there is nothing to stay for."""
        with self.mutex:
            now = clock.now()
            due = self._due(now)
            if due is None:
                if not self.calls and self.lingers and now >= self.wakes_at:
                    self.running = False
                    return False
                pause = self._pause(now)
        if due is None:
            self.wakeup.acquire(timeout=pause)
        else:
            due()
        return True

    def _due(self, now: float) -> Callable[[], None] | None:
        """The first call whose time has come, taken out."""
        while self.entries and (self.entries[0][0] <= now or self.entries[0][1] not in self.calls):
            call = self.calls.pop(heappop(self.entries)[1], None)
            if call is not None:
                return call
        return None

    def _pause(self, now: float) -> float:
        """How long to sleep. Without appointments the thread lingers, and then nobody rings."""
        if self.calls:
            self.lingers = False
            self.wakes_at = min(self.entries[0][0], now + LONGEST)
        elif not self.lingers:
            self.lingers, self.wakes_at = True, now + LINGER
        return max(0.0, self.wakes_at - now)


_diary = _TimerQueue()


@fork.in_child
def _forget() -> None:
    """L9  A child has no heartbeat thread, and nothing that the parent's was to call."""
    global _diary
    # Whoever was interrupted by the signal that forked may come to it yet.
    if not _diary.mutex._is_owned():  # type: ignore[attr-defined]
        _diary.mutex._at_fork_reinit()  # type: ignore[attr-defined]
    _diary = _TimerQueue()


def at(instant: float, call: Callable[[], None]) -> Callable[[], None]:
    """`call()` once at that instant of `clock.now`, in the heartbeat thread; the answer ends it.

    `call` must be quick; what it raises is shown by `sys.unraisablehook`. Raises RuntimeError when
    there is no thread to be had.
    """
    fork.here()
    return _diary.add(instant, call)


def thread(call: Callable[[], object]) -> None:
    """`call()` in a thread of its own. Raises RuntimeError when there is none to be had."""
    own_thread.start(call)


def apart(call: Callable[[], object]) -> None:
    """`call()` in a thread of its own, here when there is none to be had: it may take its time."""

    def safely() -> None:
        try:
            call()
        except BaseException as error:
            if not isinstance(error, Exception) and not own_thread.is_here():
                raise
            report(error)  # nobody else would see it

    try:
        own_thread.start(safely)
    except RuntimeError:
        safely()
