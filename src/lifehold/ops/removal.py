"""The removal of a foreign lock that is a bare path, proven stale: a file or a symbolic link.

Promise: what is removed is the very file that was judged, unchanged. A lock that another process
made since is put back, and its path was never free meanwhile.

1 Open what was judged, so that its inode number is not given on; lock it, against our own kind.
2 Post a placeholder under a name of its own: a lock of this process, as that family writes it.
3 Exchange the two names in one step (L3): the path is a lock all the time.
4 Look at what came back. The judged file, unchanged: go on. Another: exchange again, and leave it.
5 Remove the judged file by its new name; then rename the placeholder away and remove it.

filelock takes over by such an exchange too, and two kinds of breakers that judge the same dead lock
can lose a fresh one between them (seen twice in 3,000 rounds). So its locks are left to itself
where it can prove the death (clear.py); elsewhere nobody else breaks them.

What remains: another tool that judged the same dead lock, and removes it by its path, may remove
the placeholder between 3 and 5, so that a third one acquires, and our rename takes its lock. It is
looked at and put back (by a rename that replaces nothing); for that moment its path was free. Two
tools that clean up by path can rob each other's successors with or without us.
"""

from __future__ import annotations

import os
import stat

from ..local.exchange import exchange
from ..local.files import HOST, LOCK_EX, LOCK_NB, READ_ONLY
from ..local.rename import rename_new
from ..runtime import clock
from .placeholder import placeholder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.owner import Owner

MOST = 1 << 20  # bytes of a lock file that are compared
PATIENCE, STALL, PAUSE = 1.0, 0.01, 0.0005  # seconds for others to undo an exchange
ASIDE = ".lifehold-"  # and a nonce: what a crash leaves is swept as other leftovers are


class Changed(Exception):
    """It is not what was judged any more, or somebody locks it: nothing was removed."""


def words_of(path: str) -> bytes:
    """What a lock says: the content of a file, the target of a link. Raises OSError."""
    if stat.S_ISLNK(os.lstat(path).st_mode):
        return os.fsencode(os.readlink(path))
    fd = os.open(path, READ_ONLY)
    try:
        return HOST.pread(fd, MOST, 0)  # type: ignore[no-any-return]
    finally:
        os.close(fd)


def remove(
    path: str, found: os.stat_result, words: bytes, dead: Owner | None,
    step: Callable[[str], None] = lambda name: None,
) -> None:  # fmt: skip
    """Remove the lock at `path` if it is `found`, with these words. Raises Changed, OSError.

    `dead`: whom it names; `step`: hears the name of each step, for tests.
    """
    link = stat.S_ISLNK(found.st_mode)
    fd = _kept_open(path, link=link)
    try:
        if not _is(os.fstat(fd), found):
            raise Changed("it was replaced by another")
        if not link:
            _lock(fd)
        if words_of(path) != words:
            raise Changed("it was written to")
        step("judged")
        _by_exchange(path, found, words, dead, step)
    finally:
        os.close(fd)


def _kept_open(path: str, *, link: bool) -> int:
    """A descriptor, as long as which nothing else gets its inode's number."""
    flags = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC if link else READ_ONLY
    return os.open(path, flags)


def _lock(fd: int) -> None:
    """Against others of our kind, who do the same: taken without waiting, gone with the file."""
    try:
        HOST.flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        raise Changed("somebody locks it") from error
    except OSError:
        return  # a file system without locks


def _by_exchange(
    path: str, found: os.stat_result, words: bytes, dead: Owner | None,
    step: Callable[[str], None],
) -> None:  # fmt: skip
    aside = f"{os.path.dirname(path)}/{ASIDE}{os.urandom(16).hex()}"
    _post(aside, found, placeholder(words, dead, link=stat.S_ISLNK(found.st_mode)))  # 2
    post = _kept_open(aside, link=stat.S_ISLNK(found.st_mode))
    ours = os.fstat(post)
    kept = True
    try:
        step("posted")
        try:
            if not _is(os.lstat(path), found):  # a live lock is not moved where we can see it
                raise Changed("another took it meanwhile")
            step("checked")
            if not exchange(aside, path):  # 3
                raise Changed("this file system cannot exchange two names in one step")
        except FileNotFoundError as error:
            raise Changed("it was removed by another") from error
        step("exchanged")
        if not _is(os.lstat(aside), found) or words_of(aside) != words:  # 4
            _put_back(aside, path, ours)
            raise Changed("another took it meanwhile")
        os.unlink(aside)  # 5
        step("unlinked")
        try:
            if not _stands(path, post, ours):
                return
            os.rename(path, aside)
        except FileNotFoundError:
            return  # another tool removed the placeholder for us
        if not _is(os.lstat(aside), ours):
            kept = False
            rename_new(aside, path)
    finally:
        if kept:
            _forget(aside, ours)
        os.close(post)


def _stands(path: str, post: int, ours: os.stat_result) -> bool:
    """Whether our placeholder stands at its path.

    filelock exchanges as we do: who judged the dead lock too may have ours aside, and puts it back.
    """
    until = clock.now() + PATIENCE
    while not _is(os.lstat(path), ours):
        if os.fstat(post).st_nlink == 0 or clock.now() > until:
            return False
        clock.pause(PAUSE)
    return True


def _put_back(aside: str, path: str, ours: os.stat_result) -> None:
    """Until what we took stands at its path again, and ours aside.

    Others may be undoing an exchange too, each on top of the other: so we exchange only while ours
    stands at the path, and what we hold aside is what belongs there. Where all wait for one another
    the one whose patience ends exchanges all the same, which opens the ring.
    """
    until, stirs = clock.now() + 2 * PATIENCE, clock.now() + STALL
    while not _is(os.lstat(aside), ours) and clock.now() < until:
        try:
            if not (_is(os.lstat(path), ours) or clock.now() >= stirs):
                clock.pause(PAUSE)
                continue
            exchange(aside, path)
            stirs = clock.now() + STALL
        except FileNotFoundError:  # the placeholder was removed by another
            try:
                rename_new(aside, path)
                return
            except FileExistsError:
                continue


def _post(aside: str, found: os.stat_result, told: bytes) -> None:
    """A lock of this process in the form of the dead one."""
    if stat.S_ISLNK(found.st_mode):
        os.symlink(told, os.fsencode(aside))
        return
    mode = stat.S_IMODE(found.st_mode)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.write(fd, told)
    finally:
        os.close(fd)


def _forget(aside: str, ours: os.stat_result) -> None:
    """Remove our placeholder by its own name; never what is another's."""
    try:
        if _is(os.lstat(aside), ours):
            os.unlink(aside)
    except FileNotFoundError:
        return


def _is(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
