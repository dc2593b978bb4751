"""One thread per process that does small things on time, whatever the program is doing (L9).

It keeps `max_hold`, and later the renewal of leases: neither a busy event loop nor a sleeping main
thread may delay them. It starts with the first appointment, ends after the last one, and is
forgotten by a fork.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
from heapq import heappop, heappush

from ..core.events import report
from . import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class _Diary:
    """Appointments in order of time, and the thread that keeps them."""

    def __init__(self) -> None:
        self.mutex = _thread.RLock()  # reentrant: a signal handler may make an appointment too
        self.bell = _thread.allocate_lock()
        self.bell.acquire()
        self.entries: list[tuple[float, int, Callable[[], None]]] = []
        self.running = False
        self.count = 0
        self.struck: set[int] = set()

    def add(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        with self.mutex:
            if not self.running:  # first, so that a refusal leaves no appointment behind
                _thread.start_new_thread(self._keep, ())
                self.running = True
            self.count += 1
            number = self.count
            heappush(self.entries, (instant, number, call))
            self._ring()
        return lambda: self._strike(number)

    def _strike(self, number: int) -> None:
        with self.mutex:
            if any(entry[1] == number for entry in self.entries):
                self.entries = [entry for entry in self.entries if entry[1] != number]
                self.entries.sort()
                self._ring()

    def _ring(self) -> None:
        try:
            self.bell.release()
        except RuntimeError:
            pass  # rung already

    def _keep(self) -> None:
        if hasattr(_signal, "pthread_sigmask"):  # signals are for the thread that knows of them
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        while True:
            due = None
            with self.mutex:
                if not self.entries:
                    self.running = False
                    return
                left = self.entries[0][0] - clock.now()
                if left <= 0:
                    due = heappop(self.entries)[2]
            if due is not None:
                try:
                    due()
                except Exception as error:  # noqa: BLE001 - the others' appointments are kept
                    report(error)
            else:
                # At most a minute: the wait stands still while the machine is suspended, the clock
                # does not.
                self.bell.acquire(timeout=min(left, 60.0))


_diary = _Diary()


@fork.in_child
def _forget() -> None:
    global _diary
    _diary = _Diary()


def at(instant: float, call: Callable[[], None]) -> Callable[[], None]:
    """`call()` once at that instant of `clock.now`, in the heartbeat thread; the answer ends it.

    `call` must be quick; what it raises is shown by `sys.unraisablehook`. Raises RuntimeError when
    there is no thread to be had.
    """
    return _diary.add(instant, call)
