"""To drop what an NFS client remembers of a file's size and times: both ways of liblockfile(3).

A lock file keeps others out; it does not tell this machine's kernel that a file it has open has
changed meanwhile on another machine. A size from before the lock makes `seek(0, 2)` and append
write into the middle.
"""

from __future__ import annotations

import errno
import os
import stat

from ..core.errors import InvalidArgument, SystemRefused
from .anchored import OWN
from .handles import files_for

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

WAYS = ("chmod", "lockf")


def refresh_attributes(file: int | str | os.PathLike[str], *, way: str = "chmod") -> None:
    """Make the kernel ask the file server anew for what it knows of a file.

    Call it *after* the lock is held and before you look at the size. `file`: an open descriptor, or
    a path. `way`:

    "chmod": set the mode to what it is. Not portable: Linux updates its cache from the reply. Needs
    to be the owner (or root); changes the ctime; a mode that somebody changes at that very moment
    is set back. Touches no lock. A path needs /proc, and no symbolic link at its end is followed.
    "lockf": take and drop a POSIX lock on the whole file. Portable. **It drops every POSIX lock
    that this process has on the file**, and with a path even to open and close it would: so it
    takes a descriptor only, of a file opened for writing. When somebody else has it locked, nothing
    is refreshed: SystemRefused.

    Raises InvalidArgument, SystemRefused. On a local file system it is done and changes nothing.
    """
    if way not in WAYS:
        raise InvalidArgument(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    if isinstance(file, bool) or not isinstance(file, (int, str, os.PathLike)):
        raise InvalidArgument(f"file must be a descriptor or a path, not {type(file).__name__}")
    if way == "lockf" and not isinstance(file, int):
        raise InvalidArgument(
            "way='lockf' takes an open descriptor: to open and close the path would drop the POSIX "
            "locks that this process has on the file. Give the descriptor, or way='chmod'"
        )
    try:
        if not isinstance(file, int):
            _set_at(os.path.abspath(os.fsdecode(file)))
        elif way == "chmod":
            os.fchmod(file, stat.S_IMODE(os.fstat(file).st_mode))
        elif fcntl is not None:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_UN)
    except OSError as error:
        raise SystemRefused(
            f"the attributes of {file!r} could not be refreshed by {way}: {error.strerror}. "
            f"Try way={WAYS[way == 'chmod']!r}",
            errno=error.errno,
            filename=None if isinstance(file, int) else os.fspath(file),
        ) from error


def _set_at(path: str) -> None:
    """L13  The mode of one file: what is swapped at the path meanwhile gets none of another's.

    Raises OSError. Opened by O_PATH: to close any other descriptor would drop POSIX locks.
    """
    if not hasattr(os, "O_PATH"):
        raise OSError(errno.EOPNOTSUPP, "by its path it cannot be done here: give a descriptor")
    fd = files_for(path).open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, "it is a symbolic link: name the file itself")
        os.chmod(f"{OWN}{fd}", stat.S_IMODE(found.st_mode))
    finally:
        os.close(fd)
