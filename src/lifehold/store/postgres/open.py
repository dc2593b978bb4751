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

from ...core.address import refuse_torn
from ...core.deadline import NEVER
from ...core.errors import InvalidArgument, UnsafeGround
from ...core.mask import masked_urls, printable
from ...core.storage import Unreachable
from ...runtime import clock, fork
from .arrival import opened
from .link import drop
from .sql import SCHEMA
from .tables import VERSION, strangers
from .wire import Failed, Line, Silent
from .words import distrusted, migrate_command, place, said, url_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


class Plan:
    """What a URL asks for. `known`: its parts; `limit`: seconds for one answer.

    `create`: None makes tables that are not there, and warns; `owner`: a role that may own them.
    """

    def __init__(
        self, url: str, limit: float, create: bool | None, options: dict[str, Any] | None = None,
        owner: str = "",
    ) -> None:  # fmt: skip
        client = psycopg()
        conninfo: Any = fork.lazily("psycopg.conninfo")
        refuse_torn(url)
        url, named = without_owner(url)
        self.limit, self.create, self.owner = limit, create, owner or named
        try:
            known = conninfo.conninfo_to_dict(url, **(options or {}))
        except client.ProgrammingError as error:
            why = "" if "@" in url else f": {printable(masked_urls(str(error).strip()))}"
            raise InvalidArgument(
                f"{printable(masked_urls(url))!r} is no URL of PostgreSQL{why}; for example "
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
        self.hands = False  # its functions let in who waits, unasked (line.py)
        self.tabled = False  # the table of session locks was seen

    async def connect(self, kind: str, until: float = NEVER) -> Any:
        """A new connection, `kind` Connection or AsyncConnection, set up for `Link`.

        `until`: the instant at which it has to be there, where that is before its own limit.
        """
        client = psycopg()
        until = min(until, clock.now() + self.limit)
        cursor = {"Connection": "ClientCursor", "AsyncConnection": "AsyncClientCursor"}[kind]
        connection = await opened(
            getattr(client, kind), until,
            **self.known, autocommit=True, cursor_factory=getattr(client, cursor),
        )  # fmt: skip
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
            except (psycopg().Error, Failed, Silent) as error:
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

    async def trust(self, connection: Any, home: str | None) -> None:
        """L13  What is called is the work of whom the caller trusts. Raises UnsafeGround.

        `home`: the schema, None for the one in which tables would be made.
        """
        given = "current_schema()" if home is None else literal(home)
        until = clock.now() + self.limit
        ((told, who),) = await rows(connection, strangers(given, literal(self.owner)), until)
        if told:
            raise UnsafeGround(distrusted(self.known, home, told, who), name=self.url)

    async def _check(self, connection: Any, home: str | None) -> None:
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
        except (psycopg().Error, Failed, Silent) as error:
            if version:
                return
            raise Unreachable(
                f"its tables are not there and could not be made: {said(error, self.known)}"
            ) from error
        self.hands, self.version = True, VERSION
        if not home:
            ((self.home,),) = await rows(connection, "SELECT current_schema()::text", until)
            if self.create is None:
                logging: Any = fork.lazily("logging")
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


def call(plan: Plan, name: str, given: str) -> str:
    """The statement that calls a function. L12: no row, and nothing done, for a newer schema."""
    return (
        f"SELECT f.* FROM {plan.schema}lifehold_{name}({given}) f"  # noqa: S608 - our own names
        f" WHERE (SELECT s.least FROM {plan.schema}lifehold_schema s) <= {VERSION}"
    )


def too_new(plan: Plan) -> Unreachable:
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
    front, mark, query = url.partition("?")
    if "owner=" not in query or "://" not in front:
        return url, ""
    parse: Any = fork.lazily("urllib.parse")
    pairs = query.split("&")
    ours = [each for each in pairs if each.startswith("owner=")]
    rest = "&".join(each for each in pairs if each not in ours)
    named = ",".join(parse.unquote(each.partition("=")[2]) for each in ours)
    return (f"{front}{mark}{rest}" if rest else front), named


SOON = "SELECT set_config('lock_timeout', '2s', true);"  # who reads for long delays nobody else


def prepare(plan: Plan) -> str:
    """What a connection of our own is told, once."""
    return ";".join(
        f"PREPARE lifehold_{name} ({types}) AS "
        + call(plan, name, ", ".join(f"${nr}" for nr in range(1, types.count(",") + 2)))
        for name, types in SIGNATURES.items()
    )


async def rows(connection: Any, query: str, until: float) -> list[tuple[Any, ...]]:
    """The rows of the last of some statements. Raises psycopg.Error, Failed, Silent."""
    return await Line(connection).run(query, until)
