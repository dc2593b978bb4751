"""First come, first served: the line in which fair askers stand before they ask for the lock.

Promise: of two fair askers of one file, the one that stood in line before the other came gets the
lock first; who dies, gives up or is interrupted holds nobody up. Rule that keeps it: each stamps
itself with the kernel's monotonic clock, locks the byte of that number far behind the end of the
file, and then, waiting, all bytes before it. So it goes on when nobody before it is left, and
whoever comes later has a greater number and meets its byte. These are locks of the open file
description (OFD), which the kernel frees with it: no number is kept anywhere, nothing is cleaned
up, and an interrupted wait keeps its place.

L1  The line only orders. Who excludes is flock(2) alone, so unfair askers and foreign tools on the
    same file exclude and are excluded as ever, whatever the line says.
L9  A description has one place. It is left by unlocking or by the description's last close.

Asking for the whole range, and not for the neighbour's byte, makes the kernel chain the waiters
behind each other: who leaves wakes one, and the death of one in the middle lets nobody pass.
"""

from __future__ import annotations

import errno
import os
import time
from struct import pack

from ..core.errors import SystemRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_SH = 1
FAIR = 1 << 8  # beside LOCK_EX and LOCK_SH in an operation: stand in line first
FIRST = 1 << 62  # the byte of the clock's zero; what programs lock lies far before it
SET_NOW: int = getattr(fcntl, "F_OFD_SETLK", -1)
SET: int = getattr(fcntl, "F_OFD_SETLKW", -1)
GET: int = getattr(fcntl, "F_OFD_GETLK", -1)
LOCK: int = getattr(fcntl, "F_WRLCK", 1)
PASS: int = getattr(fcntl, "F_RDLCK", 0)
UNLOCK: int = getattr(fcntl, "F_UNLCK", 2)


def possible() -> bool:
    """Whether this system has locks of open file descriptions. Linux has; macOS hides its own."""
    return SET_NOW != -1


def span(kind: int, first: int, length: int) -> bytes:
    """`struct flock` for some bytes; length 0: to the end of all files."""
    return pack("@hhqqi0q", kind, os.SEEK_SET, first, length, 0)


LEAVE = span(UNLOCK, FIRST, 0)
ANYBODY = {kind: span(kind, FIRST, 0) for kind in (LOCK, PASS)}


class Turn:
    """The place in line of one open file description."""

    __slots__ = ("_fd", "_reads", "_stamp", "_stands")

    def __init__(self, fd: int, reads: bool = False) -> None:
        self._fd = fd
        self._stamp = 0
        self._stands = False
        self._reads = reads  # a file that may only be read: nobody can lock a byte of it

    def come(self, libc: Any) -> int:
        """Stand in line until nobody is before us: 0, or the errno that ended it.

        After EINTR the place is kept: come again.
        """
        if self._reads:  # behind who stands there now; who comes meanwhile may pass
            self._stamp = self._stamp or time.monotonic_ns()
            before = span(PASS, FIRST, self._stamp + 1)
            return libc.get_errno() if libc.fcntl(self._fd, SET, before) else 0
        if not self._stands:
            self._stamp = self._stamp or time.monotonic_ns()
            # It blocks only while the first in line came later than we looked at the clock.
            mine = span(LOCK, FIRST + self._stamp, 1)
            if libc.fcntl(self._fd, SET, mine):
                return libc.get_errno()  # type: ignore[no-any-return]
            self._stands = True
        ours = span(LOCK, FIRST, self._stamp + 1)
        return libc.get_errno() if libc.fcntl(self._fd, SET, ours) else 0

    def go(self, libc: Any) -> None:
        """Out of the line, with the lock in hand: the next one may ask for it."""
        libc.fcntl(self._fd, SET_NOW, LEAVE)


def try_now(path: str, fd: int, operation: int, call: Any) -> Any:
    """`call(fd, operation)` if nobody stands in line, else BlockingIOError.

    Whoever comes meanwhile stands behind us. Two who share pass beside each other.
    """
    kind = PASS if operation & LOCK_SH else LOCK
    try:
        fcntl.fcntl(fd, SET_NOW, span(kind, FIRST, time.monotonic_ns() + 1))
    except OSError as error:
        if error.errno == errno.EBADF and not fcntl.fcntl(fd, fcntl.F_GETFL) & 3:
            raise not_fair(path) from error  # it was opened for reading only
        raise
    try:
        return call(fd, operation)
    finally:
        fcntl.fcntl(fd, SET_NOW, LEAVE)


def show(fd: int) -> None:
    """Be seen by `stands` until the description is closed, beside others who are."""
    fcntl.fcntl(fd, SET_NOW, span(PASS, FIRST, 1))


def stands(fd: int, operation: int) -> bool:
    """Whether somebody stands in line before one who asks now. Takes no place and no lock.

    Whoever comes between this look and what is done after it came later than we.
    """
    kind = PASS if operation & LOCK_SH else LOCK
    found: bytes = fcntl.fcntl(fd, GET, ANYBODY[kind])
    return found[0] != UNLOCK or found[1] != 0


def not_fair(path: str) -> SystemRefused:
    """A line can be stood in by those alone who may write the file."""
    return SystemRefused(
        f"{path!r}: fair=True needs the right to write the lock file, and it could be opened for "
        "reading only: ask its owner for that right, or lock it without fair=True",
        name=path, errno=errno.EACCES, filename=path,
    )  # fmt: skip
