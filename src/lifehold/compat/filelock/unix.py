"""`UnixFileLock`: the native lock, on files that real filelock locks too.

Both call flock(2) on the same file, which is never unlinked; so they exclude each other. What ours
adds: who holds it stands in the file and in `Timeout`, `lease.token` grows with every grant, and a
waiter is woken by the kernel.

Where flock(2) is missing (ENOSYS), the object turns into a soft lock for good, with a warning; not
with `fallback_to_soft=False`, and not with an option that a soft lock cannot keep. An empty file
that this attempt has made is taken away before, for to a soft lock it is somebody's.
"""

from __future__ import annotations

import errno
import os
import warnings
from typing import TYPE_CHECKING, Any

from . import kernel
from .calls import TABLE
from .mechanical import Mechanical
from .options import UNSET_FILE_MODE

if TYPE_CHECKING:
    from .state import Hold


class UnixFileLock(Mechanical):
    """A lock by flock(2)."""

    _stays = True
    _was_there = True  # the file, before our first try

    def _made(self, path: str) -> Any:
        mode = self._context.mode
        self._was_there = os.path.lexists(path)
        # With a callback the file's content is the caller's.
        return kernel.mechanism(
            path,
            None if mode == UNSET_FILE_MODE else mode,
            self._on_acquired is None,
            self._runtime,
        )

    async def _tried(self, hold: Hold) -> Any:
        try:
            return await super()._tried(hold)
        except OSError as error:
            if not self._turned_soft(error, hold.path):
                raise
        return await self._tried(hold)

    def _turned_soft(self, error: OSError, path: str) -> bool:
        """Whether this object is a soft lock from now on."""
        if error.errno != errno.ENOSYS or not self._fallback_to_soft:
            return False
        if self._preserve_lock_file or self._on_acquired is not None or not flock_is_missing(path):
            return False
        if not self._was_there and os.path.getsize(path) == 0:
            os.unlink(path)
        text = (
            "flock not supported on this filesystem, falling back to SoftFileLock: flock(2) is "
            "missing here"
        )
        warnings.warn(text, UserWarning, stacklevel=6)
        self._kernel = None
        self.__class__ = self._soft()
        return True

    def _end_brought(self, fd: int, path: str) -> None:
        try:
            TABLE.files.flock(fd, 8)  # LOCK_UN: a child may have a copy of the descriptor
        finally:
            TABLE.files.close(fd)

    @classmethod
    def _soft(cls) -> Any:
        from .soft import SoftFileLock

        return SoftFileLock


def flock_is_missing(path: str) -> bool:
    """By a try: another call may have failed in the same way."""
    files = TABLE.files
    try:
        fd = files.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        files.flock(fd, 2 | 4)
        files.flock(fd, 8)  # L9  not by close alone: a child that is forked now has a copy
    except OSError as error:
        return error.errno == errno.ENOSYS
    finally:
        files.close(fd)
    return False
