"""A file's content on its way to the disk before a name leads to it."""

from __future__ import annotations

import os
from typing import Any

from ...local.evidence import place_at
from ...runtime import fork

ORDERED = ("ext4", "xfs")  # their journal writes no size before the data of it
WRITTEN = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | WRITE | WAIT_AFTER


class _Disk:
    """What stands for an open file, where only its file system is asked for."""

    def __init__(self, fd: int) -> None:
        self.fd, self.dev = fd, os.fstat(fd).st_dev


def durable(fd: int) -> None:
    """See to it that no name that is given from now on outlives the content. Raises OSError.

    Where a journal keeps names behind the data that they lead to, the data has to be on its way
    only; else it is flushed with everything.
    """
    if place_at(_Disk(fd)).kind in ORDERED:  # type: ignore[arg-type]
        call = _Call.found or _Call.load()
        if call is not None and call(fd, 0, 0, WRITTEN) == 0:
            return
    elif place_at(_Disk(fd)).kind == "tmpfs":  # type: ignore[arg-type]
        return
    os.fsync(fd)


class _Call:
    found: Any = None

    @classmethod
    def load(cls) -> Any:
        """sync_file_range(2); None where there is none."""
        try:
            ctypes: Any = fork.lazily("ctypes")
            call = ctypes.CDLL(None, use_errno=True).sync_file_range
        except (ImportError, AttributeError, OSError):
            return None
        call.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
        cls.found = call
        return call
