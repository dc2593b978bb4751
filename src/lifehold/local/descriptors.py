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

import errno
import stat

from ..runtime import fork
from .files import CREATE, HOST, O_NOATIME, READ_ONLY, READ_WRITE, Files
from .record import MAGIC
from .refusals import make_folders, not_lockable, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEEP = 64  # idle descriptors kept per process, for all locks together
TRIES = 100  # how often a file may come and go under our hands before we say so


class Slot:
    """One open file description.

    It has one owner: whoever popped it from a container or opened it.
    """

    __slots__ = (
        "dev", "expected", "fd", "generation", "ino", "key", "label", "last", "length", "mark",
        "parts", "table", "thread", "writable",
    )  # fmt: skip

    def __init__(self, table: Descriptors, path: str, mode: int | None, shared: bool) -> None:
        self.table = table
        self.generation = -1  # not open
        self.key: tuple[int, int] | None = None
        with fork.gate:
            generation = fork.generation
            self.fd, self.writable = open_lock_file(table, path, mode, shared)
            if (
                generation != fork.generation
            ):  # L9  a signal handler has forked, and we are its child
                table.files.close(self.fd)
                self.fd, self.writable = open_lock_file(table, path, mode, shared)
            self.generation = fork.generation
            table.open[self.fd] = None
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
        table.open[self.fd] = self.key = (found.st_dev, found.st_ino)
        self.thread, self.label = 0, ""  # whom the record below is prepared for
        self.mark, self.parts, self.length = "", (b"", b"", b"", b""), 0
        self.expected: bytes | None = (
            None  # head and token as we wrote them: still there, so nobody wrote since
        )
        self.last = 0  # that token

    def leads_here(self, path: str) -> bool:
        """Whether the path still leads to this file. One lstat(2)."""
        try:
            found = self.table.files.lstat(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refused(path, error) from error
        return (found.st_dev, found.st_ino) == self.key

    def ours(self, _fork: Any = fork) -> bool:
        """Whether the number leads to our file still: other code may have closed or reused it."""
        if self.generation != _fork.generation:
            return False
        try:
            found = self.table.files.fstat(self.fd)
        except OSError as error:
            return error.errno != errno.EBADF
        return self.key is None or (found.st_dev, found.st_ino) == self.key

    # The names are bound early: at interpreter exit module globals are gone before the last slot
    # is.
    def close(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Close it, which unlocks it unless a child still has a copy. Safe to repeat."""
        with _gate:
            if self.generation != _fork.generation:
                return  # closed already, or in a child: the number may be somebody else's
            ours = self.ours()
            self.generation = -1
            try:
                if ours:
                    self.table.files.close(self.fd)
            except OSError:
                pass  # the number is free all the same, and the file has nothing to lose
            finally:
                self.table.open.pop(self.fd, None)

    __del__ = close  # L6  whatever an exception between two bytecodes drops, the kernel unlocks


class Descriptors:
    """All lock files of one process that are open: held, idle or waited on."""

    __slots__ = ("files", "idle", "open")

    def __init__(self, files: Files) -> None:
        self.files = files
        self.open: dict[int, tuple[int, int] | None] = {}  # descriptor -> the file it leads to
        self.idle: dict[str, Slot] = {}  # path -> a description that nobody uses, oldest first

    def keep(self, path: str, slot: Slot) -> None:
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
        for fd, key in self.open.items():
            try:
                found = self.files.fstat(fd)
                if key in (None, (found.st_dev, found.st_ino)):  # else it is another's by now
                    self.files.close(fd)
            except OSError:
                continue  # closed behind our back: no reason to stop here
        self.open.clear()
        self.idle.clear()


def open_lock_file(
    table: Descriptors, path: str, mode: int | None, shared: bool
) -> tuple[int, bool]:
    """(descriptor, whether it may be written).

    Makes the file, and its folders, when they are not there.

    First without O_CREAT: `fs.protected_regular` refuses it on another user's file in a sticky
    folder.
    """
    files = table.files
    flags = (
        READ_WRITE | O_NOATIME
    )  # without it every read after a write dirties the inode (relatime)
    wished = 0o666 if shared or mode is None else mode
    for _ in range(TRIES):
        try:
            fd = files.open(path, flags)
            if flags & 3 and _is_program(files, path, fd):
                files.close(fd)
                flags = READ_ONLY  # nobody could run it while we have it open for writing
                continue
            return fd, flags & 3 != 0
        except FileNotFoundError:
            pass
        except OSError as error:
            flags = _after_refusal(table, path, flags, error)
            continue
        try:
            fd = files.open(path, flags | CREATE, wished)
        except FileExistsError:
            continue  # somebody else made it
        except FileNotFoundError:
            make_folders(files, path)
            continue
        except OSError as error:
            if error.errno == errno.EPERM and flags & O_NOATIME:
                flags &= ~O_NOATIME  # a file server may make us another user than the maker
                continue
            raise refused(path, error, making=True) from error
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


def _is_program(files: Files, path: str, fd: int) -> bool:
    """Whether the file is executable and holds something else than a record of ours.

    `flock "$0"`: execve(2) fails with ETXTBSY while anybody has the program open for writing.
    """
    try:
        found = files.fstat(fd)
        if not (found.st_mode & 0o111 and found.st_size and stat.S_ISREG(found.st_mode)):
            return False
        content = files.pread(fd, len(MAGIC), 0)
        return content != MAGIC and bool(content.strip(b"\0"))
    except BaseException as error:
        files.close(fd)
        if isinstance(error, OSError):
            raise refused(path, error) from error
        raise


def _after_refusal(table: Descriptors, path: str, flags: int, error: OSError) -> int:
    """The flags for another try after open(2) said no; raises when there is none."""
    if error.errno in (errno.EMFILE, errno.ENFILE) and table.close_idle():
        return flags
    if error.errno in (errno.EPERM, errno.EACCES) and flags & O_NOATIME:
        return flags & ~O_NOATIME  # for the owner of a file only
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY) and flags & 3:
        return READ_ONLY  # a lock needs no right to write; the record and the token do
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV):
        try:
            found = table.files.lstat(path)
        except OSError:
            raise refused(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise not_lockable(path, found.st_mode) from error
    raise refused(path, error) from error


TABLE = Descriptors(HOST)
fork.in_child(TABLE.after_fork)
