"""zc.lockfile's `LockFile`: `from lifehold.compat import zc_lockfile`.

    try:
        lock = zc_lockfile.LockFile("server.lock")
    except zc_lockfile.LockError:
        ...                             # somebody holds it
    lock.close()

Promise: this lock and zc.lockfile's own exclude each other on one file; the file has the content
that zc.lockfile writes, ` <pid>` or that of `content_template`. Rule: flock(2) on the open file
(local/open_file.py), one try; the file stays. What ours adds:
L1  The path must lead to the locked file: a file that was removed meanwhile is no lock.
L7  No symbolic link is followed to it: what it leads to may be data, and would be written over.
L9  A forked child has nothing of it: its `close()` leaves the lock to the parent.
"""

from __future__ import annotations

import errno
import os
from typing import IO

from ..core.errors import InvalidArgument, SystemRefused, UnsafeGround
from ..core.grant import Grant
from ..local.open_file import OpenFileLock, opened
from ..local.refusals import refused
from ..lock import absolute
from ..runtime import fork
from ..runtime.blocking import BLOCKING

__all__ = ["LockError", "LockFile", "SimpleLockFile"]

STRAYS = 100  # how often a path may lead to another file after it was locked


class LockError(Exception):
    """Somebody else has the lock, or the file cannot be locked. `__cause__` says why, if known."""


class _HostName:
    """The name of the host, looked up when it is written."""

    def __str__(self) -> str:
        return str(fork.lazily("socket").gethostname())


class SimpleLockFile:
    """A lock on a file whose content stays as it is. The constructor takes it, or raises LockError.

    `path`: is made when it is missing. Raises OSError when it cannot be opened for writing,
    LockError when it is a symbolic link.
    A subclass may write into `self._fp`, the open file, in `_on_lock`.
    """

    _fp: IO[str] | None = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._held: list[tuple[OpenFileLock, Grant]] = []
        where = os.fspath(path)  # not the number of a descriptor, which open() would take and close
        try:
            for _ in range(STRAYS):
                if self._is_taken():
                    return
        except BaseException:
            self._end(self._fp)  # L6  interrupted: nobody has this object
            raise
        raise LockError(f"Couldn't lock {path!r}") from refused(
            where, OSError(errno.ESTALE, "it is replaced again and again")
        )

    def _is_taken(self) -> bool:
        """One try: False when the path leads to another file by now. Raises LockError."""
        try:
            file = open(self._path, "r+", opener=_opened)  # noqa: SIM115 - the lock
        except (InvalidArgument, UnsafeGround) as error:
            raise LockError(f"Couldn't lock {self._path!r}") from error
        try:
            try:
                lock = OpenFileLock(file, BLOCKING, alone=True)
                grant = lock.attempt()
            except (SystemRefused, InvalidArgument) as error:
                raise LockError(f"Couldn't lock {self._path!r}") from error
            if not isinstance(grant, Grant):
                raise LockError(f"Couldn't lock {self._path!r}")
            self._held.append((lock, grant))
            if lock.is_at(os.fspath(self._path)):
                self._fp = file
                self._on_lock()
                file.flush()
                return True
            self.close()
        except BaseException:
            self._end(file)  # L6
            raise
        file.close()
        return False

    def _on_lock(self) -> None:
        """For a subclass: what is done as soon as the lock is there."""

    def close(self) -> None:
        """Let go. Safe to repeat. The file stays.

        Raises OSError when what was written does not fit on the disk: the lock is free then too.
        """
        self._end(self._fp)

    def _end(self, file: IO[str] | None) -> None:
        last = self._held[-1:]
        try:
            if last and self._is_taken_out(last[0]):
                last[0][0].drop(last[0][1])
        except BaseException:
            for _, grant in last:  # L6  interrupted
                for part in grant.handle:
                    part.close()
            raise
        finally:
            self._fp = None
            if file is not None:
                file.close()

    def _is_taken_out(self, entry: tuple[OpenFileLock, Grant]) -> bool:
        try:
            self._held.remove(entry)  # L5  one atomic step
        except ValueError:
            return False  # by another thread
        return True


class LockFileWithContent(SimpleLockFile):
    """A lock on a file that says who holds it.

    `content_template`: the text, in which `{pid}` and `{hostname}` are replaced.
    """

    def __init__(self, path: str | os.PathLike[str], content_template: str = "{pid}") -> None:
        self._content_template = content_template
        try:
            super().__init__(path)
        except BaseException:
            if self._fp is not None:
                self._end(self._fp)  # L6  interrupted after it was locked: nobody has this object
            raise

    def _on_lock(self) -> None:
        assert self._fp is not None, "it is open while it is locked"
        text = self._content_template.format(pid=os.getpid(), hostname=_HostName())
        self._fp.write(f" {text}\n")
        self._fp.truncate()


LockFile = LockFileWithContent


def _opened(path: str, flags: int) -> int:
    return opened(absolute(os.fsdecode(path)), flags | os.O_CREAT)
