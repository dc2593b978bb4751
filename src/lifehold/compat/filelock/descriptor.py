"""Locking a file that is open already."""

from __future__ import annotations

import errno
import math
from threading import TIMEOUT_MAX
from typing import Any

from ...runtime import clock, fork
from .options import seconds

LOCK_EX, LOCK_NB, LOCK_UN = 2, 4, 8


def lock_descriptor(fd: int, *, blocking: bool = True, poll_interval: float = 0.05) -> bool:
    """flock(2) on an open file: whether it is locked now. Raises OSError.

    `poll_interval`: seconds between tries where the kernel has no queue; kept for the signature.
    """
    pause = seconds("poll_interval", poll_interval) if blocking else 0.0
    if blocking and not (math.isfinite(pause) and 0 < pause <= TIMEOUT_MAX):
        raise ValueError(
            f"poll_interval must be greater than 0 and at most {TIMEOUT_MAX:g} s, not {pause}"
        )
    calls = _calls()
    while True:
        try:
            calls.flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if not blocking:
                return False
            clock.pause(pause)
        else:
            return True


def unlock_descriptor(fd: int) -> None:
    """Let it go. Raises OSError."""
    _calls().flock(fd, LOCK_UN)


def _calls() -> Any:
    try:
        return fork.lazily("fcntl")
    except ImportError as error:
        raise OSError(errno.ENOSYS, "flock(2) is missing here") from error
