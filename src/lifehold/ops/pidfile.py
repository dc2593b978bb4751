"""A pid file: a bare process number, and nothing that proves whose it is.

L2  A bare number proves death only where no process can be hidden, from the first PID namespace and
    on a file system of one kernel. That a process of this number lives does not prove that it is
    the one meant. Only when it has run since before the file was written is it called the holder;
    when it is younger, the number was given on, or a clock was set: not provable.
"""

from __future__ import annotations

import stat

from ..core.grant import Holder
from ..core.liveness import ALIVE, UNKNOWN, judge
from ..core.owner import Owner
from ..core.value import replace
from ..local.ground import place_of
from ..runtime import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from ..local.files import Files

LONGEST = 64  # bytes: a number with some white space
LARGEST = 1 << 22  # PID_MAX_LIMIT of Linux
SLACK = 1.0  # seconds: a file's time is that of the last clock tick, and a start is rounded


def judged(files: Files, fd: int, found: os.stat_result, path: str) -> Holder | None:
    """The holder that the file names, with the verdict on it; None when it is no pid file."""
    number = _number(files, fd, found)
    if number is None:
        return None
    place = place_of(fd)
    ground = process.ground(place.one_kernel, None)
    verdict = judge(Owner(pid=number), ground)
    holder = Holder(
        Owner(pid=number), found.st_mtime, verdict.state, verdict.evidence,
        lock=f"{path} (pid file, {place.words})",
    )  # fmt: skip
    if verdict.state != UNKNOWN or not (ground.one_kernel and ground.sees_all):
        return holder
    began = process.started_at(number)
    if began is None:
        return holder
    if began < found.st_mtime + SLACK:
        evidence = f"process {number} runs since before the file was written"
        owner = process.owner_of(number)
        return replace(holder, owner=owner, alive=ALIVE, evidence=evidence, pid_here=number)
    evidence = f"process {number} is younger than the file: the number was probably given on"
    return replace(holder, evidence=evidence)


def _number(files: Files, fd: int, found: os.stat_result) -> int | None:
    if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= LONGEST:
        return None
    content = files.pread(fd, LONGEST, 0).strip(b" \t\r\n\0")
    if not content.isdigit() or not 0 < int(content) <= LARGEST:
        return None
    return int(content)
