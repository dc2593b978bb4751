"""flock(2) in the caller's own thread: the short wait, without the cost of a second thread.

Promise: as that of a helper thread (runtime/block.py): the wait ends at its deadline, by Cancel, or
by an exception out of a signal handler, and then nothing is held. Rule that keeps it: a POSIX timer
aimed at this thread alone (SIGEV_THREAD_ID) interrupts flock(2) at the deadline, and again and
again until the wait is over: a shot that comes just before the system call is lost. The pauses are
an eighth of the wait: hundreds of threads that are shot each millisecond while they stand in line
for the interpreter would never come through. Cancel sets the same timer off. Each way out deletes
it.

At the first notice a helper thread takes over, and at once where this cannot be: a program with a
SIGURG handler of its own; a kernel that gives no timer (RLIMIT_SIGPENDING); a libc without timers,
as on macOS; a signal handler that has interrupted such a wait, since the timer of the outer one
would interrupt it as well; and after any other signal has interrupted it, since each of those costs
an unfair asker its place in the kernel's queue, and a helper thread blocks them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os
import sys
from struct import pack

from . import block, clock, fork, native
from .turnstile import FAIR, Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.acquire import Ask

CLOCK_BOOTTIME = 7  # the clock of `clock.now`
SIGEV_THREAD_ID = 4
SHORTEST, LONGEST_GAP = 0.001, 0.2  # seconds between two shots
CANCELLED = 0.02  # the same of who is cancelled: there may be hundreds at a time
LONGEST = 86400.0  # seconds until the first one
_standing: set[int] = set()  # the threads that wait so
fork.in_child(_standing.clear)  # no timer of the parent goes on in a child
possible = sys.platform == "linux"


class Here:
    """A place in the kernel's queue that the calling thread takes itself."""

    __slots__ = (
        "_generation", "_libc", "_mutex", "_timer", "_wound_by", "operation", "slot", "turn",
    )  # fmt: skip

    def __init__(self, slot: Any, operation: int) -> None:
        self.slot, self.operation = slot, operation
        self.turn = Turn(slot.fd, not slot.writable) if operation & FAIR else None
        self._generation: int = slot.generation
        self._mutex = native.allocate_lock()
        self._timer: Any = None
        self._wound_by = -1  # the generation whose timer it is
        self._libc: Any = None

    def wait(self, ask: Ask, until: float) -> bool | None:
        """True: the lock is there. False: the ask is over. None: a helper is to go on from here.

        That is also at `until` before the deadline: a notice may take its time, and only a helper
        keeps the place meanwhile. Raises OSError when flock(2) refuses.
        """
        me = native.get_ident()
        if me in _standing or not self._wind():
            return None
        mask: Any = ()
        try:
            _standing.add(me)
            mask = _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (block.INTERRUPT,))
            if self._wound_by == self._generation:  # L9  else a child, who does not stand here
                self._set(min(max(until - clock.now(), 1e-9), LONGEST))
            if ask.cancel is not None:
                ask.cancel.attach(self._shoot)
            return self._stand(ask)
        finally:
            if ask.cancel is not None:
                ask.cancel.detach(self._shoot)
            self._unwind()
            _standing.discard(me)
            if block.INTERRUPT in mask:
                _signal.pthread_sigmask(_signal.SIG_BLOCK, (block.INTERRUPT,))

    def _stand(self, ask: Ask) -> bool | None:
        if self._generation != fork.here():
            return False  # L9  before the call too: the number may be somebody else's in a child
        failed = block.stand(self._libc, self.slot.fd, self.operation, self.turn)
        if self.forked:  # whatever the answer was
            return False  # L9  a signal handler has forked: the descriptor is not the child's
        if not failed:
            return True
        if failed != errno.EINTR:
            raise OSError(failed, os.strerror(failed))
        return False if ask.cancelled or clock.now() >= ask.deadline else None

    @property
    def forked(self) -> bool:
        """Whether we are a child of the process that made it."""
        return self._generation != fork.here()

    # ---- the timer

    def _wind(self) -> bool:
        """Make the timer. Whether there is one."""
        libc = block._arm()
        if not libc.alone or not hasattr(libc, "timer_create"):
            return False
        self._libc = libc
        timer = libc.pointer()
        self._wound_by = fork.here()
        event = pack("@Piii", 0, block.INTERRUPT, SIGEV_THREAD_ID, native.get_native_id())
        if libc.timer_create(CLOCK_BOOTTIME, event.ljust(128, b"\0"), libc.byref(timer)):
            return False
        self._timer = timer
        return True

    def _set(self, seconds: float, at_least: float = SHORTEST) -> None:
        whole = int(seconds)
        nanoseconds = max(1, int((seconds - whole) * 1e9))
        again = int(max(at_least, min(seconds / 8, LONGEST_GAP)) * 1e9)
        times = pack("@llll", 0, again, whole, nanoseconds)
        self._libc.timer_settime(self._timer, 0, times, None)

    def _shoot(self) -> None:
        """Interrupt now, from any thread or signal handler. Never waits.

        Who has the mutex is shooting already, or is ending the wait.
        """
        if self._mutex.acquire(False):
            try:
                if self._timer is not None and self._wound_by == fork.generation:
                    self._set(1e-9, CANCELLED)
            finally:
                self._mutex.release()

    def _unwind(self) -> None:
        """Delete the timer. Safe to repeat."""
        if self._timer is not None:
            with self._mutex:
                timer, self._timer = self._timer, None
                if timer is not None and self._wound_by == fork.generation:
                    self._libc.timer_delete(timer)

    # ---- the place that `ask.place` keeps

    def leave(self) -> bool:
        """Hold nothing: whatever an exception has cut short is closed, which unlocks it."""
        self._unwind()
        _standing.discard(native.get_ident())
        self.slot.close()
        return False

    def undo(self) -> None:
        self.slot.close()

    def __del__(self) -> None:
        if getattr(self, "_timer", None) is not None:  # its making may have been interrupted
            self._unwind()  # it would interrupt this thread for ever
