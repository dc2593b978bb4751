"""Where a path leads, asked of the kernel for the inode number alone.

lstat(2) asks for the times too, and a file whose times somebody has read gets new ones with its
next write (multigrain timestamps, Linux 6.13): on ext4 that makes the write of a record twice as
dear. statx(2) can ask for less. It is called through ctypes, whose import only pays for a lock that
is taken often (descriptors.Slot decides). A glance that fails, for whatever reason, or sees another
file proves nothing: lstat has the word then.
"""

from __future__ import annotations

import os
import sys

from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

AT_FDCWD, AT_SYMLINK_NOFOLLOW, STATX_INO = -100, 0x100, 0x100
SIZE = 256  # bytes of struct statx
INODE, DEVICE = 4, 17  # stx_ino and both halves of stx_dev, in words of 8 bytes
MAJOR, MINOR = 34, 35  # these halves, in words of 4 bytes
_statx: Any = None


def glance(path: str) -> tuple[Callable[[], int], Any] | None:
    """(call, words): after `call() == 0`, `words[INODE]` and `words[DEVICE]` tell the file.

    None where there is no statx(2): before Linux 4.11 and glibc 2.28, on other systems.
    """
    global _statx
    if sys.platform != "linux":
        return None
    try:
        ctypes: Any = fork.lazily("ctypes")
        functools: Any = fork.lazily("functools")
        _statx = _statx or ctypes.CDLL(None).statx
    except (ImportError, AttributeError, OSError):
        return None
    buffer = ctypes.create_string_buffer(SIZE)
    call = functools.partial(
        _statx, ctypes.c_int(AT_FDCWD), ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_int(AT_SYMLINK_NOFOLLOW), ctypes.c_uint(STATX_INO), ctypes.byref(buffer),
    )  # fmt: skip
    return call, memoryview(buffer).cast("B").cast("Q")


def device_of(words: Any) -> int:
    """The device in `words`, as `st_dev` has it."""
    halves = words.cast("B").cast("I")
    return os.makedev(halves[MAJOR], halves[MINOR])
