"""`UnixFileLock`: the native lock, on files that real filelock locks too.

Both call flock(2) on the same file, which is never unlinked; so they exclude each other. What ours
adds: who holds it stands in the file and in `Timeout`, `lease.token` grows with every grant, and a
waiter is woken by the kernel.
"""

from __future__ import annotations

from typing import Any

from . import kernel
from .mechanical import Mechanical
from .options import UNSET_FILE_MODE


class UnixFileLock(Mechanical):
    """A lock by flock(2). Where the file system has none, an OSError."""

    def _made(self, path: str) -> Any:
        mode = self._context.mode
        # With a callback the file's content is the caller's.
        return kernel.mechanism(
            path,
            None if mode == UNSET_FILE_MODE else mode,
            self._on_acquired is None,
            self._runtime,
        )
