"""How a PostgreSQL is reached: what a URL asks for, what a new connection is told, the schema.

Promise: a connection that is handed out speaks to a server that may be written to, whose schema is
one that this version may use beside the others (L12), and nobody else's to change (L13). Tables
that are not there are made when the role may and `create` is not False; else the error offers the
migration.

L13  Behind a pooler the server's connection is others' too: nothing is set there that outlives our
    statement, which carries its isolation level and its limit with it (wire.py).
"""

from __future__ import annotations

import os
from contextvars import ContextVar

from ...core.address import refuse_torn
from ...core.backend import Unreachable
from ...core.deadline import NEVER
from ...core.errors import InvalidArgument, UnsafeGround
from ...core.mask import MASK, masked_url, masked_urls, printable
from ...runtime import clock, fork
from ...runtime.eventloop import EVENT_LOOP, Signal, nobody_runs, running_trio
from ..settle import settle
from . import wire
from .messages import distrusted, migrate_command, place, said, url_of
from .sql import SCHEMA, VERSION, strangers
from .wire import (
    SHORTEST,
    ConnectionPool,
    NoAnswer,
    QueryFailed,
    ServerConnection,
    drop,
    keep,
    told,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence
    from typing import Any
    from urllib import parse
else:
    asyncio = fork.later("asyncio", globals())
    logging = fork.later("logging", globals())
    parse = fork.later("urllib.parse", globals())

OWN = {  # what libpq is told unless the URL says otherwise; seconds, and milliseconds
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
HANDS = 3  # the version since which who waits is let in unasked
SIGNATURES = {  # function -> types of its arguments
    "1_acquire": "text, text, float8, float8, text, int, int, bool, bool, bool, float8, text, text",
    "1_release": "text, text",
}
SET_UP = """
SELECT CASE WHEN pg_backend_pid() = {number} THEN concat(
        set_config('default_transaction_isolation', 'read committed', false),
        set_config('statement_timeout', '{limit}', false){more}) END,
    pg_backend_pid(), pg_is_in_recovery(), (SELECT n.nspname::text FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass('lifehold_schema'))
"""
ALONE = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "  # whatever the database's default is
WARN = (
    "%s: the tables of lifehold were not there and were made. A release to come makes none unasked"
    " on a server: make them by 'lifehold store migrate', or say connect(url, create=True)"
)


def psycopg() -> Any:
    """The client library. Raises InvalidArgument where it is not installed."""
    try:
        return fork.lazily("psycopg")
    except ImportError as error:
        raise InvalidArgument(
            "postgresql:// needs psycopg 3: pip install 'lifehold[postgresql]'"
        ) from error


class PostgresUrl:
    """What a URL asks for. `known`: its parts; `limit`: seconds for one answer.

    `create`: None makes tables that are not there, and warns; `owner`: a role that may own them.
    """

    def __init__(
        self,
        url: str,
        limit: float,
        create: bool | None,
        options: dict[str, object] | None = None,
        owner: str = "",
    ) -> None:
        client = psycopg()
        conninfo = fork.lazily("psycopg.conninfo")
        refuse_torn(url)
        url, named = without_owner(url)
        self.limit, self.create, self.owner = limit, create, owner or named
        try:
            known = conninfo.conninfo_to_dict(url, **(options or {}))
        except client.ProgrammingError as error:
            shown = printable(masked_url(url))
            secret = "@" in url or MASK in shown  # libpq repeats what it cannot read
            why = "" if secret else f": {printable(masked_urls(str(error).strip()))}"
            raise InvalidArgument(
                f"{shown!r} is no URL of PostgreSQL{why}; for example "
                "postgresql://user@host:5432/database?sslmode=require"
            ) from None
        self.known: dict[str, Any] = {**OWN, **known}
        if "," in str(known.get("host", "")):
            self.known.setdefault("target_session_attrs", "read-write")
        self.url = url_of(known, self.owner)
        self.version = 0  # of the tables, once they were looked at
        self.home = ""  # the schema in which the tables are, once it was looked at
        self.pooled = False  # a pooler stands between: a session is not ours alone
        self.checked = False
        self.hands = False  # its functions let in who waits, unasked (sql.py)
        self.tabled = False  # the table of session locks was seen
        self.late: Any = None  # requests that may come behind their undoing (backend.py)

    async def connect(self, kind: str, until: float = NEVER) -> object:
        """A new connection, `kind` Connection or AsyncConnection, set up for `ConnectionPool`.

        `until`: the instant at which it has to be there, where that is before its own limit.
        """
        client = psycopg()
        until = min(until, clock.now() + self.limit)
        cursor = {"Connection": "ClientCursor", "AsyncConnection": "AsyncClientCursor"}[kind]
        connection = await opened(
            getattr(client, kind),
            until,
            **self.known,
            autocommit=True,
            cursor_factory=getattr(client, cursor),
        )
        try:
            await self._set_up(connection, until)
        except BaseException:
            drop(connection)
            raise
        return connection

    async def look_once(self, awaited: bool, until: float) -> None:
        """Look at the schema, before the connections of others are used."""
        if not self.checked:
            try:
                made = await self.connect("AsyncConnection" if awaited else "Connection", until)
            except (psycopg().Error, QueryFailed, NoAnswer) as error:
                raise Unreachable(said(error, self.known)) from error
            drop(made)

    async def _set_up(self, connection: Any, until: float) -> None:
        number = connection.info.backend_pid
        more = ", set_config('application_name', 'lifehold', false)" * (not self.named)
        settings = SET_UP.format(number=number, limit=int(self.limit * 1000), more=more)
        (row,) = await rows(connection, settings, until)
        pid, replica, home = row[1:4]
        self.pooled = self.pooled or pid != number
        if replica:
            raise Unreachable(
                f"{place(self.known)}: it is a replica that only reads: name the primary, or all "
                "hosts with target_session_attrs=read-write"
            )
        if not self.checked:
            await self._check(connection, home)
            self.checked = True
        if not self.pooled:
            await rows(connection, prepare(self), until)

    async def trust(self, connection: object, home: str | None) -> None:
        """L13  What is called is the work of whom the caller trusts. Raises UnsafeGround.

        `home`: the schema, None for the one in which tables would be made.
        """
        given = "current_schema()" if home is None else literal(home)
        until = clock.now() + self.limit
        ((told, who),) = await rows(connection, strangers(given, literal(self.owner)), until)
        if told:
            raise UnsafeGround(distrusted(self.known, home, told, who), name=self.url)

    async def _check(self, connection: object, home: str | None) -> None:
        """L12  A schema that this version may use, made or brought up where it may be."""
        version, least, until = 0, 0, clock.now() + self.limit
        self.home = home or ""
        if home or self.create is not False:
            await self.trust(connection, home)
        if home:
            tables = f"{self.schema}lifehold_schema"
            look = f"SELECT version, least FROM {tables}"  # noqa: S608 - our own name
            found = await rows(connection, look, until)
            version, least = found[0] if found else (0, 0)
        if least > VERSION:
            raise Unreachable(
                f"{place(self.known)}: its schema is of version {version}, which clients of "
                f"version {VERSION} would spoil: use a newer lifehold here"
            )
        self.hands, self.version = version >= HANDS, version
        if version >= VERSION or (version and self.create is False):
            return  # the functions of an older one do the same, less fast
        if self.create is False:
            raise Unreachable(
                f"{place(self.known)}: its tables are not there, and create=False. This makes "
                f"them: {migrate_command(self.known)}"
            )
        try:
            text = ALONE + self.words(home) + SOON * bool(version) + SCHEMA
            await rows(connection, text, until)
        except (psycopg().Error, QueryFailed, NoAnswer) as error:
            if version:
                return
            raise Unreachable(
                f"its tables are not there and could not be made: {said(error, self.known)}"
            ) from error
        self.hands, self.version = True, VERSION
        if not home:
            ((self.home,),) = await rows(connection, "SELECT current_schema()::text", until)
            if self.create is None:
                logging.getLogger("lifehold").warning(WARN, self.url)

    def words(self, home: str | None) -> str:
        """What a migration has to know, until the end of its transaction."""
        told = f"SELECT set_config('lifehold.owner', {literal(self.owner)}, true);"
        if home:  # where the tables are that it brings up
            told += (
                f"SELECT set_config('search_path', {literal(quoted(home) + ', pg_temp')}, true);"
            )
        return told

    @property
    def named(self) -> bool:
        """Whether the program gives its connections a name of its own."""
        return bool(self.known.get("application_name") or os.environ.get("PGAPPNAME"))

    @property
    def schema(self) -> str:
        """What stands before the name of a table or function."""
        return f"{quoted(self.home)}." if self.home else ""

    def statement(self, name: str, given: int, prepared: bool) -> tuple[str, bool]:
        """How a function is called, and whether that is prepared: where the session is ours."""
        if prepared and name in SIGNATURES and not self.pooled:
            return f"lifehold_{name}", True
        return call(self, name, ", ".join(f"${nr}" for nr in range(1, given + 1))), False


def call(plan: PostgresUrl, name: str, given: str) -> str:
    """The statement that calls a function. L12: no row, and nothing done, for a newer schema."""
    return (
        f"SELECT f.* FROM {plan.schema}lifehold_{name}({given}) f"  # noqa: S608 - our own names
        f" WHERE (SELECT s.least FROM {plan.schema}lifehold_schema s) <= {VERSION}"
    )


def ending(plan: PostgresUrl) -> str:
    """The statement of an order that is for one grant: no row, and nothing done, if it is not in.

    Row locks look at the latest version of a row, whatever its statement has seen. They are taken
    as each step takes them, the name's first; so that grant can neither go nor come behind them.
    One that has run out is in no more, though its row may be there.
    """
    at = plan.schema
    return (
        f"WITH named AS MATERIALIZED (SELECT l.name FROM {at}lifehold_lease l"  # noqa: S608 - ours
        " WHERE l.name = $2 FOR NO KEY UPDATE), held AS MATERIALIZED (SELECT h.name FROM named"
        f" JOIN {at}lifehold_holder h ON h.name = named.name WHERE h.mark = $7"
        f" AND h.ends_at + h.delay > {at}lifehold_now() FOR UPDATE OF h)"
        f" SELECT f.* FROM held, LATERAL {at}lifehold_1_order($1, held.name, $3, $4, $5, $6) f"
        f" WHERE (SELECT s.least FROM {at}lifehold_schema s) <= {VERSION}"
    )


def too_new(plan: PostgresUrl) -> Unreachable:
    """What no row means."""
    return Unreachable(
        f"{place(plan.known)}: its schema is of a newer version by now, which this one would "
        "spoil: use a newer lifehold here"
    )


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f" E'{escaped}'"


def without_owner(url: str) -> tuple[str, str]:
    """The URL as libpq takes it, and the role that its `owner=` names."""
    front, nonce, query = url.partition("?")
    if "owner=" not in query or "://" not in front:
        return url, ""
    pairs = query.split("&")
    ours = [each for each in pairs if each.startswith("owner=")]
    rest = "&".join(each for each in pairs if each not in ours)
    named = ",".join(parse.unquote(each.partition("=")[2]) for each in ours)
    return (f"{front}{nonce}{rest}" if rest else front), named


SOON = "SELECT set_config('lock_timeout', '2s', true);"  # who reads for long delays nobody else


def prepare(plan: PostgresUrl) -> str:
    """What a connection of our own is told, once."""
    return ";".join(
        f"PREPARE lifehold_{name} ({types}) AS "
        + call(plan, name, ", ".join(f"${nr}" for nr in range(1, types.count(",") + 2)))
        for name, types in SIGNATURES.items()
    )


async def rows(connection: object, query: str, until: float) -> list[tuple[Any, ...]]:
    """The rows of the last of some statements. Raises psycopg.Error, QueryFailed, NoAnswer."""
    return await ServerConnection(connection).run(query, until)


# ------------------------------------------------------------------------------------------------
# Connections that are being opened, and forks in the middle of that (L9).
#
# Promise: a child that is forked meanwhile keeps no copy of the socket. By a copy it would keep the
# session alive behind its parent's death, and with the session all that it has locked.
#
# Rule: psycopg opens a connection step by step, and names its socket before it waits in each; that
# is noted, until the connection itself is (wire.py). How it could fail: the steps are psycopg's own
# affair, since 3.0; were they named otherwise, nothing would be noted.


_coming: dict[object, tuple[int, int]] = {}  # the socket of each, and its inode
_kinds: dict[object, object] = {}
_until: ContextVar[float] = ContextVar("_until", default=NEVER)


@fork.in_child
def _leave_to_parent() -> None:
    """L9  A connection that was just being made is the parent's: the child closes its copy."""
    for fd, inode in _coming.values():
        try:
            if os.fstat(fd).st_ino == inode:
                os.close(fd)
        except OSError:
            continue  # its connection has come, and was closed as such
    _coming.clear()


async def opened(kind: object, until: float = NEVER, **known: object) -> object:
    """A new connection, `kind` a class of psycopg. Noted: to be given up by `link.drop`.

    `until`: the instant at which it has to be there; libpq counts whole seconds, 2 at the least.
    """
    before = _until.set(until)
    try:
        return keep(await settle(_step_by_step(kind).connect(**known)))
    finally:
        _until.reset(before)


def _step_by_step(kind: Any) -> Any:
    """The same class, whose steps are noted."""
    if kind not in _kinds:
        steps = getattr(kind, "_connect_gen", None)

        def noted(cls: object, *given: Any, **named: Any) -> object:
            assert steps is not None
            return _noted(steps.__func__(cls, *given, **named))

        more = {"_connect_gen": classmethod(noted), "__module__": kind.__module__}
        _kinds[kind] = kind if steps is None else type(kind.__name__, (kind,), more)
    return _kinds[kind]


def _noted(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    me = object()
    try:
        asked = next(steps)
        while True:
            _coming[me] = asked[0], os.fstat(asked[0]).st_ino
            heard = yield asked
            if clock.now() >= _until.get():
                psycopg = fork.lazily("psycopg")
                raise psycopg.OperationalError("connection timeout expired")
            asked = steps.send(heard)
    except StopIteration as came:
        return keep(came.value)
    finally:
        steps.close()
        _coming.pop(me, None)


# ------------------------------------------------------------------------------------------------
# Requests over a connection pool of the caller's: psycopg_pool, blocking or asynchronous.
#
# Promise: a connection is given back as it was. Renewals do not go through it, since a pool that
# the program has emptied would cost it its leases: they have connections of their own, opened by
# the same `conninfo` and `kwargs`.


def parts(pool: object) -> tuple[str, dict[str, object], bool]:
    """The conninfo and options of a pool, and whether it is to be awaited."""
    conninfo = getattr(pool, "conninfo", None)
    if not isinstance(conninfo, str) or not hasattr(pool, "getconn"):
        raise InvalidArgument(
            "pool= takes a psycopg_pool.ConnectionPool or AsyncConnectionPool with a conninfo, not "
            f"{type(pool).__name__}"
        )
    known = dict(getattr(pool, "kwargs", None) or {})
    for ours in ("autocommit", "cursor_factory", "row_factory", "context", "prepare_threshold"):
        known.pop(ours, None)
    return conninfo, known, hasattr(pool, "__aenter__")


class PoolLink:
    """In place of a ConnectionPool (wire.py). `awaited`: the pool is asynchronous."""

    prepared = False

    def __init__(self, pool: Any, plan: PostgresUrl, awaited: bool) -> None:
        self._pool, self._plan, self._awaited = pool, plan, awaited
        self.known, self.limit = plan.known, plan.limit

    async def ask(
        self,
        query: str | Callable[[], tuple[str, bool]],
        given: Sequence[object] = (),
        until: float = NEVER,
        *,
        first: bool = False,
    ) -> list[tuple[object, ...]]:
        """One statement, in one round trip, a transaction of its own. Raises as the pool does."""
        began = clock.now()
        until = min(until, began + self.limit)
        await self._plan.look_once(self._awaited, until)
        try:
            left = max(SHORTEST, until - clock.now())
            connection = await settle(self._pool.getconn(timeout=left))
        except Exception as error:
            if not hasattr(error, "sqlstate"):
                raise
            raise Unreachable(f"the pool of the program: {said(error, self.known)}") from error
        line = None
        try:
            line = wire.ServerConnection(connection)
            text, _ = (query, False) if isinstance(query, str) else query()
            left = max(SHORTEST, until - clock.now())
            return await line.ask(text, given, left, lent=True)
        except Exception as error:
            if line is None or not line.goes_on(error):
                connection.pgconn.finish()  # its answer may still come: the pool drops it
            if line is None and hasattr(error, "sqlstate"):  # it was closed: nothing was sent
                raise Unreachable(f"the pool of the program: {said(error, self.known)}") from error
            raise told(error, self.known, clock.now() - began) from error
        except BaseException as error:
            if line is None or isinstance(error, GeneratorExit) or not await line.hear_out():
                connection.pgconn.finish()
            raise
        finally:
            await settle(self._pool.putconn(connection))


# ------------------------------------------------------------------------------------------------
# The asynchronous client: a ConnectionPool of its own for each event loop of asyncio.
#
# Promise: a task that asks the store suspends, and no thread is needed for it; connections are
# closed with their loop. Under trio, which psycopg does not know, a helper thread asks (engine.py).


class TaskWakeup(Signal):
    """What a task waits for."""


def one_loop(backend: object) -> Callable[[object], Any]:
    """`swift` over a pool that belongs to the event loop that uses it first."""
    owner: list[object] = []

    def swift(runtime: object) -> object:
        if runtime is not EVENT_LOOP or running_trio() is not None or nobody_runs():
            return None
        loop = asyncio.get_running_loop()
        if not owner:
            owner.append(loop)
        return backend if owner[0] is loop else None

    return swift


class LoopBackends:
    """The backends by event loop."""

    def __init__(
        self,
        plan: PostgresUrl,
        beats: ConnectionPool,
        wakeups: object,
        most: int,
        make: Callable[..., object],
    ) -> None:
        self._plan, self._beats, self._wakes, self._most = plan, beats, wakeups, most
        self._make = make
        self._known: dict[Any, tuple[object, ConnectionPool]] = {}
        self._generation = fork.here()

    def swift(self, runtime: object) -> Any:
        """The backend that the running event loop can await, None where there is none."""
        if runtime is not EVENT_LOOP or running_trio() is not None or nobody_runs():
            return None
        if self._generation != fork.here():
            self._known, self._generation = {}, fork.here()
        loop = asyncio.get_running_loop()
        found = self._known.get(loop)
        return found[0] if found is not None else self._new(loop)

    def _new(self, loop: object) -> object:
        for other in list(self._known):  # of another thread's loop, too
            if other.is_closed() and (found := self._known.pop(other, None)) is not None:
                found[1].close()
        guard: list[Any] = []

        async def connect(until: float) -> object:
            if not guard:  # closed by loop.shutdown_asyncgens(), as asyncio.run does at its end
                guard.append(self._until_the_end(loop))
                await guard[0].__anext__()
            return await self._plan.connect("AsyncConnection", until)

        link = ConnectionPool(connect, TaskWakeup, self._plan, self._most)
        backend = self._make(self._plan, link, self._beats, self._wakes)
        self._known[loop] = backend, link
        return backend

    def close(self) -> None:
        """Close what is idle, of every loop."""
        for _, link in list(self._known.values()):
            link.close()

    async def _until_the_end(self, loop: object) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            found = self._known.pop(loop, None)
            if found is not None:
                found[1].close()
