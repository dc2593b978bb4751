"""The system calls of this face, looked up when they are made.

Programs replace `os.open`, `fcntl.flock` and others to watch a lock file or to test an error path;
with filelock they are heard, so they are here. The kernel lock itself binds its calls early.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from ...local.files import Files, guard
from ...local.handles import Descriptors, LockFile
from ...runtime import fork
from .pidfile import exchange

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
OFTEN, PATHS = 3, 1000  # from which hold on it is kept; paths whose holds are counted
WATCHED: set[str] = set()  # paths whose opens are counted (pollers.py)
OPENED: set[str] = set()  # those among them that this process has opened since it was asked
ANCHORED: dict[int, str] = {}  # wait under way -> the folder in which it began
fork.in_child(ANCHORED.clear)  # L9  waits of other threads are not the child's
has_fcntl: bool = fcntl is not None


class PatchableCalls(Files):
    """As `lifehold.local.files.HOST`."""

    _modules = sys.modules  # at the end of the program its own name is gone

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if path in WATCHED:
            OPENED.add(path)
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def first(self, fd: int, length: int) -> bytes:
        return os.read(fd, length)

    def flock(self, fd: int, operation: int) -> None:
        if fcntl is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        fcntl.flock(fd, operation)

    def guard(self, fd: int, take: bool = True) -> None:
        if fcntl is not None:  # else there is one process alone (WebAssembly), or no kernel lock
            guard(fd, take)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def again(self, fd: int) -> os.stat_result:
        return os.stat(fd)  # who listens to os.fstat hears one look at what was opened, no more

    def lstat(self, path: str) -> os.stat_result:
        return os.lstat(path)

    def there(self, path: str) -> bool:
        try:
            os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def access(self, path: str) -> bool:
        """Whether this process may write what has that name, be it a symbolic link."""
        here = os.access
        follow = here not in os.supports_follow_symlinks
        effective = here in os.supports_effective_ids
        return here(path, os.W_OK, effective_ids=effective, follow_symlinks=follow)

    def makedirs(self, folder: str, exist_ok: bool = False) -> None:
        """L1  A folder that went away while one waits in it is another lock's when it is new."""
        if folder in list(ANCHORED.values()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        os.makedirs(folder, exist_ok=exist_ok)

    def rename(self, path: str, name: str) -> None:
        paths = self._paths()
        if paths is None:
            os.rename(path, name)
        else:
            paths(path).rename(name)

    def unlink(self, path: str) -> None:
        paths = self._paths()
        if paths is None:
            os.unlink(path)
        else:
            paths(path).unlink()

    def _paths(self) -> Any:
        """`pathlib.Path` where it is loaded: who listens there has done so."""
        return getattr(self._modules.get("pathlib"), "Path", None)

    def stamp(self, fd: int, when: int) -> None:
        """Set the time of change, in nanoseconds."""
        os.utime(fd, ns=(when, when))

    def exchange(self, one: str, other: str) -> bool:
        return exchange(one, other)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)


class IdleFiles(dict[str, LockFile]):
    """What is kept open for the next acquire: of paths that are locked often.

    Who locks once or twice finds that the release has closed what the acquire had opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self._holds: dict[str, int] = {}

    def setdefault(self, path: str, slot: Any = None) -> Any:
        """What is kept for the path from now on; None when nothing is, yet."""
        holds = self._holds.get(path, 0) + 1
        if holds >= OFTEN:
            return super().setdefault(path, slot)
        if len(self._holds) >= PATHS:
            self._holds.clear()
        self._holds[path] = holds
        return None


TABLE: Any = Descriptors(PatchableCalls(), anchors=True)
TABLE.idle = IdleFiles()
fork.in_child(TABLE.after_fork)  # closes its copies, so that the parent's release frees the lock
