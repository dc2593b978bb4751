"""The same signal for tasks of asyncio and trio: `await lease.lost.wait()`."""

from __future__ import annotations

from ..core.deadline import NEVER
from . import clock
from .eventloop import EVENT_LOOP, Signal
from .loss import LostSignal


class AsyncLostSignal(LostSignal):
    """Set once when a lease is lost. Await it, or be called back (in another thread)."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        """Wait until the lease is lost, at most `timeout` seconds; whether it is.

        False as soon as it has been released: nothing can be lost any more.
        """
        if timeout is not None and timeout <= 0:  # a look, and no watch for it
            if self._path is not None and self._far():
                await EVENT_LOOP.in_thread(self._check, lambda _: None)
            else:
                self._check()
            return self.is_set()
        until = NEVER if timeout is None else clock.now() + timeout
        while True:
            signal = Signal()
            self._bells.append(signal.ring)
            try:
                pause = self._pause()  # armed before the look, so that nothing is slept through
                held = self._look()
                left = until - clock.now()
                if self.is_set() or self._over or not held or left <= 0:
                    return self.is_set()
                await signal.wait(min(pause, left))
            finally:
                self._bells.remove(signal.ring)
                self._rest()
