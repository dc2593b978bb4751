"""Locks that are not ours: fcntl (POSIX) and OFD locks, and those of files that were removed.

An fcntl lock belongs to a process, which the kernel names. An OFD lock belongs to an open file and
/proc/locks shows -1; only the open files of processes tell who has it. A file that was removed
while somebody held its lock is found by the link of that open file.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

from ..core.errors import CorruptRecord
from ..core.grant import Holder
from ..core.owner import ALIVE, INITIAL_PID_NAMESPACE, UNKNOWN
from ..core.value import replace
from ..local import record
from ..local.files import HOST, READ_ONLY
from ..local.kernel_holders import WITNESS, HolderLook, KernelWaiter, queue_in
from ..local.proc_locks import (
    GONE,
    OFD,
    POSIX,
    TABLE,
    KernelLine,
    Key,
    OpenFile,
    OpenFileScan,
    by_file,
    key_of,
    lines_of,
    whole_table,
)
from ..runtime import process
from ..runtime.flock_wait import FIRST_BYTE, GET, LOCK, PASS, UNLOCK, span
from .families import ProcessTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    T = TypeVar("T")

NO_BYTES = (errno.ENOLCK, errno.EOPNOTSUPP)  # of file servers that lock no bytes for anybody
PATIENCE = 10.0  # seconds for all processes: who asks on purpose, waits rather than not know


class ForeignFiles:
    """What is asked of the kernel for several lock files: looked at once, when somebody asks.

    `table`: its lines by file, when all of them were read already. Then nothing is looked at twice,
    and who asks has to see whether anything changed meanwhile: `several` does.
    """

    def __init__(
        self, paths: Iterable[str], table: dict[Key, list[KernelLine]] | None = None
    ) -> None:
        self._names = {os.path.basename(path.rstrip("/")) for path in paths}
        self._table = table
        self._inodes: frozenset[int] | None = None
        self._shut: frozenset[int] | None = None
        self._eyes: ProcessTable | None = None
        self._all: OpenFileScan | None = None
        self._of: dict[int, OpenFileScan] = {}

    @property
    def survey(self) -> OpenFileScan:
        if self._all is None:
            self._all = OpenFileScan(self._names, patience=PATIENCE)
        return self._all

    @property
    def inodes(self) -> frozenset[int] | None:
        """On which there is a lock; None where not all of them were read, or can be seen."""
        if self._inodes is None and self._table is not None and sees_all_locks():
            self._inodes = frozenset(key.inode for key in self._table)
        return self._inodes

    @property
    def not_to_open(self) -> frozenset[int]:
        """The files that are not to be opened: it would end another's lease, or a lock of our own.

        To read and close a file drops all fcntl locks that this process has on it.
        """
        if self._shut is None:
            us = os.getpid()
            table = whole_table() if self._table is None else None
            lines = [each for found in (self._table or {}).values() for each in found]
            self._shut = frozenset(
                line.key.inode
                for line in table or lines
                if (line.kind == POSIX and line.pid == us) or line.ends_by_open
            )
        return self._shut

    @property
    def any_lock(self) -> bool:
        """Whether anybody holds any lock, as far as can be seen."""
        return bool(whole_table() if self._table is None else self._table)

    @property
    def eyes(self) -> ProcessTable:
        """All processes, for the locks that no kernel holds."""
        if self._eyes is None:
            self._eyes = ProcessTable()
        return self._eyes

    def of(self, pid: int) -> OpenFileScan:
        """The open files of one process; of all of them for 0."""
        if pid == 0:
            return self.survey
        if pid not in self._of:
            self._of[pid] = OpenFileScan(self._names, [pid])
        return self._of[pid]

    def lines(self, key: Key) -> list[KernelLine] | None:
        return lines_of([key]) if self._table is None else self._table.get(key, [])

    def forget(self) -> None:
        """What was seen may be older than the lock in question."""
        if self._table is None:
            self._all = None
            self._of.clear()


def sees_all_locks() -> bool:
    """Whether the kernel's table is there, and hides nobody."""
    return process.namespace("pid") == INITIAL_PID_NAMESPACE and os.access(TABLE, os.R_OK)


ROUNDS = 3  # in which all that changed hands meanwhile is asked for together
ALONE = 16  # locks that are then asked for one by one


def several(paths: Sequence[str], ask: Callable[[int, ForeignFiles], T]) -> list[T]:
    """`ask(number, files)` for each path, with one look at the kernel's table and at the processes.

    What has changed hands while the others were asked for is asked for again.
    """
    found: dict[int, T] = {}
    todo = list(range(len(paths)))
    before = by_file()
    for left in range(ROUNDS - 1, -1, -1):
        files = ForeignFiles([paths[number] for number in todo], before)
        found.update((number, ask(number, files)) for number in todo)
        after = by_file()
        if before is None or after is None:
            break
        moved = {key.inode for key in {*before, *after} if before.get(key) != after.get(key)}
        todo = [number for number in todo if moved and inode_of(paths[number]) in moved]
        before = after
        if not todo or not left:
            break
    for number in todo[:ALONE]:
        found[number] = ask(number, ForeignFiles([paths[number]]))
    return [found[number] for number in range(len(paths))]


def inode_of(path: str) -> int:
    """0 for none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def fcntl_holders(seen: HolderLook, files: ForeignFiles) -> list[tuple[str, Holder]]:
    """Who holds byte-range locks on the file, each with its kind, "fcntl" or "ofd"."""
    found: dict[int, tuple[str, Holder]] = {}
    for line in seen.setters(POSIX):
        note = f"{WITNESS}{'' if line.exclusive else ', shared'}; it left no record"
        owner = process.owner_of(line.pid) if line.pid > 0 else None
        lock, pid = _words(seen, "fcntl lock", line), line.pid if owner else None
        began = process.started_at(pid) if pid else None
        holder = Holder(owner, None, ALIVE, note, lock=lock, pid_here=pid, began=began)
        found.setdefault(line.pid, ("fcntl", holder))
    lines = [line for line in seen.setters(OFD) if not line.place]
    return [*found.values(), *(_ofd(seen, lines, files) if lines else ())]


def lease_holders(seen: HolderLook) -> list[tuple[str, Holder]]:
    """Who has a lease on the file that any open(2) would end: so nothing in it was read."""
    found = []
    for line in filter(lambda each: each.ends_by_open, seen.lines or ()):
        owner = process.owner_of(line.pid) if line.pid > 0 else None
        pid = line.pid if owner else None
        began, lock = process.started_at(pid) if pid else None, _words(seen, "file lease", line)
        note = "a lease is no lock, and to look for one would end it"
        found.append(("fcntl", Holder(owner, evidence=note, lock=lock, pid_here=pid, began=began)))
    return found


def _ofd(
    seen: HolderLook, lines: list[KernelLine], files: ForeignFiles
) -> list[tuple[str, Holder]]:
    files.forget()  # it may be older than the lock
    lock = _words(seen, "OFD lock", lines[0])
    found = files.survey.holding(seen.key, OFD)
    pids = dict.fromkeys(file.pid for file in found)
    how = f"{WITNESS}{'' if lines[0].exclusive else ', shared'}"
    note = f"{how}; it left no record"
    holders = [
        Holder(
            process.owner_of(pid),
            None,
            ALIVE,
            note,
            lock=lock,
            pid_here=pid,
            began=process.started_at(pid),
        )
        for pid in pids
    ]
    if not holders:
        unread = files.survey.unread
        note = f"{how}; the kernel does not tell whose an OFD lock is"
        if unread:
            note += f", and {unread}"
        elif not process.sees_all_processes():
            note += ", and not all processes can be seen from here"
        holders = [Holder(alive=ALIVE, evidence=note, lock=lock)]
    return [("ofd", holder) for holder in holders]


def unshown_bytes(seen: HolderLook, fd: int, files: ForeignFiles) -> list[tuple[str, Holder]]:
    """Who locks bytes of the file unseen, where the kernel's table does not show everybody.

    `fd`: of the file. The kernel tells of one of them, and none is locked by asking.
    """
    try:
        line = bytes_in_the_way(fd)
    except OSError as error:
        if error.errno in NO_BYTES:
            return []
        note = f"whether others lock bytes of it cannot be told from here: {error.strerror}"
        return [("fcntl", Holder(alive=UNKNOWN, evidence=note))]
    if line is None:
        return []
    if line.kind == OFD:
        return _ofd(seen, [line], files)
    note = f"{WITNESS}{'' if line.exclusive else ', shared'}"
    pid = line.pid if line.pid > 0 and _is_numbered_as_we_are() else None
    owner = process.owner_of(pid) if pid else None
    note += "; it left no record" if owner else "; its process is not visible from here"
    lock, here = _words(seen, "fcntl lock", line), pid if owner else None
    began = process.started_at(here) if here else None
    holder = Holder(owner, alive=ALIVE, evidence=note, lock=lock, pid_here=here, began=began)
    return [("fcntl", holder)]


def _is_numbered_as_we_are() -> bool:
    """Whether /proc calls processes as system calls do: it is that of our own PID namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def bytes_in_the_way(
    fd: int, start: int = 0, length: int = FIRST_BYTE, *, exclusive: bool = True
) -> KernelLine | None:
    """A lock that would refuse us these bytes now, None for none; none is taken. Raises OSError.

    Of all bytes but the line of fair askers, unless told otherwise. Any descriptor will do that is
    not of O_PATH, also one that may only be read. Linux alone is asked: others lay it out another
    way.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    asked = span(LOCK if exclusive else PASS, start, length)
    try:
        told = fcntl.fcntl(fd, GET, asked)
    except OSError:  # a sandbox without locks of open files
        told = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
    kind, _, first, count, pid = struct.unpack("@hhqqi0q", told)
    if kind == UNLOCK:
        return None
    end = str(first + count - 1) if count else "EOF"
    what = OFD if pid == -1 else POSIX
    return KernelLine(what, kind == LOCK, pid, False, key_of(fd), str(first), end)


def _words(seen: HolderLook, what: str, line: KernelLine) -> str:
    last = "the end" if line.end == "EOF" else line.end
    whole = (line.start, line.end) == ("0", "EOF")
    span = "" if whole else f" on bytes {line.start} to {last}"
    return f"{seen.path} ({what}{span}, {seen.place.words})"


def queue(seen: HolderLook, files: ForeignFiles) -> tuple[KernelWaiter, ...]:
    """Everybody who waits for a lock of any kind on the file."""
    lines = seen.lines or []
    places: dict[int, int] = {}
    if any(line.place for line in lines):
        files.forget()
        found = files.survey.holding(seen.key, OFD)
        places = {lock.place: file.pid for file in found for lock in file.locks if lock.place}
    others = [line for line in lines if line.waiting and line.kind in (POSIX, OFD)]
    return (
        *queue_in(lines, places),
        *(KernelWaiter(line.pid, line.exclusive, line.kind) for line in others if not line.place),
    )


def of_removed(path: str, files: ForeignFiles) -> list[Holder]:
    """Who holds a lock on a file that once stood at `path`, and was removed or replaced."""
    if sees_all_locks() and not files.any_lock:
        return []  # nobody holds any lock: no need to look through the processes
    found: dict[int, Holder] = {}
    for file in files.survey.removed(path):
        if file.locks and _stood_here(file, path):
            found.setdefault(file.pid, _of_file(file, path))
    return list(found.values())


def _stood_here(file: OpenFile, path: str) -> bool:
    """Whether the link of a removed file means our path, and not that of another mount namespace.

    Nor a file that is there, and whose name ends as the kernel marks those that are not.
    """
    if not process.shares_path(file.pid, os.path.dirname(path)):
        return False
    try:
        there, opened = os.lstat(path + GONE), os.stat(_opened_at(file))
    except OSError:
        return True
    return not os.path.samestat(there, opened)


def _opened_at(file: OpenFile) -> str:
    return f"{process.living_thread(file.pid) or f'/proc/{file.pid}'}/fd/{file.fd}"


def _of_file(file: OpenFile, path: str) -> Holder:
    """The holder of a removed file, with what its record tells."""
    owner = process.owner_of(file.pid)
    lock = f"{path} (removed)"
    holder = Holder(owner, alive=ALIVE, evidence=WITNESS, lock=lock, pid_here=file.pid)
    try:
        fd = os.open(_opened_at(file), READ_ONLY & ~getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return holder
    try:
        written = record.parse(HOST.pread(fd, record.SIZE, 0))
    except (OSError, CorruptRecord):
        return holder
    finally:
        os.close(fd)
    if written is None or written.owner is None or not _same(written.owner.pid, file.pid):
        return holder
    left = record.as_holder(written, holder.lock)
    return replace(left, alive=ALIVE, evidence=WITNESS, pid_here=file.pid)


def _same(written: int, pid: int) -> bool:
    return written in process.numbers_of(pid)
