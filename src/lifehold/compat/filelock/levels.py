"""What one reader/writer lock holds, and how long it waits."""

from __future__ import annotations

import math
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Literal

from ...runtime import clock
from . import options

if TYPE_CHECKING:
    from collections.abc import Callable

Mode = Literal["read", "write"]
TASKS = -1  # the holder that stands for all tasks together


class Levels:
    """What an object holds. `level` 0: nothing."""

    __slots__ = ("grant", "level", "mode", "readers", "writer")

    def __init__(self) -> None:
        self.level, self.mode = 0, ""
        self.writer: int | None = None
        self.readers: dict[int, int] = {}
        self.grant: Any = None

    def begin(self, mode: str, holder: int, grant: Any) -> None:
        """The first level."""
        self.mode, self.level, self.grant = mode, 1, grant
        self.writer = holder if mode == "write" else None
        self.readers = {holder: 1} if mode == "read" else {}

    def nest(self, holder: int) -> None:
        """One more."""
        if self.mode == "read":
            self.readers[holder] = self.readers.get(holder, 0) + 1
        self.level += 1

    def leave(self, holder: int) -> None:
        """One less."""
        self.level -= 1
        if self.mode == "read":
            owner = holder if holder in self.readers else next(iter(self.readers))
            depth = self.readers.pop(owner) - 1
            if depth:
                self.readers[owner] = depth

    def has(self, holder: int) -> bool:
        """Whether it holds a level."""
        return self.level > 0 and (holder == self.writer or holder in self.readers)


class Patience:
    """How long an acquire waits, and who may end it."""

    __slots__ = ("blocking", "cancel", "deadline")

    def __init__(self, timeout: float, blocking: bool, cancel: Callable[[], bool] | None) -> None:
        self.blocking, self.cancel = blocking, cancel
        self.deadline = math.inf if timeout == -1 else clock.now() + timeout

    def take(self, lock: Any) -> bool:
        """A lock of threads, within it."""
        if lock.acquire(blocking=False):
            return True
        while self.blocking:
            left = self.deadline - clock.now()
            if left <= 0 or (self.cancel is not None and self.cancel()):
                return False
            if lock.acquire(timeout=min(left, TIMEOUT_MAX if self.cancel is None else 0.05)):
                return True
        return False


def patience(timeout: Any, blocking: Any) -> float:
    """Seconds of a wait, -1 without a limit. Raises TypeError, ValueError."""
    options.boolean("blocking", blocking)
    found = options.seconds("timeout", timeout)
    if not blocking:
        return 0.0
    if math.isnan(found):
        raise ValueError("timeout must be a number of seconds, not nan")
    if found == math.inf:
        return -1
    if found < 0 and found != -1:
        raise ValueError(f"timeout must be a non-negative number or -1, not {found!r}")
    return found


def shown(timeout: float) -> Any:
    """A timeout reduced to what it means."""
    if math.isnan(timeout):
        return "nan"
    return -1.0 if timeout == math.inf else timeout
