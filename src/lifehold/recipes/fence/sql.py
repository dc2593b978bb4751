"""`SqlFence`: a fence in a table of its own, moved in the same transaction as the writes.

    guard = SqlFence(db, "account/7", lease)
    guard.advance(); db.commit()        # before the first read: older tokens are refused from here
    with db:
        guard.admit()                   # StaleToken, and the block rolls back
        db.execute("update account ...")

Promise: of two transactions that were admitted under different tokens, the one with the older token
has committed before the other's admission. Rule: admission is one statement that compares and
stores, on a row that the database keeps locked until the transaction ends; whoever comes later
waits for it, and compares then. How it could fail, and what keeps it:
- The fence in one transaction and the write in another: `admit` raises outside of a transaction.
- A number compared before a wait and stored after it: PostgreSQL compares again with the row as it
  is by then, or refuses to serialize; SQLite has one writer.
- `strict`: the successor has been granted and has not come here yet. The lease row is read in the
  same transaction and kept locked, so it cannot change hands before the commit. A reader comes with
  no new token: what is, or has become, a lock of several holders is refused.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument, StaleToken
from ...core.fence import stale
from ...core.value import value
from ...runtime import fork
from .rule import check_name, token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from .rule import Carrier

    Plan = Generator["Statement", "SqlAnswer", None]

__all__ = ["AsyncSqlFence", "LeaseTable", "SqlFence", "create_table"]

TABLE = "lifehold_fence"


def create_table(table: str = TABLE) -> str:
    """The statement that makes the table of fences, for a migration."""
    name = identifier("table", table, dotted=True)
    return (
        f"CREATE TABLE IF NOT EXISTS {name} "
        "(name VARCHAR(500) NOT NULL PRIMARY KEY, token BIGINT NOT NULL)"
    )


@value
class LeaseTable:
    """Where `strict` finds the lease: in the same database as the data.

    By default as a store of ours keeps it there. `lock`: the lock's name in that table, the lease's
    own by default. `nonce`: a column with the nonce of the grant, to be compared too.
    """

    table: str | None = None
    name: str = "name"
    token: str = "token"  # noqa: S105 - a column
    nonce: str | None = None
    lock: str | None = None


def compared_with(strict: object, lease: object) -> LeaseTable | None:
    """What `strict` stands for. Raises InvalidArgument."""
    if strict is False or strict is None:
        return None
    table = LeaseTable() if strict is True else strict
    if not isinstance(table, LeaseTable):
        raise InvalidArgument(f"strict must be True, False or a LeaseTable, not {strict!r}")
    if table.nonce is not None and getattr(lease, "nonce", None) is None:
        raise InvalidArgument(
            f"strict has the nonce of the grant in column {table.nonce!r}, and {lease!r} has none "
            "to compare: give the lease itself, or leave `nonce` away"
        )
    return table


class Admission:
    """What is compared and stored for one name, as statements for any face."""

    __slots__ = ("_driver", "_lease", "_strict", "name", "table")

    def __init__(
        self,
        driver: Driver,
        name: str,
        lease: Carrier | int,
        table: str,
        strict: bool | LeaseTable,
    ) -> None:
        self.name = check_name(name)
        self.table = identifier("table", table, dotted=True)
        self._lease, self._driver = lease, driver
        self._strict = compared_with(strict, lease)

    def plan(self, *, bound: bool) -> Plan:
        """Compare and store; `bound`: to the transaction of the write."""
        token = token_of(self._lease, self.name)
        upsert = (
            f"INSERT INTO {self.table} AS f (name, token) VALUES (?, ?) "  # noqa: S608
            "ON CONFLICT (name) DO UPDATE SET token = excluded.token "
            f"WHERE f.token <= excluded.token{self._driver.returning}"
        )
        try:
            answer = yield Statement(upsert, (self.name, token))
        except Exception as error:
            if (better := no_table(error, create_table(self.table))) is not None:
                raise better from error
            raise
        if answer.count != 1:
            look = f"SELECT token FROM {self.table} WHERE name = ?"  # noqa: S608
            seen = yield Statement(look, (self.name,))
            raise stale(self.name, token, seen.rows[0][0] if seen.rows else None)
        if bound and not answer.transaction:
            raise not_together(self.name, "begin one, then admit() and write")
        if self._strict is not None:
            yield from self._strictly(self._strict, token)

    def _strictly(self, lease: LeaseTable, token: int) -> Plan:
        nonce = None if lease.nonce is None else getattr(self._lease, "nonce", None)
        columns = [identifier("token", lease.token)]
        columns += [identifier("nonce", lease.nonce)] if nonce is not None else []
        where = identifier("table", lease.table or self._driver.leases, dotted=True)
        ours = where.rpartition(".")[2] == self._driver.leases
        columns += ["capacity"] if ours else []
        lock = lease.lock or self._name_of_lock()
        answer: SqlAnswer = yield Statement(
            f"SELECT {', '.join(columns)} FROM {where} "  # noqa: S608
            f"WHERE {identifier('name', lease.name)} = ?{self._driver.share}",
            (lock,),
        )
        if not answer.rows:
            raise InvalidArgument(
                f"{self.name!r}: {where} has no row for the lock {lock!r}: strict compares with "
                "the lease in the same database",
                name=self.name,
            )
        found = answer.rows[0]
        if found[0] is not None and found[0] > token:
            raise stale(self.name, token, found[0])
        if ours:
            *found, capacity = found
            self._refuse_many(capacity)
        if tuple(found) != ((token,) if nonce is None else (token, nonce)):
            raise StaleToken(
                f"{self.name!r}: write refused: the lock {lock!r} is not held by the grant with "
                f"token {token} any more. Stop, acquire the lock again and read the data anew.",
                name=self.name,
                token=token,
                fence=found[0],
            )

    def _name_of_lock(self) -> str:
        """As it stands in the table: of a lock in a store, what follows the # of its URL."""
        name = getattr(self._lease, "name", None)
        if name is not None and "://" in name:
            name = name.partition("#")[2]
        if not name or "%" in name:
            raise InvalidArgument(
                f"{self.name!r}: strict needs the name of the lock: strict=LeaseTable(lock=...)"
            )
        if getattr(self._lease, "exclusive", True) is False:
            self._refuse_many(None)
        return str(name)

    def _refuse_many(self, capacity: int | None) -> None:
        """The row of a lock has its newest token, which readers have from a writer that is gone."""
        if capacity != 1:
            raise InvalidArgument(
                f"{self.name!r}: strict is for locks of one holder: of a semaphore the table of "
                "leases has only the newest token of all its slots, and readers keep the token of "
                "the writer before them",
                name=self.name,
            )


class _SqlFence:
    _asynchronous = False

    def __init__(
        self,
        connection: object,
        name: str,
        lease: Carrier | int,
        *,
        table: str = TABLE,
        strict: bool | LeaseTable = False,
    ) -> None:
        self._connection = connection
        self._driver = driver_of(connection, asynchronous=self._asynchronous)
        self._admission = Admission(self._driver, name, lease, table, strict)


class SqlFence(_SqlFence):
    """The fence `name` in a table of the database that holds the data.

    `connection`: of sqlite3 or psycopg 3; the transaction is yours. `name`: of what is guarded; all
    who write it must give the same. For a semaphore give `lease.fences`. `lease`: whose token is
    compared, or that token. `table`: see `create_table`. `strict`: compare with the lease row too,
    so that a late writer is refused from the moment its successor has the lock; the row stays
    locked until the transaction ends, which the next holder has to wait for.
    """

    def advance(self) -> None:
        """Refuse older tokens from now on. To be committed before the first read under a lease.

        Raises StaleToken when this one is older itself; InvalidArgument when there is no table.
        """
        play(self._connection, self._driver, self._admission.plan(bound=False))

    def admit(self) -> None:
        """Admit the transaction that is open, or that begins with this.

        Raises StaleToken: roll back. Raises InvalidArgument where each statement commits by itself.
        """
        play(self._connection, self._driver, self._admission.plan(bound=True))


class AsyncSqlFence(_SqlFence):
    """The same for a connection of psycopg 3's async face, or of aiosqlite."""

    _asynchronous = True

    async def advance(self) -> None:
        """Refuse older tokens from now on; see `SqlFence.advance`."""
        await aplay(self._connection, self._driver, self._admission.plan(bound=False))

    async def admit(self) -> None:
        """Admit the open transaction; see `SqlFence.admit`."""
        await aplay(self._connection, self._driver, self._admission.plan(bound=True))


# ------------------------------------------------------------------------------------------------
# SQL statements, played on a connection that the caller owns, blocking or async.
#
# A guard is written once, as a generator that yields `Statement` and is sent the answer; `play`
# and `aplay` are the two faces. Promise: nothing here commits, rolls back or begins: the
# transaction is the caller's. Rows come as tuples whatever the row factory of the connection.
#
# Known connections: sqlite3, psycopg 3 (both faces), aiosqlite. Others are refused: whether a
# statement stands in a transaction cannot be asked of every driver, and a fence that stands in
# another transaction than the write guards nothing.


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
class SqlAnswer:
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


def commits_alone(connection: Any) -> bool:
    """Whether a driver outside of a transaction begins none with the next write."""
    if hasattr(connection, "total_changes"):  # of SQLite, where an `autocommit` came with 3.12
        return connection.isolation_level is None or getattr(connection, "autocommit", -1) is True
    return getattr(connection, "autocommit", False) is True


def not_together(name: str, instead: str) -> InvalidArgument:
    """What to say where a write could stay that its fence refuses."""
    return InvalidArgument(
        f"{name!r}: the fence and the write must stand in one transaction, and the connection "
        f"commits each statement by itself: {instead}",
        name=name,
    )


def play(connection: Any, driver: Driver, plan: Plan) -> None:
    """Run a plan on a blocking connection."""

    def answer(statement: Statement) -> SqlAnswer:
        cursor = _cursor(connection, driver)
        try:
            cursor.execute(statement.sql.replace("?", driver.mark), statement.parameters)
            rows = tuple(cursor.fetchall()) if statement.reads(driver) else ()
            return SqlAnswer(cursor.rowcount, rows, in_transaction(connection))
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

    async def answer(statement: Statement) -> SqlAnswer:
        cursor = _cursor(connection, driver)
        if driver is SQLITE:
            cursor = await cursor
            cursor.row_factory = None
        try:
            await cursor.execute(statement.sql.replace("?", driver.mark), statement.parameters)
            rows = tuple(await cursor.fetchall()) if statement.reads(driver) else ()
            return SqlAnswer(cursor.rowcount, rows, in_transaction(connection))
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
        rows = fork.lazily("psycopg.rows")
        return connection.cursor(row_factory=rows.tuple_row)
    cursor = connection.cursor()
    if hasattr(cursor, "row_factory"):
        cursor.row_factory = None
    return cursor
