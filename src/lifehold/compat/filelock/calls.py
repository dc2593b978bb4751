"""The system calls of this face, looked up when they are made.

Programs replace `os.open`, `fcntl.flock` and others to watch a lock file or to test an error path;
with filelock they are heard, so they are here. The kernel lock itself binds its calls early.
"""

from __future__ import annotations

import os
from typing import Any

from ...local.descriptors import Descriptors
from ...local.files import Files
from ...runtime import fork
from .swap import exchange

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Calls(Files):
    """As `lifehold.local.files.HOST`."""

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def stamp(self, fd: int, when: int) -> None:
        """Set the time of change, in nanoseconds."""
        os.utime(fd, ns=(when, when))

    def exchange(self, one: str, other: str) -> bool:
        return exchange(one, other)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)


TABLE: Any = Descriptors(Calls())
fork.in_child(TABLE.after_fork)
