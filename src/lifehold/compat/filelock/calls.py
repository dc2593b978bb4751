"""The system calls of this face, looked up when they are made.

Programs replace `os.open`, `fcntl.flock` and others to watch a lock file or to test an error path;
with filelock they are heard, so they are here. The kernel lock itself binds its calls early.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from ...local.descriptors import Descriptors
from ...local.files import Files, guard
from ...runtime import fork
from .swap import exchange

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
has_fcntl: bool = fcntl is not None


class Calls(Files):
    """As `lifehold.local.files.HOST`."""

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def flock(self, fd: int, operation: int) -> None:
        if fcntl is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        fcntl.flock(fd, operation)

    def guard(self, fd: int, take: bool = True) -> None:
        if fcntl is not None:  # else there is one process alone (WebAssembly), or no kernel lock
            guard(fd, take)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def lstat(self, path: str) -> os.stat_result:
        return os.lstat(path)

    def access(self, path: str) -> bool:
        """Whether this process may write what has that name, be it a symbolic link."""
        here = os.access
        follow = here not in os.supports_follow_symlinks
        effective = here in os.supports_effective_ids
        return here(path, os.W_OK, effective_ids=effective, follow_symlinks=follow)

    def stamp(self, fd: int, when: int) -> None:
        """Set the time of change, in nanoseconds."""
        os.utime(fd, ns=(when, when))

    def exchange(self, one: str, other: str) -> bool:
        return exchange(one, other)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)


TABLE: Any = Descriptors(Calls())
fork.in_child(TABLE.after_fork)
