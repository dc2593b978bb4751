"""The seam: every file system call that a lock makes, and the clock that stamps records.

The shipped protocols get one of these. `HOST` is the operating system; the explorer of
`lifehold.testing` passes its own and so plays every interleaving, crash and lie of a file server
against the same code. Attributes are the C functions themselves: the seam costs one attribute
look-up.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import fcntl
except ImportError:  # Windows: local/kernel_windows.py locks there
    fcntl = None  # type: ignore[assignment]

LOCK_SH, LOCK_EX, LOCK_NB, LOCK_UN = 1, 2, 4, 8  # the same on every Unix since 4.2BSD

O_NOATIME: int = getattr(os, "O_NOATIME", 0)
# O_NONBLOCK: opening a FIFO must not wait for its other end before we can refuse it.
_COMMON: int = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
READ_WRITE: int = os.O_RDWR | _COMMON
READ_ONLY: int = os.O_RDONLY | _COMMON
CREATE: int = os.O_CREAT | os.O_EXCL


def _call(module: Any, name: str) -> Any:
    """A system call that not every system has."""
    found = getattr(module, name, None)
    return found and staticmethod(found)


class Files:
    """The operating system's own calls, with their own errors."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    flock = _call(fcntl, "flock")
    lstat = staticmethod(os.lstat)
    fstat = staticmethod(os.fstat)
    pread = _call(os, "pread")
    pwrite = _call(os, "pwrite")
    fchmod = _call(os, "fchmod")
    truncate = staticmethod(os.truncate)
    link = staticmethod(os.link)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    listdir = staticmethod(os.listdir)
    makedirs = staticmethod(os.makedirs)
    clock_ns = staticmethod(time.time_ns)


HOST = Files()
