"""A descriptor of ours of an SQLite database, which is never closed at the wrong moment.

Closing any descriptor of a file drops the locks that this very process has on it by fcntl(2), as
SQLite has them. So where somebody's here are on it, ours is parked instead, for the next who opens
that file; it is closed once none are.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from struct import pack
from typing import TYPE_CHECKING, Any

from ...local.handles import Slot
from ...runtime import fork

if TYPE_CHECKING:
    from ...local.handles import Descriptors

fcntl: Any = None
try:
    import fcntl
except ImportError:  # Windows, where a lock belongs to the handle that took it
    pass

PENDING, RESERVED, SHARED, LENGTH = 1 << 30, (1 << 30) + 1, (1 << 30) + 2, 510
READ, WRITE, FREE = 0, 1, 2  # of Linux
GET, SET, WAIT = 36, 37, 38  # F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
FLAGS |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
HEAD = 4096  # bytes of it that are looked at
ranges = sys.platform == "linux"  # whether an open file can lock ranges, and ask for others' locks


def words(kind: int, start: int, length: int) -> bytes:
    """Struct flock."""
    return pack("@hhqqi", kind, 0, start, length, 0)


LET_GO = words(FREE, PENDING - 1, 3 + LENGTH)  # all that a waiter may have (line.py)
LET_IN = words(FREE, PENDING, 2 + LENGTH)  # but its turn
ANY = words(WRITE, PENDING, 2 + LENGTH)


class Sheet(Slot):
    """The open database. `taken`: how many of its ranges a waiter has (line.py)."""

    __slots__ = ("taken",)
    parked: list[Sheet] = []  # noqa: RUF012 - of the whole process
    used: dict[str, int] = {}  # noqa: RUF012 - by how many connections, file by file

    def __init__(self, table: Descriptors, path: str) -> None:
        self.table, self.path, self.generation, self.key, self.taken = table, path, -1, "", 0
        self.dev = self.ino = 0
        fork.here()
        with fork.gate:
            self.fd, self.writable = table.files.open(path, FLAGS, 0o600), True
            self.generation = fork.generation
            table.noted(self)
        found = table.files.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "refusing a non-regular lock database", path)
        self.dev, self.ino = found.st_dev, found.st_ino
        self.key = f"{found.st_dev}:{found.st_ino}"

    def close(self, _gate: Any = fork.gate, _fork: Any = fork, _ranges: bool = ranges) -> None:
        """Close it; park it where this process would lose locks."""
        if self.generation != _fork.generation or self.generation != _fork.here():
            return
        ending = self._ending()
        # No lock of ours comes between the look and the close.
        with self._nobodys if ending else _gate:
            if not ending and self.foreign():
                if _ranges:
                    self.leave()  # what its closing would have freed
                if self not in self.parked:
                    self.parked.append(self)
                return
            super().close(_gate, _fork)

    def foreign(self, _ranges: bool = ranges) -> bool:
        """Whether this process has locks on it otherwise."""
        if fcntl is None or not self.key:
            return False
        if self.used.get(self.key, 0) > 0:
            return True
        if not _ranges:
            return False  # what other code of this process does cannot be seen there
        try:
            found: Any = fcntl.fcntl(self.fd, GET, ANY)
        except OSError:
            return False
        if found[:2] == pack("@h", FREE):
            return False
        # Of several that are there it names one: another process may be in front of this one.
        pid = int.from_bytes(found[24:28], sys.byteorder, signed=True)
        return pid == os.getpid() or self.in_table()

    def in_table(self) -> bool:
        """Whether the kernel's table shows a lock of this process; true where it shows none."""
        table: Any = fork.lazily("lifehold.local.proc_locks")
        lines = table.lines_of([table.key_of(self.fd)])
        return lines is None or any(
            line.kind == table.POSIX and line.pid == os.getpid() for line in lines
        )

    def leads_to(self) -> bool:
        """Whether the path leads here."""
        try:
            return self.is_of(self.table.files.lstat(self.path))
        except OSError:
            return False

    def lock(self, wanted: bytes) -> bool:
        """Take, or let go, without waiting."""
        try:
            fcntl.fcntl(self.fd, SET, wanted)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def leave(self, wanted: bytes = LET_GO, taken: int = 0) -> None:
        """Let go of what it has locked itself; of `taken` steps it keeps the locks."""
        self.lock(wanted)
        self.taken = taken

    def head(self) -> bytes:
        """The first bytes."""
        if hasattr(os, "pread"):
            return self.table.files.pread(self.fd, HEAD, 0)  # type: ignore[no-any-return]
        os.lseek(self.fd, 0, os.SEEK_SET)
        return os.read(self.fd, HEAD)


def opened(table: Descriptors, path: str) -> Sheet:
    """The database, one that is parked or a new one. Raises OSError."""
    for sheet in list(Sheet.parked):
        if sheet.path == path and sheet.leads_to():
            try:
                Sheet.parked.remove(sheet)
            except ValueError:
                continue  # another thread has it
            sheet.taken = 0
            return sheet
    return Sheet(table, path)


def reap(key: str) -> None:
    """Close what was parked for the sake of locks that are gone."""
    for sheet in list(Sheet.parked):
        if sheet.key == key:
            try:
                Sheet.parked.remove(sheet)
            except ValueError:
                continue
            sheet.close()


fork.in_child(Sheet.parked.clear)
fork.in_child(Sheet.used.clear)
