"""`sqlite:///locks.db`, `sqlite:////var/lib/locks.db`: leases among the processes of one machine.

Promise: one operation is one transaction; where nobody else wants the name it is one statement,
which leaves what the transaction would (schema.py, TAKE and GO). A crash never blocks the next one:
a holder proven dead is followed at once, not when its ttl has passed; a waiter is woken by name,
and nobody else is.

How it could fail, and what keeps it:
- two processes read, then write: BEGIN IMMEDIATE, so steps follow one another (database.py);
- an answer is lost, or a commit ends in an error: asked again by its nonce (L6, store/rules.py);
- the holder is killed, paused, or the machine restarted: death_watch.py; a paused one is followed
  when its ttl has passed by the kernel's own clock, and finds that out by its own (L8);
- the power fails and takes the last steps with it: no token repeats (L4, schema.py);
- a fork, a file replaced, another file system: database.py.

L2  Instants are those of CLOCK_BOOTTIME, comparable within one boot and one time namespace. A
    holder with another clock has no end that we can tell; it is watched unchanged (waiter.py),
    unless the boot is another: then it is dead.
"""

from __future__ import annotations

import os

from ...core.backend import SOON, Given, NoReply, Refused, State, Traits, Unreachable, keeps
from ...core.errors import CorruptRecord, InvalidArgument, SystemRefused
from ...core.fence import LARGEST
from ...core.mask import printable
from ...runtime import clock, fork, process
from ...runtime.blocking import finish
from ...runtime.wakeup_pipes import PipeWakeups
from ..site import OF_ALL, Opener, Site
from . import database
from . import schema as sql
from .database import Database, NothingThere
from .death_watch import (
    DeathWatch,
    ProvenDead,
    Suspects,
    judge_process,
    proven_gone,
    to_watch,
)
from .messages import damaged, refuse_newer, sentences
from .rows import (
    NAMED,
    FiledLock,
    StepMoment,
    encoded,
    kept_text,
    page,
    refuse_odd,
)
from .rows import bare as bare_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from sqlite3 import Connection
    from typing import Any, TypeVar

    from ...core import nearest
    from ...core.backend import Order, Renewal, Request, StoreHolder
    from ...core.owner import LifeVerdict
    from .. import check_report as reports

    T = TypeVar("T")
else:
    nearest = fork.later("lifehold.core.nearest", globals())
    reports = fork.later("lifehold.store.check_report", globals(), "reports")
    sqlite3 = fork.later("sqlite3", globals())


# ------------------------------------------------------------------------------------------------
# Steps on the locks of a store in SQLite, at instants of the kernel's clock.
#
# L4  A step whose token would be above the ceiling that is on the disk is undone, the ceiling
#     raised and put on the disk, and the step done again: once in a minute, and once after each
#     boot. Where the kernel does not say which boot this is, every step is put on the disk instead.


class CeilingTooLow(Exception):
    """A token would be above the ceiling that is on the disk. `need`: the token."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


REMEMBERED = 1024  # nonces of requests that may come late
MANY = 1000  # names to a question, at most


class Sqlite:
    """The backend, and the wakeups of its waiters.

    `now`, `utc_us`: the clocks; a simulation gives its own.
    """

    traits = Traits(SOON)  # it answers soon, or says that it is busy

    def __init__(
        self,
        file: Database,
        now: Callable[[], float] = clock.now,
        utc_us: Callable[[], int] = lambda: clock.utc_ns() // 1000,
    ) -> None:
        self.file, self._now, self._utc_us = file, now, utc_us
        self._begin()
        fork.in_child(self._begin)  # a child writes its own identity into the rows
        self.wakeups = PipeWakeups(f"{file.path}-bells", file.shared, file.path)
        self.death_watch = DeathWatch()
        self._given_up: dict[str, None] = {}  # nonces that were released before they had come
        self._tried = ""  # the last nonce for which one statement was not enough
        self._awaited: set[str] = set()  # nonces of holders behind whom a line was seen
        self.listen = self.wakeups.listen
        self._reader: Database | None = None

    # ---- steps

    def _begin(self) -> None:
        me = process.here()
        self.boot = me.boot_id or ""
        # Where the kernel does not say which boot this is, no instant can be compared.
        name = self.boot or f"of process {me.pid} {os.urandom(8).hex()}"
        self.clock = f"{name} {me.time_ns or 0}"
        if not self.boot:
            self.file.synchronous = "full"
        self.safe = self.file.synchronous == "full"

    def _write(
        self, work: Callable[[Connection], T], *, durable: bool = False, makes: bool = True
    ) -> T:
        """One step; if it needs tokens that the disk does not know of, a second one before."""
        while True:
            try:
                return self.file.step(work, durable=durable, makes=makes)
            except CeilingTooLow as short:
                self._raise_ceiling(short.need)

    def _raise_ceiling(self, need: int) -> None:
        self.file.step(lambda db: self._raised(db, need), durable=True)

    def _raised(self, db: Connection, need: int) -> None:
        _, boot, floor, ceiling, *_ = db.execute(sql.HEAD, ("",)).fetchone()
        if boot != self.boot or not boot:
            floor = max(floor, ceiling)
        above = max(need, floor, ceiling, self._utc_us()) + sql.AHEAD_US
        db.execute(sql.RAISE, (self.boot, floor, min(LARGEST, above)))

    def _refuse_newer(self, db: Connection) -> None:
        """L12  In every step that loads no lock."""
        version, least = db.execute(sql.META).fetchone()
        refuse_newer(self.file.path, version, least)

    def _load(
        self, db: Connection, name: str, nonce: str = "", **how: bool
    ) -> tuple[FiledLock, int]:
        """A name's lock at this instant, and the greatest token that the disk knows of."""
        now = self._now()
        row = db.execute(sql.HEAD, (name,)).fetchone()
        if row is None:
            raise Unreachable("the one row of lifehold_meta is missing: the database is damaged")
        least, boot, floor, ceiling, token, capacity, held, queue = row
        refuse_newer(self.file.path, least, least)
        if (type(floor), type(ceiling)) != (int, int):
            raise damaged(self.file.path)
        known = boot == self.boot and bool(boot)
        filed = FiledLock(name, token, capacity)
        if held:
            filed.read_holders(db)
        if queue:
            filed.read_queue(db, StepMoment(now, self.clock, nonce, **how))
        floor = floor if known else max(floor, ceiling)  # L4  what was lost was not above it
        filed.lock.at(now, self.clock, max(self._utc_us(), floor + 1))
        return filed, (LARGEST if self.safe else ceiling if known else -1)

    def _save(self, db: Connection, filed: FiledLock, ceiling: int) -> None:
        token = filed.lock.token
        if token is not None and token > ceiling and token != (filed.there or (None,))[0]:
            raise CeilingTooLow(token)
        filed.save(db)

    def _ring(self, name: str, calls: Sequence[str]) -> None:
        """Wake who was called; for each that is dead, the next."""
        for wakeup in calls:
            next_bell = wakeup
            while next_bell and self.wakeups.call(next_bell) is False:
                next_bell = self._skip(name, next_bell)

    def _skip(self, name: str, wakeup: str) -> str:
        """Take a dead waiter out of the line, and call the next one: its wakeup."""

        def work(db: Connection) -> str:
            ProvenDead(set(), {wakeup}).leave(db, name, self.wakeups)
            filed, ceiling = self._load(db, name)
            lock = filed.lock
            lock._call()
            self._save(db, filed, ceiling)
            return lock.calls[0] if lock.calls else ""

        try:
            return self._write(work)
        except (Unreachable, NoReply, CorruptRecord):
            return ""  # they look by themselves

    # ---- the backend

    def take_free(self, request: Request) -> Given | None:
        """What nobody holds or waits for, by one statement; None where that is not so."""
        token, now = self._utc_us(), self._now()
        if request.shared or request.nonce in self._given_up:
            return None
        taken = self.file.once(
            sql.TAKE_ON_DISK if self.safe else sql.TAKE_BELOW,
            (
                request.name,
                request.nonce,
                token,
                request.weight,
                request.ttl,
                request.delay,
                now + request.ttl,
                self.clock,
                token / 1e6,
                encoded(request.owner),
                request.capacity,
                sql.VERSION,
                self.boot,
            ),
        )
        if taken == 1:
            return Given(token, 0, token / 1e6, now)
        self._tried = request.nonce
        return None

    def leave_free(self, name: str, nonce: str) -> bool:
        """Whether it was held, and nobody waits: then that was all."""
        if nonce != self._tried and nonce not in self._awaited:
            if self.file.once(sql.GO, (name, nonce, sql.VERSION)) == 1:
                return True
            self._tried = nonce
        return False

    async def acquire(self, request: Request) -> Given | Refused:
        if not request.wait and request.nonce != self._tried:
            given = self.take_free(request)
            if given is not None:
                return given
        answer, calls, suspects, watched = self._write(lambda db: self._asked(db, request))
        while suspects is not None and (dead := suspects.dead(self.wakeups, request.wait)):
            more = calls
            answer, calls, suspects, watched = self._write(self._again(request, dead))
            calls = [*more, *calls]
        self._ring(request.name, calls)
        ring = self.wakeups.rings.get(request.nonce)
        if watched and ring is not None:
            self.death_watch.keep(request.nonce, watched, ring)
            if request.nonce not in self.wakeups.rings:  # its asker has gone meanwhile
                self.death_watch.drop(request.nonce)
        return answer

    def _again(self, request: Request, dead: ProvenDead) -> Callable[[Any], Any]:
        return lambda db: self._asked(db, request, dead)

    def _asked(
        self, db: Connection, request: Request, dead: ProvenDead | None = None
    ) -> tuple[Given | Refused, list[str], Suspects | None, set[int]]:
        """The answer, whom to ring, who is in the way, and whose process to watch."""
        if request.nonce in self._given_up:  # L6  its asker has gone, and this comes late
            return Refused(), [], None, set()
        if dead is not None:
            dead.leave(db, request.name, self.wakeups)
        filed, ceiling = self._load(db, request.name, request.nonce, sweeps=True)
        lock = filed.lock
        if dead is not None:
            dead.rise(lock)
        answer = lock.acquire(request)
        self._save(db, filed, ceiling)
        if isinstance(answer, Given):
            if lock.queue and len(self._awaited) < REMEMBERED:
                self._awaited.add(request.nonce)
            return answer, lock.calls, None, set()
        watched = to_watch(lock, request.nonce) if request.wait else set()
        return answer, lock.calls, Suspects(lock, request), watched

    async def renew(self, many: Sequence[Renewal]) -> tuple[float | None, tuple[bool, ...]]:
        calls: list[tuple[str, list[str]]] = []

        def work(db: Connection) -> tuple[bool, ...]:
            calls.clear()
            filed: dict[str, tuple[FiledLock, int]] = {}
            kept = []
            now, mine = self._now(), self.clock
            self._refuse_newer(db)
            for one in many:
                if one.weight is None and one.name not in filed:
                    to = one.ttl, now + one.ttl, mine
                    done = db.execute(sql.PROLONG, (*to, one.name, one.nonce, mine, now))
                    kept.append(done.rowcount == 1)
                    continue
                if one.name not in filed:
                    filed[one.name] = self._load(db, one.name)
                kept.append(filed[one.name][0].lock.renew(one))
            for name, (each, ceiling) in filed.items():
                self._save(db, each, ceiling)
                calls.append((name, each.lock.calls))
            return tuple(kept)

        try:
            kept = self._write(work, makes=False)
        except NothingThere:  # with all that was held in it
            kept = (False,) * len(many)
        now = self._now()
        for name, wakeups in calls:
            self._ring(name, wakeups)
        return now, kept

    async def release(self, name: str, nonce: str) -> bool:
        if self.leave_free(name, nonce):
            return True
        self._awaited.discard(nonce)

        def work(db: Connection) -> tuple[bool, list[str]]:
            filed, ceiling = self._load(db, name, nonce)
            was_in = filed.lock.release(nonce)
            self._save(db, filed, ceiling)
            if not was_in:
                self._give_up(nonce)
            return was_in, filed.lock.calls

        try:
            was_in, calls = self._write(work, makes=False)
        except NothingThere:
            self._give_up(nonce)
            return False
        self._ring(name, calls)
        return was_in

    def _give_up(self, nonce: str) -> None:
        """Within a step: a request with this nonce that comes after it changes nothing."""
        if len(self._given_up) >= REMEMBERED:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[nonce] = None

    async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
        def work(db: Connection) -> tuple[State, ...]:
            assert names is not None
            locks = [
                self._load(db, name, whole=True)[0] for name in names if name.startswith(prefix)
            ]
            for each in locks:
                each.lock.kept = kept_text(db, each.lock.name)
            return tuple(each.lock.state() for each in locks if each.there is not None)

        if names is None:
            return await self._all(prefix)
        return self.file.look(work, ())

    async def _all(self, prefix: str) -> tuple[State, ...]:
        found: list[State] = []
        while True:
            some = await self.page(prefix, found[-1].name if found else "", MANY)
            found += some
            if not some:
                return tuple(found)

    async def page(
        self, prefix: str, after: str, most: int, *, bare: bool = False
    ) -> tuple[State, ...]:
        """The next states behind a name, in order; `bare`: of each only name, token, capacity.

        Over a connection of its own: whoever reads for long keeps no renewal waiting.
        """

        def work(db: Connection) -> tuple[State, ...]:
            self._refuse_newer(db)
            names: list[Any] = []
            last = after
            while not names:  # L13  one that is no text is no name of ours
                some = db.execute(sql.PAGE, (prefix, raw(last), most)).fetchall()
                if not some:
                    return ()
                last = some[-1][0]
                names = [row for row in some if is_text(row[0])]
            if bare:
                return tuple(bare_states(names))
            moment = StepMoment(self._now(), self.clock, whole=True)
            return tuple(page(db, names, moment))

        return self._reading().look(work, ())

    def _reading(self) -> Database:
        with fork.gate:
            if self._reader is None:
                self._reader = self.file.twin()
        return self._reader

    async def prune(self, after: str, idle: float, most: int) -> tuple[str | None, int]:
        """Forget those of the next names that nobody has used for `idle` seconds."""

        def find(db: Connection) -> tuple[str | None, list[tuple[bytes]], list[Any]]:
            self._refuse_newer(db)
            names = [row[0] for row in db.execute(sql.PAGE, ("", raw(after), most)).fetchall()]
            if not names:
                return None, [], []
            before = self._utc_us() - int(idle * 1e6)
            now = self._now()
            between = raw(names[0]), raw(names[-1])
            given = *between, min(before, self._utc_us()), self.clock, now
            free = [(raw(name),) for (name,) in db.execute(sql.IDLE, given)]
            return names[-1], free, db.execute(sql.STRANGERS, (*between, self.clock)).fetchall()

        def work(db: Connection) -> tuple[str | None, int]:
            db.executemany(sql.RUN_OUT, dead)
            last, old, _ = find(db)
            for statement in sql.FORGET:
                db.executemany(statement, old)
            return last, len(old)

        none: tuple[str | None, list[tuple[bytes]], list[Any]] = None, [], []
        last, old, strangers = self._reading().look(find, none)
        dead = [(self.clock, raw(name), nonce) for name, nonce in proven_gone(strangers)]
        if not old and not dead:
            return last, 0
        try:
            return self._reading().step(work, durable=True, makes=False)
        except NothingThere:
            return None, 0

    async def order(self, order: Order) -> State | None:
        def work(db: Connection) -> tuple[State | None, list[str]]:
            try:
                filed, ceiling = self._load(db, order.name, whole=True)
                filed.lock.kept = kept_text(db, order.name)
            except CorruptRecord as error:
                if order.verb != "break" or order.nonce:
                    raise
                return self._removed(db, order, error), []
            before = filed.lock.order(order)
            if order.spares(before):
                return None, []
            if order.verb in ("keep", "forget"):
                if order.verb == "forget":
                    db.execute(sql.FORGET_TEXT, (order.name,))
                elif keeps(before, order.least):
                    db.execute(sql.KEEP_TEXT, (order.name, order.least, order.text))
                return before if filed.there is not None else None, []
            self._save(db, filed, ceiling)
            told = f"token {before.token}; {', '.join(holder.nonce for holder in before.holders)}"
            what = order.verb, order.name, order.reason, order.by, order.least, told
            db.execute(sql.NOTE, (self._utc_us() / 1e6, *what))
            return before if filed.there is not None else None, filed.lock.calls

        try:  # an order is not lost with the power
            before, calls = self._write(work, durable=True, makes=order.verb == "bump")
        except NothingThere:
            return None
        self._ring(order.name, calls)
        return before

    def _removed(self, db: Connection, order: Order, damage: CorruptRecord) -> State:
        """Remove what is no state of a lock. L4  Its last token counts, where that is one."""
        name = order.name
        for statement in sql.CLEAR:
            db.execute(statement, (name,))
        try:
            kept_text(db, name)
        except CorruptRecord:
            db.execute(sql.FORGET_TEXT, (name,))
        row = db.execute(sql.LAST, (name,)).fetchone()
        token = row[0] if row is not None else None
        try:
            refuse_odd(name, NAMED, (token, 1))
        except CorruptRecord:
            token = None
        db.execute(sql.NAME, (name, token, 1))
        filed, ceiling = self._load(db, name, whole=True)
        filed.lock.order(order)
        self._save(db, filed, ceiling)
        what = order.verb, name, order.reason, order.by, order.least, damage.text
        db.execute(sql.NOTE, (self._utc_us() / 1e6, *what))
        return State(name, token, 1, damage=damage.text)

    def judge(self, holder: StoreHolder) -> LifeVerdict | None:
        """What is to be seen of a holder's process: it is of this machine."""
        return None if holder.owner is None else judge_process(holder.owner)

    async def ground(self) -> tuple[str, ...]:
        self.file.look(lambda _: None, None)
        return sentences(self.file.kind, sqlite3.sqlite_version, self.file.synchronous)

    # ---- the wakeups: `listen` is that of Bells

    def forget(self, nonce: str) -> None:
        self.wakeups.forget(nonce)
        self.death_watch.drop(nonce)

    def close(self) -> None:
        """Give back the file and the pipe. The next question opens them again."""
        if not self.wakeups.rings:
            self.wakeups.close()
        self._close()

    def end(self) -> None:
        """The same at the end of the process, whoever waits."""
        self.wakeups.close()
        self._close()

    def _close(self) -> None:
        for file in (self.file, self._reader):
            # Not what a signal handler has interrupted in the middle of a step: that is in use.
            if file is not None and not file._mutex._is_owned():
                with file._mutex:
                    file.close()


def raw(name: str) -> bytes:
    """A name as it stands in the file, be it text or not."""
    return name.encode("utf-8", "surrogateescape")


def is_text(name: str) -> bool:
    """Whether it can be told."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_sites: dict[tuple[Any, ...], Site] = {}


def opened(url: str, **options: Any) -> Site:
    """The one store of this file and these options in this process. Raises InvalidArgument."""
    path, given = database.parted(url)
    given = {**given, **options}
    try:
        busy = database.busy_of(given.pop("busy_timeout", database.BUSY_WAIT))
        synchronous = database.synchronous_of(given.pop("synchronous", "normal"))
        shared = database.flag_of(given.pop("shared", False))
    except TypeError as error:
        raise InvalidArgument(f"an option of sqlite:// cannot be {error}") from error
    for name in OF_ALL:
        if name in given:
            raise InvalidArgument(
                f"{name}= stands in no URL of sqlite://: connect(url, {name}=...)"
            )
    if given:
        raise nearest.strange(
            "sqlite://", given, ("busy_timeout", "synchronous", "shared", *OF_ALL)
        )
    key = path, busy, synchronous, shared
    fork.here()
    with fork.gate:
        if key not in _sites:
            backend = Sqlite(Database(path, busy=busy, synchronous=synchronous, shared=shared))
            atexit = fork.lazily("atexit")
            atexit.register(backend.end)
            _sites[key] = Site(database.url_of(path), backend, backend)
        return _sites[key]


def file_of(site: Site) -> Database:
    """The database that a store of SQLite stands on."""
    assert isinstance(site.backend, Sqlite)
    return site.backend.file


site = Opener(opened, settled=database.settled, upkeep=__name__)


# ------------------------------------------------------------------------------------------------
# The upkeep: the tables as an operator makes them, and whether leases can be kept there.
#
# Promise: `check` makes no file and leaves nothing behind: what it writes is rolled back.


class _Undo(Exception):
    """The trial is over, and is to be as if it had not been."""


def script(role: str = "") -> str:
    """The tables as SQL. lifehold makes them by itself."""
    _no_roles(role)
    tables = "\n\n".join(f"{text};" for text in sql.TABLES)
    first = sql.FIRST.replace("?", str(sql.VERSION))
    return f"PRAGMA journal_mode = WAL;\n\nBEGIN IMMEDIATE;\n\n{tables}\n\n{first};\n\nCOMMIT;\n"


def migrate(url: str, role: str = "") -> reports.Migrated:
    """Make the file and its tables. Raises as a lock in it does."""
    _no_roles(role)
    made = site(database.settled(url))
    before = _version(file_of(made))
    (after,) = file_of(made).step(lambda db: db.execute(sql.META).fetchone()[:1])
    return reports.Migrated(made.url, before, after)


def _no_roles(role: str) -> None:
    if role:
        raise InvalidArgument("--grant is for roles of a server: a file has an owner and a mode")


def _version(file: Database) -> int:
    """Of the tables that are there, 0 for none, and where that cannot be read."""
    try:
        return file.look(lambda db: int(db.execute(sql.META).fetchone()[0]), 0)
    except (CorruptRecord, SystemRefused, Unreachable):
        return 0


def check(url: str) -> reports.Checked:
    """What this user finds. Raises InvalidArgument, and what a lock in it would raise."""
    made = site(database.settled(url))
    file = file_of(made)
    sentences: tuple[str, ...] = ()
    if not os.path.exists(file.path):
        kind = database.refuse_far(file.path) or "unknown file system"
        note = f"'{printable(file.path)}' is not there yet; whoever takes a lock first makes it"
        there = reports.StoreFinding("file", reports.NOTE, f"{note} ({kind})")
        if (folder := database.closed_folder(file.path)) is not None:
            note = f"'{printable(file.path)}' is not to be seen, and this user may not make it"
            there = reports.StoreFinding(
                "file", reports.BAD, f"{note}: '{printable(folder)}' is not theirs to write to"
            )
        return reports.Checked(made.url, 0, sql.VERSION, (there,))
    found, version = _tried(file), _version(file)
    if found.verdict == reports.GOOD:
        sentences = finish(made.backend.ground())
    return reports.Checked(made.url, version, sql.VERSION, (found,), sentences)


def _tried(file: Database) -> reports.StoreFinding:
    began = clock.now()

    def trial(db: Any) -> None:
        db.execute(sql.NAME, ("lifehold store check", 1, 1))
        raise _Undo

    try:
        file.step(trial, makes=False)
    except NothingThere:
        return reports.StoreFinding(
            "file", reports.NOTE, "it has no tables yet; whoever takes a lock first makes them"
        )
    except _Undo:
        took = (clock.now() - began) * 1000
        return reports.StoreFinding(
            "writing", reports.GOOD, f"a step took {took:.1f} ms, and was rolled back"
        )
    except (Unreachable, NoReply) as error:
        return reports.StoreFinding("writing", reports.BAD, str(error))
    raise AssertionError("a step that fails was carried out")
