"""The removal of a foreign lock that is a bare path, proven stale: a file or a symbolic link.

Promise: what is removed is the very file that was judged, unchanged, in the very folder that was
opened: a folder swapped on its path is not followed. A lock that another process made since is put
back, and its path was never free meanwhile. Nothing of ours has a set-user-id, set-group-id or
sticky bit (L13). Whose rights this is done with: rights.py.

`remove`, for families that lock by presence alone:
1 Open what was judged, so that its inode number is not given on; lock it, against our own kind.
2 Post a placeholder under a name of its own: a lock of this process, as that family writes it.
3 Exchange the two names in one step (L3): the path is a lock all the time.
4 Look at what came back. The judged file, unchanged: go on. Another: exchange again, and leave it.
5 Remove the judged file by its new name; then rename the placeholder away and remove it.

`empty`, for files that their program may lock by the kernel as well, and for what no family knows
better (L7): who waits in flock(2) or fcntl(2) for the inode wakes with it after an unlink(2), and
beside it the next one holds a new file. So the file stays, without its words: under both kinds of
kernel lock, while nobody else has it open, and with a lease that holds up who opens it just then.

filelock takes over by such an exchange too, and two kinds of breakers that judge the same dead lock
can lose a fresh one between them (seen twice in 3,000 rounds). So its locks are left to itself
where it can prove the death (clear.py); elsewhere nobody else breaks them.

What remains: another tool that judged the same dead lock, and removes it by its path, may remove
the placeholder between 3 and 5, so that a third one acquires, and our rename takes its lock. It is
looked at and put back (by a rename that replaces nothing); for that moment its path was free. Two
tools that clean up by path can rob each other's successors with or without us.
"""

from __future__ import annotations

import errno
import os
import stat

from ..local.exchange import exchange
from ..local.files import F_SETSIG, HOST, LOCK_EX, LOCK_NB, READ_ONLY, READ_WRITE, rename_new
from ..runtime import clock
from .placeholder import placeholder

try:
    import _signal  # type: ignore[import-not-found]
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.owner import Owner

MOST = 1 << 20  # bytes of a lock file that are compared
PATIENCE, STALL, PAUSE = 1.0, 0.01, 0.0005  # seconds for others to undo an exchange
ASIDE = ".lifehold-"  # and a nonce: what a crash leaves is swept as other leftovers are
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
FOLDER |= getattr(os, "O_CLOEXEC", 0)
PLAIN = 0o666  # of a mode, the bits that anything of ours may have


class Changed(Exception):
    """It is not what was judged any more, or somebody uses it: nothing was removed."""


def words_of(path: str, at: int | None = None) -> bytes:
    """What a lock says: the content of a file, the target of a link. Raises OSError.

    `at`: the descriptor of the folder that `path` begins in.
    """
    if stat.S_ISLNK(os.lstat(path, dir_fd=at).st_mode):
        return os.fsencode(os.readlink(path, dir_fd=at))
    fd = os.open(path, READ_ONLY, dir_fd=at)
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "another thing than a file stands there")
    return HOST.pread(fd, MOST, 0)  # type: ignore[no-any-return]


def remove(
    path: str, found: os.stat_result, words: bytes, dead: Owner | None,
    step: Callable[[str], None] = lambda name: None,
) -> None:  # fmt: skip
    """Remove the lock at `path` if it is `found`, with these words. Raises Changed, OSError.

    `dead`: whom it names; `step`: hears the name of each step, for tests.
    """
    at, name = _anchored(path)
    try:
        step("anchored")
        link = stat.S_ISLNK(found.st_mode)
        fd = _kept_open(name, at, link=link)
        try:
            if not _is(os.fstat(fd), found):
                raise Changed("it was replaced by another")
            if not link:
                _lock(fd)
            if (words_of(name, at) if link else _read(fd)) != words:
                raise Changed("it was written to")
            step("judged")
            _by_exchange(at, name, found, words, dead, step)
        finally:
            os.close(fd)
    finally:
        os.close(at)


def empty(
    path: str, found: os.stat_result, words: bytes,
    step: Callable[[str], None] = lambda name: None,
) -> None:  # fmt: skip
    """Take the words out of the file at `path` if it is `found`, with these words; it stays.

    Its time becomes that of 1970, so that tools which go by the age of an empty lock file (the rule
    of 5 minutes) take it at once. Raises Changed, OSError.
    """
    at, name = _anchored(path)
    try:
        step("anchored")
        fd = os.open(name, READ_WRITE, dir_fd=at)
        try:
            here = os.fstat(fd)
            if not _is(here, found) or not stat.S_ISREG(here.st_mode):
                raise Changed("it was replaced by another")
            if here.st_nlink != 1:
                raise Changed("it has another name, which may be somebody's data")
            _lock(fd, needed=True)
            _refuse_open(fd)  # from here on, who opens it waits for us
            if _read(fd) != words:
                raise Changed("it was written to")
            step("judged")
            os.ftruncate(fd, 0)
            os.utime(fd, (0, 0))
        finally:
            os.close(fd)
    finally:
        os.close(at)


def _anchored(path: str) -> tuple[int, str]:
    """L13  The folder of `path`, open: wherever its path leads later, we stay in this one."""
    if os.name != "posix":
        raise Changed("this system cannot exchange two names in one step")
    folder, name = os.path.split(path)
    return os.open(folder or "/", FOLDER), name


def _kept_open(name: str, at: int, *, link: bool) -> int:
    """A descriptor, as long as which nothing else gets its inode's number."""
    flags = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC if link else READ_ONLY
    return os.open(name, flags, dir_fd=at)


def _lock(fd: int, *, needed: bool = False) -> None:
    """Against others of our kind, who do the same: taken without waiting, gone with the file.

    `needed`: by both kinds of lock of the kernel, or not at all.
    """
    try:
        HOST.flock(fd, LOCK_EX | LOCK_NB)
        if needed:
            HOST.guard(fd)
    except BlockingIOError as error:
        raise Changed("somebody locks it") from error
    except OSError as error:
        if needed:
            raise Changed("nothing can be locked on this file system") from error


def _refuse_open(fd: int) -> None:
    """A lease of the kernel, gone with `fd`: nobody has it open, and who opens it waits for us."""
    try:
        fcntl.fcntl(fd, F_SETSIG, _signal.SIGURG)  # a signal that is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError as error:
        raise Changed("somebody has it open") from error
    except (OSError, AttributeError):
        return  # another's file, or another system: the two locks must do


def _by_exchange(
    at: int, name: str, found: os.stat_result, words: bytes, dead: Owner | None,
    step: Callable[[str], None],
) -> None:  # fmt: skip
    """All names are of the folder that `at` has open."""
    aside = f"{ASIDE}{os.urandom(16).hex()}"
    post = _post(aside, at, found, placeholder(words, dead, link=stat.S_ISLNK(found.st_mode)))  # 2
    ours = os.fstat(post)
    kept = True
    try:
        step("posted")
        try:
            if not _is(
                os.lstat(name, dir_fd=at), found
            ):  # a live lock is not moved where we can see it
                raise Changed("another took it meanwhile")
            step("checked")
            if not exchange(aside, name, at):  # 3
                raise Changed("this file system cannot exchange two names in one step")
        except FileNotFoundError as error:
            raise Changed("it was removed by another") from error
        step("exchanged")
        if not _is(os.lstat(aside, dir_fd=at), found) or words_of(aside, at) != words:  # 4
            _put_back(at, aside, name, ours)
            raise Changed("another took it meanwhile")
        os.unlink(aside, dir_fd=at)  # 5
        step("unlinked")
        try:
            if not _stands(at, name, post, ours):
                return
            os.rename(name, aside, src_dir_fd=at, dst_dir_fd=at)
        except FileNotFoundError:
            return  # another tool removed the placeholder for us
        if not _is(os.lstat(aside, dir_fd=at), ours):
            kept = False
            rename_new(aside, name, at)
    finally:
        if kept:
            _forget(at, aside, ours)
        os.close(post)


def _stands(at: int, name: str, post: int, ours: os.stat_result) -> bool:
    """Whether our placeholder stands at its path.

    filelock exchanges as we do: who judged the dead lock too may have ours aside, and puts it back.
    """
    until = clock.now() + PATIENCE
    while not _is(os.lstat(name, dir_fd=at), ours):
        if os.fstat(post).st_nlink == 0 or clock.now() > until:
            return False
        clock.pause(PAUSE)
    return True


def _put_back(at: int, aside: str, name: str, ours: os.stat_result) -> None:
    """Until what we took stands at its path again, and ours aside.

    Others may be undoing an exchange too, each on top of the other: so we exchange only while ours
    stands at the path, and what we hold aside is what belongs there. Where all wait for one another
    the one whose patience ends exchanges all the same, which opens the ring.
    """
    until, stirs = clock.now() + 2 * PATIENCE, clock.now() + STALL
    while not _is(os.lstat(aside, dir_fd=at), ours) and clock.now() < until:
        try:
            if not (_is(os.lstat(name, dir_fd=at), ours) or clock.now() >= stirs):
                clock.pause(PAUSE)
                continue
            exchange(aside, name, at)
            stirs = clock.now() + STALL
        except FileNotFoundError:  # the placeholder was removed by another
            try:
                rename_new(aside, name, at)
                return
            except FileExistsError:
                continue


def _post(aside: str, at: int, found: os.stat_result, told: bytes) -> int:
    """A lock of this process in the form of the dead one, open.

    L13  It is ours, or its owner's where we are root, and has no bit of the dead one that means
    more than reading and writing.
    """
    if stat.S_ISLNK(found.st_mode):
        os.symlink(told, os.fsencode(aside), dir_fd=at)
        return _kept_open(aside, at, link=True)
    flags = READ_WRITE | os.O_CREAT | os.O_EXCL
    fd = os.open(aside, flags, 0o600, dir_fd=at)
    try:
        if os.fstat(fd).st_uid == 0 != found.st_uid:
            os.fchown(fd, found.st_uid, found.st_gid)
        os.write(fd, told)
        os.fchmod(fd, stat.S_IMODE(found.st_mode) & PLAIN)
    except BaseException:
        os.unlink(aside, dir_fd=at)
        os.close(fd)
        raise
    return fd


def _forget(at: int, aside: str, ours: os.stat_result) -> None:
    """Remove our placeholder by its own name; never what is another's."""
    try:
        if _is(os.lstat(aside, dir_fd=at), ours):
            os.unlink(aside, dir_fd=at)
    except FileNotFoundError:
        return


def _is(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
