"""How a session is opened, and kept for the next lock.

Promise: what is handed out is a session of a primary's own, past every pooler that shows itself; a
silent peer is given up by both sides: by the server `ttl` seconds after the last sign of us at the
earliest (TCP keepalive and `tcp_user_timeout`, set for this session), by us before that.
No limit of the role or database ends a session while it waits or holds.

How it could fail. PgBouncer gives every client a number of its own in place of the server's
process, whatever its pool mode: so it is noticed, and its modes are not told apart. Session pooling
would do, but frees a dead holder's lock only by its `server_reset_query`; all of it is refused. A
pooler that passes the number on is found by the next heartbeat, which asks for the process again. A
server that is no Linux gives a silent peer up by keepalive alone.
"""

from __future__ import annotations

import _thread
from math import ceil

from ...core.backend import NoReply, Unreachable
from ...core.errors import InvalidArgument, UnsafeGround
from ...core.grant import Holder
from ...core.owner import ALIVE, Owner, owner_of
from ...core.value import as_dict, value
from ...runtime import clock, fork, heartbeat, process, socket_thread
from ...runtime.blocking import finish
from . import session_sql as sql
from .connect import OWN, SOON, opened, psycopg, quoted
from .messages import migrate_command, place, said
from .session_sql import key_of
from .sql import SCHEMA, VERSION
from .wire import QueryFailed, ServerConnection, drop, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    import select
    from collections.abc import Callable, Sequence
    from typing import Any

    from .connect import PostgresUrl
    from .session_sql import AdvisoryKey
else:
    json = fork.later("json", globals())
    select = fork.later("select", globals())

PROBES = 32767  # seconds of TCP_KEEPIDLE and of TCP_KEEPINTVL on Linux, at most
SILENCE = (2**31 - 1) // 1000  # seconds of tcp_user_timeout, at most: a signed int of milliseconds
IDLE_MOST = 2  # sessions kept open for the next lock
# Nothing is set behind a pooler: the connection of the server is others' too.
SET_UP = """
WITH wanted (name, value) AS (VALUES {wanted})
SELECT pg_backend_pid(), pg_is_in_recovery(), {there}, (SELECT n.nspname::text
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass('lifehold_schema')),
    (SELECT count(set_config(w.name, w.value, false)) FROM wanted w JOIN pg_settings s
        ON s.name = w.name WHERE s.setting <> w.value AND pg_backend_pid() = {number})
"""
CHECKED = "SELECT set_config('client_connection_check_interval', '{}', false)"
IN_TIME = "SELECT set_config('statement_timeout', '{}', true);"  # milliseconds
POOLED = (
    "{where}: a pooler such as PgBouncer stands between, and a session lock would be held by "
    "whoever gets the server's connection next (transaction pooling); session pooling cannot be "
    "told apart from here. Connect to the server itself, past the pooler: "
    "connect('postgresql://SERVER:5432/...'). Or take a lease, which needs no session: the same "
    "lock without kind='session'"
)


def keepalive(ttl: float) -> tuple[int, int, int]:
    """Seconds to the first probe and between two, and how many: no less than `ttl` together.

    A kernel refuses a number above its limit, and the connection with it: more probes make up.
    """
    idle, interval = min(ceil(ttl / 2), PROBES), min(ceil(ttl / 6), PROBES)
    return idle, interval, max(3, ceil((ttl - idle) / interval))


def settings(ttl: float, slice_ms: int) -> dict[str, str]:
    """What a session is told. Those that this server does not know are left out."""
    idle, interval, count = keepalive(ttl)
    return {
        "statement_timeout": "0",
        "transaction_timeout": "0",
        "idle_session_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "default_transaction_isolation": "read committed",
        "lock_timeout": str(slice_ms),
        "tcp_keepalives_idle": str(idle),
        "tcp_keepalives_interval": str(interval),
        "tcp_keepalives_count": str(count),
        "tcp_user_timeout": str(ceil(ttl * 1000)),
    }


def our_side(ttl: float) -> dict[str, str]:
    """The same for our end of the connection."""
    idle, interval, count = keepalive(ttl)
    return {
        "keepalives_idle": str(idle),
        "keepalives_interval": str(interval),
        "keepalives_count": str(count),
        "tcp_user_timeout": str(ceil(ttl * 1000)),
    }


class Sessions:
    """The sessions of one store. `bare`: why its grants have no token, "" when they have."""

    slice = 5.0  # seconds of one wait at the server: who waits longer stands in line anew
    linger = 10.0  # seconds for which a session stays open for the next lock

    def __init__(self, plan: PostgresUrl) -> None:
        self.plan = plan
        self.limit = plan.limit
        self.bare = ""
        self._fits = False  # whether the version of the tables was looked at
        self._begin()

    def _begin(self) -> None:
        self._mutex = _thread.RLock()
        self._idle: list[tuple[float, Session]] = []  # since when
        self._swept = True
        self._generation = fork.here()

    def idle(self, ttl: float) -> Session | None:
        """One that is open already."""
        if self._generation != fork.here():
            self._begin()
        while True:
            with self._mutex:
                found = [each for each in self._idle if each[1].ttl == ttl]
                if not found:
                    return None
                try:
                    self._idle.remove(found[-1])
                except ValueError:
                    continue  # the handler of a signal has it now
            session = found[-1][1]
            if session.look() is None:
                return session

    def back(self, session: Session) -> None:
        """It holds nothing, and may serve the next lock for a while."""
        session.on_end = None
        with self._mutex:
            full = len(self._idle) >= IDLE_MOST
            if session.dead is None and not full and session.generation == fork.generation:
                self._idle.append((clock.now(), session))
                if self._swept:
                    self._sweep_at(clock.now() + self.linger)
                return
        session.end("it was not needed any more")

    def _sweep_at(self, instant: float) -> None:
        try:
            heartbeat.at(instant, lambda: heartbeat.apart(self._sweep))
            self._swept = False
        except RuntimeError:
            pass  # no thread: they stay for the next lock

    def _sweep(self) -> None:
        with self._mutex:
            over = [each for each in self._idle if each[0] + self.linger <= clock.now()]
            self._idle = [each for each in self._idle if each not in over]
            self._swept = True
            if self._idle:
                self._sweep_at(self._idle[0][0] + self.linger)
        for _, session in over:
            session.end("it was not needed any more")

    def close(self) -> None:
        """End those that hold nothing."""
        if self._generation != fork.here():
            return  # L9  they are our parent's, where a thread may have had the mutex
        with self._mutex:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.end("it was not needed any more")

    # ---- opening

    def opened(self, ttl: float) -> Session:
        """A new one; may block. Raises UnsafeGround behind a pooler, Unreachable."""
        client = psycopg()
        known = {**self.plan.known, "client_encoding": "UTF8"}
        for name, setting in our_side(ttl).items():  # unless the URL says otherwise
            if known.get(name) == OWN[name]:
                known[name] = setting
        try:
            connection = finish(
                opened(
                    client.Connection,
                    clock.now() + self.limit,
                    **known,
                    autocommit=True,
                    cursor_factory=client.ClientCursor,
                    prepare_threshold=None,
                )
            )
        except client.Error as error:
            raise Unreachable(said(error, known)) from error
        try:
            session = self._set_up(ServerConnection(connection), ttl)
            socket_thread.listen(session)
            return session
        except Exception as error:
            drop(connection)
            if isinstance(error, RuntimeError):
                raise Unreachable(f"no thread to be had ({error}): raise ulimit -u") from error
            if not hasattr(error, "sqlstate"):
                raise
            raise Unreachable(str(told(error, known, self.limit))) from error
        except BaseException:
            drop(connection)
            raise

    def _set_up(self, line: ServerConnection, ttl: float) -> Session:
        slice_ms, number = int(self.slice * 1000), line.connection.info.backend_pid
        wanted = settings(ttl, slice_ms)
        if not self.plan.named:
            me = process.here()
            wanted["application_name"] = f"lifehold pid {me.pid} on {me.host or '?'}"[:63]
        given = [each for pair in wanted.items() for each in pair]
        places = ", ".join(f"(${at}, ${at + 1})" for at in range(1, len(given), 2))
        text = SET_UP.format(there=sql.THERE, wanted=places, number=number)
        pid, replica, tabled, store, _ = self._row(line, text, given)
        where = place(self.plan.known)
        if pid != number:
            self.plan.pooled = True
            raise UnsafeGround(POOLED.format(where=where), name=self.plan.url)
        if replica:
            raise Unreachable(
                f"{where}: it is a replica, whose advisory locks keep nobody out of the primary: "
                "name the primary, or all hosts with target_session_attrs=read-write"
            )
        if line.connection.info.server_version >= 140000:  # notice a waiter whose host is gone
            try:
                self._row(line, CHECKED.format(slice_ms))
            except QueryFailed:
                pass  # a server on Windows cannot
        if not self._fits and (store or self.plan.create is not False):
            finish(self.plan.trust(line.connection, store))  # L13
        if store:  # ours alone: what it calls by name is found there, and nowhere else
            self._row(
                line, "SELECT set_config('search_path', $1, false)", (f"{quoted(store)}, pg_temp",)
            )
        if store and not self._fits:
            self._check(line)
        if not tabled:
            tabled = self._make_table(line.connection, sql.TABLE if store else SCHEMA)
        self._fits = True
        return Session(line.connection, pid, ttl, tabled)

    def _row(self, line: ServerConnection, text: str, given: Sequence[str] = ()) -> tuple[Any, ...]:
        (row,) = finish(line.ask(text, given, self.limit))
        return row

    def _check(self, line: ServerConnection) -> None:
        """L12  Raises Unreachable for tables that this version would spoil."""
        (least,) = self._row(line, "SELECT max(least) FROM lifehold_schema")
        if (least or 0) > VERSION:
            raise Unreachable(
                f"{place(self.plan.known)}: its schema is for clients of version {least} and "
                f"newer, and this one is of version {VERSION}: use a newer lifehold here"
            )

    def _make_table(self, connection: Any, schema: str) -> bool:
        """Whether it is there now. Without it a session lock excludes all the same."""
        if self.plan.create is False:
            command = migrate_command(self.plan.known)
            self.bare = f"its table is not there, and create=False. This makes it: {command}"
            return False
        # The server gives up before we do: then the session is as good as before.
        text = IN_TIME.format(int(self.limit * 1000 / 2)) + SOON + self.plan.words(None) + schema
        try:
            finish(ServerConnection(connection).run(text, clock.now() + self.limit))
        except (psycopg().Error, QueryFailed) as error:
            if connection.closed:
                raise
            self.bare = f"its table is not there: {said(error, self.plan.known)}"
            return False
        self.bare = ""
        return True


# ------------------------------------------------------------------------------------------------
# One session of PostgreSQL: what it is asked, what it answers, and its end.
#
# Promise: a session that ends is known to have ended as soon as its socket says so, whatever the
# program is doing; who has asked a question is woken by its answer, in a thread or a task. Rule:
# only `hear` reads. The ear calls it (runtime/socket_thread.py), and whoever wants to know now,
# each under the session's mutex. So no answer is lost between a beat, a look and a release.
#
# How it could fail. A server that is silent says nothing here: whoever asks gives up by the clock,
# and closes (`end`). A socket closed by other code is found by the next read. A fork: the child
# closes its copies (wire.py, L9).


TUPLES, DONE = 2, 1  # PGRES_TUPLES_OK, PGRES_COMMAND_OK
FATAL = ("FATAL", "PANIC")
ENDED = "the server ended its session"
OF_PARENT = "its session is the parent process's"


class PendingAnswer:
    """What was asked of a session. A place for `Runtime.rung`; any number may wait for it.

    `rows` of the last statement when it was answered; `error` when it was `refused` or is lost;
    `state`: the SQLSTATE of a refusal, "" where the session has ended.
    """

    __slots__ = (
        "_rings",
        "error",
        "heard",
        "over",
        "refused",
        "rows",
        "sent_at",
        "state",
        "text",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self.sent_at = clock.now()  # L8  before it is sent
        self.heard = self.over = False
        self.rows: list[tuple[str | None, ...]] = []
        self.error, self.state = "", ""
        self.refused: QueryFailed | None = None
        self._rings: list[Callable[[], object]] = []

    @property
    def rung(self) -> bool:
        return self.over

    @rung.setter
    def rung(self, _: bool) -> None:
        """An answer stays an answer."""

    @property
    def ring(self) -> Callable[[], object]:
        return self.tell

    @ring.setter
    def ring(self, ring: Callable[[], object]) -> None:
        self._rings.append(ring)

    def tell(self) -> None:
        """Wake all who wait."""
        for ring in self._rings:
            ring()

    def add(self, result: Any) -> None:
        """One result of several."""
        self.heard = True
        if result.status == TUPLES:
            self.rows = [
                tuple(_text(result.get_value(row, at)) for at in range(result.nfields))
                for row in range(result.ntuples)
            ]
        elif result.status != DONE:
            self.refused = QueryFailed(result)
            self.state = self.refused.sqlstate or "XX000"
            self.error = self.refused.message_primary or "the server refused"
            if self.refused.severity_nonlocalized in FATAL:
                self.state, self.error = "", f"{ENDED}: {self.error}"


def _text(given: bytes | None) -> str | None:
    return None if given is None else given.decode("utf-8", "replace")


def readable(fd: int) -> bool:
    """Whether something has come. Several threads may ask at once."""
    if not hasattr(select, "poll"):
        return bool(select.select([fd], [], [], 0)[0])
    looks = select.poll()
    looks.register(fd, select.POLLIN)
    return bool(looks.poll(0))


class Session:
    """A connection that is ours alone. `pid`: of the server's process; `tabled`: it has the table.

    `ttl`: seconds after which the server gives it up when our side is silent; `dead`: why it has
    ended; `on_end(reason)`: called once when that was not our doing.
    """

    __slots__ = (
        "asked",
        "connection",
        "dead",
        "fd",
        "generation",
        "last_words",
        "mutex",
        "on_end",
        "pid",
        "tabled",
        "ttl",
    )

    def __init__(self, connection: Any, pid: int, ttl: float, tabled: bool) -> None:
        self.connection = connection
        self.pid, self.ttl, self.tabled = pid, ttl, tabled
        self.mutex = _thread.RLock()
        self.asked: PendingAnswer | None = None
        self.dead: str | None = None
        self.last_words = ""
        self.on_end: Callable[[str], None] | None = None
        self.fd, self.generation = connection.fileno(), fork.here()
        connection.add_notice_handler(self._note)

    def ask(self, text: str) -> PendingAnswer:
        """Send it; or the question that is open still, whatever it is. Raises NoReply."""
        if self.generation != fork.here():
            raise NoReply(OF_PARENT)
        with self.mutex:
            if self.dead is not None:
                raise NoReply(self.dead)
            if self.asked is not None:
                return self.asked
            self.asked = question = PendingAnswer(text)
            try:
                self.connection.pgconn.send_query(text.encode())
                self.connection.pgconn.flush()
                return question
            except Exception as error:
                if not hasattr(error, "sqlstate"):
                    raise
                why = self._why(error)
        self.end(why, ours=False)
        raise NoReply(why)

    def hear(self) -> None:
        """Take in what has come. Never waits."""
        told, why = None, None
        with self.mutex:
            if self.dead is not None:
                return
            try:
                told = self._heard()
            except Exception as error:
                if not hasattr(error, "sqlstate"):
                    raise
                why = self._why(error)
            else:
                why = self.last_words or None  # FATAL: the end of the socket comes next
        if told is not None:
            told.tell()
        if why is not None:
            self.end(why, ours=False)

    def _heard(self) -> PendingAnswer | None:
        """The question that is answered now."""
        wire = self.connection.pgconn
        wire.flush()
        wire.consume_input()
        question = self.asked
        while not wire.is_busy():
            result = wire.get_result()
            if result is None:
                if question is None or not question.heard:
                    return None
                self.asked, question.over = None, True
                return question
            if question is not None:
                question.add(result)
                if question.error and not question.state:
                    self.last_words = question.error
        return None

    def look(self) -> str | None:
        """Why it has ended, None as far as its socket tells now. One poll(2)."""
        if self.dead is None and readable(self.fd):
            self.hear()
        return self.dead

    def end(self, reason: str, *, ours: bool = True) -> None:
        """Close it: the server lets go of all it had. L9  Not in a child, whose it is not."""
        if self.generation != fork.here():
            return
        with self.mutex:
            if self.dead is not None:
                return
            self.dead = reason
            question, self.asked = self.asked, None
            told, self.on_end = self.on_end, None
            socket_thread.forget(self)
            drop(self.connection)
        if question is not None:
            question.state, question.error, question.over = "", reason, True
            question.tell()
        if told is not None and not ours:
            tell = told  # apart, since callbacks of the program may take their time
            heartbeat.apart(lambda: tell(reason))

    def _note(self, diagnosis: Any) -> None:
        if (diagnosis.severity_nonlocalized or diagnosis.severity) in FATAL:
            self.last_words = f"{ENDED}: {diagnosis.message_primary}"

    def _why(self, error: Exception) -> str:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return self.last_words or f"its session has ended: {lines[0]}"


# ------------------------------------------------------------------------------------------------
# Who holds a session lock, and who waits for it: as the server sees its sessions.
#
# Promise: whoever holds the advisory lock is named, whatever took it: by our record, where it is of
# that very session; else by what its client says of itself. Alive is certain: its session is open.


OURS = "lifehold pid "  # how the application_name of our sessions begins


@value
class SessionSeen:
    """One key. `name`: of our record, else the key in words; more `holders` where it is shared.

    `pids` of the server's processes: of the holders, and of those in `line`, who comes first first.
    `grants`: of each holder the process, when it began in milliseconds, and our mark; None for what
    is not told.
    """

    name: str
    holders: tuple[Holder, ...] = ()
    pids: tuple[int, ...] = ()
    line: tuple[int, ...] = ()
    grants: tuple[tuple[int, int | None, str | None], ...] = ()


def ending(
    key: AdvisoryKey, seen: SessionSeen, tabled: bool
) -> tuple[str, tuple[int | str | None, ...]]:
    """What ends the sessions that were seen to hold a key, as far as they hold it still."""
    wheres, given = list[str](), list[int | str | None]([key.text])
    for pid, began, mark in seen.grants:
        where = sql.PROCESS
        given.append(pid)
        for condition, known in ((sql.BEGAN, began), (sql.MARK, mark if tabled else None)):
            if known is not None:
                where += condition
                given.append(known)
        wheres.append(f"({where})")
    text = sql.END.format(
        ours=sql.OURS.format(*key.in_pg_locks),
        joined=sql.JOINED.replace("{at}", "") if tabled else "",
        seen=" OR ".join(wheres),
    )
    return text, tuple(given)


def question(key: AdvisoryKey | None, tabled: bool) -> str:
    """What the server is asked: about one key, or all of its database."""
    return sql.SEEN.format(
        record=sql.RECORD if tabled else "NULL",
        joined=sql.JOINED if tabled else "",
        ours=sql.DATABASE if key is None else sql.OURS.format(*key.in_pg_locks),
    )


def read(
    answer: str, address: Callable[[str], str], known: dict[str, Any]
) -> dict[str, SessionSeen]:
    """Its answer, by key. `address`: of a name; `known`: how the server is reached."""
    by_key: dict[str, list[Any]] = {}
    for key, *row in json.loads(answer):
        by_key.setdefault(key, []).append(row)
    host = str(known.get("host") or "/")
    server = process.host_name() if host.startswith(("/", "@")) else host
    found = {}
    for key, rows in by_key.items():
        name = next((row[-1][-1] for row in rows if row[-1]), key)
        granted = [row for row in rows if row[1]]
        holders = tuple(holder(row, address(name), server) for row in granted)
        line = tuple(row[0] for row in rows if not row[1])
        grants = tuple((row[0], row[5], row[-1][0] if row[-1] else None) for row in granted)
        found[key] = SessionSeen(name, holders, tuple(row[0] for row in granted), line, grants)
    return found


async def seen_by(
    backend: Any, name: str | None, address: Callable[[str], str], plan: PostgresUrl
) -> tuple[SessionSeen, ...]:
    """The same over the connections of leases, which may pass a pooler. None: of all keys."""
    try:
        key = None if name is None else key_of(name)
    except InvalidArgument:
        return ()  # the name of a lease, which looks like a key
    if not plan.tabled:
        ((plan.tabled,),) = await backend.read(sql.TABLED, ())
    ((answer,),) = await backend.read(question(key, plan.tabled), ())
    given = address if name is None else lambda _: address(name)
    return tuple(read(answer, given, plan.known).values())


def holder(row: list[Any], path: str, server: str | None) -> Holder:
    """One session that holds it."""
    pid, _, application, user, origin, began_ms, state, record = row
    where = f", from {origin}" if origin else ""
    evidence = f"its session is open at the server, process {pid} there{where}"
    began = None if began_ms is None else began_ms / 1000
    if record is not None:
        nonce, token, acquired_us, owner, _ = record
        return Holder(
            read_owner(owner), acquired_us / 1e6, ALIVE, evidence, token, f"{nonce}-{token}", path
        )
    named = (application or "").removeprefix(OURS).split(" on ", 1)
    if (application or "").startswith(OURS) and named[0].isdecimal() and len(named) == 2:
        found = Owner(int(named[0]), host=named[1], user=user)
        return Holder(found, None, ALIVE, evidence, lock=path, began=began)
    what = f"PostgreSQL's process for {application!r}" if application else "PostgreSQL's process"
    found = Owner(pid, host=server, user=user, command=f"{what}, {state}" if state else what)
    return Holder(found, None, ALIVE, evidence, lock=path, began=began)


def written(owner: Owner) -> str:
    """An owner's record."""
    known = {key: item for key, item in as_dict(owner).items() if item not in (None, "")}
    return json.dumps(known)


def read_owner(text: str) -> Owner | None:
    """L12  What a newer version wrote besides is not for us."""
    return owner_of(lambda: json.loads(text))
