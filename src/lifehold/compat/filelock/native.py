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
import math
import os
import sys
import warnings
from threading import TIMEOUT_MAX
from typing import Any

from ...runtime import clock, fork
from . import native_mechanism
from .api import BaseFileLock, MechanismFileLock
from .construction import UNSET_FILE_MODE, seconds
from .system_calls import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .waits import AcquireRequest, LockHold


class UnixFileLock(MechanismFileLock):
    """A lock by flock(2)."""

    _stays = True
    _was_there = True  # the file, before our first try

    def _made(self, path: str) -> Any:
        mode = self._context.mode
        self._was_there = os.path.lexists(path)
        # With a callback the file's content is the caller's.
        return native_mechanism.mechanism(
            path,
            None if mode == UNSET_FILE_MODE else mode,
            self._on_acquired is None,
            self._runtime,
        )

    async def _tried(self, hold: LockHold) -> Any:
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


# ------------------------------------------------------------------------------------------------
# `WindowsFileLock`: the native lock of Windows. Elsewhere it is a name that refuses to lock.
#
# Both libraries lock byte 0 by LockFileEx. Not run on Windows by us: the mechanism is checked by
# types and a simulated kernel32 only, and a mixed run with filelock there has not been seen.


NATIVE: Any = UnixFileLock if sys.platform == "win32" else BaseFileLock


class WindowsFileLock(NATIVE):  # type: ignore[misc]
    """A lock by LockFileEx."""

    if sys.platform != "win32":

        def _take(self, hold: LockHold, want: AcquireRequest) -> None:
            raise NotImplementedError(f"{type(self).__name__} works on Windows alone: use FileLock")

        def _acquire(self) -> None:
            raise NotImplementedError(f"{type(self).__name__} works on Windows alone: use FileLock")

        def _release(self) -> None:
            raise NotImplementedError(f"{type(self).__name__} works on Windows alone: use FileLock")


# ------------------------------------------------------------------------------------------------
# Locking a file that is open already.


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
