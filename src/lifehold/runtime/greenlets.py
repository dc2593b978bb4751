"""How a greenlet waits: gevent and eventlet, where they have replaced the threads of the program.

Promise: while one greenlet waits for a lock the others of its thread run, signals are handled, and
whatever ends the wait of a greenlet (`gevent.Timeout`, `kill()`) ends this one, with nothing held.
Rule that keeps it: only real threads (runtime/native.py) block in the kernel; a greenlet sleeps in
its hub until one of them rings, by a descriptor of its own.

A thread without a hub has no other greenlets: it waits as ever.
"""

from __future__ import annotations

import os
import sys

from . import fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

LONGEST = 3600.0  # seconds of one sleep
NOW_AND_THEN = 0.01  # the same where no descriptor is left to be rung by
RUNG = b"\1\0\0\0\0\0\0\0"


class _SleepOver(Exception):
    """The time of one sleep is over."""


class _Gevent:
    """gevent's way to wait."""

    @staticmethod
    def hub() -> object:
        return sys.modules["gevent._hub_local"].get_hub_if_exists()

    @staticmethod
    def wait(fd: int, seconds: float) -> None:
        sockets = fork.lazily("gevent.socket")
        sockets.wait_read(fd, seconds, _SleepOver())

    @staticmethod
    def sleep(seconds: float) -> None:
        sys.modules["gevent"].sleep(seconds)


class _Eventlet:
    """eventlet's way to wait."""

    @staticmethod
    def hub() -> Any:
        hub = getattr(sys.modules["eventlet.hubs"]._threadlocal, "hub", None)
        return getattr(hub, "greenlet", None)

    @staticmethod
    def wait(fd: int, seconds: float) -> None:
        sys.modules["eventlet.hubs"].trampoline(
            fd, read=True, timeout=seconds, timeout_exc=_SleepOver
        )

    @staticmethod
    def sleep(seconds: float) -> None:
        sys.modules["eventlet"].sleep(seconds)


def way() -> object:
    """How the caller waits without stopping the greenlets of its thread; None: there are none."""
    if not native.is_replaced():
        return None
    threads = sys.modules["_thread"]
    known = _Gevent if threads.get_ident.__module__.startswith("gevent") else _Eventlet
    try:
        hub = known.hub()
    except (KeyError, AttributeError):  # threads replaced by yet another library
        return None
    here = hub is not None and sys.modules["greenlet"].getcurrent() is not hub
    return known if here else None


class GreenletWakeup:
    """Wakes one sleeping greenlet, out of any thread. Ringing twice is ringing once."""

    __slots__ = ("_fd", "_mutex", "_rung", "_way")

    def __init__(self, way: Any) -> None:
        self._way = way
        self._mutex = native.RLock()  # reentrant: a signal handler may ring
        self._fd = -1
        self._rung = False

    def ring(self) -> None:
        self._rung = True
        with self._mutex:  # else the number could be another's by now
            if self._fd >= 0:
                try:
                    native.write(self._fd, RUNG)
                except OSError:
                    pass  # full, or closed by other code: the sleep has an end

    def wait(self, seconds: float) -> None:
        """Sleep until it rings, at most `seconds`; sometimes for nothing.

        L9  A forked child has a copy of each sleeping greenlet and of its descriptor. It is woken,
        and its parent as well: so nobody reads what was written, and each sleep opens its own.
        """
        if seconds <= 0 or self._rung:
            self._rung = False
            return
        fds = _opened()
        if not fds:
            self._way.sleep(min(seconds, NOW_AND_THEN))
            self._rung = False
            return
        with self._mutex:
            self._fd = fds[-1]
        _asleep.add(self)
        try:
            if not self._rung:
                self._way.wait(fds[0], min(seconds, LONGEST))
        except _SleepOver:
            pass
        finally:
            _asleep.discard(self)
            with self._mutex:
                self._fd = -1
            for fd in fds:
                os.close(fd)
        self._rung = False


_asleep: set[GreenletWakeup] = set()


@fork.in_child
def _awake() -> None:
    """L9  What the copies of the parent's greenlets wait for never rings here."""
    for wakeup in list(_asleep):
        wakeup._mutex = native.RLock()  # a thread that is not here may have it
        wakeup.ring()
    _asleep.clear()


def _opened() -> tuple[int, ...]:
    """The descriptor to sleep on, and the one to write to."""
    try:
        if hasattr(os, "eventfd"):
            return (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC),)
        return os.pipe()
    except OSError:
        return ()


def in_thread(call: Callable[[], T], undo: Callable[[T], None], wakeup: Any) -> T:
    """`call()` in a real thread, while the other greenlets run. Its late result is undone (L6)."""
    errand = PoolCall(call, undo, wakeup.ring)
    try:
        native.start_new_thread(errand.run, ())
    except RuntimeError:
        return call()  # no thread to be had
    try:
        while not errand.done:
            wakeup.wait(LONGEST)
    except BaseException:
        errand.abandon()
        raise
    if errand.error is not None:
        raise errand.error
    return errand.result  # type: ignore[no-any-return]


class PoolCall:
    """A call in a thread of ours whose late result is undone, exactly once (L6)."""

    def __init__(self, call: Callable[[], Any], undo: Callable[[Any], None], ring: Any) -> None:
        self.call, self.undo, self.ring = call, undo, ring
        self.mutex = native.allocate_lock()
        self.done = self.gone = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self.error = error
        with self.mutex:
            self.done = True
            late = self.gone and self.error is None
        if late:
            self.undo(self.result)
        self.ring()

    def abandon(self) -> None:
        """The caller goes away: whatever comes or has come is undone."""
        with self.mutex:
            self.gone = True
            here = self.done and self.error is None
        if here:
            self.undo(self.result)
