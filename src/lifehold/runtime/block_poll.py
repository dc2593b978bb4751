"""What stands in for the C library where Python was built without ctypes.

Promise: the same waits with the same owner of the outcome, but by asking again and again, 1 to 20
ms apart: `fcntl.flock` itself starts again after a signal (PEP 475), so it could not be ended. Each
pause answers EINTR, as an interrupted system call does; a fair asker keeps its place meanwhile.
"""

from __future__ import annotations

import errno

from .clock import pause
from .turnstile import SET, SET_NOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_NB = 4
FIRST, LONGEST = 0.001, 0.02


class Poll:
    """flock and fcntl for one waiter."""

    alone = False  # no thread is interrupted, so none may wait in its caller's place

    def __init__(self) -> None:
        self._errno = 0
        self._pause = FIRST

    def get_errno(self) -> int:
        return self._errno

    def flock(self, fd: int, operation: int) -> int:
        return self._try(lambda: fcntl.flock(fd, operation | LOCK_NB))

    def fcntl(self, fd: int, command: int, data: bytes) -> int:
        return self._try(lambda: fcntl.fcntl(fd, SET_NOW if command == SET else command, data))

    def _try(self, call: Callable[[], object]) -> int:
        try:
            call()
        except OSError as error:
            self._errno = error.errno or errno.EIO
            if error.errno in (errno.EAGAIN, errno.EACCES):
                pause(self._pause)
                self._pause = min(self._pause * 1.5, LONGEST)
                self._errno = errno.EINTR
            return -1
        return 0
