"""`SoftFileLock`: a lock by a file's being there, beside real filelock on the same files.

What ours adds: a waiter is woken when the file goes; a holder's death is proven across PID
namespaces; a file is never seen half written; and a dead holder's lock is taken over on file
systems that cannot exchange names. The rules are in softfile.py.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING, Any

from ...core.owner import UNKNOWN
from . import kernel, whose
from .calls import TABLE
from .errors import SoftFileLockLifetimeWarning
from .mechanical import Mechanical
from .meta import absolute
from .options import UNSET_FILE_MODE
from .softfile import SoftFile

if TYPE_CHECKING:
    from .errors import Timeout
    from .state import Hold

FOLLOWING = ["wait longer, or, when its holder is gone for good, break_lock()"]


class SoftFileLock(Mechanical):
    """A lock that is there for as long as its file is. Needs no locks of the file system.

    `lifetime`: seconds of age after which others may break it, against a live holder too.
    """

    _lifetime_supported = True

    @classmethod
    def _about_lifetime(cls, level: int) -> None:
        """A file's age is no proof of a death: who asks for it is told."""
        if not cls._lifetime_supported:
            super()._about_lifetime(level + 1)
            return
        mark = "Async" if cls.__name__.startswith("Async") else ""
        text = (
            f"{cls.__name__}(lifetime=...) uses age-based expiry and can overlap a live holder; "
            f"use {mark}SoftFileLease for expiry or {mark}StrictSoftFileLock for fail-closed "
            "locking"
        )
        warnings.warn(text, SoftFileLockLifetimeWarning, stacklevel=level)

    def _check_options(self) -> None:
        if self._preserve_lock_file:
            raise ValueError(f"preserve_lock_file=True is not supported by {type(self).__name__}")
        if self._on_acquired is not None:
            raise ValueError(f"on_acquired is not supported by {type(self).__name__}")

    def _made(self, path: str) -> Any:
        mode = self._context.mode
        return SoftFile(path, self._runtime, TABLE, None if mode == UNSET_FILE_MODE else mode)

    def _end_brought(self, fd: int, path: str) -> None:
        super()._end_brought(fd, path)
        with contextlib.suppress(OSError):
            TABLE.files.unlink(path)

    def _found(self, hold: Hold) -> Any:
        found = super()._found(hold)
        found.still_there = kernel.refuse_lost_folder
        found.lifetime = self._context.lifetime
        if found.lifetime is not None and getattr(self, "_run_in_executor", False):
            self._afar = True  # the question for the age is not asked in the loop's thread
        return found

    def _refused(self, waited: float | None) -> Timeout:
        if self._kernel is None:
            return super()._refused(waited)
        later = waited is None
        error = kernel.refused(self._kernel, self.lock_file, waited, FOLLOWING, later=later)
        path = self._where()

        def tell(error: Timeout) -> None:
            error._named = self._out_of_sight(path)

        error._unnamed.append(tell)
        if not later:
            error._look()
        return error

    def _out_of_sight(self, path: str) -> str | None:
        """A holder that nobody here can prove dead, for whoever has to decide about it."""
        content = self._content(path)
        if content is None:
            return None
        if not content:
            return "an owner that recorded no PID"
        named = whose.read(content)
        if named is None or named.host == whose.host_name():
            return None
        held = self._kernel.inspect(held=True)
        if held is not None and held.alive != UNKNOWN:
            return None
        return f"pid {named.pid} on {named.host}"

    def _where(self) -> str:
        """The path, of the hold that there is or would be now."""
        return self._context.hold.path or absolute(self.lock_file)

    def _content(self, path: str = "") -> bytes | None:
        """What the file says; None when there is none that could be read."""
        path = path or self._where()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(fd, whose.LONGEST + 1)
        except OSError:
            return None
        finally:
            os.close(fd)

    def _named(self) -> whose.Named | None:
        content = self._content()
        if content is None or content.startswith(whose.SECOND):
            return None
        return whose.read(content)

    @property
    def pid(self) -> int | None:
        """The process that the file names; None when there is none."""
        named = self._named()
        return None if named is None else named.pid

    @property
    def is_lock_held_by_us(self) -> bool:
        """Whether the file names this process."""
        named = self._named()
        return named is not None and whose.is_ours(named)

    def break_lock(self) -> None:
        """Remove the file, whoever holds the lock. Who does finds out by `lease.check()`."""
        try:
            os.unlink(self._where())
        except OSError:
            return
