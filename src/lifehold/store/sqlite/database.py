"""One connection to the database of a store, and steps that happen in it as a whole or not at all.

Promise: `step` runs in one transaction that nobody else's writes overlap (BEGIN IMMEDIATE). It
raises Unreachable when nothing has happened, and NoReply when nobody can say (L6): a commit that
ends in an input/output error may stand in the log all the same.

L9  A fork finds no connection: it is closed before, and opened again at the next step. SQLite keeps
    in the process which locks it has, and a child, which has none of them, would believe the copy.
    Where C code forks without a word to Python the child refuses. So does one that a signal handler
    forks in the middle of a step: what it wrote would replace what its parent has written.
L1  A database that was removed or replaced under its name is noticed by its inode in the next step,
    which then happens in the file that all others open too. One whose `-shm` or `-wal` was removed
    is used no more, since who comes next makes another and sees none of our locks. It is not opened
    anew while this process has it open: SQLite would take the old memory for the new log.

`look` makes no file, folder or table, and writes nothing: no `-wal` or `-shm` either, which SQLite
makes even for who opens a database to read it. Whoever takes a lock makes all of that.
"""

from __future__ import annotations

import os
import stat
from _thread import RLock, get_ident

from ...core.backend import NoReply, Unable, Unreachable
from ...core.errors import CorruptRecord, InvalidArgument, SystemRefused, UnsafeGround
from ...core.mask import masked_url, printable
from ...local.ground import place_of_path
from ...runtime import clock, fork
from . import schema as sql
from .messages import BUSY, IOERR, LOCKED, code_of, refuse_newer, refused, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from sqlite3 import Connection
    from typing import Any, TypeVar
    from urllib import parse

    T = TypeVar("T")
else:
    parse = fork.later("urllib.parse", globals())
    sqlite3 = fork.later("sqlite3", globals())

FIRST_PAUSE, LONGEST_PAUSE = 0.00005, 0.005  # seconds between two looks at a busy database
MOMENT = 1.0  # seconds that a fork inside of the gate waits for a step at most
_all: list[Database] = []
_parted: dict[int, list[Database]] = {}  # closed for a fork that is under way, by its thread


class NothingThere(Exception):
    """No lock was ever taken there: no file, or none of our tables in it."""


def _text(raw: bytes) -> str:
    """L13  What is no UTF-8 is text all the same: it is refused where it stands, by its name."""
    return raw.decode("utf-8", "surrogateescape")


class Database:
    """The file at `path`. `busy`: seconds that a step waits for others at most."""

    def __init__(self, path: str, *, busy: float, synchronous: str, shared: bool) -> None:
        self.path, self.busy, self.synchronous, self.shared = path, busy, synchronous, shared
        self.kind = ""  # of file system, once it is open
        self._mutex: Any = RLock()  # reentrant, so that its own thread can tell that it has it
        self._db: Connection | None = None
        self._new: Connection | None = None  # one that is being opened
        self._file: tuple[int, int] | None = None
        self._memory: tuple[int, int] | None = None  # None: not seen at its name, as in odd builds
        self._log: tuple[int, int] | None = None
        self._generation = fork.generation
        self._torn: list[Any] = []  # a parent's connection, kept so that nobody closes it
        _all.append(self)

    def twin(self) -> Database:
        """Another connection to the same file."""
        return Database(self.path, busy=self.busy, synchronous=self.synchronous, shared=self.shared)

    # ---- a step

    def step(
        self,
        work: Callable[[Connection], T],
        *,
        write: bool = True,
        durable: bool = False,
        makes: bool = True,
    ) -> T:
        """What `work(connection)` answers. `durable`: it is on the disk when this returns.

        `makes`: the file and its tables are made where they are missing; else NothingThere.
        """
        begin = "BEGIN IMMEDIATE" if write else "BEGIN"
        return self._alone(lambda until: self._step(work, until, begin, durable, makes))

    def look(self, work: Callable[[Connection], T], nothing: T) -> T:
        """What `work(connection)` reads; `nothing` where no lock was ever taken.

        `work` may be called again, where others have written meanwhile.
        """
        try:
            return self._alone(lambda until: self._look(work, until))
        except NothingThere:
            return nothing

    def _alone(self, do: Callable[[float], T]) -> T:
        """What `do(until)` answers, while no other thread has the connection."""
        mutex, until = self._mutex, clock.now() + self.busy
        if mutex._is_owned():
            raise Unreachable("a signal handler asks in the middle of a step of the same thread")
        try:
            if not mutex.acquire(timeout=self.busy):
                raise Unreachable(f"other threads of this process have used it for {self.busy:g} s")
            return do(until)
        finally:
            try:
                if mutex._is_owned():
                    mutex.release()
            finally:
                if mutex._is_owned():  # L6  a signal handler has raised just before it was let go
                    mutex.release()

    def _step(
        self,
        work: Callable[[Connection], T],
        until: float,
        begin: str,
        durable: bool,
        makes: bool,
    ) -> T:
        for _ in range(8):  # replaced again and again is no database
            db = self._opened(until, makes)
            try:
                if durable:
                    db.execute("PRAGMA synchronous = FULL")
                self._patiently(db, begin, until)
                if not leads_to(self.path, self._file):
                    self.close()
                    continue
                self._refuse_parted()
                answer = work(db)
            except sqlite3.Error as error:
                self._undo(db)
                raise told(error, self.busy) from error
            except BaseException:
                self._undo(db)
                raise
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._undo(db)
                if code_of(error) == IOERR:
                    raise self._in_doubt(error) from error
                raise told(error, self.busy) from error
            finally:
                if durable:
                    self._quick(db)
            return answer
        raise Unreachable(f"{self.path!r} is replaced again and again")

    def once(self, statement: str, values: tuple[Any, ...]) -> int:
        """One statement that is a step by itself: how many rows it has changed.

        0 also where it cannot be tried at once: then `step` waits, opens, or says why not.
        """
        mutex = self._mutex
        if mutex._is_owned():
            return 0
        try:
            if not mutex.acquire(True, self.busy):
                return 0
            db = self._db
            if db is None or self._generation != fork.here():
                return 0
            if not leads_to(self.path, self._file) or self._is_parted():
                return 0
            try:
                return db.execute(statement, values).rowcount
            except BaseException as error:
                self._undo(db)
                if not isinstance(error, sqlite3.Error):
                    raise
                if code_of(error) == IOERR:
                    raise self._in_doubt(error) from error
                return 0
        finally:
            try:
                if mutex._is_owned():
                    mutex.release()
            finally:
                if mutex._is_owned():  # L6  a signal handler has raised just before it was let go
                    mutex.release()

    def _in_doubt(self, error: BaseException) -> NoReply:
        return NoReply(f"{told(error, self.busy)}, while the step was committed")

    def _patiently(self, db: Connection, statement: str, until: float) -> Any:
        """Execute it, as soon as others let us."""
        pause = FIRST_PAUSE
        while True:
            try:
                return db.execute(statement)
            except sqlite3.OperationalError as error:
                if code_of(error) not in (BUSY, LOCKED) or clock.now() >= until:
                    raise
            clock.pause(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _undo(self, db: Connection) -> None:
        """Nothing of a step remains; if that cannot be had, not even the connection."""
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._quick(db)
        except Exception:  # noqa: BLE001 - it was an error that brought us here
            self.close()

    def _quick(self, db: Connection) -> None:
        db.execute(f"PRAGMA synchronous = {self.synchronous}")

    # ---- the connection

    def _opened(self, until: float, makes: bool) -> Any:
        self._refuse_torn()
        if self._db is None:
            self._open(until, makes)
        return self._db

    def _refuse_torn(self) -> None:
        self._disown()
        if self._torn:
            raise Unreachable(
                "this process was forked while the database was open, by C code or in the middle "
                "of a step, and SQLite's locks do not survive that: open it after the fork only"
            )

    def stop(self) -> None:
        """In a child that was forked in the middle of a step: nothing more of it is done here."""
        for db in (self._db, self._new):
            if db is not None:
                # Asked before each statement, and COMMIT; 1 is SQLITE_DENY.
                db.set_authorizer(lambda *_: 1)

    def _disown(self) -> None:
        """In a child that C code has forked: what its parent has open is not touched any more."""
        if self._generation != fork.here():
            if self._db is not None:
                self._torn.append(self._db)
            self._db, self._generation = None, fork.generation

    def _connect(self, how: str) -> Connection:
        """`how`: what stands in SQLite's URL. Raises sqlite3.Error."""
        db = sqlite3.connect(
            f"file:{quoted(self.path)}?{how}",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
        )
        db.text_factory = _text
        return db

    def _is_parted(self) -> bool:
        """Whether others may have begun anew beside us: what is there is not what is open.

        Nobody removes it by right: who closes a file that is open elsewhere leaves it.
        """
        if self._db is None:
            return False
        memory, log = self._memory, self._log
        if memory is not None and not leads_to(f"{self.path}-shm", memory):
            return True
        return log is not None and not leads_to(f"{self.path}-wal", log)

    def _refuse_parted(self) -> None:
        """L1  Raises Unreachable."""
        for each in _all:
            if each.path == self.path and each._is_parted() and leads_to(each.path, each._file):
                raise Unreachable(f"{self.path!r}: {PARTED}")

    def _open(self, until: float, makes: bool) -> None:
        self.kind = refuse_far(self.path)
        self._refuse_parted()
        for _ in range(8):
            if not makes:
                refuse_nothing(self.path)
            before = identity(self.path)
            if before is None:
                make(self.path, self.shared)
                continue
            try:
                db = self._connect("mode=rw")
            except sqlite3.Error as error:
                raise refused(error, self.path, self.busy) from error
            self._new = db
            try:
                if not makes:
                    self._refuse_without(db, until)
                self._prepare(db, until)
                if identity(self.path) == before:
                    self._memory = file_at(f"{self.path}-shm")
                    self._log = file_at(f"{self.path}-wal")
                    self._db, self._file = db, before
                    return
            except sqlite3.Error as error:
                raise refused(error, self.path, self.busy) from error
            finally:
                self._new = None
                if self._db is not db:
                    db.close()
        raise Unreachable(f"{self.path!r} is replaced again and again")

    def _refuse_without(self, db: Connection, until: float) -> None:
        """Raises NothingThere for a database without our tables: another program's, perhaps."""
        if not self._patiently(db, sql.THERE, until).fetchone()[0]:
            raise NothingThere

    def _refuse_strange(self, db: Connection, until: float) -> None:
        """Raises CorruptRecord, UnsafeGround for tables that are not for us."""
        row = self._patiently(db, sql.META, until).fetchone()
        if row is None:
            raise CorruptRecord(f"{self.path!r}: the one row of lifehold_meta is missing")
        refuse_newer(self.path, *row)

    def _refuse_encoding(self, db: Connection, until: float) -> None:
        """Raises UnsafeGround where names stand in another order than by their UTF-8."""
        (encoding,) = self._patiently(db, "PRAGMA encoding", until).fetchone()
        if encoding != "UTF-8":
            raise UnsafeGround(
                f"{self.path!r} keeps its texts in {encoding} (PRAGMA encoding), and lifehold its "
                "names in UTF-8: give the locks a database of their own"
            )

    def _prepare(self, db: Connection, until: float) -> None:
        """WAL, the tables, and whether they are for us."""
        self._refuse_encoding(db, until)
        (mode,) = self._patiently(db, "PRAGMA journal_mode", until).fetchone()
        if mode != "wal":
            (mode,) = self._patiently(db, "PRAGMA journal_mode = WAL", until).fetchone()
        if mode != "wal":
            raise UnsafeGround(
                f"{self.path!r} cannot be put into WAL mode, it stays in {mode!r}: the folder "
                "must allow files beside it, and the file system shared memory"
            )
        (there,) = self._patiently(db, sql.THERE, until).fetchone()
        if not there:
            db.execute("PRAGMA synchronous = FULL")
            self._patiently(db, "BEGIN IMMEDIATE", until)
            if not db.execute(sql.THERE).fetchone()[0]:
                for table in sql.TABLES:
                    db.execute(table)
                db.execute(sql.FIRST, (sql.VERSION, sql.VERSION))
            db.execute("COMMIT")
            to_disk(os.path.dirname(self.path))
        self._refuse_strange(db, until)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(sql.TOGETHER)
        self._quick(db)

    # ---- a look

    def _look(self, work: Callable[[Connection], T], until: float) -> T:
        """By the connection that is open already, else by one for this look alone.

        SQLite makes `-wal` and `-shm` for who reads a database in WAL mode that has none. So while
        the log is empty the file is read as one that nobody changes, and again if somebody did.
        """
        self._refuse_torn()
        if self._db is not None and leads_to(self.path, self._file):
            return self._step(work, until, "BEGIN", durable=False, makes=False)
        self._refuse_parted()
        self.kind = refuse_far(self.path)
        soon = min(until, clock.now() + UNREADY)
        while True:
            before, log = refuse_nothing(self.path), log_of(self.path)
            if log == LOG or (log == NO_LOG and not is_fresh(before)):
                try:
                    answer = self._read(work, until, READS[log])
                except (CorruptRecord, SystemRefused, Unable, NothingThere) as error:
                    passes = log == LOG and isinstance(error, SystemRefused) and clock.now() < soon
                    if not passes and is_unchanged(self.path, before, log):
                        raise
                else:
                    if is_unchanged(self.path, before, log):
                        return answer
            if clock.now() >= (soon if log == LOST_LOG else until):
                why = LOST if log == LOST_LOG else "is written again and again"
                raise Unreachable(f"{self.path!r} {why}")
            clock.pause(PAUSE)

    def _read(self, work: Callable[[Connection], T], until: float, how: str) -> T:
        try:
            db = self._connect(how)
        except sqlite3.Error as error:
            raise refused(error, self.path, self.busy, looks=True) from error
        self._new = db
        try:
            try:
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute("BEGIN")
                self._refuse_without(db, until)
                self._refuse_encoding(db, until)
                self._refuse_strange(db, until)
            except sqlite3.Error as error:
                raise refused(error, self.path, self.busy, looks=True) from error
            try:
                return work(db)
            except sqlite3.Error as error:
                raise told(error, self.busy) from error
        finally:
            self._new = None
            db.close()

    def close(self) -> None:
        """Give the file back. The next step opens it again."""
        self._disown()
        db, self._db = self._db, None
        if db is not None:
            db.close()


def _before_fork() -> None:
    mine = _parted.setdefault(get_ident(), [])
    # A signal handler may have come in the gate, and whoever has the mutex may wait for that.
    gated = fork.gate._is_owned()
    for each in _all:
        if gated and any(each in theirs for theirs in list(_parted.values())):
            continue  # closed for the fork of another thread
        patience = MOMENT if gated else each.busy + 1
        if not each._mutex._is_owned() and each._mutex.acquire(timeout=patience):
            mine.append(each)
            each.close()


def _after_fork() -> None:
    for each in _parted.pop(get_ident(), ()):
        each._mutex.release()


def _after_in_child() -> None:
    _after_fork()
    _parted.clear()
    for each in _all:
        if each._mutex._is_owned():
            each.stop()
        else:
            each._mutex = RLock()  # a thread that is not here may have it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_in_child
    )


# ------------------------------------------------------------------------------------------------
# Where a store in SQLite lies: `sqlite:///locks.db`, `sqlite:////var/lib/locks.db`.
#
# As SQLAlchemy has it: behind three slashes a path from the working folder, behind four one from
# the root. A relative one is made absolute at once. Refused, with the reason: what another kernel
# may mount (SQLite's shared memory is one kernel's), links, and whatever is no file of its own
# (L7).
#
# No function here opens the database itself: POSIX takes all locks of a file from a process that
# closes any descriptor of it.


SCHEME = "sqlite://"
SHOWN = "sqlite:///locks.db from the working folder on, or sqlite:////var/lib/locks.db"
SYNCHRONOUS = ("normal", "full")
BUSY_WAIT = 5.0  # seconds
NEW = ".new"  # ends the name of a file that is being made
TRIES, PAUSE = 20, 0.005  # looks at a file that is being made, and seconds between them
TICK = 20_000_000  # nanoseconds: more than lie between two times that a file system gives
UNREADY = 1.0  # seconds for which others may be in the middle of making a log, or removing it
LOG, NO_LOG, LOST_LOG = "a log", "no log", "a log without shared memory"
READS = {LOG: "mode=ro", NO_LOG: "mode=ro&immutable=1"}
PARTED = (
    "its shared memory (-shm) or its log (-wal) was removed while it was open, so others may have "
    "begun anew beside it: end this process, or close all that it has open there"
)
LOST = (
    "has a log beside it (-wal) and no shared memory (-shm), which is not made to look: whoever "
    "takes a lock there makes it"
)


def settled(url: str) -> str:
    """The URL with an absolute path: what it means does not change with the working folder."""
    path, options = parted(url)
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return url_of(path) + (f"?{query}" if query else "")


def parted(url: str) -> tuple[str, dict[str, str]]:
    """The absolute path, and the options behind the `?`. Raises InvalidArgument."""
    text, _, query = url.partition("?")
    shown = printable(masked_url(url))
    rest = text[len(SCHEME) :]
    if rest in ("", "/", "/:memory:"):
        raise InvalidArgument(
            f"{shown!r} would be a database in the memory of one connection, which excludes "
            f"nobody: memory:// is the store in memory; in a file write {SHOWN}"
        )
    if not rest.startswith("/"):
        raise InvalidArgument(
            f"{shown!r} names a host, and a file has none: write {SHOWN}, with three slashes or "
            "four"
        )
    path = parse.unquote(rest[1:], errors="surrogateescape")
    if "\0" in path or path.endswith("/"):
        raise InvalidArgument(f"{shown!r} names no file: write {SHOWN}")
    options = dict(parse.parse_qsl(query, keep_blank_values=True))
    return os.path.abspath(path), options


def url_of(path: str) -> str:
    """The URL of an absolute path."""
    return f"{SCHEME}/{quoted(path)}"


def quoted(path: str) -> str:
    """A path as part of a URL."""
    return str(parse.quote(os.fsencode(path)))


def busy_of(given: object) -> float:
    """How long one operation may wait for the database, in seconds. Raises InvalidArgument."""
    try:
        seconds = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(given, bool) or not 0 <= seconds <= 3600:
        raise InvalidArgument(
            f"busy_timeout must be seconds from 0 to 3600, not {given!r}: how long one step may "
            "wait while others use the database"
        )
    return seconds


def synchronous_of(given: object) -> str:
    """Raises InvalidArgument."""
    if given not in SYNCHRONOUS:
        raise InvalidArgument(f"synchronous must be 'normal' or 'full', not {given!r}")
    return str(given)


def flag_of(given: object) -> bool:
    """Raises InvalidArgument."""
    if isinstance(given, bool):
        return given
    if given in ("0", "1"):
        return given == "1"
    raise InvalidArgument(f"shared must be True or False, in a URL 1 or 0, not {given!r}")


def file_refused(path: str, error: OSError, what: str = "opened") -> SystemRefused:
    """The system said no, and what to do."""
    return SystemRefused(
        f"{path!r} cannot be {what}: {error.strerror}", errno=error.errno, filename=path
    )


def identity(path: str) -> tuple[int, int] | None:
    """The file that a path leads to now, None for none. Raises UnsafeGround, SystemRefused."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_refused(path, error) from error
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeGround(
            f"{path!r} is a symbolic link: whoever can change it could have another file written. "
            f"Give the path it leads to: {os.path.realpath(path)!r}"
        )
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeGround(f"{path!r} is no regular file: no database can be kept there")
    if found.st_nlink > 1 and (left := _of_makers(path)) is not None:
        found = left
    if found.st_nlink > 1:
        raise UnsafeGround(
            f"{path!r} has {found.st_nlink} names (hard links): SQLite keeps what it has written "
            "last beside each name, and would destroy it. Leave it one name"
        )
    return found.st_dev, found.st_ino


def _of_makers(path: str) -> os.stat_result | None:
    """The file again, without the second name that it has while it is made, or after a crash then.

    To remove that name is harmless, whoever does it: the file is at its path.
    """
    folder, name = os.path.split(path)
    try:
        for _ in range(TRIES):
            found = os.lstat(path)
            if found.st_nlink == 1:
                return found
            for other in os.listdir(folder):
                if (
                    other.startswith(f"{name}.")
                    and len(other) == len(name) + 13 + len(NEW)
                    and (other.endswith(NEW))
                ):
                    _forget(os.path.join(folder, other), found)
            clock.pause(PAUSE)
        return os.lstat(path)
    except OSError:
        return None


def _forget(other: str, found: os.stat_result) -> None:
    try:
        if os.path.samestat(os.lstat(other), found):
            os.unlink(other)
    except OSError:
        return  # gone, or not ours to remove


def stamp(path: str) -> tuple[int, ...]:
    """What changes when the file at a path is another one, or is written; () for none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise file_refused(path, error) from error
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


def is_fresh(file: tuple[int, ...]) -> bool:
    """Whether it may be written once more without another time: file systems count in ticks."""
    return 0 <= clock.utc_ns() - file[-1] < TICK


def refuse_nothing(path: str) -> tuple[int, ...]:
    """The stamp of a file with something in it. Raises NothingThere, and what `identity` does."""
    found = stamp(path)
    if not found or (stat.S_ISREG(found[2]) and not found[3]) or identity(path) is None:
        raise NothingThere
    return found


def log_of(path: str) -> str:
    """How the database can be read so that no file is made beside it: LOG, NO_LOG, LOST_LOG."""
    try:
        if os.lstat(f"{path}-wal").st_size:
            return LOG if os.path.lexists(f"{path}-shm") else LOST_LOG
    except FileNotFoundError:
        pass
    except OSError as error:
        raise file_refused(path, error) from error
    return LOG if os.path.lexists(f"{path}-journal") else NO_LOG


def is_unchanged(path: str, before: tuple[int, ...], log: str) -> bool:
    """Whether what was read since `before` is what was there: of a log SQLite itself sees to it."""
    now = stamp(path)
    if log == LOG:
        return now[:2] == before[:2] and log_of(path) == log
    return now == before


def file_at(path: str) -> tuple[int, int] | None:
    """What a path leads to, None where that is not seen."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def leads_to(path: str, file: tuple[int, int] | None) -> bool:
    """Whether a path still leads to the file that was opened."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return file is not None and found.st_ino == file[1] and found.st_dev == file[0]


def refuse_far(path: str) -> str:
    """The type of file system. Raises UnsafeGround where another kernel may mount it."""
    place = place_of_path(os.path.realpath(path))
    if place.kind and not place.one_kernel:
        raise UnsafeGround(
            f"{path!r} lies on {place.kind}, which other machines or kernels may mount: SQLite's "
            "shared memory is one kernel's, and its locks are not to be relied on there. Put the "
            "database on a local disk, or use postgresql:// between machines"
        )
    return place.kind


def make(path: str, shared: bool) -> None:
    """An empty file and its folder; what is there already stays. Raises SystemRefused.

    The file is 0600 unless `shared`. It gets its name when its descriptor is closed already, so
    that no lock of this process can be lost with that.
    """
    mode = 0o666 if shared else 0o600
    new = f"{path}.{os.urandom(6).hex()}{NEW}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode))
        try:
            os.link(new, path)
        except FileExistsError:
            pass  # somebody was faster
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                return
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode))
        finally:
            try:
                os.unlink(new)
            except FileNotFoundError:
                pass  # done by who came meanwhile
    except FileExistsError:
        pass
    except OSError as error:
        raise file_refused(path, error, "made") from error


def closed_folder(path: str) -> str | None:
    """The folder that keeps this user from making a file, None where nothing does."""
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    effective = os.access in os.supports_effective_ids
    if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        return None
    return folder


def to_disk(folder: str) -> None:
    """The name of a new file survives a power loss too."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        pass  # a folder that may be written and not read
