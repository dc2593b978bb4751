"""The mechanism of `ReadWriteLock`: transactions of SQLite, on a connection that is kept.

Read      A transaction that has read.
Write     An exclusive one.
Release   It is rolled back. From the hold number OFTEN on the connection is kept for the next, of
          KEEP locks in the process; who locks once or twice leaves no file open.

A waiter stands in the kernel's queue for the very bytes that SQLite locks (line.py); where the
system has none to offer (only Linux has) SQLite itself asks again, a slice at a time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import ref

from ...core.grant import Grant, Held, Holder, Lost
from ...local.ground import is_far
from ...local.handles import to_keep
from ...local.record_lock import OF_PARENT, RELEASED
from ...runtime import clock, fork
from . import line
from .connected import SLICE, Connected, Moved
from .sheet import LET_IN, opened

if TYPE_CHECKING:
    from ...core.acquire import Ask
    from ...local.handles import Descriptors

KEEP = 0 if os.name == "nt" else to_keep()  # a file that is open cannot be removed on Windows
OFTEN = 3
NO_TOKEN = "an SQLite file of filelock's has no room for a token"  # noqa: S105
_idle: dict[int, ref[Database]] = {}  # those with a connection that nobody uses, oldest first


class Database:
    """One database of one lock object, and the connection that is kept for its next transaction."""

    def __init__(self, path: str, table: Descriptors) -> None:
        self.path, self.table = path, table
        self._kept: list[Connected] = []
        self._holds = 0

    def connected(self) -> tuple[Connected, bool]:
        """A connection, and whether it is a new one. Raises what opening one does."""
        _idle.pop(id(self), None)
        try:
            found = self._kept.pop()
        except IndexError:
            return Connected(self.path, self.table, schema=True), True
        if found.generation == fork.here():
            return found, False
        found.close()
        return Connected(self.path, self.table, schema=True), True

    def left(self, found: Connected) -> None:
        """A hold is over."""
        self._holds += 1
        if self._holds < OFTEN:
            found.close()
        else:
            self.keep(found)

    def keep(self, found: Connected) -> None:
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

    def __init__(self, database: Database, runtime: Any, write: bool) -> None:
        self.database, self.path, self.table = database, database.path, database.table
        self.runtime, self.files, self.exclusive = runtime, database.table.files, write
        self._line = line.Line(self.path, runtime, self.table, write)

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
        except Moved:
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
            if line.possible:
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

    def _lost(self, found: Connected) -> Lost | None:
        if found.sheet.leads_to():
            return None
        return Lost("its database was removed or replaced: others may be in", gone=True)

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who has any of the ranges."""
        try:
            sheet = opened(self.table, self.path)
        except OSError as error:
            return Holder(evidence=f"its file cannot be opened: {error.strerror}")
        try:
            holders: Any = fork.lazily("lifehold.local.kernel_holders")
            foreign: Any = fork.lazily("lifehold.ops.foreign")
            seen = holders.look_at(self.files, self.path, sheet.fd, readable=False)
            found = foreign.fcntl_holders(seen, foreign.Files([self.path]))
        except OSError as error:
            return Holder(evidence=f"its file cannot be read: {error.strerror}")
        finally:
            sheet.close()
        return found[0][1] if found else None
