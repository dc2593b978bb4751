"""`WindowsFileLock`: the native lock of Windows. Elsewhere it is a name that refuses to lock.

Both libraries lock byte 0 by LockFileEx. Not run on Windows by us: the mechanism is checked by
types and a simulated kernel32 only, and a mixed run with filelock there has not been seen.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .exclusive import BaseFileLock
from .unix import UnixFileLock

if TYPE_CHECKING:
    from .state import Hold
    from .waits import Want


NATIVE: Any = UnixFileLock if sys.platform == "win32" else BaseFileLock


class WindowsFileLock(NATIVE):  # type: ignore[misc]
    """A lock by LockFileEx."""

    if sys.platform != "win32":

        def _take(self, hold: Hold, want: Want) -> None:
            raise NotImplementedError(f"{type(self).__name__} works on Windows alone: use FileLock")

        def _acquire(self) -> None:
            raise NotImplementedError(f"{type(self).__name__} works on Windows alone: use FileLock")

        def _release(self) -> None:
            raise NotImplementedError(f"{type(self).__name__} works on Windows alone: use FileLock")
