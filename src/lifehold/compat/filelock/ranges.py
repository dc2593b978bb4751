"""The mechanism of `ReadWriteLock`: the locks that SQLite takes on a database file, without SQLite.

SQLite locks bytes from 1 GiB on: PENDING, RESERVED, and 510 bytes SHARED. A reader has SHARED
locked for reading; a writer has all three for writing. Ours takes the same locks in the same order
by fcntl(2), owned by the open file description: they exclude SQLite's and one another, between
processes and between threads, a waiter stands in the kernel's queue, and a death frees them.

Read      PENDING for reading, SHARED for reading, then PENDING is let go.
Write     RESERVED, then PENDING, which keeps new readers out, then SHARED, once the readers left.
Release   All three in one call; the file is never written.

How it could fail, and what keeps it:
- Two of ours wait for each other: everybody takes them in this order, and SQLite never waits, it
  gives back what it has and tries again.
- The file is replaced while we wait for it: the path is looked at once we have it, and it begins
  anew when it leads elsewhere.
- Closing any descriptor of a file drops the locks that SQLite has on it in this very process, so
  where somebody's here are on it the descriptor is parked and not closed.
- A database in WAL mode is not locked like this, and one with a schema is somebody's: refused.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from struct import pack
from typing import TYPE_CHECKING, Any

from ...core.grant import Grant, Held, Holder, Lost
from ...local.descriptors import Slot
from ...local.ground import is_far
from ...local.presence import OF_PARENT, RELEASED
from ...runtime import fork

if TYPE_CHECKING:
    from ...core.acquire import Ask
    from ...local.descriptors import Descriptors

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PENDING, RESERVED, SHARED, LENGTH = 1 << 30, (1 << 30) + 1, (1 << 30) + 2, 510
READ, WRITE, FREE = 0, 1, 2  # of Linux
GET, SET, WAIT = 36, 37, 38  # F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
FLAGS |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
NO_TOKEN = "an SQLite file of filelock's has no room for a token"  # noqa: S105
possible = sys.platform == "linux"


def words(kind: int, start: int, length: int) -> bytes:
    """Struct flock."""
    return pack("@hhqqi", kind, 0, start, length, 0)


class Range(int):
    """What `Runtime.block` is to stand in the queue for."""

    call = WAIT
    words: bytes

    @classmethod
    def of(cls, kind: int, start: int, length: int) -> Range:
        made = cls(0)
        made.words = words(kind, start, length)
        return made


READER = (Range.of(READ, PENDING, 1), Range.of(READ, SHARED, LENGTH))
WRITER = (
    Range.of(WRITE, RESERVED, 1),
    Range.of(WRITE, PENDING, 1),
    Range.of(WRITE, SHARED, LENGTH),
)
LET_GO, LET_IN = words(FREE, PENDING, 2 + LENGTH), words(FREE, PENDING, 1)
ANY = words(WRITE, PENDING, 2 + LENGTH)


class Sheet(Slot):
    """The open database. `taken`: how many of the steps are done."""

    __slots__ = ("taken",)
    parked: list[Sheet] = []  # noqa: RUF012 - of the whole process

    def __init__(self, table: Descriptors, path: str) -> None:
        self.table, self.path, self.generation, self.key, self.taken = table, path, -1, "", 0
        self.dev = self.ino = 0
        with fork.gate:
            self.fd, self.writable = table.files.open(path, FLAGS, 0o600), True
            self.generation = fork.generation
            table.noted(self)
        found = table.files.fstat(self.fd)
        self.dev, self.ino = found.st_dev, found.st_ino
        self.key = f"{found.st_dev}:{found.st_ino}"

    def close(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Close it, which unlocks it; park it where SQLite in this process would lose its locks."""
        ours = self.generation == _fork.generation == _fork.here()
        if ours and "_sqlite3" in sys.modules and self.foreign():
            self.parked.append(self)
            return
        super().close(_gate, _fork)

    def foreign(self) -> bool:
        """Whether other code of this process has locks on it. Ours are let go of before."""
        try:
            self.lock(LET_GO)
            found: Any = fcntl.fcntl(self.fd, GET, ANY)
        except OSError:
            return False
        pid = int.from_bytes(found[24:28], sys.byteorder, signed=True)
        return found[:2] != pack("@h", FREE) and pid == os.getpid()

    def leads_to(self) -> bool:
        """Whether the path leads here."""
        try:
            return self.is_of(self.table.files.lstat(self.path))
        except OSError:
            return False

    def lock(self, wanted: bytes) -> bool:
        """Take, or let go, without waiting."""
        try:
            fcntl.fcntl(self.fd, SET, wanted)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


fork.in_child(Sheet.parked.clear)


class RangeLock:
    """The mechanism of one path and one side."""

    terms, label = None, ""

    def __init__(self, path: str, runtime: Any, table: Descriptors, write: bool) -> None:
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.exclusive, self._steps = write, WRITER if write else READER

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return is_far(self.path)

    def opened(self, schema: bool = True) -> Sheet:
        """The database, as far as it is one for locking. Raises OSError, ValueError.

        `schema`: it may have none of its own.
        """
        for sheet in list(Sheet.parked):
            if sheet.is_of(self.files.lstat(self.path)):
                try:
                    Sheet.parked.remove(sheet)
                except ValueError:
                    continue  # another thread has it
                return self._checked(sheet, schema)
        return self._checked(Sheet(self.table, self.path), schema)

    def _checked(self, sheet: Sheet, schema: bool) -> Sheet:
        try:
            if not stat.S_ISREG(self.files.fstat(sheet.fd).st_mode):
                raise OSError(errno.EINVAL, "refusing a non-regular lock database", self.path)
            refuse_others_database(self.files.pread(sheet.fd, 4096, 0), self.path, schema)
        except BaseException:
            sheet.close()
            raise
        sheet.taken = 0
        return sheet

    # ---- taking

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    def attempt(self) -> Grant | Held:
        """One try that does not wait. Raises OSError, ValueError."""
        sheet = self.opened()
        try:
            while sheet.taken < len(self._steps):
                if not sheet.lock(self._steps[sheet.taken].words):
                    sheet.close()
                    return Held("", sheet.key)
                sheet.taken += 1
            granted = self._granted(sheet)
        except BaseException:
            sheet.close()
            raise
        if granted is None:
            return Held("it was replaced just now", sheet.key)
        return granted

    def _granted(self, sheet: Sheet) -> Grant | None:
        """None: the path leads elsewhere by now."""
        if not sheet.leads_to():
            sheet.close()
            return None
        if not self.exclusive:
            sheet.lock(LET_IN)
        mark, now = os.urandom(8).hex(), self.files.clock_ns()
        return Grant(self.path, mark, None, NO_TOKEN, now, sheet.key, [sheet])

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Stand in the kernel's queues, one after the other. What is taken is kept meanwhile."""
        while True:
            sheet = ask.slot
            if sheet is None or sheet.generation != fork.here():
                sheet = ask.slot = self.opened()
            while sheet.taken < len(self._steps):
                step = self._steps[sheet.taken]
                if not sheet.lock(step.words) and not await self.runtime.block(
                    ask, sheet, step, until
                ):
                    return Held("", sheet.key)
                sheet.taken += 1
            ask.slot = None
            granted = self._granted(sheet)
            if granted is not None:
                return granted

    # ---- the end, and questions

    def drop(self, grant: Grant) -> Lost | None:
        """Let go."""
        try:
            if grant.handle[0].generation != fork.here():
                return Lost(OF_PARENT)
            sheet = grant.handle.pop()
        except IndexError:
            return Lost(RELEASED)
        there = self._lost(sheet)
        sheet.lock(LET_GO)
        sheet.close()
        return there

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def check(self, grant: Grant) -> Lost | None:
        """Whether the path leads to the file still that is locked."""
        sheet = next(iter(grant.handle), None)
        if sheet is None:
            return Lost(RELEASED)
        return Lost(OF_PARENT) if sheet.generation != fork.here() else self._lost(sheet)

    def _lost(self, sheet: Sheet) -> Lost | None:
        if sheet.leads_to():
            return None
        return Lost("its database was removed or replaced: others may be in", gone=True)

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who has any of the ranges."""
        sheet = self.opened()
        try:
            holders: Any = fork.lazily("lifehold.local.holders")
            foreign: Any = fork.lazily("lifehold.ops.foreign")
            seen = holders.look_at(self.files, self.path, sheet.fd, readable=False)
            found = foreign.fcntl_holders(seen, foreign.Files([self.path]))
        except OSError as error:
            return Holder(evidence=f"its file cannot be read: {error.strerror}")
        finally:
            sheet.close()
        return found[0][1] if found else None


def refuse_others_database(head: bytes, path: str, schema: bool) -> None:
    """Raises ValueError for a database that is more than a lock."""
    if not head:
        return
    own = f"{path!r}; give ReadWriteLock a file of its own"
    if not head.startswith(b"SQLite format 3\0"):
        raise fork.lazily("sqlite3").DatabaseError(f"file is not a database: {own}")
    if 2 in head[18:20]:
        raise ValueError(f"refusing a WAL-mode lock database: {own}")
    if schema and len(head) > 108 and (head[100] != 13 or overlong(head)):
        raise ValueError(f"refusing a lock database whose schema is too large to load: {own}")


def overlong(head: bytes) -> bool:
    """Whether a row of the schema is longer than its page can hold."""
    for number in range(int.from_bytes(head[103:105], "big")):
        at = int.from_bytes(head[108 + 2 * number : 110 + 2 * number], "big")
        length = 0
        for byte in head[at : at + 9]:
            length = length << 7 | byte & 0x7F
            if byte < 0x80:
                break
        if length > len(head):
            return True
    return False
