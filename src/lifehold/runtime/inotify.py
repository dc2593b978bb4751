"""What the kernel of Linux tells about folders: one inotify instance, by ctypes.

Promise: from the return of `add` on, every change in that folder is told by `read`, or an overflow
is. Rule: the same number for two adds means the same folder. So adding again is the one atomic
question whether a path still leads to what is watched, and two names of one folder share a watch.

A folder tells of writes and closings under the name by which the file was *opened*, which need not
be its name now: it may have been made aside, linked to its place and unlinked there. So who wants
these has the file itself watched too (`add_file`).
"""

from __future__ import annotations

import errno
import os
import struct

from . import fork, native
from .watch_table import gone, is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_OPEN = 0x2, 0x4, 0x8, 0x20
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF = 0x400, 0x800
IN_UNMOUNT, IN_Q_OVERFLOW, IN_IGNORED = 0x2000, 0x4000, 0x8000
IN_ONLYDIR, IN_DONT_FOLLOW, IN_MASK_ADD = 0x01000000, 0x02000000, 0x20000000

NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF
CONTENT = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE  # also of an mmap, which tells at its close only
ITSELF = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED

HEAD = struct.Struct("iIII")  # wd, mask, cookie, length of the name
BUFFER = 1 << 16
_libc: Any = None


def _load() -> Any:
    """The C library with the three calls. Raises OSError(ENOSYS) where it has none."""
    global _libc
    if _libc is None:
        ctypes: Any = fork.lazily("ctypes")
        lib = ctypes.CDLL(None, use_errno=True)
        if not hasattr(lib, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this C library knows no inotify")
        lib.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        lib.get_errno = ctypes.get_errno
        _libc = lib
    return _libc


def _done(number: int, path: str | None = None) -> int:
    """The answer of a call of libc. Raises OSError."""
    if number < 0:
        code = _libc.get_errno()
        raise OSError(code, os.strerror(code), path)
    return number


class Inotify:
    """One instance. Raises OSError when there is none to be had: 128 per user, of all processes."""

    sees_content = True  # a write in a file is told too, not only the coming and going of names

    def __init__(self) -> None:
        self.fd = _done(_load().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    @property
    def fds(self) -> tuple[int, ...]:
        """What a forked child inherits of it."""
        return (self.fd,)

    def add(self, folder: str, content: bool) -> int:
        """The number under which events of this folder come. `content`: writes in it as well.

        Raises OSError: no such folder, not readable, no watch left (ENOSPC).
        """
        mask = NAMES | CONTENT if content else NAMES
        # Added to the mask: another name of the same folder may want more.
        wished = mask | IN_ONLYDIR | IN_MASK_ADD
        return _done(_libc.inotify_add_watch(self.fd, os.fsencode(folder), wished), folder)

    def add_file(self, path: str) -> int:
        """The number under which writes and closings of this file come, by whichever of its names.

        Raises OSError: nothing there, not readable (EACCES), no watch left (ENOSPC).
        """
        wished = CONTENT | IN_DONT_FOLLOW | IN_MASK_ADD  # it may be a folder that is watched
        return _done(_libc.inotify_add_watch(self.fd, os.fsencode(path), wished), path)

    def add_opens(self, path: str) -> int:
        """The number under which each open(2) of this file comes, by any process, ours too."""
        wished = IN_OPEN | IN_DONT_FOLLOW | IN_MASK_ADD
        return _done(_libc.inotify_add_watch(self.fd, os.fsencode(path), wished), path)

    def remove(self, number: int) -> None:
        """No more events of this number; those on their way still come."""
        _libc.inotify_rm_watch(self.fd, number)  # EINVAL: the kernel has removed it before

    def read(self) -> list[tuple[int, bytes | None]]:
        """What has happened: (number, name); the name None for the folder itself, b"" for a file.

        The number -1: events were dropped, and anything may have happened.
        """
        if not is_ours(self.fd, "inotify"):
            raise gone(self.fd)  # what we read would be another's
        try:
            data = native.read(self.fd, BUFFER)
        except BlockingIOError:
            return []
        found: list[tuple[int, bytes | None]] = []
        at = 0
        while at < len(data):
            number, mask, _, length = HEAD.unpack_from(data, at)
            at += HEAD.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if mask & IN_Q_OVERFLOW:
                found.append((-1, None))
            elif mask & ITSELF:
                found.append((number, None))
            else:
                found.append((number, name))
        return found

    def close(self) -> None:
        """Give it back. Takes the kernel some milliseconds."""
        if is_ours(self.fd, "inotify"):
            os.close(self.fd)
