"""The kernel lock on Windows: LockFileEx on byte 0 of the file, and the rest as on Unix.

**Never run on Windows by this project**: see local/windows.py, which is the whole difference
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
import stat

from ..core.deadline import Backoff
from ..core.errors import CorruptRecord, SystemRefused, UnsafeGround
from ..core.grant import Held, Holder
from ..core.owner import ALIVE
from ..core.value import replace
from ..runtime import fork
from .files import CREATE, LOCK_EX, LOCK_NB, LOCK_UN, READ_ONLY, Files
from .handles import Descriptors
from .kernel import KernelLock
from .record import SIZE, as_holder, parse

TYPE_CHECKING = False
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
            files = host()
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


# ------------------------------------------------------------------------------------------------
# The files seam on Windows: kernel32 in the place of the Unix calls that the kernel lock makes.
#
# **Never run on Windows by this project**: written from Microsoft's documentation, typed, and
# tested against a simulated kernel32 (tests/unit/test_windows.py).
#
# Rule: byte 0 of the file is what is locked, the record begins at byte 1. A LockFileEx lock is
# mandatory: nobody else can read or write the locked bytes, so the record must not lie in them; and
# a reader that is refused byte 0 knows that the lock is held, without trying it. FILE_SHARE_DELETE
# lets anybody delete or rename the file while we hold it, as on Unix. With POSIX semantics (NTFS
# since Windows 10 1809) its name is gone at once and `check()` says lost. Before that, and on other
# file systems, a deleted name stays, refusing to be opened, until the last handle is closed: then
# acquiring says "permission denied" for so long.


GENERIC_READ, GENERIC_WRITE = 0x80000000, 0x40000000
SHARE_ALL = 1 | 2 | 4  # read, write, delete
CREATE_NEW, OPEN_EXISTING = 1, 3
# OPEN_REPARSE_POINT: a symbolic link is opened itself and then refused (L7); BACKUP_SEMANTICS: a
# directory can be opened, and then refused by name.
FLAGS = 0x00200000 | 0x02000000
FAIL_IMMEDIATELY, EXCLUSIVE = 1, 2
DIRECTORY, REPARSE_POINT = 0x10, 0x400
INVALID = (None, -1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
HANDLE_EOF, LOCK_VIOLATION, NOT_LOCKED, IO_PENDING = 38, 33, 158, 997
SHARING_VIOLATION = 32  # a virus scanner, an indexer or a backup has it open and shares nothing
NOT_A_FILE = (1, 6, 87)  # what a handle says that was closed, or is something else by now
FILE_ID_INFO, END_OF_FILE_INFO = 18, 6

ERRNO = {
    2: errno.ENOENT,
    3: errno.ENOENT,
    303: errno.ENOENT,  # 303: deleted, and still open somewhere
    4: errno.EMFILE,
    5: errno.EACCES,
    6: errno.EBADF,
    19: errno.EROFS,
    21: errno.EIO,
    SHARING_VIOLATION: errno.EBUSY,
    LOCK_VIOLATION: errno.EAGAIN,
    IO_PENDING: errno.EAGAIN,
    39: errno.ENOSPC,
    53: errno.EIO,
    64: errno.ESTALE,
    80: errno.EEXIST,
    112: errno.ENOSPC,
    123: errno.EINVAL,
    183: errno.EEXIST,
    206: errno.ENAMETOOLONG,
    267: errno.ENOTDIR,
    1920: errno.EACCES,
}


def refusal(code: int, path: str | None = None) -> OSError:
    """An error of Windows as the OSError that the rest of lifehold knows."""
    number = ERRNO.get(code, errno.EIO)
    return OSError(number, f"{os.strerror(number)} (Windows error {code})", path)


class WindowsFiles(Files):
    """Handles in the place of descriptors. `kernel32`, `last_error`: the system's, or simulated."""

    def __init__(self, kernel32: Any, last_error: Callable[[], int]) -> None:
        super().__init__()
        self._kernel32, self._last_error = kernel32, last_error
        self._ctypes = fork.lazily("ctypes")

        class Overlapped(self._ctypes.Structure):  # type: ignore[misc, name-defined]
            """Where in the file."""

            _fields_ = (
                ("Internal", self._ctypes.c_void_p),
                ("InternalHigh", self._ctypes.c_void_p),
                ("Offset", self._ctypes.c_uint32),
                ("OffsetHigh", self._ctypes.c_uint32),
                ("hEvent", self._ctypes.c_void_p),
            )

        self._overlapped = Overlapped
        # BY_HANDLE_FILE_INFORMATION: attributes, three times (two words each), volume serial, size
        # high and low, links, index high and low.
        self._information = self._ctypes.c_uint32 * 13
        self._identity = self._ctypes.c_uint64 * 3  # FILE_ID_INFO: volume, 128 bits of file

    def _at(self, offset: int) -> object:
        return self._ctypes.byref(self._overlapped(Offset=offset))

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """A handle that children do not inherit. `mode` means nothing here: ACLs do."""
        access = GENERIC_READ | (GENERIC_WRITE if flags & (os.O_RDWR | os.O_WRONLY) else 0)
        disposition = CREATE_NEW if flags & CREATE == CREATE else OPEN_EXISTING
        return self._handle(path, access, disposition)

    def _handle(self, path: str, access: int, disposition: int) -> int:
        call = self._kernel32.CreateFileW
        handle = call(path, access, SHARE_ALL, None, disposition, FLAGS, None)
        if handle in INVALID:
            raise refusal(self._last_error(), path)
        return int(handle)

    def close(self, fd: int) -> None:
        if not self._kernel32.CloseHandle(fd):
            raise refusal(self._last_error())

    def flock(self, fd: int, operation: int) -> None:
        """Lock or unlock byte 0. Never waits, whatever `operation` says: it could not be ended."""
        if operation & LOCK_UN:
            if not self._kernel32.UnlockFileEx(fd, 0, 1, 0, self._at(0)):
                code = self._last_error()
                if code != NOT_LOCKED:
                    raise refusal(code)
            return
        how = FAIL_IMMEDIATELY | (EXCLUSIVE if operation & LOCK_EX else 0)
        if not self._kernel32.LockFileEx(fd, how, 0, 1, 0, self._at(0)):
            raise refusal(self._last_error())

    def fstat(self, fd: int) -> os.stat_result:
        """Volume serial and file id: os.stat's numbers differ from these since Python 3.12.

        Raises OSError, EBADF where the handle is no file's (any more).
        """
        words = self._information()
        if not self._kernel32.GetFileInformationByHandle(fd, self._ctypes.byref(words)):
            code = self._last_error()
            raise refusal(6 if code in NOT_A_FILE else code)
        kind = stat.S_IFREG
        if words[0] & REPARSE_POINT:
            kind = stat.S_IFLNK
        elif words[0] & DIRECTORY:
            kind = stat.S_IFDIR
        size, index = words[8] << 32 | words[9], self._file_id(fd, words)
        # Without byte 0, so that "empty" means: no record.
        return os.stat_result((kind, index, words[7], words[10], 0, 0, max(0, size - 1), 0, 0, 0))

    def _file_id(self, fd: int, words: Any) -> int:
        """What tells this file from any other of its volume, in 64 bits.

        ReFS numbers files in 128 bits, of which the old 64 are not unique. Some redirectors give 0:
        then it is the instant of creation, which a file that replaces it does not have.
        """
        known = self._identity()
        size = self._ctypes.sizeof(known)
        asked = self._kernel32.GetFileInformationByHandleEx
        if asked(fd, FILE_ID_INFO, self._ctypes.byref(known), size) and (known[1] or known[2]):
            return int(known[1] ^ known[2])
        index: int = words[11] << 32 | words[12]
        return index or words[2] << 32 | words[1]

    def lstat(self, path: str) -> os.stat_result:
        handle = self._handle(path, 0, OPEN_EXISTING)
        try:
            return self.fstat(handle)
        finally:
            self.close(handle)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """From byte 1 on; with byte 0 where that one shows that the content is not ours."""
        if offset == 0:
            first = self.first_byte(fd)
            if first is not None and first not in b"\0 ":
                return self._read(fd, length, 0)
        return self._read(fd, length, offset + 1)

    def first_byte(self, fd: int) -> bytes | None:
        """Byte 0, b"" if there is none; None: somebody else holds it locked exclusively."""
        try:
            return self._read(fd, 1, 0)
        except BlockingIOError:
            return None

    def _read(self, fd: int, length: int, offset: int) -> bytes:
        buffer = self._ctypes.create_string_buffer(length)
        got = self._ctypes.c_uint32()
        reference = self._ctypes.byref(got)
        if not self._kernel32.ReadFile(fd, buffer, length, reference, self._at(offset)):
            code = self._last_error()
            if code == HANDLE_EOF:
                return b""
            raise refusal(code)
        return bytes(buffer.raw[: got.value])

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """From byte 1 on. Byte 0 becomes a space, so that the whole file is JSON."""
        assert offset == 0, "a record is written whole"
        done = self._ctypes.c_uint32()
        text, reference = b" " + data, self._ctypes.byref(done)
        if not self._kernel32.WriteFile(fd, text, len(text), reference, self._at(0)):
            raise refusal(self._last_error())
        return int(done.value) - 1

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file behind byte 0, which is not the record's."""
        end = self._ctypes.c_int64(length + 1 if length else 0)
        set_to, size = self._ctypes.byref(end), self._ctypes.sizeof(end)
        if not self._kernel32.SetFileInformationByHandle(fd, END_OF_FILE_INFO, set_to, size):
            raise refusal(self._last_error())

    def fchmod(self, fd: int, mode: int) -> None:
        """Nothing: who may open a file is a matter of its folder's ACL here."""


def host() -> WindowsFiles:
    """The real kernel32."""
    ctypes = fork.lazily("ctypes")
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    word, pointer, yes = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int
    calls = {
        "CreateFileW": (pointer, ctypes.c_wchar_p, word, word, pointer, word, word, pointer),
        "CloseHandle": (yes, pointer),
        "LockFileEx": (yes, pointer, word, word, word, word, pointer),
        "UnlockFileEx": (yes, pointer, word, word, word, pointer),
        "GetFileInformationByHandle": (yes, pointer, pointer),
        "GetFileInformationByHandleEx": (yes, pointer, word, pointer, word),
        "SetFileInformationByHandle": (yes, pointer, word, pointer, word),
        "ReadFile": (yes, pointer, pointer, word, pointer, pointer),
        "WriteFile": (yes, pointer, ctypes.c_char_p, word, pointer, pointer),
    }
    for name, (result, *arguments) in calls.items():
        call = getattr(kernel32, name)
        call.restype, call.argtypes = result, arguments
    return WindowsFiles(kernel32, ctypes.get_last_error)
