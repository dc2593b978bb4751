"""Waiting for the first of several locks: one helper thread stands in the queue of each.

Promise: as of one waiter (runtime/block.py): the kernel wakes it, whoever releases and however, and
exactly one side owns the outcome. The first lock that comes is the caller's; one that comes to
another thread at the same time is undone before `over` says so (L6). Nothing is polled.
"""

from __future__ import annotations

import errno

from . import fork
from .block import Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class AnyOf:
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
        self._waiters = [Waiter(slot, operation, self._rung) for slot in slots]

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
