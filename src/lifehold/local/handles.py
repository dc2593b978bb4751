"""Open files of ours.

Who owns each, which are kept for the next acquire, what a forked child does with them.

Rule: **the open file description is the holder.** Each grant owns one description alone, so two
objects, two threads, a signal handler, two processes and foreign tools all exclude each other by
one rule of the kernel, and there is no lock of our own beside it that could go wrong.
L9  A child shares our descriptions. It must close them, or a lock outlives its holder; and it must
    never unlock them, because LOCK_UN on a shared description frees the parent's lock. Opening and
    noting, forgetting and closing are pairs that no fork may tear apart: they happen under the fork
    gate.
"""

from __future__ import annotations

import _thread
import errno
import os
import stat
import sys
from _weakref import ref
from stat import ST_DEV, ST_INO

from ..core.errors import pass_up
from ..core.grant import Lost, Single
from ..runtime import fork
from . import ground
from .files import CREATE, DEVICE, HOST, INODE, O_NOATIME, READ_ONLY, READ_WRITE, Files, device_of
from .record import MAGIC
from .refusals import make_folders, not_lockable, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import anchored
else:
    anchored = fork.later("lifehold.local.anchored", globals())


# ------------------------------------------------------------------------------------------------
# How a lock file is opened.
#
# Rule: for writing where we may, for reading where not; made when it is not there; nothing but a
# regular file, no symlink, no program that somebody might run.


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
        except OSError as again:
            pass_up(again)
            raise refused(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise not_lockable(path, found.st_mode) from error
    raise refused(path, error) from error


RELEASED = "released already"
OF_PARENT = "it belongs to the parent process, this one was forked from it"
CLOSED_BY_OTHERS = "its descriptor was closed by other code, which freed it"
CLOSED, ROBBED = -1, -2  # generations of a slot: not open; its number is another slot's by now
MOST = 64  # idle descriptors kept per process, for all locks together
MANY = 50  # looks by lstat(2) after which a cheaper way pays for its making


def to_keep() -> int:
    """How many idle descriptors to keep: at most an eighth of what this process may open."""
    try:
        may_open = os.sysconf("SC_OPEN_MAX")
    except (AttributeError, ValueError, OSError):  # Windows; a sandbox
        return MOST
    return MOST if may_open < 0 else min(MOST, max(1, may_open // 8))


KEEP = to_keep()


def key_of(found: os.stat_result) -> str:
    """A file, as one word: hashed once, where a pair would be each time."""
    return f"{found[ST_DEV]}:{found[ST_INO]}"


class LockFile(Single):
    """One open file description.

    It has one owner: whoever popped it from a container or opened it.
    """

    __slots__ = (
        "__weakref__",
        "dev",
        "device",
        "expected",
        "fd",
        "generation",
        "glance",
        "ino",
        "key",
        "label",
        "last",
        "length",
        "looks",
        "mark",
        "parts",
        "path",
        "table",
        "thread",
        "words",
        "writable",
    )

    def __init__(self, table: Descriptors, path: str, mode: int | None, shared: bool) -> None:
        self.table, self.path = table, path
        self.generation = CLOSED
        self.dev = self.ino = 0
        self.key = ""  # not known yet
        if not fork.page[0]:
            fork.catch_up()
        with fork.gate:
            generation = fork.generation
            self.fd, self.writable = open_lock_file(
                table.files, path, mode, shared, table.close_idle
            )
            if (
                generation != fork.generation
            ):  # L9  a signal handler has forked, and we are its child
                table.files.close(self.fd)
                self.fd, self.writable = open_lock_file(
                    table.files, path, mode, shared, table.close_idle
                )
            self.generation = fork.generation
            table.noted(self)
        try:
            found = table.files.fstat(self.fd)
            if not stat.S_ISREG(found.st_mode):  # L7
                raise not_lockable(path, found.st_mode)
        except BaseException as error:
            self.close()  # the exception may be kept, and with its frames this slot
            if isinstance(error, OSError):
                raise refused(path, error) from error
            raise
        self.dev, self.ino = found.st_dev, found.st_ino
        self.key = key_of(found)
        self.thread, self.label = 0, ""  # whom the record below is prepared for
        self.mark, self.parts, self.length = "", (b"", b"", b"", b""), 0
        self.expected: bytes | None = (
            None  # head and token as we wrote them: still there, so nobody wrote since
        )
        self.last = 0  # that token
        self.looks = 0  # by lstat, until a cheaper look is worth its making (local/files.py)
        self.glance: Any = None
        self.words = (0,) * 18
        self.device = 0  # as that look spells it

    def glimpsed(self) -> bool:
        """Whether the path leads here still by the cheaper look. False proves nothing."""
        return (
            self.glance is not None
            and self.glance() == 0
            and self.words[INODE] == self.ino
            and self.words[DEVICE] == self.device
        )

    def leads_here(self, files: Files) -> bool:
        """Whether the path still leads to this file. One lstat(2)."""
        try:
            found = files.lstat(self.path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refused(self.path, error) from error
        if found[ST_INO] != self.ino or found[ST_DEV] != self.dev:
            return False
        self.looks += 1
        if self.looks == MANY:
            self._learn_to_glance(files.glance(self.path))
        elif self.glance is not None:
            self.glance = None  # it saw something else: of no use here
        return True

    def _learn_to_glance(self, found: tuple[Any, Any] | None) -> None:
        if found is None:
            return
        call, words = found
        if call() == 0 and words[INODE] == self.ino and device_of(words) == self.dev:
            self.glance, self.words, self.device = call, words, words[DEVICE]

    def ours(self, _fork: Any = fork) -> bool:
        """Whether the number leads to our file still: other code may have closed or reused it."""
        if self.generation != _fork.generation:
            return False
        try:
            found = self.table.files.again(self.fd)
        except OSError as error:
            pass_up(error)
            return error.errno != errno.EBADF
        return self.is_of(found)

    def is_of(self, found: os.stat_result) -> bool:
        """Whether these are the numbers of our file; true before we know them."""
        return not self.key or (found.st_ino == self.ino and found.st_dev == self.dev)

    _ending, _nobodys = staticmethod(sys.is_finalizing), _thread.RLock()

    # The names are bound early: at interpreter exit module globals are gone before the last slot
    # is.
    def close(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Close it, which unlocks it unless a child still has a copy. Safe to repeat."""
        if not _fork.page[0]:
            _fork.catch_up()
        if self.generation != _fork.generation:
            return
        # A daemon thread that the exit froze inside the gate will never leave it.
        with self._nobodys if self._ending() else _gate:
            if self.generation != _fork.generation:
                return  # closed already, or in a child: the number may be somebody else's
            table, fd, ours = self.table, self.fd, True
            try:
                found = table.files.again(fd)
                ours = not self.key or (found[ST_INO] == self.ino and found[ST_DEV] == self.dev)
            except OSError as error:
                ours = error.errno != errno.EBADF
                pass_up(error)  # when it is closed
            finally:
                self.generation = CLOSED
                try:
                    if ours:
                        table.files.close(fd)
                except OSError as error:
                    pass_up(error)  # else the number is free all the same, and nothing is lost
                finally:
                    table.open.pop(fd, None)

    def __del__(self, _fork: Any = fork) -> None:
        # L6  Whatever an exception between two bytecodes drops, the kernel unlocks.
        if getattr(self, "generation", CLOSED) == _fork.generation:  # its making was interrupted
            _fork.collected(self.close)


def not_open(ours: LockFile) -> Lost:
    """Why an open file of ours that is not of this generation holds nothing for us."""
    if ours.generation == ROBBED:
        return Lost(CLOSED_BY_OTHERS, gone=True)
    return Lost(RELEASED if ours.generation == CLOSED else OF_PARENT)  # L9


class Descriptors:
    """All lock files of one process that are open: held, idle or waited on."""

    __slots__ = ("__weakref__", "anchors", "files", "idle", "open")

    def __init__(self, files: Files, anchors: bool = False) -> None:
        """`anchors`: its calls are of this machine, and root's are anchored where that is due."""
        self.files, self.anchors = files, anchors
        self.open: dict[int, ref[LockFile]] = {}  # descriptor -> whose it is
        self.idle: dict[str, LockFile] = {}  # path -> a description that nobody uses, oldest first

    def noted(self, slot: LockFile) -> None:
        """Note an open descriptor.

        A slot that had its number before was closed by other code: were it believed, its release
        would unlock the new one.
        """
        former = self.open.get(slot.fd)
        robbed = former() if former else None
        if robbed is not None:
            robbed.generation = ROBBED
        self.open[slot.fd] = ref(slot)

    def keep(self, path: str, slot: LockFile) -> None:
        """Put an unlocked slot aside for the next acquire of this path.

        At most one per path, KEEP in all.
        """
        if self.idle.setdefault(path, slot) is not slot:  # one atomic step
            slot.close()
        elif len(self.idle) > KEEP:
            self.close_idle(KEEP)

    def close_idle(self, keep: int = 0) -> bool:
        """Close the oldest idle descriptors but `keep`. Whether there were any."""
        closed = False
        while len(self.idle) > keep:
            try:
                self.idle.pop(next(iter(self.idle))).close()
                closed = True
            except (KeyError, StopIteration, RuntimeError):
                continue  # another thread was faster
        return closed

    def after_fork(self) -> None:
        """In the child: close the parent's descriptors, unlock nothing, forget everything (L9)."""
        for fd, whose in self.open.items():
            slot = whose()
            try:
                found = self.files.fstat(fd)
                if slot is None or slot.is_of(found):  # else it is another's by now
                    self.files.close(fd)
            except OSError:
                continue  # closed behind our back: no reason to stop here
        self.open.clear()
        self.idle.clear()


TABLE = Descriptors(HOST, anchors=True)
ground.make_room.append(TABLE.close_idle)
fork.in_child(TABLE.after_fork)  # closes its copies, so that the parent's release frees the lock
_user = getattr(os, "geteuid", None)


def table_for(path: str, table: Descriptors = TABLE, *, inside: bool = False) -> Descriptors:
    """L13  For root in a folder that others can swap: a table whose calls are anchored.

    `inside`: the lock is a folder. A table of the explorer's, and of any other user, is as it was.
    """
    if not table.anchors or _user is None or _user() != 0:
        return table
    if not anchored.is_due(path, inside):
        return table
    made = _anchored.get(id(table))
    if made is None:
        made = Descriptors(anchored.AnchoredFiles(table.files))
        made.open, made.idle = table.open, table.idle  # closed in a forked child with these
        _anchored[id(table)] = made
    return made


_anchored: dict[int, Descriptors] = {}  # by the number of a table that lives as long as the process


def files_for(path: str) -> Files:
    """The calls for files of ours at `path`, in it and beside it."""
    return table_for(path, inside=True).files


def leads_astray(path: str) -> bool:
    """Whether we are root, and others could swap what a path leads to while we look."""
    if _user is None or _user() != 0:
        return False
    return table_for(os.path.abspath(path), inside=True) is not TABLE
