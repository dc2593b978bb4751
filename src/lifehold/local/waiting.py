"""Who waits for a kernel lock, in the order in which they will be served.

Promise: true at the moment it was read, and nothing is decided by it. From inside a PID namespace
the kernel hides those who wait outside.
"""

from __future__ import annotations

import os

from ..core.value import value
from ..runtime import process
from .files import READ_ONLY
from .locktable import FLOCK, OFD, KernelLine, Key, key_of, lines_of
from .openfiles import Survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .files import Files

FAIR = "FAIR"  # who stands in the line of fair askers, and not yet in that of flock(2)
NOBODY = -1  # the number of who waits for an OFD lock; 0 is a process not visible from here


@value
class Waiting:
    """One who stands in the kernel's queue.

    `pid` as seen from here; 0 or -1 when the kernel does not tell.
    """

    pid: int
    exclusive: bool
    kind: str = FLOCK

    @property
    def command(self) -> str | None:
        """Its command line, masked, read when it is asked for; None when it has ended."""
        return process.command_of(self.pid) if self.pid > 0 else None


def queue_in(lines: list[KernelLine], places: dict[int, int]) -> tuple[Waiting, ...]:
    """Who waits for flock(2), in order.

    The first of the line of fair askers stands in the kernel's queue, the others behind. `places`:
    whose they are, where that is known.
    """
    queue = [
        Waiting(line.pid, line.exclusive) for line in lines if line.waiting and line.kind == FLOCK
    ]
    line_up = sorted(line.place for line in lines if line.place and not line.waiting)
    later = line_up[1:] if queue else line_up
    return (*queue, *(Waiting(places.get(place, NOBODY), True, FAIR) for place in later))


def waiters_of(files: Files, path: str) -> tuple[Waiting, ...]:
    """Who waits for flock(2) on the file at `path`, in the order in which they will be served.

    Empty where none wait, and where nothing can be seen. Threads of one process stand there by the
    number of their process; ourselves too, if we wait. Opens and locks nothing of anybody's.
    """
    try:
        fd = files.open(path, READ_ONLY)
    except OSError:
        return ()
    try:
        key = key_of(fd)
    finally:
        files.close(fd)
    lines = lines_of([key]) or []
    return queue_in(lines, _our_places(path, key) if any(line.place for line in lines) else {})


def _our_places(path: str, key: Key) -> dict[int, int]:
    us = os.getpid()
    ours = Survey([os.path.basename(path)], [us]).holding(key, OFD)
    return {lock.place: us for file in ours for lock in file.locks if lock.place}
