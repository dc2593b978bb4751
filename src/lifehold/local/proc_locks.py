"""The kernel's own table of file locks, /proc/locks, and what names a file in it.

Promise: what is shown was held, or waited for, at the moment it was read. What is not shown may be
hidden: the kernel leaves out locks whose setter is dead or not visible, as seen from a PID
namespace that is not the first. A waiter stands below the lock it waits for, marked `->`.
"""

from __future__ import annotations

import os

from ..core.errors import pass_up
from ..core.value import value
from ..runtime import clock, process
from ..runtime.flock_wait import FIRST_BYTE
from .ground import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = "/proc/locks"
FLOCK, POSIX, OFD, LEASE = "FLOCK", "POSIX", "OFDLCK", "LEASE"
PAGE = 4096  # what the kernel gives at one read(2), under its own lock
AGREE = 5  # how often a longer table is read until two readings say the same


@value
class Key:
    """What the table calls a file: `device` "major:minor", and the kernel's own inode number."""

    device: str
    inode: int


@value
class KernelLine:
    """One line of the table.

    `kind`: FLOCK, POSIX, OFDLCK or LEASE; `pid` as seen from here, -1 for OFD locks, 0 when not
    visible; `start`, `end`: the first byte and the last, "EOF" for all that follow.
    """

    kind: str
    exclusive: bool
    pid: int
    waiting: bool
    key: Key
    start: str = "0"
    end: str = "EOF"

    @property
    def place(self) -> int:
        """The place in the line of fair askers that this is; 0 for a lock (runtime/turnstile)."""
        return int(self.start) if self.kind == OFD and int(self.start) >= FIRST_BYTE else 0

    @property
    def ends_by_open(self) -> bool:
        """Whether it is a lease that any open(2) breaks, by a signal that may kill its holder."""
        return self.kind == LEASE and self.exclusive and not self.waiting


def parse(text: str) -> KernelLine | None:
    """A line of the table, or of the `lock:` lines of fdinfo; None for what is no file lock."""
    try:
        fields = text.split()
        waiting = fields[1] == "->"
        if waiting:
            del fields[1]
        kind, mode, pid, where = fields[1], fields[3], int(fields[4]), fields[5]
        major, minor, inode = where.split(":")
        key = Key(f"{int(major, 16)}:{int(minor, 16)}", int(inode))
        return KernelLine(kind, mode == "WRITE", pid, waiting, key, fields[6], fields[7])
    except (ValueError, IndexError):  # a lock that lost its file
        return None


def _read() -> str | None:
    try:
        with open(TABLE, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        pass_up(error)
        return None


def _lines(text: str, mark: str) -> Iterator[KernelLine]:
    for line in text.splitlines():
        if mark in line and (found := parse(line)) is not None:
            yield found


def whole_table() -> list[KernelLine] | None:
    """Every lock and every waiter of the machine, as seen from here. None: there is no table."""
    text = _read()
    return None if text is None else list(_lines(text, ""))


def by_file() -> dict[Key, list[KernelLine]] | None:
    """The whole table by file. None: there is no table.

    Read twice where it has several pages, as in `lines_of`: of each file the fuller reading counts.
    """
    found: dict[Key, list[KernelLine]] = {}
    for _ in range(2):
        text = _read()
        if text is None:
            return None
        reading: dict[Key, list[KernelLine]] = {}
        for line in _lines(text, ""):
            reading.setdefault(line.key, []).append(line)
        for key, lines in reading.items():
            if len(whole := _once(lines)) > len(found.get(key, ())):
                found[key] = whole
        if len(text) < PAGE:
            break
    return found


def lines_of(keys: Iterable[Key]) -> list[KernelLine] | None:
    """What the table shows of a file; None where there is no table.

    It is given by the page, and between two pages the lines move: one may be skipped, or come
    twice. So a longer table is read until two readings agree; among neighbours so busy that none
    do, the reading that shows most counts, since nothing is shown that was not there.
    """
    wanted = frozenset(keys)
    marks = {f":{key.inode} " for key in wanted}
    readings: list[list[KernelLine]] = []
    for _ in range(AGREE):
        text = _read()
        if text is None:
            return None
        found = [line for mark in marks for line in _lines(text, mark) if line.key in wanted]
        if len(text) < PAGE or _once(found) in readings[-1:]:
            return _once(found)
        readings.append(_once(found))
    return max(readings, key=len)


def _once(lines: list[KernelLine]) -> list[KernelLine]:
    """Without what the table showed twice: an exclusive lock has one holder, and one queue."""
    queues: list[list[KernelLine]] = []
    for line in lines:
        if not line.waiting:
            queues.append([line])
        elif queues:
            queues[-1].append(line)
    kept: list[list[KernelLine]] = []
    for queue in queues:
        alone = queue[0].exclusive  # of a shared lock there may be thousands
        twice = [other for other in kept if other[0] == queue[0]] if alone else []
        if not twice:
            kept.append(queue)
        elif len(queue) > len(twice[0]):
            kept[kept.index(twice[0])] = queue
    return [line for queue in kept for line in queue]


def key_of(fd: int) -> Key:
    """What the table calls an open file.

    The numbers of fstat(2) are others on btrfs (the device) and may be on overlayfs (the inode).
    """
    inode = os.fstat(fd).st_ino
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("ino:"):  # Linux 5.14
                    inode = int(line.split()[1])
    except (OSError, ValueError, IndexError) as error:
        pass_up(error)
    return Key(place_of(fd).device, inode)


# ------------------------------------------------------------------------------------------------
# Which processes have a file open, and which of them hold its lock: /proc/PID/fd and fdinfo.
#
# Promise: a process is named as a holder only when the kernel shows the lock on one of its open
# files. A flock(2) belongs to the open file, which children inherit and sockets pass on, so the
# process that called flock(2) may be gone or hold nothing. Asks no file system: links are read and
# not followed, and a dead file server is not waited for. What could not be seen is counted.


PATIENCE = 1.0  # seconds that one look through all processes may take, unless told otherwise
GONE = " (deleted)"  # what the kernel adds to the link of a file that was unlinked
NO_LOCK_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/dmabuf:", "/SYSV")
SHARED_MEMORY = "/dev/shm/"  # noqa: S108  the folder of /dev where files are
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of include/linux/sched.h


@value
class OpenFile:
    """A file that a process has open. `locks`: those which the kernel shows on this open file."""

    pid: int
    fd: int
    link: str
    key: Key | None
    locks: tuple[KernelLine, ...]

    @property
    def removed(self) -> bool:
        return self.link.endswith(GONE)


_Entry = tuple[int, str, str, str]  # a process, where /proc tells of it, the descriptor, its link


class OpenFileScan:
    """One look through the open files of processes, of which several things can be asked.

    `names`: the last parts of the paths in question, whose links are read first; `pids`: these
    processes only; `after`: those with greater numbers first, as children have; `patience`:
    seconds; `hidden`: those that we may not look into; `cut`: not all were looked at.
    """

    def __init__(
        self,
        names: Iterable[str],
        pids: Iterable[int] | None = None,
        *,
        after: int = 0,
        patience: float | None = None,
    ) -> None:
        self._names = frozenset(names) | frozenset(name + GONE for name in names)
        self._near: list[_Entry] = []
        self._far: list[_Entry] = []
        self._patience = PATIENCE if patience is None else patience
        until = clock.now() + self._patience
        self._gone: dict[str, list[_Entry]] | None = None
        self._denied: list[int] = []
        self._locked: dict[Key, list[OpenFile]] | None = None
        self.cut = False
        if pids is None:
            pids = sorted(processes(), key=lambda pid: pid <= after)
        for pid in pids:
            if clock.now() > until:
                self.cut = True
                break
            self._list(pid)

    def _list(self, pid: int) -> None:
        root = f"/proc/{pid}"
        try:
            numbers = _descriptors(root)
            if not numbers and (living := process.living_thread(pid)):
                root, numbers = living, _descriptors(living)
            if numbers is None:
                self._denied.append(pid)
                return
        except OSError as error:
            pass_up(error)
            if process.look(pid).exists:  # hidepid: nothing of others is shown
                self._denied.append(pid)
            return
        for number in numbers:
            try:
                link = os.readlink(f"{root}/fd/{number}")
            except OSError as error:
                pass_up(error)
                continue
            if link[:1] == "/":
                if link.rpartition("/")[2] in self._names:
                    self._near.append((pid, root, number, link))
                elif link.startswith(SHARED_MEMORY) or not link.startswith(NO_LOCK_FILES):
                    self._far.append((pid, root, number, link))

    @property
    def hidden(self) -> int:
        """How many processes could hold it unseen."""
        return sum(not is_kernel_thread(pid) for pid in self._denied)

    @property
    def unread(self) -> str:
        """The same in words, "" for none."""
        count = self.hidden
        whose = f"{count} process{'es' * (count != 1)}"
        return f"the open files of {whose} may not be read from here" if count else ""

    def may_look_into(self, pid: int) -> bool:
        return pid not in self._denied

    def holding(self, key: Key, kind: str) -> list[OpenFile]:
        """The open files of `key` with a lock of that kind on them, by the age of their process.

        A link under another name (a hard link, a file mounted elsewhere) is looked at when none of
        the right name is found.
        """
        if self._locked is None:
            self._locked = {}
            until = clock.now() + self._patience
            for entry in self._near:
                if clock.now() > until:  # thousands of readers in one process
                    self.cut = True
                    break
                self._note(_read_info(*entry))
        found = self._matching(key, kind)
        if not found and self._far:
            far, self._far = self._far, []
            until = clock.now() + self._patience
            for entry in far:
                if clock.now() > until:
                    self.cut = True
                    break
                self._note(_read_info(*entry))
            found = self._matching(key, kind)
        return sorted(found, key=lambda file: (_started(file.pid), file.fd))

    def _note(self, file: OpenFile) -> None:
        assert self._locked is not None
        for key in {lock.key for lock in file.locks}:
            self._locked.setdefault(key, []).append(file)

    def _matching(self, key: Key, kind: str) -> list[OpenFile]:
        files = (self._locked or {}).get(key, [])
        return [file for file in files if any(lock.kind == kind for lock in file.locks)]

    def removed(self, path: str) -> list[OpenFile]:
        """Who has a file open that once stood at `path`."""
        if self._gone is None:
            self._gone = {}
            for entry in self._near:
                if entry[-1].endswith(GONE):
                    self._gone.setdefault(entry[-1], []).append(entry)
        return [_read_info(*entry) for entry in self._gone.get(path + GONE, ())]


def _descriptors(root: str) -> list[str] | None:
    """The numbers of the open files; None where we may not look. Raises OSError.

    Those of a thread that has ended are none, and for root alone.
    """
    try:
        return os.listdir(f"{root}/fd/")
    except PermissionError:
        return None


def processes() -> list[int]:
    """The numbers of all processes that can be seen from here; of none without /proc."""
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    except OSError as error:
        pass_up(error)
        return []


def mappers(key: Key) -> list[int]:
    """Who has the file in its memory, by the age of its process, as far as that can be seen.

    A mapping keeps an open file, and so a flock(2), after its last descriptor was closed.
    """
    found, mark = [], f" {key.inode} "
    for pid in processes():
        try:
            root = process.living_thread(pid) or f"/proc/{pid}"
            with open(f"{root}/maps", encoding="utf-8", errors="replace") as file:
                devices = {line.split(None, 4)[3] for line in file if mark in line}
        except OSError as error:
            pass_up(error)
            continue
        if any(_decimal(each) == key.device for each in devices):
            found.append(pid)
    return sorted(found, key=_started)


def _decimal(device: str) -> str:
    """A device "08:01" of hexadecimal numbers as a Key has it."""
    return ":".join(str(int(part, 16)) for part in device.split(":"))


def shares_descriptors(pid: int) -> bool:
    """Whether the threads of a process are seen to have one table of open files, as nearly all."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        if process.living_thread(pid):  # nothing but the first thread's end is for root alone
            threads.remove(str(pid))
        tables = {frozenset(os.listdir(f"/proc/{pid}/task/{each}/fd")) for each in threads}
    except OSError as error:
        pass_up(error)
        return False
    return len(tables - {frozenset()}) < 2  # a thread that has ended shows none


def _read_info(pid: int, root: str, number: str, link: str) -> OpenFile:
    """What the kernel tells of one open file; nothing but its link when it is closed by now."""
    inode, locks = None, []
    try:
        with open(f"{root}/fdinfo/{number}", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("lock:") and (lock := parse(line.partition(":")[2])) is not None:
                    locks.append(lock)
                elif line.startswith("ino:"):
                    inode = int(line.split()[1])
    except (OSError, ValueError, IndexError) as error:
        pass_up(error)
    key = locks[0].key if locks else (Key("", inode) if inode is not None else None)
    return OpenFile(pid, int(number), link, key, tuple(locks))


def stat_fields(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError as error:
        pass_up(error)
        return []


def _started(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 1 << 62


def is_kernel_thread(pid: int) -> bool:
    fields = stat_fields(pid)
    return len(fields) > 6 and bool(int(fields[6]) & KERNEL_THREAD)
