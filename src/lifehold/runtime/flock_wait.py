"""flock(2) that can be interrupted.

A thread that stands in the kernel's queue for one caller (ADR 0008). A blocking caller stands
there itself at first (runtime/flock_wait.py).

Promise: the kernel queues, wakes and forgets the waiter, whoever releases and however; the caller
can give up at any time, and then exactly one side owns the outcome: a lock that came first is the
caller's, else nothing is held. Rule that keeps it: flock(2) is called through ctypes, since
`fcntl.flock` starts again after EINTR (PEP 475). Giving up sends SIGURG to the thread until it says
"over"; its handler does nothing, but without SA_RESTART it ends the system call. SIGURG is ignored
by default, so a stray one cannot hurt. Kill and "over" are under one mutex: a thread that has ended
is never signalled.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` costs an import of enum
import errno
import os
import sys
import time
from struct import pack

from ..core.errors import SystemRefused
from . import clock, fork, native
from .clock import pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.acquire import Ask

PATIENCE = 0.1  # seconds of the last pause before a helper that does not answer is left alone
INTERRUPT = getattr(_signal, "SIGURG", None)
STEP = 0.004  # of such a pause: shorter ones are not worth the switch to another greenlet
EVERY_SIGNAL = frozenset(_signal.valid_signals())
_libc: Any = None


def _arm() -> Any:
    """libc, with a handler for INTERRUPT that ends a blocked flock(2). Seen to before each wait.

    `libc.alone`: whether that handler is ours. A program's own stays, and is heard more often.
    """
    global _libc
    assert INTERRUPT is not None
    if _libc is None:
        try:
            ctypes = fork.lazily("ctypes")
        except (ImportError, SystemRefused):
            return FlockPolling()
        lib = ctypes.CDLL(None, use_errno=True)
        lib.signal.restype, lib.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        lib.nothing = ctypes.cast(lib.abs, ctypes.c_void_p)  # int abs(int): harmless as a handler
        lib.get_errno, lib.pointer, lib.byref = ctypes.get_errno, ctypes.c_void_p, ctypes.byref
        lib.sigaction_words = ctypes.c_void_p * 64
        lib.whole = False  # whether the handler, if it is ours, ends a call
        _libc = lib
    words, nothing = _libc.sigaction_words(), _libc.nothing.value
    _libc.sigaction(INTERRUPT, None, words)
    handler = words[0] or 0
    # SIG_DFL, SIG_IGN: any code may have set that since the last wait. Ours and not whole: a signal
    # handler raised between the two steps, and flock(2) would begin again for ever.
    if handler in (0, 1) or (handler == nothing and not _libc.whole):
        with fork.gate:  # forked in between, a child had a handler that begins flock(2) again
            _libc.whole = False
            _libc.signal(INTERRUPT, _libc.nothing)
            _signal.siginterrupt(INTERRUPT, True)
            _libc.whole = True
        handler = nothing
    _libc.alone = handler == nothing
    return _libc


def stand(libc: Any, fd: int, operation: int, turn: FairTicket | None) -> int:
    """flock(2), for a fair asker behind those who came before: 0, or the errno that ended it.

    An operation with `words` is a lock of fcntl(2) on a range, owned by the open file: `call`.
    """
    words = getattr(operation, "words", None)
    if words is not None:
        refused = libc.fcntl(fd, getattr(operation, "call"), words)  # noqa: B009
        return libc.get_errno() if refused else 0
    if turn is not None and (failed := turn.come(libc)):
        return failed
    failed = libc.get_errno() if libc.flock(fd, operation & ~FAIR) else 0
    if turn is not None and not failed:
        turn.go(libc)
    return failed


class FlockThread:
    """One helper thread, standing in the queue for one slot. It ends with the wait."""

    __slots__ = (
        "_generation",
        "_gone",
        "_ident",
        "_mutex",
        "_over",
        "_quit",
        "_started",
        "error",
        "operation",
        "ring",
        "slot",
        "turn",
    )

    def __init__(
        self, slot: Any, operation: int, ring: Callable[[], None], turn: FairTicket | None = None
    ) -> None:
        self.slot, self.operation = slot, operation
        self.turn = turn or (FairTicket(slot.fd, not slot.writable) if operation & FAIR else None)
        self.ring = (
            ring  # called once, in the thread, when the wait is over; may be exchanged before
        )
        self._mutex = native.allocate_lock()
        self._over = self._quit = self._gone = self._started = False
        self._generation: int = slot.generation
        self._ident = 0
        self.error = errno.EINTR  # of flock(2); 0 when the lock is there

    def start(self) -> None:
        """Begin to wait. Raises OSError or RuntimeError when there is no thread to be had."""
        libc = _arm()
        self._started = True
        try:
            native.start_new_thread(self._stand, (libc,))
        except RuntimeError as error:  # limits, or the interpreter is shutting down
            self.error, self._over = errno.EAGAIN, True
            raise OSError(errno.EAGAIN, f"no thread to wait in: {error}") from error

    @property
    def over(self) -> bool:
        """Whether the system call has ended: `error` tells how."""
        return self._over

    @property
    def ours(self) -> bool:
        """Whether it is of this process: neither thread nor descriptor are a child's (L9)."""
        return self._generation == fork.here()

    def _stand(self, libc: object) -> None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, EVERY_SIGNAL - {INTERRUPT})
        self._ident = native.get_ident()
        while self.error == errno.EINTR and not self._quit and self.ours:
            self.error = stand(libc, self.slot.fd, self.operation, self.turn)
        with self._mutex:
            self._over = True
            if self._gone:  # L6  nobody waits for us any more: what came late is undone here
                self.slot.close()
        self.ring()

    def leave(self) -> bool:
        """End the wait. True: the lock came first and the slot is the caller's to use or to close.

        False: nothing is held and the slot is not to be touched again. Safe to repeat.
        """
        if self._generation != fork.generation:
            return False  # L9  a forked child: neither the thread nor the descriptor is here
        self._quit = True
        if not self._started:
            self.slot.close()
            return False
        length, came = 20e-6, None
        while not self._over and length < PATIENCE:
            try:
                with self._mutex:  # held, so the thread cannot end nor its number be used again
                    if not self.over and self._ident:
                        _signal.pthread_kill(self._ident, INTERRUPT)
                (native.sleep if length < STEP else clock.pause)(length)
                # the signal may have come just before the system call: send it again
            except BaseException as error:  # noqa: BLE001 - raised again below
                came = (
                    error  # of a signal handler: first the thread, or it would stand there for ever
                )
            length *= 1.5
        with self._mutex:
            if (
                not self._over
            ):  # a file server that does not answer: the thread undoes it when it can
                self._gone = True
            elif self.error or came is not None:
                self.slot.close()
        if came is not None:
            raise came
        return self._over and not self.error

    def undo(self) -> None:
        """Let go of a lock that came first."""
        self.slot.close()


def refused(waiter: FlockThread) -> OSError:
    """The error that ended a wait which nobody interrupted."""
    return OSError(waiter.error, os.strerror(waiter.error))


def possible() -> bool:
    """Whether flock(2) can be waited in here: Unix with threads that can be signalled."""
    return sys.platform != "win32" and INTERRUPT is not None and hasattr(_signal, "pthread_kill")


# ------------------------------------------------------------------------------------------------
# flock(2) in the caller's own thread: the short wait, without the cost of a second thread.
#
# Promise: as that of a helper thread (runtime/flock_wait.py): the wait ends at its deadline, by
# Cancel, or by an exception out of a signal handler, and then nothing is held. Rule that keeps it:
# a POSIX timer aimed at this thread alone (SIGEV_THREAD_ID) interrupts flock(2) at the deadline,
# and again and again until the wait is over: a shot that comes just before the system call is lost.
# The pauses are an eighth of the wait: hundreds of threads that are shot each millisecond while
# they stand in line for the interpreter would never come through. Cancel sets the same timer off.
# Each way out deletes it.
#
# At the first notice a helper thread takes over, and at once where this cannot be: a program with a
# SIGURG handler of its own; a kernel that gives no timer (RLIMIT_SIGPENDING); a libc without
# timers, as on macOS; a signal handler that has interrupted such a wait, since the timer of the
# outer one would interrupt it as well; and after any other signal has interrupted it, since each of
# those costs an unfair asker its place in the kernel's queue, and a helper thread blocks them.


CLOCK_BOOTTIME = 7  # the clock of `clock.now`
SIGEV_THREAD_ID = 4
SHORTEST, LONGEST_TICK = 0.001, 0.2  # seconds between two shots
CANCELLED = 0.02  # the same of who is cancelled: there may be hundreds at a time
LONGEST_STAY = 86400.0  # seconds until the first one
_standing: set[int] = set()  # the threads that wait so
fork.in_child(_standing.clear)  # no timer of the parent goes on in a child
has_timers = sys.platform == "linux"


class FlockInPlace:
    """A place in the kernel's queue that the calling thread takes itself."""

    __slots__ = (
        "_generation",
        "_libc",
        "_mutex",
        "_timer",
        "_wound_by",
        "operation",
        "slot",
        "turn",
    )

    def __init__(self, slot: Any, operation: int) -> None:
        self.slot, self.operation = slot, operation
        self.turn = FairTicket(slot.fd, not slot.writable) if operation & FAIR else None
        self._generation: int = slot.generation
        self._mutex = native.allocate_lock()
        self._timer: object = None
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
        mask = ()
        try:
            _standing.add(me)
            mask = _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (INTERRUPT,))
            if self._wound_by == self._generation:  # L9  else a child, who does not stand here
                self._set(min(max(until - clock.now(), 1e-9), LONGEST_STAY))
            if ask.cancel is not None:
                ask.cancel.attach(self._shoot)
            return self._stand(ask)
        finally:
            if ask.cancel is not None:
                ask.cancel.detach(self._shoot)
            self._unwind()
            _standing.discard(me)
            if INTERRUPT in mask:
                _signal.pthread_sigmask(_signal.SIG_BLOCK, (INTERRUPT,))

    def _stand(self, ask: Ask) -> bool | None:
        if self._generation != fork.here():
            return False  # L9  before the call too: the number may be somebody else's in a child
        failed = stand(self._libc, self.slot.fd, self.operation, self.turn)
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
        libc = _arm()
        if not libc.alone or not hasattr(libc, "timer_create"):
            return False
        self._libc = libc
        timer = libc.pointer()
        self._wound_by = fork.here()
        event = pack("@Piii", 0, INTERRUPT, SIGEV_THREAD_ID, native.get_native_id())
        if libc.timer_create(CLOCK_BOOTTIME, event.ljust(128, b"\0"), libc.byref(timer)):
            return False
        self._timer = timer
        return True

    def _set(self, seconds: float, at_least: float = SHORTEST) -> None:
        whole = int(seconds)
        nanoseconds = max(1, int((seconds - whole) * 1e9))
        again = int(max(at_least, min(seconds / 8, LONGEST_TICK)) * 1e9)
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


# ------------------------------------------------------------------------------------------------
# Waiting for the first of several locks: one helper thread stands in the queue of each.
#
# Promise: as of one waiter (runtime/flock_wait.py): the kernel wakes it, whoever releases and
# however, and exactly one side owns the outcome. The first lock that comes is the caller's; one
# that comes to another thread at the same time is undone before `over` says so (L6). Nothing is
# polled.


class FlockAny:
    """A place in several queues at once, as `ask.place` keeps one.

    `before`: a slot that is held while we stand here, and closed when we leave with nothing.
    """

    __slots__ = ("_generation", "_waiters", "before", "error", "ring", "slot")

    def __init__(self, slots: list[Any], operation: int, before: Any) -> None:
        self.ring: Callable[[], None] = _nobody
        self.before = before
        self.slot: Any = None
        self.error = errno.EINTR  # of flock(2), when all of them refuse; 0: `slot` is locked
        self._generation = fork.here()
        self._waiters = [FlockThread(slot, operation, self._rung) for slot in slots]

    def start(self) -> None:
        """Begin to wait. Raises OSError when there are no threads to be had."""
        for waiter in self._waiters:
            waiter.start()

    @property
    def ours(self) -> bool:
        """Whether all of it is of this process (L9)."""
        return self._generation == fork.here() and all(each.ours for each in self._waiters)

    def _rung(self) -> None:
        self.ring()

    @property
    def over(self) -> bool:
        """Whether one has come, or all were refused. Only that one is held, once this is true."""
        if self.slot is not None:
            return True
        failed = 0
        for waiter in self._waiters:
            if waiter.over and not waiter.error:
                self.error = 0
                return self._settle()
            failed += waiter.over
        if failed < len(self._waiters):
            return False
        self.error = self._waiters[0].error
        return True

    def _settle(self) -> bool:
        """Out of all queues, with the first lock that came; whether there is one."""
        error = None
        for waiter in self._waiters:
            waiter._quit = True  # all begin to end at once
        while self._waiters:
            waiter = self._waiters[-1]
            try:
                came = waiter.leave()
            except BaseException as raised:  # noqa: BLE001 - raised again when all have ended
                error = raised
                came = False
            self._waiters.pop()
            if not came:
                continue
            if self.slot is None and error is None:
                self.slot = waiter.slot
            else:
                waiter.slot.close()
        if error is not None:
            self.undo()
            raise error
        return self.slot is not None

    def leave(self) -> bool:
        """End the wait. True: a lock came first, `slot` is the caller's. Safe to repeat."""
        if self._generation != fork.generation:
            return False  # L9  neither the threads nor the descriptors are here
        try:
            return self._settle()
        finally:
            self.before.close()

    def undo(self) -> None:
        """Let go of a lock that came first, and of what is held while one stands here."""
        if self.slot is not None:
            self.slot.close()
        self.before.close()


def _nobody() -> None:
    """Rung before anybody listens: who comes to listen looks first."""


# ------------------------------------------------------------------------------------------------
# What stands in for the C library where Python was built without ctypes.
#
# Promise: the same waits with the same owner of the outcome, but by asking again and again, 1 to 20
# ms apart: `fcntl.flock` itself starts again after a signal (PEP 475), so it could not be ended.
# Each pause answers EINTR, as an interrupted system call does; a fair asker keeps its place
# meanwhile.


try:
    import fcntl
except ImportError:
    if os.name != "nt":  # out of reach, or Python was built without it
        raise
    fcntl = None  # type: ignore[assignment]

LOCK_NB = 4
FIRST, LONGEST = 0.001, 0.02


class FlockPolling:
    """flock and fcntl for one waiter."""

    alone = False  # no thread is interrupted, so none may wait in its caller's place

    def __init__(self) -> None:
        self._errno = 0
        self._pause = FIRST

    def get_errno(self) -> int:
        return self._errno

    def flock(self, fd: int, operation: int) -> int:
        return self._try(lambda: fcntl.flock(fd, operation | LOCK_NB))

    def fcntl(self, fd: int, command: int, data: bytes) -> int:
        return self._try(lambda: fcntl.fcntl(fd, SET_NOW if command == SET else command, data))

    def _try(self, call: Callable[[], object]) -> int:
        try:
            call()
        except OSError as error:
            self._errno = error.errno or errno.EIO
            if error.errno in (errno.EAGAIN, errno.EACCES):
                pause(self._pause)
                self._pause = min(self._pause * 1.5, LONGEST)
                self._errno = errno.EINTR
            return -1
        return 0


# ------------------------------------------------------------------------------------------------
# First come, first served: the line in which fair askers stand before they ask for the lock.
#
# Promise: of two fair askers of one file, the one that stood in line before the other came gets the
# lock first; who dies, gives up or is interrupted holds nobody up. Rule that keeps it: each stamps
# itself with the kernel's monotonic clock, locks the byte of that number far behind the end of the
# file, and then, waiting, all bytes before it. So it goes on when nobody before it is left, and
# whoever comes later has a greater number and meets its byte. These are locks of the open file
# description (OFD), which the kernel frees with it: no number is kept anywhere, nothing is cleaned
# up, and an interrupted wait keeps its place.
#
# L1  The line only orders. Who excludes is flock(2) alone, so unfair askers and foreign tools on
#     the same file exclude and are excluded as ever, whatever the line says.
# L9  A description has one place. It is left by unlocking or by the description's last close.
#
# Asking for the whole range, and not for the neighbour's byte, makes the kernel chain the waiters
# behind each other: who leaves wakes one, and the death of one in the middle lets nobody pass.


LOCK_SH = 1
FAIR = 1 << 8  # beside LOCK_EX and LOCK_SH in an operation: stand in line first
FIRST_BYTE = 1 << 62  # the byte of the clock's zero; what programs lock lies far before it
SET_NOW: int = getattr(fcntl, "F_OFD_SETLK", -1)
SET: int = getattr(fcntl, "F_OFD_SETLKW", -1)
GET: int = getattr(fcntl, "F_OFD_GETLK", -1)
LOCK: int = getattr(fcntl, "F_WRLCK", 1)
PASS: int = getattr(fcntl, "F_RDLCK", 0)
UNLOCK: int = getattr(fcntl, "F_UNLCK", 2)


def has_ranges() -> bool:
    """Whether this system has locks of open file descriptions. Linux has; macOS hides its own."""
    return SET_NOW != -1


def span(kind: int, first: int, length: int) -> bytes:
    """`struct flock` for some bytes; length 0: to the end of all files."""
    return pack("@hhqqi0q", kind, os.SEEK_SET, first, length, 0)


LEAVE = span(UNLOCK, FIRST_BYTE, 0)
ANYBODY = {kind: span(kind, FIRST_BYTE, 0) for kind in (LOCK, PASS)}


class FairTicket:
    """The place in line of one open file description."""

    __slots__ = ("_fd", "_reads", "_stamp", "_stands")

    def __init__(self, fd: int, reads: bool = False) -> None:
        self._fd = fd
        self._stamp = 0
        self._stands = False
        self._reads = reads  # a file that may only be read: nobody can lock a byte of it

    def come(self, libc: Any) -> int:
        """Stand in line until nobody is before us: 0, or the errno that ended it.

        After EINTR the place is kept: come again.
        """
        if self._reads:  # behind who stands there now; who comes meanwhile may pass
            self._stamp = self._stamp or time.monotonic_ns()
            before = span(PASS, FIRST_BYTE, self._stamp + 1)
            return libc.get_errno() if libc.fcntl(self._fd, SET, before) else 0
        if not self._stands:
            self._stamp = self._stamp or time.monotonic_ns()
            # It blocks only while the first in line came later than we looked at the clock.
            mine = span(LOCK, FIRST_BYTE + self._stamp, 1)
            if libc.fcntl(self._fd, SET, mine):
                return libc.get_errno()  # type: ignore[no-any-return]
            self._stands = True
        ours = span(LOCK, FIRST_BYTE, self._stamp + 1)
        return libc.get_errno() if libc.fcntl(self._fd, SET, ours) else 0

    def go(self, libc: Any) -> None:
        """Out of the line, with the lock in hand: the next one may ask for it."""
        libc.fcntl(self._fd, SET_NOW, LEAVE)


def try_now(path: str, fd: int, operation: int, call: Any) -> object:
    """`call(fd, operation)` if nobody stands in line, else BlockingIOError.

    Whoever comes meanwhile stands behind us. Two who share pass beside each other.
    """
    kind = PASS if operation & LOCK_SH else LOCK
    try:
        fcntl.fcntl(fd, SET_NOW, span(kind, FIRST_BYTE, time.monotonic_ns() + 1))
    except OSError as error:
        if error.errno == errno.EBADF and not fcntl.fcntl(fd, fcntl.F_GETFL) & 3:
            raise not_fair(path) from error  # it was opened for reading only
        raise
    try:
        return call(fd, operation)
    finally:
        fcntl.fcntl(fd, SET_NOW, LEAVE)


def show(fd: int) -> None:
    """Be seen by `stands` until the description is closed, beside others who are."""
    fcntl.fcntl(fd, SET_NOW, span(PASS, FIRST_BYTE, 1))


def stands(fd: int, operation: int) -> bool:
    """Whether somebody stands in line before one who asks now. Takes no place and no lock.

    Whoever comes between this look and what is done after it came later than we.
    """
    kind = PASS if operation & LOCK_SH else LOCK
    found: bytes = fcntl.fcntl(fd, GET, ANYBODY[kind])
    return found[0] != UNLOCK or found[1] != 0


def not_fair(path: str) -> SystemRefused:
    """A line can be stood in by those alone who may write the file."""
    return SystemRefused(
        f"{path!r}: fair=True needs the right to write the lock file, and it could be opened for "
        "reading only: ask its owner for that right, or lock it without fair=True",
        name=path,
        errno=errno.EACCES,
        filename=path,
    )
