"""Who writes, who reads and who merely has open an SQLite database, by the bytes that each locks.

Promise: `held` is said only of who keeps others out: a writer, and in rollback mode a reader too.
In WAL mode every connection locks the database, shared, for as long as it is open: that excludes
nobody, and the answer is `free`. Nothing is locked or written by asking.

The bytes are those of SQLite's os_unix.c and its page "WAL-mode File Format": of the database
PENDING, RESERVED and SHARED at 0x40000000; of FILE-shm 120 the writer, 121 who checkpoints, 122 who
recovers the log, 123 to 127 the readers.
"""

from __future__ import annotations

import os
import stat

from ..core.grant import Holder
from ..core.owner import ALIVE
from ..core.value import replace, value
from ..local.files import HOST
from ..local.kernel_holders import WITNESS
from ..local.proc_locks import OFD, POSIX, Key, key_of
from ..runtime import process
from .answer import FREE, HELD, LockAnswer
from .foreign import bytes_in_the_way, sees_all_locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..local.proc_locks import KernelLine
    from .foreign import ForeignFiles

MAGIC, HEADER = b"SQLite format 3\0", 100
MODES, WAL = slice(18, 20), b"\2\2"  # of the header: how it is written and read
PENDING, RESERVED, SHARED = 0x40000000, 0x40000001, 0x40000002
LENGTH = 512  # bytes from PENDING to the last of SHARED
WRITER, CHECKPOINT, RECOVER, READERS = 120, 121, 122, range(123, 128)
WRITES, COMMITS, PREPARES = "writes", "writes, and keeps readers out", "is about to write"
RECOVERS, MOVES, READS, IDLE = (
    "recovers the log",
    "moves the log into the database",
    "reads",
    "has it open, idle",
)
ORDER = (COMMITS, RECOVERS, WRITES, PREPARES, MOVES, READS, IDLE)
EXCLUDES = frozenset({COMMITS, RECOVERS, WRITES, PREPARES})
NAMED = 5  # processes in a note; the others are counted


@value
class ByteRange:
    """Where it can be waited for: some bytes of a file, shared or exclusive."""

    path: str
    start: int
    length: int
    exclusive: bool


def answer(name: str, path: str, fd: int, files: ForeignFiles) -> LockAnswer | None:
    """The answer for the database at `path`, or whose FILE-shm it is; None for what is none.

    `fd`: of the path, open for reading.
    """
    database = path.removesuffix("-shm")
    header = _header(fd) if database == path else _header_at(database)
    if database == path and header and not header.startswith(MAGIC):
        return None
    on_database = _lines(database, files)
    if not header.startswith(MAGIC) and not _is_new(header, on_database):
        return None
    on_log = _lines(f"{database}-shm", files)
    if any(line.kind == POSIX and line.pid == os.getpid() for line in (*on_database, *on_log)):
        return None  # to open and close one of them would drop the locks of this very process
    if any(line.kind not in (POSIX, OFD) for line in on_database):
        return None  # flock(2): another tool locks it as any other file
    wal = header[MODES] == WAL
    found = _roles(on_database, on_log if wal else [], wal)
    if not sees_all_locks() and not EXCLUDES & set(found):
        _add_unseen(found, database, wal)
    if not found:
        return None
    lock = f"{database} (SQLite, {'WAL' if wal else 'rollback'} mode)"
    excludes = EXCLUDES if wal else EXCLUDES | {READS}
    holders = [
        _holder(pid, what, lock)
        for what in ORDER
        if what in excludes
        for pid in found.get(what, ())
    ]
    told = LockAnswer(
        name, path, FREE, kind="fcntl", family="sqlite", note=_note(database, found, wal)
    )
    if not holders:
        return told
    return replace(told, state=HELD, holder=holders[0], others=tuple(holders[1:]))


def _is_new(header: bytes, lines: list[KernelLine]) -> bool:
    """A database that its first writer has not written yet: no byte in it, and SQLite's locked."""
    last = PENDING + LENGTH - 1
    return (
        not header
        and bool(lines)
        and all(
            int(line.start) >= PENDING and line.end.isdecimal() and int(line.end) <= last
            for line in lines
        )
    )


def to_wait_for(path: str) -> list[ByteRange]:
    """The bytes whose holders keep others out."""
    database = path.removesuffix("-shm")
    if _header_at(database)[MODES] != WAL:
        return [ByteRange(database, PENDING, LENGTH, True)]
    return [
        ByteRange(f"{database}-shm", WRITER, 1, False),
        ByteRange(database, PENDING, LENGTH, False),
    ]


def _header(fd: int) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        return HOST.pread(fd, HEADER, 0)
    except OSError:
        return b""


def _header_at(path: str) -> bytes:
    """Of a database that this process may have open itself, which it is not to close."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return _header(fd)
    finally:
        os.close(fd)


def _lines(path: str, files: ForeignFiles) -> list[KernelLine]:
    """The locks that are held on a file. It is not opened for reading: to close drops our own."""
    try:
        fd = os.open(path, getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        key: Key = key_of(fd)
    finally:
        os.close(fd)
    return [line for line in files.lines(key) or [] if not line.waiting and not line.place]


def _roles(
    on_database: list[KernelLine], on_log: list[KernelLine], wal: bool
) -> dict[str, list[int]]:
    """Processes by what they do, each once, by the strongest of its locks. 0: none is named."""
    does: dict[int, str] = {}
    for line in on_database:
        _note_role(does, line.pid, _of_database(line, wal))
    for line in on_log:
        _note_role(does, line.pid, _of_log(line))
    found: dict[str, list[int]] = {}
    for pid, what in does.items():
        found.setdefault(what, []).append(pid)
    return found


def _note_role(does: dict[int, str], pid: int, what: str) -> None:
    if what and (pid not in does or ORDER.index(what) < ORDER.index(does[pid])):
        does[pid] = what


def _covers(line: KernelLine, byte: int) -> bool:
    end = byte if line.end == "EOF" else int(line.end)
    return int(line.start) <= byte <= end


def _of_database(line: KernelLine, wal: bool) -> str:
    if line.exclusive:
        for byte, what in ((SHARED, COMMITS), (PENDING, PREPARES), (RESERVED, WRITES)):
            if _covers(line, byte):
                return what
        return ""
    if _covers(line, SHARED):
        return IDLE if wal else READS
    return ""


def _of_log(line: KernelLine) -> str:
    if line.exclusive:
        for byte, what in ((WRITER, WRITES), (RECOVER, RECOVERS), (CHECKPOINT, MOVES)):
            if _covers(line, byte):
                return what
    if any(_covers(line, byte) for byte in READERS):
        return MOVES if line.exclusive else READS
    return IDLE


def _add_unseen(found: dict[str, list[int]], database: str, wal: bool) -> None:
    """Whom the table does not show: of another PID namespace. The kernel is asked for the bytes."""
    if wal and _is_locked(f"{database}-shm", WRITER, 1, exclusive=False):
        found.setdefault(WRITES, []).append(0)
    if _is_locked(database, PENDING, LENGTH, exclusive=False):
        found.setdefault(COMMITS if wal else WRITES, []).append(0)
    elif not (found if wal else READS in found) and _is_locked(database, SHARED, 1, exclusive=True):
        found[IDLE if wal else READS] = [0]


def _is_locked(path: str, start: int, length: int, *, exclusive: bool) -> bool:
    """Whether a lock of these bytes would be refused now. None is taken."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bytes_in_the_way(fd, start, length, exclusive=exclusive) is not None
    except OSError:
        return False
    finally:
        os.close(fd)


def _holder(pid: int, what: str, lock: str) -> Holder:
    owner = process.owner_of(pid) if pid > 0 else None
    evidence = f"{WITNESS}; it {what}"
    here = pid if owner is not None else None
    began = process.started_at(pid) if here else None
    return Holder(owner, None, ALIVE, evidence, lock=lock, pid_here=here, began=began)


def _note(database: str, found: dict[str, list[int]], wal: bool) -> str:
    parts = [f"{_pids(found[what])} {what}" for what in ORDER if what in found]
    if wal:
        try:
            size = os.lstat(f"{database}-wal").st_size
            parts.append(f"{os.path.basename(database)}-wal has {size} bytes")
        except OSError:
            parts.append("there is no log")
    mode = "WAL mode, in which readers keep nobody out" if wal else "rollback mode"
    return f"an SQLite database in {mode}: {'; '.join(parts)}"


def _pids(pids: list[int]) -> str:
    shown = ", ".join(
        f"pid {pid}" if pid > 0 else "a process not visible from here" for pid in pids[:NAMED]
    )
    more = f" and {len(pids) - NAMED} more" if len(pids) > NAMED else ""
    return f"{shown}{more}"
