"""Who is in the middle of an acquire of one lock object: one task at a time, of whatever loop.

Rule: a turn is given to nobody in particular. Who leaves rings all who wait, and the first to look
takes it; so a waiter that is cancelled while it is rung takes nothing with it.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

from ...runtime import clock
from ...runtime.eventloop import Signal

if TYPE_CHECKING:
    from .waits import Want


class Turn:
    """The turn at one lock object."""

    __slots__ = ("_mutex", "_taken", "_waiting")

    def __init__(self) -> None:
        self._mutex = _thread.allocate_lock()
        self._taken = False
        self._waiting: list[Any] = []

    def _take_now(self, signal: Any) -> bool:
        with self._mutex:
            if self._taken:
                if signal is not None:
                    self._waiting.append(signal)
                return False
            self._taken = True
            return True

    async def take(self, want: Want) -> bool:
        """Whether it is ours, within the patience of `want`."""
        if self._take_now(None):
            return True
        while want.blocking:
            signal = Signal()
            if self._take_now(signal):
                return True
            left = want.deadline - clock.now()
            if want.cancel is not None:
                if want.cancel():
                    return False
                left = min(left, max(want.pause, 0.001))
            if left <= 0:
                return False
            try:
                await signal.wait(left)
            finally:
                with self._mutex:
                    if signal in self._waiting:
                        self._waiting.remove(signal)
        return False

    def give(self) -> None:
        """Let the next one look."""
        with self._mutex:
            self._taken = False
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.ring()
