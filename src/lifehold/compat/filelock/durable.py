"""A file's content on its way to the disk before a name leads to it.

Promise: after a power loss no name is there without its content. fsync(2) would do, and costs a
flush of the disk each time. Where the journal commits a name together with the file's size, and the
size only when the data is on the disk, it is enough that the data has been sent: ext4 in its usual
mode, where the commit itself waits for it, needs it begun; xfs needs it done.
"""

from __future__ import annotations

import os
from typing import Any

from ...local.ground import place_of
from ...runtime import fork

BEGUN, DONE = 2, 7  # of sync_file_range(2): WRITE; WAIT_BEFORE, WRITE and WAIT_AFTER
FLUSHED, NOTHING = -1, 0
_ways: dict[int, int] = {}  # of each device


def durable(fd: int, device: int | None = None) -> None:
    """See to it that no name that is given from now on outlives the content. Raises OSError.

    `device`: of the file, where it is known.
    """
    if device is None:
        device = os.fstat(fd).st_dev
    way = _ways.get(device)
    if way is None:
        way = _ways[device] = _way(fd)
    if way == FLUSHED or (way and _Call.found(fd, 0, 0, way)):
        os.fsync(fd)


def _way(fd: int) -> int:
    place = place_of(fd)
    if place.kind == "tmpfs":
        return NOTHING
    if place.kind not in ("ext4", "xfs") or not _Call.load():
        return FLUSHED
    return BEGUN if place.kind == "ext4" and _is_ordered(place.device) else DONE


def _is_ordered(device: str) -> bool:
    """Whether ext4 holds a journal's commit back until the data that goes with it is written."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return False
    options = [line[-1] for line in lines if line[2] == device]
    odd = ("data=writeback", "data=journal", "nobarrier", "barrier=0", "norecovery")
    return bool(options) and not any(word in each for each in options for word in odd)


class _Call:
    found: Any = None

    @classmethod
    def load(cls) -> bool:
        """Whether there is sync_file_range(2)."""
        try:
            ctypes: Any = fork.lazily("ctypes")
            call = ctypes.CDLL(None, use_errno=True).sync_file_range
        except (ImportError, AttributeError, OSError):
            return False
        call.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
        cls.found = call
        return True
