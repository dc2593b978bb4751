"""`ReadWriteLock`: one writer or many readers, on files that real filelock locks with SQLite.

It locks by transactions of SQLite as the original does (rwdatabase.py), so that both exclude each
other wherever SQLite runs. What ours adds: the connection is kept, a waiter stands in the kernel's
queue where there is one, and `Timeout` says who holds it.
"""

from __future__ import annotations

from sqlite3 import ProgrammingError
from typing import TYPE_CHECKING, Any

from ...core.errors import SystemRefused
from ...core.grant import Grant, Held
from ...runtime.blocking import BLOCKING, finish
from . import kernel, options, pollers
from .calls import TABLE
from .connected import Connected
from .meta import absolute
from .one import SidesMeta
from .rwdatabase import Database, Transaction
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
        self._begin(lock_file, timeout, blocking)
        absolute(self.lock_file)
        self._database = Database(self._path, TABLE)
        self._kinds = {
            mode: Transaction(self._database, BLOCKING, mode == "write")
            for mode in ("read", "write")
        }
        Connected(self._path, TABLE, schema=False).close()

    @classmethod
    def get_lock(
        cls, lock_file: str | os.PathLike[str], timeout: float = -1, *, blocking: bool = True
    ) -> ReadWriteLock:
        """The one object for a path."""
        return cls(lock_file, timeout, blocking=blocking)

    def _attempt(self, mode: Mode) -> Any:
        found = self._kinds[mode]
        answer = found.attempt()
        return (found, answer) if isinstance(answer, Grant) else None

    def _enter(self, mode: Mode, want: Patience) -> Any:
        found = self._kinds[mode]
        if not want.blocking:
            raise kernel.refused(found, self.lock_file, later=True)
        pollers.expect(self._path, pollers.SQLITE)
        pause: Any = Waiting(want)  # asked in between whether to go on, when somebody wants to be
        waiting = kernel.waited(found, BLOCKING, self.lock_file, Held(), pause, self._refused)
        try:
            return found, finish(waiting)
        except SystemRefused as error:
            raise kernel.plain(error) from error

    def _refused(self, waited: float | None) -> Timeout:
        return kernel.refused(self._kinds["read"], self.lock_file, waited)

    def _exit(self, grant: Any) -> None:
        found, granted = grant
        found.drop(granted)

    def close(self) -> None:
        """Let go, whoever holds it, close the connection, and be of no more use."""
        super().close()
        self._database.close()

    def _closed_error(self) -> Exception:
        return ProgrammingError("Cannot operate on a closed database.")


class Waiting:
    """A `Want` of this lock."""

    def __init__(self, want: Patience) -> None:
        self.deadline, self.cancel, self.pause = want.deadline, want.cancel, 0.05
