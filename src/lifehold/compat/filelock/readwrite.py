"""`ReadWriteLock`: one writer or many readers, on files that real filelock locks with SQLite.

What ours adds: a waiter stands in the kernel's queue instead of asking SQLite again and again, no
connection is opened and no thread waits in one, and `Timeout` says who holds it. The rules are in
ranges.py. Where the kernel has no such locks (only Linux offers them to Python) constructing one is
an error, never a lock that the other side does not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.errors import SystemRefused
from ...core.grant import Grant
from ...runtime import fork
from ...runtime.blocking import BLOCKING, finish
from . import kernel, options
from .calls import TABLE
from .meta import absolute
from .one import SidesMeta
from .ranges import RangeLock, possible
from .sides import Sides

if TYPE_CHECKING:
    import os

    from .errors import Timeout
    from .levels import Mode, Patience


class ReadWriteLockMeta(SidesMeta):
    """Its metaclass."""

    def __call__(
        cls,  # noqa: N805 - a metaclass's
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
    ) -> ReadWriteLock:
        options.boolean("blocking", blocking)
        timeout = options.seconds("timeout", timeout)

        def make() -> Any:
            return type.__call__(
                cls, lock_file, timeout, blocking=blocking, is_singleton=is_singleton
            )

        made: ReadWriteLock = (
            cls._one(lock_file, timeout, blocking, make) if is_singleton else make()
        )
        return made


class ReadWriteLock(Sides, metaclass=ReadWriteLockMeta):
    """A reader/writer lock on a file of its own, which both libraries lock as SQLite does."""

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
    ) -> None:
        if not possible:
            raise OSError(95, "ReadWriteLock needs locks that this system does not offer to Python")
        self._begin(lock_file, timeout, blocking)
        absolute(self.lock_file)
        self._kinds = {
            mode: RangeLock(self._path, BLOCKING, TABLE, mode == "write")
            for mode in ("read", "write")
        }
        self._kinds["read"].opened(schema=False).close()

    @classmethod
    def get_lock(
        cls, lock_file: str | os.PathLike[str], timeout: float = -1, *, blocking: bool = True
    ) -> ReadWriteLock:
        """The one object for a path."""
        return cls(lock_file, timeout, blocking=blocking)

    def _enter(self, mode: Mode, want: Patience) -> Any:
        found = self._kinds[mode]
        try:
            answer = found.attempt()
            if isinstance(answer, Grant):
                return found, answer
            if want.blocking and want.deadline > 0:
                # Asked in between whether to go on, when somebody wants to be.
                pause: Any = Waiting(want)
                answer = finish(
                    kernel.waited(found, BLOCKING, self.lock_file, answer, pause, self._refused)
                )
                return found, answer
        except SystemRefused as error:
            raise kernel.plain(error) from error
        raise kernel.refused(found, self.lock_file, later=True)

    def _refused(self, waited: float | None) -> Timeout:
        return kernel.refused(self._kinds["read"], self.lock_file, waited)

    def _exit(self, grant: Any) -> None:
        found, granted = grant
        found.drop(granted)

    def _closed_error(self) -> Exception:
        sqlite: Any = fork.lazily("sqlite3")
        error: Exception = sqlite.ProgrammingError("Cannot operate on a closed database.")
        return error


class Waiting:
    """A `Want` of this lock."""

    def __init__(self, want: Patience) -> None:
        self.deadline, self.cancel, self.pause = want.deadline, want.cancel, 0.05
