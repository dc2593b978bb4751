"""The same signal for tasks of asyncio and trio: `await lease.lost.wait()`."""

from __future__ import annotations

import asyncio

from ..core.deadline import NEVER
from . import clock
from .eventloop import EVENT_LOOP, Signal, running_trio
from .loss import LostSignal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any


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


# ------------------------------------------------------------------------------------------------
# A block of async code that is cancelled when its lease is lost.
#
# Rule: the cancellation is ours, and ours alone is turned into `LeaseLost`. One that comes from
# outside meanwhile goes on as what it is, as with `asyncio.timeout`.


class LossScope:
    """`with` it in the task that is to be cancelled. `error()`: what the block raises then."""

    def __init__(self, lost: LostSignal, error: Callable[[], BaseException]) -> None:
        self._lost, self._error = lost, error
        self._over = self._hit = False

    def __enter__(self) -> LossScope:
        self._trio = running_trio()
        self._call: Callable[..., object]
        self._task: Any = None
        self._scope: Any = None
        if self._trio is None:
            self._task = asyncio.current_task()
            self._call = asyncio.get_running_loop().call_soon_threadsafe
            self._before = self._task.cancelling()
        else:
            self._call = self._trio.lowlevel.current_trio_token().run_sync_soon
            self._scope = self._trio.CancelScope()
            self._scope.__enter__()
        self._lost.add_callback(self._ring)  # called at once when it is lost already
        return self

    def _ring(self) -> None:
        """In whatever thread notices the loss."""
        try:
            self._call(self._cancel)
        except RuntimeError:
            pass  # the loop is closed, and the block with it

    def _cancel(self) -> None:
        if self._over:
            return
        self._hit = True
        if self._scope is not None:
            self._scope.cancel()
        else:
            self._task.cancel("the lease is lost")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._over = True
        if self._scope is not None:
            swallowed = bool(self._scope.__exit__(kind, error, trace))
            if self._scope.cancelled_caught:
                raise self._error() from error
            return swallowed
        if self._hit and self._task.uncancel() <= self._before:
            if kind is not None and issubclass(kind, asyncio.CancelledError):
                raise self._error() from error
        return False
