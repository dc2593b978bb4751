"""The kernel lock on Windows: LockFileEx on byte 0 of the file, and the rest as on Unix.

**Never run on Windows by this project**: see local/files_windows.py, which is the whole difference
in calls; the algorithm, its order and its invariants are those of local/kernel.py.

What differs for its user:
- A waiter polls by `Backoff`: LockFileEx can be waited in, but not so that a Cancel, a deadline and
  a late grant have one owner each (L6). So waiters are not served in order.
- The kernel unlocks for a process that has ended, "as system resources allow": soon, without a
  promise.
- Which process locked it cannot be asked; the record says so, and byte 0 refusing to be read is the
  witness that it still does. For a shared lock there is no such witness: it has to be tried.
- cleanup=True is refused: a deleted name may stay, and refuse to be opened.
- Without ctypes msvcrt locks instead, exclusively only.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ..core.backoff import Backoff
from ..core.errors import CorruptRecord, SystemRefused, UnsafeGround
from ..core.grant import Held, Holder
from ..core.liveness import ALIVE
from ..core.value import replace
from ..runtime import fork
from .descriptors import Descriptors
from .files import LOCK_EX, LOCK_NB, LOCK_UN, READ_ONLY, Files
from .kernel import KernelLock
from .record import SIZE, as_holder, parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.acquire import Ask
    from ..core.grant import Grant
    from ..core.ports import Runtime

WITNESS = "byte 0 of the lock file is locked"
UNSHARED = "another program, perhaps a virus scanner or a backup, has the file to itself"
_table: Descriptors | None = None


def table_here() -> Descriptors:
    """The one table of this process, made when it is first needed."""
    global _table
    if _table is None:
        files: Files
        try:
            files = fork.lazily("lifehold.local.files_windows").host()
        except ImportError:
            files = MsvcrtFiles(fork.lazily("msvcrt"))
        _table = Descriptors(files)
    return _table


class WindowsKernelLock(KernelLock):
    """The mechanism of one path."""

    def __init__(
        self, path: str, runtime: Runtime, *, table: Descriptors | None = None, **options: Any
    ) -> None:
        super().__init__(path, runtime, table=table or table_here(), **options)
        files: Any = self.table.files
        self._first_byte: Callable[[int], bytes | None] = files.first_byte
        if self.cleanup:
            raise UnsafeGround(
                f"{path!r}: cleanup=True is not possible on Windows, where a deleted name may "
                "refuse to be opened until its last handle is closed. Drop cleanup=True",
                name=path,
            )
        if not self.exclusive and isinstance(self.files, MsvcrtFiles):
            raise UnsafeGround(
                f"{path!r}: a shared lock needs LockFileEx, and ctypes is missing here", name=path
            )

    def attempt(self) -> Grant | Held:
        """One try. A file that another program shares with nobody is held, and gets free."""
        try:
            return super().attempt()
        except SystemRefused as error:
            if error.errno != errno.EBUSY:
                raise
            return Held(UNSHARED)

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """One pause and one try. A cancel is seen when the pause is over: 0.25 s at most."""
        if ask.slot is None:
            ask.slot = Backoff().pauses()
        pause = min(next(ask.slot), until - self.runtime.now())
        if pause > 0:
            await self.runtime.sleep(pause)
        return self.attempt()

    def taken(self) -> bool:
        """Whether anybody holds it: byte 0 cannot be read, or not locked."""
        try:
            fd = self.files.open(self.path, READ_ONLY)
        except OSError:
            return False
        try:
            return self._taken(fd)
        finally:
            self.files.close(fd)

    def _taken(self, fd: int) -> bool:
        if self._first_byte(fd) is None:
            return True
        try:  # a shared lock lets everybody read: for some microseconds we have to try
            self.files.flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return True
        self.files.flock(fd, LOCK_UN)
        return False

    def waiters(self) -> None:
        """Windows does not show who waits."""

    def inspect(self, *, held: bool = False) -> Holder | None:
        """The record of whoever holds it."""
        lock = f"{self.path} (kernel lock, Windows)"
        try:
            fd = self.files.open(self.path, READ_ONLY)
        except OSError as error:
            why = f"the lock file cannot be read: {error.strerror}"
            return Holder(evidence=why) if held else None
        shared = False
        try:
            shared = self._first_byte(fd) is not None
            if not held and not self._taken(fd):
                return None
            record = parse(self.files.pread(fd, SIZE, 0))
        except CorruptRecord:
            record = None
        finally:
            self.files.close(fd)
        if record is None or record.owner is None or shared:  # a reader writes no record
            return Holder(alive=ALIVE, evidence=WITNESS, lock=lock)
        return replace(as_holder(record, lock), alive=ALIVE, evidence=WITNESS)


class MsvcrtFiles(Files):
    """The C library of Windows, for a Python without ctypes. Locks exclusively only.

    It shares no right to delete: while we have the file open, nobody can delete or rename it.
    """

    def __init__(self, msvcrt: Any) -> None:
        super().__init__()
        self._msvcrt = msvcrt

    def flock(self, fd: int, operation: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        how = self._msvcrt.LK_UNLCK if operation & LOCK_UN else self._msvcrt.LK_NBLCK
        try:
            self._msvcrt.locking(fd, how, 1)
        except PermissionError as error:  # EACCES: held
            raise BlockingIOError(error.errno, error.strerror) from error

    def first_byte(self, fd: int) -> bytes | None:
        """Byte 0, b"" if there is none; None: somebody else holds it locked."""
        try:
            os.lseek(fd, 0, os.SEEK_SET)
            return os.read(fd, 1)
        except PermissionError:
            return None

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        first = self.first_byte(fd)
        ours = first is None or first in b"\0 "
        os.lseek(fd, offset + (1 if offset or ours else 0), os.SEEK_SET)
        return os.read(fd, length)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        os.lseek(fd, 0, os.SEEK_SET)
        return os.write(fd, b" " + data) - 1

    def fstat(self, fd: int) -> os.stat_result:
        return _without_byte_0(os.fstat(fd))

    def lstat(self, path: str) -> os.stat_result:
        return _without_byte_0(os.lstat(path))

    def fchmod(self, fd: int, mode: int) -> None:
        """Nothing: who may open a file is a matter of its folder's ACL here."""


def _without_byte_0(found: os.stat_result) -> os.stat_result:
    parts = list(found)[:10]
    parts[6] = max(0, found.st_size - 1)
    return os.stat_result(parts)
