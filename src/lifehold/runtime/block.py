"""flock(2) that can be interrupted.

A thread that stands in the kernel's queue for one caller (ADR 0008). A blocking caller stands
there itself at first (runtime/block_here.py).

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

from . import clock, fork, native
from .turnstile import FAIR, Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
            ctypes: Any = fork.lazily("ctypes")
        except ImportError:
            return fork.lazily("lifehold.runtime.block_poll").Poll()
        lib = ctypes.CDLL(None, use_errno=True)
        lib.signal.restype, lib.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        lib.nothing = ctypes.cast(lib.abs, ctypes.c_void_p)  # int abs(int): harmless as a handler
        lib.get_errno, lib.pointer, lib.byref = ctypes.get_errno, ctypes.c_void_p, ctypes.byref
        lib.sigaction_words = ctypes.c_void_p * 64
        _libc = lib
    words = _libc.sigaction_words()
    _libc.sigaction(INTERRUPT, None, words)
    handler = words[0] or 0
    if handler in (0, 1):  # SIG_DFL, SIG_IGN: any code may have set that since the last wait
        with fork.gate:  # forked in between, a child had a handler that begins flock(2) again
            _libc.signal(INTERRUPT, _libc.nothing)
            _signal.siginterrupt(INTERRUPT, True)
        handler = _libc.nothing.value
    _libc.alone = handler == _libc.nothing.value
    return _libc


def stand(libc: Any, fd: int, operation: int, turn: Turn | None) -> int:
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


class Waiter:
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
        self, slot: Any, operation: int, ring: Callable[[], None], turn: Turn | None = None
    ) -> None:
        self.slot, self.operation = slot, operation
        self.turn = turn or (Turn(slot.fd, not slot.writable) if operation & FAIR else None)
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

    def _stand(self, libc: Any) -> None:
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


def refused(waiter: Waiter) -> OSError:
    """The error that ended a wait which nobody interrupted."""
    return OSError(waiter.error, os.strerror(waiter.error))


def possible() -> bool:
    """Whether flock(2) can be waited in here: Unix with threads that can be signalled."""
    return sys.platform != "win32" and INTERRUPT is not None and hasattr(_signal, "pthread_kill")
