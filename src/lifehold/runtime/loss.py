"""The signal that a lease is lost: once, for all who wait or asked to be called."""

from __future__ import annotations

from _thread import allocate_lock

from ..core.events import report
from . import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

POLL = 0.2  # seconds between two looks of `wait()` at a lock file


class LostSignal:
    """Set once when a lease is lost. Wait on it, or be called back.

    Not set by an ordinary release.
    """

    __slots__ = ("_callbacks", "_check", "_lock", "reason")

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check
        self._lock = allocate_lock()
        self._callbacks: list[Callable[[], object]] = []
        self.reason: str | None = None

    def is_set(self) -> bool:
        """Whether the lease is known to be lost. Does not look; `lease.check()` does."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost, at most `timeout` seconds; looks at the lock meanwhile.

        False as soon as it has been released: nothing can be lost any more.
        """
        until = float("inf") if timeout is None else clock.now() + timeout
        while True:
            held = self._check()
            left = until - clock.now()
            if self.is_set() or not held or left <= 0:
                return self.is_set()
            clock.pause(min(POLL, left))

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when the lease is lost, at once if it is.

        In the thread that notices.
        """
        with self._lock:
            if self.reason is None:
                self._callbacks.append(callback)
                return
        callback()

    def set(self, reason: str, first: Callable[[], object] | None = None) -> bool:
        """Mark the lease as lost. False: it was already.

        `first` is called before the callbacks: these are the program's own, and may take their
        time or raise; what they raise is shown by `sys.unraisablehook`.
        """
        with self._lock:
            if self.reason is not None:
                return False
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
        if first is not None:
            first()
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - it is the program's, not the lock's
                report(error)
        return True
