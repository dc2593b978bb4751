"""Being woken by what happens to a path or a process."""

from __future__ import annotations

import _thread
import os
import select

from . import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Watch:
    """`ring()` after every change of a path. A first form: one thread that looks."""

    def __init__(self, path: str, ring: Callable[[], object]) -> None:
        self.path, self.ring = path, ring
        self._over = False
        self._generation = fork.generation

    def start(self) -> None:
        """From the return of this call on no change is missed."""
        self._seen = self.look()
        _thread.start_new_thread(self._keep, ())

    def look(self) -> object:
        """What a change would change."""
        try:
            found = os.lstat(self.path)
        except OSError as error:
            return error.errno
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _keep(self) -> None:
        again = True
        while not self._over and self._generation == fork.generation:
            seen = self.look()
            if again or seen != self._seen:
                again = seen != self._seen  # two changes within one tick of the clock look alike
                self._seen = seen
                self.ring()
            clock.pause(0.01)

    def close(self) -> None:
        """Ring no more. Safe to repeat."""
        self._over = True


class ProcessWatch(Watch):
    """`ring()` when a process has ended."""

    def __init__(self, pid: int, ring: Callable[[], object]) -> None:
        super().__init__("", ring)
        self.pid = pid

    def look(self) -> object:
        """Whether it runs."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            return not select.select([fd], [], [], 0)[0]
        finally:
            os.close(fd)
