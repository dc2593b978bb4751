"""The seam: every file system call that a lock makes, and the clock that stamps records.

The shipped protocols get one of these. `HOST` is the operating system; the explorer of
`lifehold.testing` passes its own and so plays every interleaving, crash and lie of a file server
against the same code. Attributes are the C functions themselves: the seam costs one attribute
look-up.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports enum: 5 ms
import errno
import os
import stat
import sys
import time

from ..core.errors import pass_up
from ..runtime import fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    import functools
    from collections.abc import Callable
    from typing import Any
else:
    functools = fork.later("functools", globals())


# ------------------------------------------------------------------------------------------------
# To have a file server asked anew what the names in a folder lead to.
#
# A client of NFS remembers what a name led to, or that it led nowhere, for as long as it takes the
# folder for unchanged: up to a minute. open(2) does not ask either: from NFSv4.1 on it opens what
# the name led to by its handle, and a file that was replaced or removed answers while anybody has
# it open. So whoever decides by a name asks for the folder first; if that has changed, every name
# in it is looked up again. A server that tells two changes of one instant apart by nothing but the
# time (an export of tmpfs) may hide the second of them.
#
# statx(2) with AT_STATX_FORCE_SYNC asks whatever the mount's options are, and needs no right to
# read the folder. Where there is no such call the folder is opened, which asks unless it is mounted
# `nocto`. On Windows nothing is asked; no shared folder was tried there.
#
# What a server has lent a machine, a *delegation* of a file, it calls back before another may open
# that file for writing, touch, rename or unlink it; from a machine that it cannot reach, for 1.5 of
# its own leases. Any open(2) of a file may get one. So a holder looks at its record by its name,
# and gives back what it was lent (`hand_back`): else its ttl would not be the longest wait for it.


AT_FDCWD, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS = -100, 0x2000, 0x7FF
STATX_SIZE = 256  # bytes of struct statx
_PLAIN: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
# EPERM: what some filters of system calls say of a call that is younger than they are.
NOT_OFFERED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM})
_statx_call: Any = None


def anew(folder: str) -> None:
    """From here on names in the folder lead where the server says. Raises OSError.

    Of a file: what is read of it by a descriptor is what the server has.
    """
    global _statx_call
    if _statx_call is None:
        _statx_call = _load_statx() or False
    if _statx_call:
        call, buffer, get_errno = _statx_call
        name, how = os.fsencode(folder), AT_STATX_FORCE_SYNC
        if call(AT_FDCWD, name, how, STATX_BASIC_STATS, buffer(STATX_SIZE)) == 0:
            return
        code = get_errno()
        if code not in NOT_OFFERED:
            raise OSError(code, os.strerror(code), folder)
    if sys.platform != "win32":
        os.close(os.open(folder, _PLAIN))


def hand_back(files: Files, fd: int) -> None:
    """Give a delegation of our own file back: its client does so before it changes the times."""
    try:
        files.utime(fd)
    except OSError as error:
        pass_up(error)  # else it is not ours any more, or may not be written: who asks is told


def _load_statx() -> object:
    """The call, what takes its answer, and its errno; None where there is no statx(2)."""
    if sys.platform != "linux":
        return None
    try:
        ctypes = fork.lazily("ctypes")
        call = ctypes.CDLL(None, use_errno=True).statx
    except (ImportError, OSError, AttributeError):  # of the loader: an OSError without an errno
        return None
    call.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
    return call, ctypes.create_string_buffer, ctypes.get_errno


# ------------------------------------------------------------------------------------------------
# Where a path leads, asked of the kernel for the inode number alone.
#
# lstat(2) asks for the times too, and a file whose times somebody has read gets new ones with its
# next write (multigrain timestamps, Linux 6.13): on ext4 that makes the write of a record twice as
# dear. statx(2) can ask for less. It is called through ctypes, whose import only pays for a lock
# that is taken often (handles.LockFile decides). A glance that fails, for whatever reason, or sees
# another file proves nothing: lstat has the word then.


AT_SYMLINK_NOFOLLOW, STATX_INO, STATX_BTIME = 0x100, 0x100, 0x800

INODE, DEVICE = 4, 17  # stx_ino and both halves of stx_dev, in words of 8 bytes
MAJOR, MINOR = 34, 35  # these halves, in words of 4 bytes
BORN, BORN_NS = 10, 22  # stx_btime: its seconds, in words of 8 bytes, and the rest, in words of 4
_statx: Any = None


def glance(path: str) -> tuple[Callable[[], int], Any] | None:
    """(call, words): after `call() == 0`, `words[INODE]` and `words[DEVICE]` tell the file.

    None where there is no statx(2): before Linux 4.11 and glibc 2.28, on other systems.
    """
    return _ask_for(path, STATX_INO)


def born_ns(path: str) -> int | None:
    """When a file was made, in nanoseconds; None where its file system does not tell."""
    found = _ask_for(path, STATX_BTIME)
    if found is None or found[0]() != 0:
        return None
    halves = found[1].cast("B").cast("I")
    return int(found[1][BORN]) * 10**9 + halves[BORN_NS] if halves[0] & STATX_BTIME else None


def _ask_for(path: str, what: int) -> tuple[Callable[[], int], Any] | None:
    global _statx
    if sys.platform != "linux":
        return None
    try:
        ctypes, partial = fork.lazily("ctypes"), functools.partial
        _statx = _statx or ctypes.CDLL(None).statx
    except (ImportError, AttributeError, OSError):
        return None
    buffer = ctypes.create_string_buffer(STATX_SIZE)
    call = partial(
        _statx,
        ctypes.c_int(AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_int(AT_SYMLINK_NOFOLLOW),
        ctypes.c_uint(what),
        ctypes.byref(buffer),
    )
    return call, memoryview(buffer).cast("B").cast("Q")


def device_of(words: Any) -> int:
    """The device in `words`, as `st_dev` has it."""
    halves = words.cast("B").cast("I")
    return os.makedev(halves[MAJOR], halves[MINOR])


# ------------------------------------------------------------------------------------------------
# rename(2) that replaces nothing: renameat2(2) with RENAME_NOREPLACE, by ctypes.
#
# Where there is no such call (another system, an old C library, a file server, no ctypes) a file is
# given its second name by link(2), which replaces nothing either, and loses its first. A folder has
# no second name: it is moved by plain rename(2), which puts it in the place of an empty one. For a
# program that takes its locks by mkdir(2) an empty folder is a lock that it holds, and one that was
# made since the caller looked is replaced there.


RENAME_NOREPLACE = 1
NO_NOREPLACE = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_rename_call: Any = None


def rename_new(old: str, new: str, at: int = AT_FDCWD) -> None:
    """Rename, unless something has the new name: then FileExistsError. Raises OSError.

    `at`: the descriptor of the folder that relative names begin in.
    """
    global _rename_call
    if _rename_call is None:
        _rename_call = _load_rename() or False
    if _rename_call:
        call, get_errno = _rename_call
        if call(at, os.fsencode(old), at, os.fsencode(new), RENAME_NOREPLACE) == 0:
            return
        code = get_errno()
        if code not in NO_NOREPLACE:
            raise OSError(code, os.strerror(code), old, None, new)
    folder = None if at == AT_FDCWD else at
    try:
        os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, RuntimeError) as error:
        pass_up(error)  # else a folder, or no second names here (RuntimeError: no linkat)
        os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(old, dir_fd=folder)


def _load_rename() -> Any:
    """The call and its errno; None where the C library has no such thing."""
    try:
        ctypes = fork.lazily("ctypes")
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, AttributeError):  # of the loader: an OSError without an errno
        return None
    number, name = ctypes.c_int, ctypes.c_char_p
    call.argtypes = (number, name, number, name, ctypes.c_uint)
    return call, ctypes.get_errno


try:
    import fcntl
except ImportError:
    if os.name != "nt":  # out of reach, or Python was built without it
        raise
    fcntl = None  # type: ignore[assignment]  # local/windows.py locks there

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
# The folder of a file, which a symbolic link may lead to.
FOLDER: int = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECTORY", 0)
NAMELESS: int = getattr(os, "O_TMPFILE", 0)  # with the folder's path; 0 where there is none
MADE_NAMELESS: int = NAMELESS | (READ_WRITE & ~getattr(os, "O_NOFOLLOW", 0))

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


def group_bit(files: Files, folder: str) -> int:
    """A set-group-id folder passes its group on; chmod must not take that away."""
    found: int = files.lstat(folder).st_mode
    return found & stat.S_ISGID


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
    except (OSError, AttributeError) as error:
        pass_up(error)
        return True
    return False


def anchor(folder: str, opened: list[int]) -> str:
    """A name that leads to this very folder, wherever its path leads later.

    L6  `opened` has its descriptor at once, and the caller closes it: nothing comes between, as a
    signal handler's exception could on the way back. No symbolic link at its end is followed.
    Without /proc the answer is its path.
    """
    opened.extend(map(os.open, (folder,), (_FOLDER,)))
    if sys.platform == "linux" and os.access("/proc/self/fd", os.X_OK):
        return f"/proc/self/fd/{opened[-1]}/."  # the dot: what stands last is no link
    return folder


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


# open(2), whose descriptor no signal handler that raises makes us lose.
opened: Callable[..., int] = native.bound(fork.descriptor, os.open)


CALLS: dict[str, object] = {
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

    anchor: Callable[[str, list[int]], str]
    open: Callable[..., int]
    close: Callable[[int], None]
    flock: Callable[[int, int], None]
    lstat: Callable[[str], os.stat_result]
    fstat: Callable[[int], os.stat_result]
    pread: Callable[[int, int, int], bytes]
    pwrite: Callable[[int, bytes, int], int]
    fchmod: Callable[[int, int], None]
    chmod: Callable[[str, int], None]
    fsync: Callable[[int], None]
    utime: Callable[..., None]
    truncate: Callable[..., None]
    write: Callable[[int, bytes], int]
    guard: Callable[..., None]
    is_open_elsewhere: Callable[..., object]
    link_fd: Callable[[int, str], None]
    link: Callable[[str, str], None]
    rename: Callable[[str, str], None]
    rename_new: Callable[[str, str], None]
    unlink: Callable[[str], None]
    listdir: Callable[[str], list[str]]
    makedirs: Callable[..., None]
    mkdir: Callable[..., None]
    rmdir: Callable[[str], None]
    pause: Callable[[float], None]
    clock_ns: Callable[[], int]
    anew: Any
    glance: Any

    def first(self, fd: int, length: int) -> bytes:
        """The first bytes of what was opened just now and not read yet."""
        return self.pread(fd, length, 0)

    def again(self, fd: int) -> os.stat_result:
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
        if type(self).again is Files.again:
            self.again = self.fstat  # type: ignore[method-assign, assignment]


HOST = Files()
