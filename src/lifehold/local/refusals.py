"""Where the operating system or the path says no: each refusal in words, with its remedy.

Promise: one clear error that names the path. What could be seen to fail leaves no folder behind.
"""

from __future__ import annotations

import errno
import os
import stat

from ..core.errors import InvalidArgument, LifeholdError, SystemRefused, UnsafeGround, pass_up
from .files import READ_WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from .files import Files

    T = TypeVar("T")


class UntrustedPath(OSError):
    """L13  A path leads where root does not follow (local/anchored.py)."""


JUST_RELEASED = "it was held a moment ago, and is free by now"  # as who refused us cannot be named
STALE_TRIES = 8  # of one attempt on which a file server has forgotten a file

DIGITS = 20  # of the name of a numbered record
NAME_MAX = 255  # bytes of one part of a path, on every file system that matters
ENOTSUPP = 524  # of the kernel's NFS client, which lets it out; the C library has no words for it
# What flock(2) says where there are no locks, or only for files that may be written (NFSv4).
no_flock = frozenset(
    {
        errno.ENOLCK,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        ENOTSUPP,
        errno.EBADF,
        errno.EINVAL,
    }
)


def asked_again(attempt: Callable[[], T], before: Callable[[], object] = tuple) -> T:
    """What `attempt()` answers, which is asked again while a file server has forgotten a file.

    Over NFS what another client removes between two steps of ours is stale (ESTALE): that is no
    error, but a look at what was. An attempt that raises leaves nothing held (L6). `before` each
    further one: to have the names asked anew, which may lead to that file for seconds.
    """
    for _ in range(STALE_TRIES):
        try:
            return attempt()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        before()
    return attempt()


def make_folders(files: Files, path: str) -> None:
    """Make the folders of a lock file, unless it could not be made in them."""
    if any(len(os.fsencode(part)) > NAME_MAX for part in path.split("/")):
        raise refused(path, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
    folder = os.path.dirname(path)
    try:
        files.makedirs(folder, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOENT) and (link := _dead_link(files, folder)):
            raise InvalidArgument(
                f"{path!r}: {link!r} is a symbolic link that leads nowhere: make the folder it "
                "names, or lock a file elsewhere",
                name=path,
            ) from error
        raise refused(folder, error, making=True) from error


def _dead_link(files: Files, folder: str) -> str | None:
    """The part of the path behind which nothing is, though it is there itself."""
    while folder != (parent := os.path.dirname(folder)):
        try:
            return folder if stat.S_ISLNK(files.lstat(folder).st_mode) else None
        except OSError as error:
            pass_up(error)
            folder = parent
    return None


def not_lockable(path: str, mode: int, kind: str = "kernel") -> InvalidArgument | UnsafeGround:
    """L7  Symlinks and whatever is not a regular file are neither followed nor replaced."""
    if stat.S_ISDIR(mode) and _is_of_generations(path):
        return UnsafeGround(mixed_kinds(path, kind, "generation"), name=path)
    what = {
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }.get(stat.S_IFMT(mode), "not a regular file")
    remedy = (
        f"lock its target, {os.path.realpath(path)!r}, or a file of its own"
        if stat.S_ISLNK(mode)
        else "lock a regular file, one of its own next to what it protects "
        f"(for example {path.rstrip('/') + '.lock'!r})"
    )
    return InvalidArgument(f"{path!r} is {what}: {remedy}", name=path)


def mixed_kinds(path: str, ours: str, theirs: str) -> str:
    """Two kinds on one path do not exclude each other: why it is refused."""
    return (
        f"{path!r} is a lock of kind={theirs!r}, and was asked for as kind={ours!r}: the two would "
        "not exclude each other. Use one kind for one path; if nobody uses it any more, remove it"
    )


def is_number(name: str) -> bool:
    """Whether a file's name is that of a numbered record."""
    return len(name) == DIGITS and name.isascii() and name.isdigit()


def _is_of_generations(path: str) -> bool:
    try:
        return any(is_number(name) for name in os.listdir(path))
    except OSError as error:
        pass_up(error)
        return False


REMEDIES = {
    errno.EACCES: "ask its owner for the right to read it, which is enough to lock it",
    errno.EPERM: "ask its owner for the right to open it",
    errno.EROFS: "only a lock file that exists already can be locked here, by kind='kernel'; "
    "choose another folder, for plain names of the command by LIFEHOLD_DIR",
    errno.ENOSPC: "free some space or inodes, or lock a file on another file system",
    errno.EDQUOT: "free some of your quota, or lock a file on another file system",
    errno.EMFILE: "raise the limit of open files (ulimit -n) or hold fewer locks at once",
    errno.ENFILE: "the whole system has too many open files",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.ELOOP: "the path runs in circles through symbolic links",
    errno.ENOLCK: "the kernel or the file server has no room for locks, or does not lock at all: "
    "kind='generation' with a ttl needs no locks",
    errno.ENOSYS: "this file system has no such locks: kind='generation' with a ttl needs none",
    errno.EOPNOTSUPP: "this file system has no such locks: kind='generation' with a ttl needs none",
    ENOTSUPP: "the file server refuses locks: kind='generation' with a ttl needs none",
    errno.EBADF: "over NFS an exclusive lock needs a file that may be written",
    errno.EFBIG: "raise the limit of file size (ulimit -f): a record takes 1 KiB",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or use wait=0: a wait takes a thread",
    errno.ESPIPE: "there is a FIFO where a file of the lock belongs, or its descriptor was closed "
    "by other code and the number used again",
    errno.EIO: "the disk or the file server failed",
    errno.ESTALE: "the file server has forgotten the file: try again",
}

MAKING = (
    "it does not exist, and you may not make it there: choose another path, for plain names of the "
    "command by LIFEHOLD_DIR"
)


STICKY = (
    "in a folder with the sticky bit a file is replaced and removed by its owner, the folder's "
    "owner and root alone: for several users take kind='kernel' or 'generation', or another folder"
)


def _is_in_sticky_folder(path: str) -> bool:
    try:
        return bool(os.stat(os.path.dirname(path) or ".").st_mode & stat.S_ISVTX)
    except OSError as error:
        pass_up(error)
        return False


def refused(path: str, error: OSError, *, making: bool = False) -> LifeholdError:
    """An error of the operating system in our words, with the remedy.

    Raises the error itself when it is not the system's: it has no errno when a signal handler
    raised it, as the classic one for SIGALRM does with TimeoutError.
    """
    if not error.errno:
        raise error
    if isinstance(error, UntrustedPath):
        return UnsafeGround(f"{path!r}: {error.strerror}", name=path)
    said = "operation not supported (524)" if error.errno == ENOTSUPP else error.strerror
    text = f"{path!r}: {said or error}"
    remedy = REMEDIES.get(error.errno)
    beside = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    if error.errno == errno.ENAMETOOLONG and beside.startswith(path + "."):
        suffix = beside[len(path) :]
        longest = NAME_MAX - len(suffix)
        remedy = f"choose a shorter name, {longest} bytes at most: NAME{suffix} lies beside it"
    if making and error.errno in (errno.EACCES, errno.EPERM):
        remedy = MAKING
    elif error.errno == errno.EPERM and _is_in_sticky_folder(path):
        remedy = STICKY
    if remedy:
        text += f": {remedy}"
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR):
        return InvalidArgument(text, name=path)
    return SystemRefused(text, name=path, errno=error.errno, filename=path)


def needs_ttl(path: str, kind: str, ground: str) -> UnsafeGround:
    """L2  Where nobody's death can be proven, only a lease ends."""
    return UnsafeGround(
        f"{path!r} lies on {ground or 'a file system that lifehold does not know'}, where another "
        f"machine may hold locks: nothing there proves that a holder has died, so a {kind!r} lock "
        "without a ttl would stay for ever after a crash. Give it a ttl, for example ttl=30",
        name=path,
    )


def no_links(path: str, kind: str) -> UnsafeGround:
    """link(2) is what lets one win."""
    return UnsafeGround(
        f"{path!r}: this file system has no hard links, by which a {kind!r} lock is taken: lock a "
        "file on another file system",
        name=path,
    )


def two_numbers(path: str, kind: str) -> UnsafeGround:
    """By its inode number we recognise a file of ours."""
    return UnsafeGround(
        f"{path!r}: on this file system two names of one file have two inode numbers, by which a "
        f"{kind!r} lock cannot tell who has won: lock a file on another file system, or mount this "
        "one so that it passes on the numbers of its server (FUSE: -o use_ino)",
        name=path,
    )


def no_locks(path: str, kind: str) -> UnsafeGround:
    """Two who take one stale file over must not both do so."""
    return UnsafeGround(
        f"{path!r} is stale, and to take it over safely needs flock(2), which this file system "
        f"does not have or not for us: remove the file by hand once its holder is surely gone, or "
        f"use kind='generation' instead of {kind!r}",
        name=path,
    )


def refuse_read_only(files: Files, path: str, record: str) -> None:
    """For a record that could not be opened for writing: no patience helps where nobody can."""
    try:
        files.close(files.open(record, READ_WRITE))
    except OSError as error:
        pass_up(error)
        if error.errno == errno.EROFS:  # by a look, since an export is told by nothing else
            raise refused(path, error) from error


def another_users(path: str) -> SystemRefused:
    """A record that may not be read; or not written, where it must be to take it over."""
    return SystemRefused(
        f"{path!r} is another user's record: where several users share a lock, all of them must "
        "give shared=True",
        name=path,
        errno=errno.EACCES,
        filename=path,
    )
