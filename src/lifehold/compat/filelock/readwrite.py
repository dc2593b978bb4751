"""`ReadWriteLock`: one writer or many readers, on files that real filelock locks with SQLite.

It locks by transactions of SQLite as the original does (readwrite.py), so that both exclude each
other wherever SQLite runs. What ours adds: the connection is kept, a waiter stands in the kernel's
queue where there is one, and `Timeout` says who holds it.
"""

from __future__ import annotations

import os
import sys
from sqlite3 import ProgrammingError
from typing import Any
from weakref import ref

from ...core.errors import SystemRefused
from ...core.grant import Grant, Held, Holder, Lost
from ...local.ground import is_far
from ...local.handles import OF_PARENT, RELEASED, to_keep
from ...runtime import clock, eventloop, fork
from ...runtime.blocking import BLOCKING, finish
from . import construction, native_mechanism, pollers, sqlite_file
from .api import AwaitableAcquire
from .async_sides import AsyncSides
from .construction import absolute
from .one import SidesMeta
from .sides import Sides
from .sqlite_file import (
    LENGTH,
    LET_IN,
    PENDING,
    READ,
    RESERVED,
    SHARED,
    SLICE,
    WAIT,
    WRITE,
    PathMoved,
    SqliteConnection,
    SqliteDescriptor,
    sheet_opened,
    words,
)
from .system_calls import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent import futures

    from ...core.acquire import Ask
    from ...local import kernel_holders
    from ...local.handles import Descriptors
    from ...ops import foreign
    from .errors import Timeout
    from .sides import Mode, WaitTerms
else:
    foreign = fork.later("lifehold.ops.foreign", globals())
    kernel_holders = fork.later("lifehold.local.kernel_holders", globals())


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
        construction.boolean("blocking", blocking)
        timeout = construction.seconds("timeout", timeout)

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
        self._database = LockDatabase(self._path, TABLE)
        self._kinds = {
            mode: Transaction(self._database, BLOCKING, mode == "write")
            for mode in ("read", "write")
        }
        SqliteConnection(self._path, TABLE, schema=False).close()

    @classmethod
    def get_lock(
        cls, lock_file: str | os.PathLike[str], timeout: float = -1, *, blocking: bool = True
    ) -> ReadWriteLock:
        """The one object for a path."""
        return cls(lock_file, timeout, blocking=blocking)

    def _attempt(self, mode: Mode) -> object:
        found = self._kinds[mode]
        answer = found.attempt()
        return (found, answer) if isinstance(answer, Grant) else None

    def _enter(self, mode: Mode, want: WaitTerms) -> object:
        found = self._kinds[mode]
        if not want.blocking:
            raise native_mechanism.kernel_refusal(found, self.lock_file, later=True)
        pollers.expect(self._path, pollers.SQLITE)
        # asked in between whether to go on, when somebody wants to be
        pause: Any = ReadWriteWant(want)
        waiting = native_mechanism.waited(
            found, BLOCKING, self.lock_file, Held(), pause, self._refused
        )
        try:
            return found, finish(waiting)
        except SystemRefused as error:
            raise native_mechanism.plain(error) from error

    def _refused(self, waited: float | None) -> Timeout:
        return native_mechanism.kernel_refusal(self._kinds["read"], self.lock_file, waited)

    def _exit(self, grant: Any) -> None:
        found, granted = grant
        found.drop(granted)

    def close(self) -> None:
        """Let go, whoever holds it, close the connection, and be of no more use."""
        super().close()
        self._database.close()

    def _closed_error(self) -> Exception:
        return ProgrammingError("Cannot operate on a closed database.")


class ReadWriteWant:
    """A `Want` of this lock."""

    def __init__(self, want: WaitTerms) -> None:
        self.deadline, self.cancel, self.pause = want.deadline, want.cancel, 0.05


# ------------------------------------------------------------------------------------------------
# The mechanism of `ReadWriteLock`: transactions of SQLite, on a connection that is kept.
#
# Read      A transaction that has read.
# Write     An exclusive one.
# Release   It is rolled back. From the hold number OFTEN on the connection is kept for the next, of
#           KEEP locks in the process; who locks once or twice leaves no file open.
#
# A waiter stands in the kernel's queue for the very bytes that SQLite locks (readwrite.py); where
# the system has none to offer (only Linux has) SQLite itself asks again, a slice at a time.


KEEP = 0 if os.name == "nt" else to_keep()  # a file that is open cannot be removed on Windows
OFTEN = 3
NO_TOKEN = "an SQLite file of filelock's has no room for a token"  # noqa: S105
_idle: dict[int, ref[LockDatabase]] = {}  # those with a connection that nobody uses, oldest first


class LockDatabase:
    """One database of one lock object, and the connection that is kept for its next transaction."""

    def __init__(self, path: str, table: Descriptors) -> None:
        self.path, self.table = path, table
        self._kept: list[SqliteConnection] = []
        self._holds = 0

    def connected(self) -> tuple[SqliteConnection, bool]:
        """A connection, and whether it is a new one. Raises what opening one does."""
        _idle.pop(id(self), None)
        try:
            found = self._kept.pop()
        except IndexError:
            return SqliteConnection(self.path, self.table, schema=True), True
        if found.generation == fork.here():
            return found, False
        found.close()
        return SqliteConnection(self.path, self.table, schema=True), True

    def left(self, found: SqliteConnection) -> None:
        """A hold is over."""
        self._holds += 1
        if self._holds < OFTEN:
            found.close()
        else:
            self.keep(found)

    def keep(self, found: SqliteConnection) -> None:
        """It is of no use just now, but soon."""
        if found.generation != fork.here() or self._kept or not KEEP:
            found.close()
            return
        self._kept.append(found)
        _idle[id(self)] = ref(self)
        while len(_idle) > KEEP:
            try:
                other = _idle.pop(next(iter(_idle)))()
                if other is not None:
                    other.close()
            except (KeyError, StopIteration, RuntimeError):
                continue  # another thread was faster

    def close(self) -> None:
        """Close the connection that is kept."""
        try:
            self._kept.pop().close()
        except IndexError:
            return


class Transaction:
    """One side of it."""

    terms, label = None, ""

    def __init__(self, database: LockDatabase, runtime: Any, write: bool) -> None:
        self.database, self.path, self.table = database, database.path, database.table
        self.runtime, self.files, self.exclusive = runtime, database.table.files, write
        self._line = SideQueue(self.path, runtime, self.table, write)

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return is_far(self.path)

    # ---- taking

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    def attempt(self, wait: int = 0) -> Grant | Held:
        """One try, or as many as SQLite makes in `wait` milliseconds.

        Raises OSError, ValueError, sqlite3.Error, RuntimeError.
        """
        found, new = self.database.connected()
        try:
            begun = found.begin(self.exclusive, wait)
        except PathMoved:
            found.close()
            if new:
                raise
            return self.attempt(wait)
        except BaseException:
            found.close()
            raise
        if not begun:
            self.database.keep(found)
            return Held("", found.sheet.key)
        mark, now = os.urandom(8).hex(), self.files.clock_ns()
        return Grant(self.path, mark, None, NO_TOKEN, now, found.sheet.key, [found])

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Until it is ours, or `until` comes."""
        while True:
            if possible:
                answer = await self._in_line(ask, until)
            else:
                left = int((until - clock.now()) * 1000)
                answer = self.attempt(min(max(left, 1), SLICE))
            if isinstance(answer, Grant) or clock.now() >= until:
                return answer

    async def _in_line(self, ask: Ask, until: float) -> Grant | Held:
        place = await self._line.front(ask, until)
        if place is None:
            return Held("")
        if self.exclusive:
            place.leave(LET_IN, 1)
        answer = self.attempt()
        if isinstance(answer, Grant):
            ask.slot = None
            place.leave()
            place.close()
        return answer

    # ---- the end, and questions

    def drop(self, grant: Grant) -> Lost | None:
        """Let go."""
        try:
            if grant.handle[0].generation != fork.here():
                return Lost(OF_PARENT)
            found = grant.handle.pop()
        except IndexError:
            return Lost(RELEASED)
        try:
            found.end()
        except BaseException:
            found.close()
            raise
        self.database.left(found)
        return None

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def check(self, grant: Grant) -> Lost | None:
        """Whether the path leads to the file still that is locked."""
        found = next(iter(grant.handle), None)
        if found is None:
            return Lost(RELEASED)
        return Lost(OF_PARENT) if found.generation != fork.here() else self._lost(found)

    def _lost(self, found: SqliteConnection) -> Lost | None:
        if found.sheet.leads_to():
            return None
        return Lost("its database was removed or replaced: others may be in", gone=True)

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who has any of the ranges."""
        try:
            sheet = sheet_opened(self.table, self.path)
        except OSError as error:
            return Holder(evidence=f"its file cannot be opened: {error.strerror}")
        try:
            seen = kernel_holders.look_at(self.files, self.path, sheet.fd, readable=False)
            found = foreign.fcntl_holders(seen, foreign.ForeignFiles([self.path]))
        except OSError as error:
            return Holder(evidence=f"its file cannot be read: {error.strerror}")
        finally:
            sheet.close()
        return found[0][1] if found else None


# ------------------------------------------------------------------------------------------------
# `AsyncReadWriteLock`: the reader/writer lock for tasks of asyncio.


class AsyncReadWriteLock(AsyncSides):
    """As `ReadWriteLock`; each task holds for itself. `close()` it when it made its executor."""

    _owns, _begun_by = False, -1  # of an object whose making was refused

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
        executor: futures.Executor | None = None,
    ) -> None:
        self._owns, self._begun_by = False, fork.generation
        lock = ReadWriteLock(lock_file, timeout, blocking=blocking, is_singleton=is_singleton)
        self._owns = executor is None
        self._begin(lock, is_singleton, loop, executor or eventloop.one_thread())

    _ending = staticmethod(sys.is_finalizing)

    def __del__(self, _getpid: Callable[[], int] = os.getpid) -> None:
        # Bound in the class: at the end of the program the module's names are gone before this is.
        if not self._ending() and self._begun_by == fork.here():
            self._unused(False)

    def _unused(self, wait: bool) -> None:
        if self._owns:
            self._executor.shutdown(wait=wait)

    async def _unused_awaited(self) -> None:
        if self._owns:
            await eventloop.begin(None, None, lambda: self._unused(True))

    def _closed_error(self) -> Exception:
        return ProgrammingError("Cannot operate on a closed database.")

    async def acquire_read(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireReadWriteReturnProxy:
        """Hold it for reading. As `ReadWriteLock.acquire_read`."""
        await self._acquire("read", timeout, blocking)
        return AsyncAcquireReadWriteReturnProxy(self)

    async def acquire_write(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireReadWriteReturnProxy:
        """Hold it for writing. As `ReadWriteLock.acquire_write`."""
        await self._acquire("write", timeout, blocking)
        return AsyncAcquireReadWriteReturnProxy(self)


class AsyncAcquireReadWriteReturnProxy(AwaitableAcquire):
    """`async with await lock.acquire_read():` releases at its end."""

    def __init__(self, lock: AsyncReadWriteLock) -> None:
        super().__init__(lock)

    async def __aenter__(self) -> AsyncReadWriteLock:
        return self.lock  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------
# How a waiter for an SQLite lock stands in the kernel's queue instead of asking again and again.
#
# SQLite locks bytes from 1 GiB on: PENDING, RESERVED, and 510 bytes SHARED. A reader has SHARED
# locked for reading; a writer has all three for writing. A waiter takes the same locks in the same
# order by fcntl(2), owned by an open file of its own, and so is woken by the release of whoever is
# in its way. With them it is in front of everybody; then SQLite takes them. Before all of them
# comes a byte that SQLite does not know of, TURN, which it keeps until SQLite has the lock.
#
# Read      TURN, PENDING, SHARED for reading. SQLite takes its own beside these: no gap.
# Write     TURN, RESERVED, then PENDING, which keeps new readers out, then SHARED, once the readers
#           left. All but TURN are let go of for SQLite to take them. Who waits stays behind TURN;
#           who comes just then may be faster, and is waited for again.
#
# How it could fail, and what keeps it:
# - Two waiters wait for each other: everybody takes them in this order, and SQLite never waits for
#   the kernel, it gives back what it has and tries again.
# - The file is replaced meanwhile: the path is looked at at the end, and it begins anew.


possible = sqlite_file.ranges


class ByteLock(int):
    """What `Runtime.block` is to stand in the queue for."""

    call = WAIT
    words: bytes

    @classmethod
    def of(cls, kind: int, start: int, length: int) -> ByteLock:
        made = cls(0)
        made.words = words(kind, start, length)
        return made


TURN = PENDING - 1
READER = (
    ByteLock.of(READ, TURN, 1),
    ByteLock.of(READ, PENDING, 1),
    ByteLock.of(READ, SHARED, LENGTH),
)
WRITER = (
    ByteLock.of(WRITE, TURN, 1),
    ByteLock.of(WRITE, RESERVED, 1),
    ByteLock.of(WRITE, PENDING, 1),
    ByteLock.of(WRITE, SHARED, LENGTH),
)


class SideQueue:
    """The queue of one database and one side."""

    def __init__(self, path: str, runtime: Any, table: Descriptors, write: bool) -> None:
        self.path, self.runtime, self.table = path, runtime, table
        self._steps = WRITER if write else READER

    async def front(self, ask: Ask, until: float) -> SqliteDescriptor | None:
        """Stand in line until nobody is before us; None when `until` comes first.

        What was reached is kept in `ask.slot` until then, and for another call.
        """
        while True:
            sheet = ask.slot
            if sheet is None or sheet.generation != fork.here():
                sheet = ask.slot = sqlite_file.sheet_opened(self.table, self.path)
            while sheet.taken < len(self._steps):
                step = self._steps[sheet.taken]
                if not sheet.lock(step.words) and not await self.runtime.block(
                    ask, sheet, step, until
                ):
                    return None
                sheet.taken += 1
            if sheet.leads_to():
                return sheet  # type: ignore[no-any-return]
            ask.slot = None
            sheet.leave()
            sheet.close()
