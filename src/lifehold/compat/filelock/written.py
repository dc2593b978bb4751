"""Our kernel lock, for who expects of a lock file that he may write it.

flock(2) needs no right to write, and lifehold's own kernel lock locks such a file; filelock answers
PermissionError, and programs rely on it as a check of whose file it is. Left as it is: a program,
which is opened for reading so that it can be run meanwhile, and a file system that nobody writes.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from ...local.files import LOCK_UN
from ...local.refusals import refused
from ...registry import maker

Kernel: Any = maker("kernel")


class WrittenKernelLock(Kernel):  # type: ignore[misc]
    """As the kernel lock. Refuses a file that this process may only read (SystemRefused)."""

    def _open(self) -> Any:
        slot = super()._open()
        if slot.writable:
            return slot
        try:
            if self._is_left(slot.fd):
                return slot
        except BaseException as error:
            slot.close()
            if isinstance(error, OSError):
                raise refused(self.path, error) from error
            raise
        slot.close()
        raise refused(self.path, OSError(errno.EACCES, os.strerror(errno.EACCES), self.path))

    def _is_left(self, fd: int) -> bool:
        """Whether it is locked all the same, or tried: where flock(2) is missing, that is said."""
        if self.files.fstat(fd).st_mode & 0o111 or os.fstatvfs(fd).f_flag & os.ST_RDONLY:
            return True
        try:
            self.files.flock(fd, LOCK_UN)
        except OSError as error:
            return error.errno == errno.ENOSYS
        return False
