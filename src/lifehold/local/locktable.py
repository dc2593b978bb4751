"""The kernel's own table of file locks, /proc/locks, and what names a file in it.

Promise: what is shown was held, or waited for, at the moment it was read. What is not shown may be
hidden: the kernel leaves out locks whose setter is dead or not visible, as seen from a PID
namespace that is not the first. A waiter stands below the lock it waits for, marked `->`.
"""

from __future__ import annotations

import os

from ..core.value import value
from ..runtime.turnstile import FIRST
from .ground import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = "/proc/locks"
FLOCK, POSIX, OFD = "FLOCK", "POSIX", "OFDLCK"
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

    `kind`: FLOCK, POSIX or OFDLCK; `pid` as seen from here, -1 for OFD locks, 0 when not visible;
    `start`, `end`: the first byte and the last, "EOF" for all that follow.
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
        return int(self.start) if self.kind == OFD and int(self.start) >= FIRST else 0


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
    except (ValueError, IndexError):  # a lease, or a lock that lost its file
        return None


def _read() -> str | None:
    try:
        with open(TABLE, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
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
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("ino:"):  # Linux 5.14
                    inode = int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return Key(place_of(fd).device, inode)
