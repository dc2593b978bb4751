"""How a PostgreSQL is reached: what a URL asks for, what a new connection is told, the schema.

Promise: a connection that is handed out speaks to a server that may be written to, whose schema is
one that this version may use beside the others (L12), and in READ COMMITTED. Tables that are not
there are made when the role may and `create` is not False; else the error offers the migration.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.mask import masked_urls, printable
from ...core.storage import Unreachable
from ...runtime import fork
from ..settle import settle
from .arrival import opened
from .link import drop
from .sql import SCHEMA
from .tables import VERSION
from .words import migrate_command, place, said, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OWN = {  # what libpq is told unless the URL says otherwise; seconds, and milliseconds
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "application_name": "lifehold",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
SIGNATURES = {  # function -> types of its arguments
    "acquire": "text, text, float8, float8, text, int, int, bool, bool, bool, float8, text, text",
    "release": "text, text",
}
SETTINGS = (
    "SELECT set_config('default_transaction_isolation', 'read committed', false),"
    " set_config('statement_timeout', '{limit}', false), pg_backend_pid(), pg_is_in_recovery(),"
    " to_regclass('lifehold_schema') IS NOT NULL"
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
    """What a URL asks for. `known`: its parts; `limit`: seconds for one answer."""

    def __init__(
        self, url: str, limit: float, create: bool, options: dict[str, Any] | None = None
    ) -> None:
        client = psycopg()
        conninfo: Any = fork.lazily("psycopg.conninfo")
        self.url, self.limit, self.create = shown(url), limit, create
        try:
            known = conninfo.conninfo_to_dict(url, **(options or {}))
        except client.ProgrammingError as error:
            why = "" if "@" in url else f": {printable(masked_urls(str(error).strip()))}"
            raise InvalidArgument(
                f"{self.url!r} is no URL of PostgreSQL{why}; for example "
                "postgresql://user@host:5432/database?sslmode=require"
            ) from None
        self.known: dict[str, Any] = {**OWN, **known}
        if "," in str(known.get("host", "")):
            self.known.setdefault("target_session_attrs", "read-write")
        if "://" not in url:
            port = f":{known['port']}" if known.get("port") else ""
            self.url = f"postgresql://{known.get('host', '')}{port}/{known.get('dbname', '')}"
        self.pooled = False  # a pooler stands between: a session is not ours alone
        self.checked = False
        self.hands = False  # its functions let in who waits, unasked (line.py)
        self.tabled = False  # the table of session locks was seen

    async def connect(self, kind: str) -> Any:
        """A new connection, `kind` Connection or AsyncConnection, set up for `Link`."""
        client = psycopg()
        cursor = {"Connection": "ClientCursor", "AsyncConnection": "AsyncClientCursor"}[kind]
        connection = await opened(
            getattr(client, kind),
            **self.known, autocommit=True, cursor_factory=getattr(client, cursor),
        )  # fmt: skip
        try:
            await self._set_up(connection)
        except BaseException:
            drop(connection)
            raise
        return connection

    async def look_once(self, awaited: bool) -> None:
        """Look at the schema, before the connections of others are used."""
        if not self.checked:
            try:
                made = await self.connect("AsyncConnection" if awaited else "Connection")
            except psycopg().Error as error:
                raise Unreachable(said(error, self.known)) from error
            drop(made)

    async def _set_up(self, connection: Any) -> None:
        settings = SETTINGS.format(limit=int(self.limit * 1000))
        (row,) = await rows(connection, settings)
        pid, replica, there = row[2:5]
        self.pooled = self.pooled or pid != connection.info.backend_pid
        if replica:
            raise Unreachable(
                f"{place(self.known)}: it is a replica that only reads: name the primary, or all "
                "hosts with target_session_attrs=read-write"
            )
        if not self.checked:
            await self._check(connection, there)
            self.checked = True
        if not self.pooled:
            await rows(connection, PREPARE)

    async def _check(self, connection: Any, there: bool) -> None:
        """L12  A schema that this version may use, made or brought up where it may be."""
        version, least = 0, 0
        if there:
            found = await rows(connection, "SELECT version, least FROM lifehold_schema")
            version, least = found[0] if found else (0, 0)
        if least > VERSION:
            raise Unreachable(
                f"{place(self.known)}: its schema is of version {version}, which clients of "
                f"version {VERSION} would spoil: use a newer lifehold here"
            )
        self.hands = version >= VERSION
        if version >= VERSION or (version and not self.create):
            return  # the functions of an older one do the same, less fast
        if not self.create:
            raise Unreachable(
                f"{place(self.known)}: its tables are not there, and create=False. This makes "
                f"them: {migrate_command(self.known)}"
            )
        try:
            await settle(connection.execute((SOON if version else "") + SCHEMA))
        except psycopg().Error as error:
            if version:
                return
            raise Unreachable(
                f"its tables are not there and could not be made: {said(error, self.known)}"
            ) from error
        self.hands = True

    def statement(self, name: str, given: int, prepared: bool) -> tuple[str, bool]:
        """How a function is called, and whether that is prepared: where the session is ours."""
        if prepared and name in SIGNATURES and not self.pooled:
            return f"lifehold_{name}", True
        return call(name, given), False


def call(name: str, given: int) -> str:
    """The statement that calls a function with so many values."""
    places = ", ".join(f"${nr}" for nr in range(1, given + 1))
    return f"SELECT * FROM lifehold_1_{name}({places})"  # noqa: S608 - our own names


SOON = "SELECT set_config('lock_timeout', '2s', true);"  # who reads for long delays nobody else

PREPARE = ";".join(
    f"PREPARE lifehold_{name} ({types}) AS {call(name, types.count(',') + 1)}"
    for name, types in SIGNATURES.items()
)


async def rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    """The rows of one statement, none where it has none."""
    cursor = await settle(connection.execute(query))
    found: list[tuple[Any, ...]] = []
    if cursor.description is not None:
        found = await settle(cursor.fetchall())
    return found
