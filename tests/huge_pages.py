"""The memory of a test process in huge pages, so that its many forks are cheap.

A fork copies one entry of a table for each page of its parent, and the end of the child drops them
again. With some 200 MB of collected tests in pages of 4 KiB that takes ten times as long as the
rest of the fork; a huge page is one entry. Where the kernel cannot (before Linux 6.1), nothing is
changed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

HUGE = 2 << 20  # bytes
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
GROWN = 48 << 20  # bytes of new memory after which it is worth while again


class HugePages:
    """Asks for them anew when the process has grown."""

    def __init__(self) -> None:
        self.size = 0
        self.usable = sys.platform == "linux"

    def renew(self) -> None:
        if self.usable and (size := resident()) > self.size + GROWN:
            self.usable = collapse()
            self.size = size


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def spans() -> Iterator[tuple[int, int]]:
    """Address and size of what is writable, private and of no file, in whole huge pages."""
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0" and "[stack" not in line:
            begin, end = (int(each, 16) for each in addresses.split("-"))
            first, size = -(-begin // HUGE) * HUGE, end // HUGE * HUGE - -(-begin // HUGE) * HUGE
            if size > 0:
                yield first, size


def collapse() -> bool:
    """Whether the kernel knows of it; what it cannot do just now it leaves as it is."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    well = False
    for first, size in spans():
        madvise(first, size, MADV_HUGEPAGE)
        for at in range(first, first + size, HUGE):
            well |= madvise(at, HUGE, MADV_COLLAPSE) == 0
    return well
