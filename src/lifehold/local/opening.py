"""How a lock file is opened.

Rule: for writing where we may, for reading where not; made when it is not there; nothing but a
regular file, no symlink, no program that somebody might run.
"""

from __future__ import annotations

import errno
import stat

from .files import CREATE, O_NOATIME, READ_ONLY, READ_WRITE
from .record import MAGIC
from .refusals import make_folders, not_lockable, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .files import Files

TRIES = 100  # how often a file may come and go under our hands before we say so


def open_lock_file(
    files: Files, path: str, mode: int | None, shared: bool, make_room: Callable[[], bool]
) -> tuple[int, bool]:
    """(descriptor, whether it may be written).

    Makes the file, and its folders, when they are not there. `make_room` closes descriptors that
    nobody uses, and says whether there were any.

    First without O_CREAT: `fs.protected_regular` refuses it on another user's file in a sticky
    folder.
    """
    flags = (
        READ_WRITE | O_NOATIME
    )  # without it every read after a write dirties the inode (relatime)
    wished = 0o666 if shared or mode is None else mode
    denied = False
    for _ in range(TRIES):
        try:
            fd = _opened(files, path, flags)
            if fd < 0:
                flags = READ_ONLY
                continue
            return fd, flags & 3 != 0
        except FileNotFoundError:
            pass
        except OSError as error:
            flags = _after_refusal(files, path, flags, error, make_room)
            continue
        try:
            fd = files.open(path, flags | CREATE, wished)
        except FileExistsError:
            continue  # somebody else made it
        except FileNotFoundError:
            make_folders(files, path)
            continue
        except OSError as error:
            flags, denied = _after_denial(path, flags, error, denied)
            continue
        if shared or mode is not None:
            try:
                files.fchmod(fd, wished)  # exactly this mode, whatever the umask is
            except BaseException as error:
                files.close(fd)
                if isinstance(error, OSError):
                    raise refused(path, error) from error
                raise
        return fd, flags & 3 != 0
    raise refused(path, OSError(errno.ESTALE, "the file comes and goes too fast", path))


def _after_denial(path: str, flags: int, error: OSError, denied: bool) -> tuple[int, bool]:
    """What another try is made with after the file could not be made; raises when there is none."""
    if error.errno == errno.EPERM and flags & O_NOATIME:
        return flags & ~O_NOATIME, denied  # a file server may make us another user than the maker
    if error.errno == errno.EACCES and not denied:
        return flags, True  # another user has made it since, in a sticky folder: it is there
    raise refused(path, error, making=True) from error


def _opened(files: Files, path: str, flags: int) -> int:
    """The descriptor; -1 for what may not be open for writing, and is closed again.

    A program, executable and no record of ours (`flock "$0"`): execve(2) fails with ETXTBSY while
    anybody has it open for writing.
    """
    fd: int = files.open(path, flags)
    if not flags & 3:
        return fd
    kept = False
    try:
        found = files.fstat(fd)
        kept = not (found.st_mode & 0o111 and found.st_size and stat.S_ISREG(found.st_mode))
        if not kept:
            content = files.pread(fd, len(MAGIC), 0)
            kept = content == MAGIC or not content.strip(b"\0")
        return fd if kept else -1
    except OSError as error:
        raise refused(path, error) from error
    except BaseException:
        kept = False  # L6  nobody gets it
        raise
    finally:
        if not kept:
            files.close(fd)


def _after_refusal(
    files: Files, path: str, flags: int, error: OSError, make_room: Callable[[], bool]
) -> int:
    """The flags for another try after open(2) said no; raises when there is none."""
    if error.errno in (errno.EMFILE, errno.ENFILE) and make_room():
        return flags
    if error.errno in (errno.EPERM, errno.EACCES) and flags & O_NOATIME:
        return flags & ~O_NOATIME  # for the owner of a file only
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY) and flags & 3:
        return READ_ONLY  # a lock needs no right to write; the record and the token do
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV):
        try:
            found = files.lstat(path)
        except OSError:
            raise refused(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise not_lockable(path, found.st_mode) from error
    raise refused(path, error) from error
