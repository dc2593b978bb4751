"""SQL statements, played on a connection that the caller owns, blocking or async.

A guard is written once, as a generator that yields `Statement` and is sent the `Answer`; `play` and
`aplay` are the two faces. Promise: nothing here commits, rolls back or begins: the transaction is
the caller's. Rows come as tuples whatever the row factory of the connection.

Known connections: sqlite3, psycopg 3 (both faces), aiosqlite. Others are refused: whether a
statement stands in a transaction cannot be asked of every driver, and a fence that stands in
another transaction than the write guards nothing.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.value import value
from ...runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    Plan = Generator["Statement", "Answer", None]

INTRANS = 2  # libpq's PQTRANS_INTRANS: in a transaction, and it has not failed


@value
class Driver:
    """How one driver wants its statements.

    `leases`: where our store keeps the newest token of a lock; `share`: what locks a row that is
    only read; `returning`: what makes a write answer rows, so that its count is known even where
    statements are sent ahead.
    """

    name: str
    mark: str
    named: str
    leases: str
    share: str = ""
    returning: str = ""


SQLITE = Driver("sqlite", "?", ":{}", "lifehold_names")
POSTGRES = Driver("postgresql", "%s", "%({})s", "lifehold_lease", " FOR SHARE", " RETURNING 1")
KNOWN = {
    ("sqlite3", "Connection"): (SQLITE, False),
    ("aiosqlite", "Connection"): (SQLITE, True),
    ("psycopg", "Connection"): (POSTGRES, False),
    ("psycopg", "AsyncConnection"): (POSTGRES, True),
}


@value
class Statement:
    """SQL with `?` for each parameter."""

    sql: str
    parameters: tuple[Any, ...] = ()

    def reads(self, driver: Driver) -> bool:
        """Whether it answers rows."""
        return self.sql.startswith("SELECT") or bool(driver.returning)


@value
class Answer:
    """`count`: rows written; `rows`: rows read; `transaction`: whether one is open now."""

    count: int
    rows: tuple[Any, ...]
    transaction: bool


def driver_of(connection: Any, *, asynchronous: bool) -> Driver:
    """How to speak to a connection. Raises InvalidArgument for one that we do not know."""
    for each in type(connection).__mro__:
        found = KNOWN.get((each.__module__.partition(".")[0], each.__name__))
        if found is None:
            continue
        if found[1] is asynchronous:
            return found[0]
        face = "AsyncSqlFence and AsyncRowFence" if found[1] else "SqlFence and RowFence"
        raise InvalidArgument(f"{type(connection).__name__} of {each.__module__}: take {face}")
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidArgument(
        f"{kind} is no connection that can be guarded: give one of sqlite3, aiosqlite or psycopg "
        "3; for SQLAlchemy there is SessionFence"
    )


def identifier(what: str, name: object, *, dotted: bool = False) -> str:
    """A name of a table or column that may stand in SQL as it is. Raises InvalidArgument."""
    parts = name.split(".") if isinstance(name, str) else []
    if not 1 <= len(parts) <= (2 if dotted else 1) or not all(
        part.isascii() and part.isidentifier() for part in parts
    ):
        raise InvalidArgument(
            f"{what} must be a plain SQL name (letters, digits, underscore), not {name!r}"
        )
    return ".".join(parts)


def no_table(error: Exception, ddl: str) -> InvalidArgument | None:
    """What to say when the table of fences is not there; None for any other error."""
    said = getattr(error, "orig", error)  # within an error of SQLAlchemy
    if getattr(said, "sqlstate", None) == "42P01" or "no such table" in str(said):
        return InvalidArgument(f"{said}: make the table once, with: {ddl}")
    return None


def in_transaction(connection: Any) -> bool:
    """Whether a transaction is open. Raises InvalidArgument for a driver that cannot say."""
    info = getattr(connection, "info", None)
    if info is not None and hasattr(info, "transaction_status"):
        return int(info.transaction_status) == INTRANS
    if hasattr(connection, "is_in_transaction"):  # asyncpg, below SQLAlchemy
        return bool(connection.is_in_transaction())
    if hasattr(connection, "in_transaction"):
        return bool(connection.in_transaction)
    raise InvalidArgument(
        f"{type(connection).__module__} cannot say whether a transaction is open, so a fence could "
        "be committed without the write it guards: use sqlite3, aiosqlite, psycopg or asyncpg"
    )


def play(connection: Any, driver: Driver, plan: Plan) -> None:
    """Run a plan on a blocking connection."""

    def answer(statement: Statement) -> Answer:
        cursor = _cursor(connection, driver)
        try:
            cursor.execute(statement.sql.replace("?", driver.mark), statement.parameters)
            rows = tuple(cursor.fetchall()) if statement.reads(driver) else ()
            return Answer(cursor.rowcount, rows, in_transaction(connection))
        finally:
            cursor.close()

    try:
        statement = next(plan)
        while True:
            try:
                found = answer(statement)
            except Exception as error:  # noqa: BLE001 - the plan has the words for it
                statement = plan.throw(error)
            else:
                statement = plan.send(found)
    except StopIteration:
        return
    finally:
        plan.close()


async def aplay(connection: Any, driver: Driver, plan: Plan) -> None:
    """The same on a connection of asyncio."""

    async def answer(statement: Statement) -> Answer:
        cursor = _cursor(connection, driver)
        if driver is SQLITE:
            cursor = await cursor
            cursor.row_factory = None
        try:
            await cursor.execute(statement.sql.replace("?", driver.mark), statement.parameters)
            rows = tuple(await cursor.fetchall()) if statement.reads(driver) else ()
            return Answer(cursor.rowcount, rows, in_transaction(connection))
        finally:
            await cursor.close()

    try:
        statement = next(plan)
        while True:
            try:
                found = await answer(statement)
            except Exception as error:  # noqa: BLE001 - the plan has the words for it
                statement = plan.throw(error)
            else:
                statement = plan.send(found)
    except StopIteration:
        return
    finally:
        plan.close()


def _cursor(connection: Any, driver: Driver) -> Any:
    """One whose rows are tuples."""
    if driver is POSTGRES:
        rows: Any = fork.lazily("psycopg.rows")
        return connection.cursor(row_factory=rows.tuple_row)
    cursor = connection.cursor()
    if hasattr(cursor, "row_factory"):
        cursor.row_factory = None
    return cursor
