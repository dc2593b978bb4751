"""A connection to an SQLite database that is a lock, and what must not happen to one.

Rule: a transaction is the lock; nothing is ever written. Every call of SQLite is done under the
fork gate, where it never waits, or holds up a fork for SLICE at most: so no child is forked while
another thread of ours is in SQLite. A child that is forked by that very thread, from a signal
handler or a hook, ends at once, with 70.

L9  A child must not touch a connection of its parent, and SQLite in it would take the parent's lock
    for one of its own: connections are left to themselves there, for ever, and a database that was
    locked at the fork is refused until the child calls exec.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from ...runtime import fork
from . import beside
from .calls import OPENED, WATCHED
from .database import refuse_others_database, too_large
from .sheet import HEAD, Sheet, opened, reap

ctypes: Any = None
try:
    import ctypes
except ImportError:  # a Python built without
    pass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ...local.descriptors import Descriptors

    T = TypeVar("T")

BUSY, TORN = 5, 70
SLICE = 50  # milliseconds that SQLite may wait at a time
BEGIN = ("BEGIN; PRAGMA user_version;", "BEGIN EXCLUSIVE;")  # the PRAGMA reads, and so locks
# Else it would make a journal, which, left behind by a death, is everybody's to finish.
FIRST = "PRAGMA journal_mode=MEMORY;"
STEPS = 10_000  # of SQLite's machine, in which a schema must be loaded
_living: WeakSet[Connected] = WeakSet()
_inherited: set[Hashable] = set()  # paths and files that were locked across a fork
_here = _thread._local()  # `inside`: how deep this thread is in SQLite


_waiting = _thread.RLock()  # who has it lets SQLite wait; a fork takes it before the gate


def alone(call: Callable[..., T], *args: Any, gate: Any = fork.gate) -> T:
    """Call SQLite, with no fork in between."""
    fork.here()
    with gate:
        before = getattr(_here, "inside", 0)
        _here.inside = before + 1
        try:
            return call(*args)
        finally:
            _here.inside = before


def for_ever() -> Any:
    """How an object is kept for ever, whatever becomes of the interpreter; None: not here."""
    if ctypes is not None and not _kept:
        # A prototype of our own: what others declare of this function does not touch it.
        made = ctypes.PYFUNCTYPE(None, ctypes.py_object)
        _kept.append(made(("Py_IncRef", ctypes.pythonapi)))
    return _kept[0] if _kept else None


_kept: list[Any] = []


class Connected:
    """A connection, with the descriptor and the link that are kept for it.

    `schema`: whether the database may have no large one. Raises OSError, ValueError, sqlite3.Error,
    and RuntimeError in a child whose parent had it locked.
    """

    connection: Any = None
    link: beside.Link | None = None
    held = ready = endless = False
    patience = 0  # milliseconds that SQLite waits, as it was told last

    def __init__(self, path: str, table: Descriptors, schema: bool) -> None:
        refuse_inherited(path)
        self.path, self.sheet = path, opened(table, path)
        self.generation = fork.here()
        try:
            refuse_others_database(self.sheet.head(), path, schema)
            target = path
            if beside.needed(path):
                self.link = beside.made(path, (self.sheet.dev, self.sheet.ino))
                target = self.link.database
            alone(self._connect, target)
        except BaseException:
            self.close()
            raise
        if self.generation != fork.here():
            raise RuntimeError("ReadWriteLock construction cannot continue after fork")

    def _connect(self, target: str) -> None:
        if self.path in WATCHED:  # pollers.py
            OPENED.add(self.path)
        self.connection = connection = connect(target)
        connection.isolation_level = None  # statements are ours alone
        # The first statement loads the schema: of a database that nobody should be using, none.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, HEAD)
        connection.set_progress_handler(self._too_long, STEPS)
        _living.add(self)
        Sheet.used[self.sheet.key] = Sheet.used.get(self.sheet.key, 0) + 1

    def begin(self, write: bool, wait: int = 0) -> bool:
        """Whether the lock is ours now; false when somebody else's is in the way.

        `wait`: milliseconds, SLICE at most, for SQLite to ask again and again. Raises
        sqlite3.Error, and OSError when the path leads elsewhere.
        """
        # Before SQLite looks at anything, since it would finish a journal beside the name; and with
        # the lock, since who opens the path later must meet it.
        self.refuse_moved()
        if not alone(self._begun, write, wait, gate=_waiting if wait else fork.gate):
            return False
        self.refuse_moved()
        return True

    def _begun(self, write: bool, wait: int) -> bool:
        connection = self.connection
        try:
            if wait != self.patience:
                connection.executescript(f"PRAGMA busy_timeout={wait};")
                self.patience = wait
            if not self.ready:
                connection.executescript(FIRST)
                self.ready = True
            connection.executescript(BEGIN[write])
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.rollback()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == BUSY:
                return False
            if self.endless or isinstance(error, sqlite3.DataError):
                raise too_large(self.path) from error
            raise
        self.held = True
        return True

    def _too_long(self) -> int:
        self.endless = True
        return 1

    def refuse_moved(self) -> None:
        """Raises OSError when the path leads to another file than is open, or to none."""
        if not self.sheet.leads_to():
            raise Moved(
                f"lock database {self.path!r} was unlinked or replaced while acquiring; leave it "
                "in place"
            )

    def end(self) -> None:
        """Let go of the lock, and of the link, which SQLite needs no more. Raises sqlite3.Error."""
        alone(self._ended)
        self.unlinked()

    def _ended(self) -> None:
        self.connection.rollback()
        self.held = False

    def unlinked(self) -> None:
        """Remove the private link."""
        link, self.link = self.link, None
        if link is not None:
            link.remove()

    def close(self, _fork: Any = fork) -> None:
        """Close it, which ends the lock. In a forked child: nothing."""
        if self.generation != _fork.generation or self.generation != _fork.here():
            return
        self.generation = -1
        connection, self.connection = self.connection, None
        try:
            if connection is not None:
                _living.discard(self)
                try:
                    alone(connection.close)
                finally:
                    Sheet.used[self.sheet.key] -= 1
        finally:
            self.held = False
            self.unlinked()
            try:
                self.sheet.close()
            finally:
                reap(self.sheet.key)

    generation = -1

    def __del__(self, _fork: Any = fork) -> None:
        # At the end of the program the lock ends with it; a thread frozen in the gate stays there.
        if self.generation == _fork.generation and not self.sheet._ending():
            _fork.collected(self.close)


class Moved(OSError):
    """The path leads elsewhere."""


def connect(target: str) -> Any:
    """A connection that never waits by itself."""
    for_ever()
    return sqlite3.connect(
        target,
        check_same_thread=False,
        factory=sqlite3.Connection,
        cached_statements=0,
        timeout=0.0,
    )


# ---- fork


def refuse_inherited(path: str) -> None:
    """Raises RuntimeError in a child whose parent had the database locked as it forked."""
    if not _inherited:
        return
    try:
        key: Any = beside.key_of(os.stat(path))
    except OSError:
        key = None
    if path in _inherited or key in _inherited:
        raise RuntimeError(
            f"SQLite database {path} was active across fork(); exec or exit before using it in the "
            "child, or take ReadWriteLock only after the fork"
        )


@fork.in_child
def _leave() -> None:
    if getattr(_here, "inside", 0):
        os._exit(TORN)
    if not _waiting._is_owned():  # type: ignore[attr-defined]  # C code has forked
        _waiting._at_fork_reinit()  # type: ignore[attr-defined]
    keep = for_ever()
    for each in list(_living):
        if keep is not None:
            keep(each.connection)
        if each.held:
            _inherited.update((each.path, (each.sheet.dev, each.sheet.ino)))
    _living.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_waiting.acquire, after_in_parent=_waiting.release, after_in_child=_waiting.release
    )


@atexit.register
def _remove_links() -> None:
    """The lock ends with the process, a name does not."""
    fork.here()
    for each in list(_living):
        each.unlinked()
