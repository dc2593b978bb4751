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
import errno
import hashlib
import os
import sqlite3
import stat
import sys
from contextlib import suppress
from sqlite3 import DatabaseError
from struct import pack
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from ...core.grant import Single
from ...core.owner import DEAD
from ...local.ground import is_unproven
from ...local.handles import LockFile
from ...runtime import clock, fork
from . import pidfile
from .system_calls import OPENED, WATCHED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    import tempfile
    from collections.abc import Callable, Hashable, Iterator

    from ...local import proc_locks
    from ...local.handles import Descriptors

    T = TypeVar("T")
    Key = tuple[int, int]  # device and inode of a file
else:
    proc_locks = fork.later("lifehold.local.proc_locks", globals())
    pathlib = fork.later("pathlib", globals())
    tempfile = fork.later("tempfile", globals())

ctypes: Any = None
try:
    import ctypes
except ImportError:  # a Python built without
    pass

BUSY, TORN = 5, 70
SLICE = 50  # milliseconds that SQLite may wait at a time
BEGIN = ("BEGIN; PRAGMA user_version;", "BEGIN EXCLUSIVE;")  # the PRAGMA reads, and so locks
# Else it would make a journal, which, left behind by a death, is everybody's to finish.
FIRST = "PRAGMA journal_mode=MEMORY;"
STEPS = 10_000  # of SQLite's machine, in which a schema must be loaded
_living: WeakSet[SqliteConnection] = WeakSet()
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


_kept: list[object] = []


class SqliteConnection(Single):
    """A connection, with the descriptor and the link that are kept for it.

    `schema`: whether the database may have no large one. Raises OSError, ValueError, sqlite3.Error,
    and RuntimeError in a child whose parent had it locked.
    """

    connection: Any = None
    link: PrivateLink | None = None
    held = ready = endless = False
    patience = 0  # milliseconds that SQLite waits, as it was told last

    def __init__(self, path: str, table: Descriptors, schema: bool) -> None:
        refuse_inherited(path)
        self.path, self.sheet = path, sheet_opened(table, path)
        self.generation = fork.here()
        try:
            refuse_others_database(self.sheet.head(), path, schema)
            target = path
            if needed(path):
                self.link = made(path, (self.sheet.dev, self.sheet.ino))
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
        SqliteDescriptor.used[self.sheet.key] = SqliteDescriptor.used.get(self.sheet.key, 0) + 1

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
            raise PathMoved(
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
                    SqliteDescriptor.used[self.sheet.key] -= 1
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


class PathMoved(OSError):
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


def refuse_inherited(path: str) -> None:
    """Raises RuntimeError in a child whose parent had the database locked as it forked."""
    if not _inherited:
        return
    try:
        key = key_of(os.stat(path))
    except OSError:
        key = None
    if path in _inherited or key in _inherited:
        raise RuntimeError(
            f"SQLite database {path} was active across fork(); exec or exit before using it in the "
            "child, or take ReadWriteLock only after the fork"
        )


@fork.in_child
def _leave() -> None:
    """L9  A child uses no connection of its parent, and no database that the parent had locked."""
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


# ------------------------------------------------------------------------------------------------
# The private link through which SQLite opens a lock database where others may create names.
#
# SQLite opens by a name, follows symbolic links there, and looks for a journal beside it. So where
# another account may write into the database's folder, it gets a name of our own: a hard link in a
# folder within a folder, `.filelock-<pid>-<start>-<host>-<chance>/<chance>/lock.db`, as filelock
# names them. The outer one is for this account alone, so nobody can know what the inner one is
# called: whoever puts another folder in its place makes SQLite fail, never follow.
#
# What a killed process leaves is removed by who next makes a link to that database, on a proof of
# death (L2); only links to that very database go, and folders that are empty then.


PREFIX, NAME = ".filelock-", "lock.db"
BESIDE = ("", "-journal", "-wal", "-shm")  # what SQLite may have made
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
FOLDER |= getattr(os, "O_CLOEXEC", 0)
OTHERS = stat.S_IRWXG | stat.S_IRWXO
AGAIN = 5.0  # seconds until the same database's left-over links are looked for again
_looked: dict[Key, float] = {}


def needed(path: str) -> bool:
    """Whether another account may create names beside the database."""
    if os.name == "nt":
        return False  # SQLite opens it there so that its name cannot be exchanged
    folder = os.lstat(os.path.dirname(path))
    # A sticky folder lets others create names all the same.
    loose = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(loose) or folder.st_uid not in (os.geteuid(), 0)


class PrivateLink(NamedTuple):
    """A private link. `folder`, of that `key`, is the outer one; `inner` the other's name."""

    folder: str
    key: Key
    inner: str

    @property
    def database(self) -> str:
        return os.path.join(self.folder, self.inner, NAME)

    def remove(self) -> None:
        """Take it away, if it is there. What another has put in its place stays."""
        try:
            with open_folder(self.folder) as fd:
                if key_of(os.fstat(fd)) != self.key:
                    return
                for suffix in BESIDE:
                    with suppress(FileNotFoundError):
                        os.unlink(f"{self.inner}/{NAME}{suffix}", dir_fd=fd)
                with suppress(FileNotFoundError):
                    os.rmdir(self.inner, dir_fd=fd)
            os.rmdir(self.folder)
        except OSError:
            return  # a name that stays behind is no reason to fail a release: it is swept later


class open_folder:  # noqa: N801 - as open() is called
    """A descriptor of a folder, for a block."""

    def __init__(self, path: str, above: int | None = None) -> None:
        self.fd = os.open(path, FOLDER, dir_fd=above)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def key_of(found: os.stat_result) -> Key:
    return found.st_dev, found.st_ino


def made(path: str, key: Key) -> PrivateLink:
    """A link to the database at `path`, which has that `key`. Raises OSError."""
    above = os.path.dirname(path)
    sweep(above, key)
    folder = str(tempfile.mkdtemp(prefix=prefix(), dir=pathlib.Path(above)))
    with open_folder(folder) as fd:
        own = ours(fd, folder, above)
        link = PrivateLink(folder, own, os.urandom(8).hex())
        try:
            os.mkdir(link.inner, 0o700, dir_fd=fd)
            linked(path, link.database)
            if key_of(os.lstat(link.database)) != key:
                raise OSError(f"lock database changed while opening: {path!r}")
        except BaseException:
            link.remove()
            raise
    return link


def linked(path: str, name: str) -> None:
    try:
        os.link(path, name, follow_symlinks=False)
    except OSError as error:
        error.add_note(
            "a lock database in a folder where other accounts may write is opened through a hard "
            f"link beside it: make {os.path.dirname(path)!r} writable by its owner only, or use a "
            "file system with hard links"
        )
        raise


def ours(fd: int, folder: str, above: str) -> Key:
    """Make sure that a new folder is the one we made, and for us alone. Raises OSError."""
    found = os.fstat(fd)
    loose = found.st_mode & OTHERS
    if found.st_uid != os.geteuid() or (loose and os.listdir(fd)):
        raise OSError(f"link directory {folder!r} was replaced while opening")
    if loose:  # an access list of the folder above was inherited
        with suppress(PermissionError):
            os.fchmod(fd, 0o700)
        if os.fstat(fd).st_mode & OTHERS:
            with suppress(OSError):
                os.rmdir(folder)
            raise OSError(
                f"link directory {folder!r} stays open to other accounts, through an access list "
                f"that it has inherited: make {above!r} writable by its owner only"
            )
    return key_of(found)


def prefix() -> str:
    """How the name of this process's folders begins."""
    pid = os.getpid()
    start = pidfile.start_of(pid)
    return f"{PREFIX}{pid}-{'' if start is None else start}-{digest(pidfile.host_name())}-"


def digest(host: str) -> str:
    return hashlib.sha256(host.encode()).hexdigest()[:16]


def sweep(above: str, key: Key) -> None:
    """Remove the links to this database whose processes are gone."""
    now = clock.now()
    if now - _looked.get(key, -AGAIN) < AGAIN:
        return
    _looked[key] = now
    try:
        with os.scandir(above) as entries:
            names = [each.name for each in entries if is_folder(each)]
    except OSError:
        return  # a folder that may be written, and not be read
    for name in names:
        with suppress(OSError):  # another one sweeps as well, or it is not ours to remove
            sweep_one(os.path.join(above, name), key)


def is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)


def sweep_one(path: str, key: Key) -> None:
    with open_folder(path) as fd:
        # What another account has named is not even read: no process is probed on its behalf.
        if os.fstat(fd).st_uid != os.geteuid() or not gone(path):
            return
        for name in list(names_in(fd)):
            if name == NAME:  # up to filelock 4.2.0 the link lay in the outer folder
                unlink_link_to(key, fd)
                continue
            with suppress(OSError):
                with open_folder(name, fd) as inner:
                    unlink_link_to(key, inner)
                os.rmdir(name, dir_fd=fd)
    os.rmdir(path)


def names_in(fd: int) -> Iterator[str]:
    with os.scandir(fd) as entries:
        for each in entries:
            yield each.name


def unlink_link_to(key: Key, fd: int) -> None:
    try:
        found = os.stat(NAME, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return
    if key_of(found) == key:
        os.unlink(NAME, dir_fd=fd)


def gone(path: str) -> bool:
    """Whether the process that a folder is named after is proven dead (L2)."""
    parts = os.path.basename(path).removeprefix(PREFIX).split("-")
    if (
        len(parts) != 4
        or not pidfile.numeral(parts[0])
        or not pidfile.numeral(parts[1], bool(parts[1]))
    ):
        return False
    pid, host = int(parts[0]), pidfile.host_name()
    if not 0 < pid < 1 << 31 or parts[2] != digest(host):
        return False
    named = pidfile.PidFileOwner(pid, host, int(parts[1]) if parts[1] else None)
    return pidfile.verdict(named, None, not is_unproven(path)).state == DEAD


# ------------------------------------------------------------------------------------------------
# A descriptor of ours of an SQLite database, which is never closed at the wrong moment.
#
# Closing any descriptor of a file drops the locks that this very process has on it by fcntl(2), as
# SQLite has them. So where somebody's here are on it, ours is parked instead, for the next who
# opens that file; it is closed once none are.


fcntl: Any = None
try:
    import fcntl
except ImportError:  # Windows, where a lock belongs to the handle that took it
    pass

PENDING, RESERVED, SHARED, LENGTH = 1 << 30, (1 << 30) + 1, (1 << 30) + 2, 510
READ, WRITE, FREE = 0, 1, 2  # of Linux
GET, SET, WAIT = 36, 37, 38  # F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
FLAGS |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
HEAD = 4096  # bytes of it that are looked at
ranges = sys.platform == "linux"  # whether an open file can lock ranges, and ask for others' locks


def words(kind: int, start: int, length: int) -> bytes:
    """Struct flock."""
    return pack("@hhqqi", kind, 0, start, length, 0)


LET_GO = words(FREE, PENDING - 1, 3 + LENGTH)  # all that a waiter may have (readwrite.py)
LET_IN = words(FREE, PENDING, 2 + LENGTH)  # but its turn
ANY = words(WRITE, PENDING, 2 + LENGTH)


class SqliteDescriptor(LockFile):
    """The open database. `taken`: how many of its ranges a waiter has (readwrite.py)."""

    __slots__ = ("taken",)
    parked: list[SqliteDescriptor] = []  # noqa: RUF012 - of the whole process
    used: dict[str, int] = {}  # noqa: RUF012 - by how many connections, file by file

    def __init__(self, table: Descriptors, path: str) -> None:
        self.table, self.path, self.generation, self.key, self.taken = table, path, -1, "", 0
        self.dev = self.ino = 0
        fork.here()
        with fork.gate:
            self.fd, self.writable = table.files.open(path, FLAGS, 0o600), True
            self.generation = fork.generation
            table.noted(self)
        found = table.files.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "refusing a non-regular lock database", path)
        self.dev, self.ino = found.st_dev, found.st_ino
        self.key = f"{found.st_dev}:{found.st_ino}"

    def close(self, _gate: Any = fork.gate, _fork: Any = fork, _ranges: bool = ranges) -> None:
        """Close it; park it where this process would lose locks."""
        if self.generation != _fork.generation or self.generation != _fork.here():
            return
        ending = self._ending()
        # No lock of ours comes between the look and the close.
        with self._nobodys if ending else _gate:
            if not ending and self.foreign():
                if _ranges:
                    self.leave()  # what its closing would have freed
                if self not in self.parked:
                    self.parked.append(self)
                return
            super().close(_gate, _fork)

    def foreign(self, _ranges: bool = ranges) -> bool:
        """Whether this process has locks on it otherwise."""
        if fcntl is None or not self.key:
            return False
        if self.used.get(self.key, 0) > 0:
            return True
        if not _ranges:
            return False  # what other code of this process does cannot be seen there
        try:
            found = fcntl.fcntl(self.fd, GET, ANY)
        except OSError:
            return False
        if found[:2] == pack("@h", FREE):
            return False
        # Of several that are there it names one: another process may be in front of this one.
        pid = int.from_bytes(found[24:28], sys.byteorder, signed=True)
        return pid == os.getpid() or self.in_table()

    def in_table(self) -> bool:
        """Whether the kernel's table shows a lock of this process; true where it shows none."""
        lines = proc_locks.lines_of([proc_locks.key_of(self.fd)])
        return lines is None or any(
            line.kind == proc_locks.POSIX and line.pid == os.getpid() for line in lines
        )

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

    def leave(self, wanted: bytes = LET_GO, taken: int = 0) -> None:
        """Let go of what it has locked itself; of `taken` steps it keeps the locks."""
        self.lock(wanted)
        self.taken = taken

    def head(self) -> bytes:
        """The first bytes."""
        if hasattr(os, "pread"):
            return self.table.files.pread(self.fd, HEAD, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        return os.read(self.fd, HEAD)


def sheet_opened(table: Descriptors, path: str) -> SqliteDescriptor:
    """The database, one that is parked or a new one. Raises OSError."""
    for sheet in list(SqliteDescriptor.parked):
        if sheet.path == path and sheet.leads_to():
            try:
                SqliteDescriptor.parked.remove(sheet)
            except ValueError:
                continue  # another thread has it
            sheet.taken = 0
            return sheet
    return SqliteDescriptor(table, path)


def reap(key: str) -> None:
    """Close what was parked for the sake of locks that are gone."""
    for sheet in list(SqliteDescriptor.parked):
        if sheet.key == key:
            try:
                SqliteDescriptor.parked.remove(sheet)
            except ValueError:
                continue
            sheet.close()


fork.in_child(SqliteDescriptor.parked.clear)  # descriptors that wait to be closed are the parent's
fork.in_child(SqliteDescriptor.used.clear)  # descriptors in use are the parent's


# ------------------------------------------------------------------------------------------------
# Which database may be a lock: one that nobody uses for anything else.


def refuse_others_database(head: bytes, path: str, schema: bool) -> None:
    """Raises ValueError for a database that is more than a lock.

    `head`: its first bytes; `schema`: it may have none of its own that is large.
    """
    if not head:
        return
    own = f"{path!r}; give ReadWriteLock a file of its own"
    if not head.startswith(b"SQLite format 3\0"):
        raise DatabaseError(f"file is not a database: {own}")
    if 2 in head[18:20]:
        raise ValueError(f"refusing a WAL-mode lock database: {own}")
    if schema and len(head) > 108 and (head[100] != 13 or overlong(head)):
        raise too_large(path)


def too_large(path: str) -> ValueError:
    return ValueError(
        f"refusing a lock database whose schema is too large to load: {path!r}; give ReadWriteLock "
        "a file of its own"
    )


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
