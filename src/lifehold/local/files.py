"""The seam: every file system call that a lock makes, and the clock that stamps records.

The shipped protocols get one of these. `HOST` is the operating system; the explorer of
`lifehold.testing` passes its own and so plays every interleaving, crash and lie of a file server
against the same code. Attributes are the C functions themselves: the seam costs one attribute
look-up.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports enum: 5 ms
import os
import sys
import time

from ..runtime import fork
from .anew import anew
from .glance import glance
from .rename import rename_new

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
NAMELESS: int = getattr(os, "O_TMPFILE", 0)  # with the folder's path; 0 where there is none

_FOLDER: int = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
F_SETSIG = 10  # of Linux; the fcntl module does not name it

# struct flock of Linux: F_WRLCK or F_UNLCK, on the whole file.
_WRITE_LOCK, _NO_LOCK = (kind.to_bytes(2, sys.byteorder).ljust(32, b"\0") for kind in (1, 2))


def link_fd(fd: int, path: str) -> None:
    """Give an open file a name, which must not exist: linkat(2) of a file that may have none yet.

    `src_dir_fd` makes Python call linkat(2) and follow the link of /proc; without it, link(2).
    """
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


GUARD_APART: bool = sys.platform == "linux"  # whether `guard` is another lock than flock(2)


def guard(fd: int, take: bool = True) -> None:
    """Lock an open file against others who do the same; raises BlockingIOError, never waits.

    `take=False` lets go. Owned by the open file description, as flock(2) is, and free with its last
    descriptor. On Linux it is another lock than flock(2), so that a file whose holder lives can be
    guarded too; elsewhere it is the same, and cannot.
    """
    if GUARD_APART:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WRITE_LOCK if take else _NO_LOCK)
    elif take:
        fcntl.flock(fd, LOCK_EX | LOCK_NB)


def is_open_elsewhere(fd: int) -> bool:
    """Whether any other descriptor of the file is open, in any process: asked of a lease (Linux).

    Of one's own files (or as root); else, and where there is no such thing, true. Who opens the
    file just then is held up for microseconds, and the signal of that is one that is ignored.
    """
    try:
        fcntl.fcntl(fd, F_SETSIG, _signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):
        return True
    return False


def anchor(folder: str) -> tuple[str, int]:
    """(a name that leads to this very folder, wherever its path leads later; its descriptor).

    No symbolic link at its end is followed. Without /proc: its path, and -1.
    """
    fd = os.open(folder, _FOLDER)
    if sys.platform == "linux" and os.access("/proc/self/fd", os.X_OK):
        return f"/proc/self/fd/{fd}/.", fd  # the dot: what stands last is no link
    os.close(fd)
    return folder, -1


def chmod(folder: str, mode: int) -> None:
    """The permissions of a folder. L13  Never of what a link leads to that was put in its place."""
    if not hasattr(os, "fchmod"):
        os.chmod(folder, mode)
        return
    fd = os.open(folder, os.O_RDONLY | _FOLDER & ~getattr(os, "O_PATH", 0))
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def opened(path: str, flags: int, mode: int = 0o777) -> int:
    """open(2), whose descriptor no signal handler that raises makes us lose."""
    return fork.descriptor(os.open, path, flags, mode)


CALLS: dict[str, Any] = {
    "anchor": anchor,
    "open": opened,
    "close": os.close,
    "flock": getattr(fcntl, "flock", None),
    "lstat": os.lstat,
    "fstat": os.fstat,
    "pread": getattr(os, "pread", None),
    "pwrite": getattr(os, "pwrite", None),
    "fchmod": getattr(os, "fchmod", None),
    "chmod": chmod,
    "fsync": os.fsync,
    "utime": os.utime,
    "truncate": os.truncate,
    "write": os.write,
    "guard": guard,
    "is_open_elsewhere": is_open_elsewhere,
    "link_fd": link_fd,
    "link": getattr(os, "link", None),
    "rename": os.rename,
    "rename_new": rename_new,
    "unlink": os.unlink,
    "listdir": os.listdir,
    "makedirs": os.makedirs,
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "pause": time.sleep,
    "clock_ns": time.time_ns,
    "anew": anew,  # what a file server says of the names in a folder
    "glance": glance,  # a cheaper look at where a path leads, or None
}


class Files:
    """The operating system's own calls, with their own errors.

    They are attributes of the instance, which CPython finds fastest; what a subclass defines as a
    method stays its method.
    """

    anchor: Any
    open: Any
    close: Any
    flock: Any
    lstat: Any
    fstat: Any
    pread: Any
    pwrite: Any
    fchmod: Any
    chmod: Any
    fsync: Any
    utime: Any
    truncate: Any
    write: Any
    guard: Any
    is_open_elsewhere: Any
    link_fd: Any
    link: Any
    rename: Any
    rename_new: Any
    unlink: Any
    listdir: Any
    makedirs: Any
    mkdir: Any
    rmdir: Any
    pause: Any
    clock_ns: Any
    anew: Any
    glance: Any

    def first(self, fd: int, length: int) -> bytes:
        """The first bytes of what was opened just now and not read yet."""
        return self.pread(fd, length, 0)  # type: ignore[no-any-return]

    def again(self, fd: int) -> Any:
        """What a descriptor leads to by now that was looked at when it was opened: as `fstat`."""
        return self.fstat(fd)

    def there(self, path: str) -> bool:
        """Whether anything has that name."""
        try:
            self.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def __init__(self) -> None:
        for name, call in CALLS.items():
            if not hasattr(type(self), name):
                setattr(self, name, call)


HOST = Files()
