"""`RowFence`: a fence in a column of your own rows, and the words for your own UPDATE.

    row = RowFence(db, "account", lease)
    row.advance(7); db.commit()         # before the first read: older tokens are refused from here
    with db:
        done = db.execute(
            f"update account set amount = :amount, {row.set} where id = :id and {row.where}",
            {"amount": 20, "id": 7, **row.parameters},
        )
        row.wrote(done)                 # StaleToken, and the block rolls back

Promise: a row is changed only when its fence is not newer than the token, and then carries it: the
database compares and stores in one statement. How it could fail, and what keeps it: of several rows
some are admitted and some not. `wrote(rows=N)` counts, and several rows want a transaction that can
be rolled back. The column: `fence BIGINT NOT NULL DEFAULT 0`; NULL counts as 0.
"""

from __future__ import annotations

from weakref import WeakSet

from ...core.errors import InvalidArgument
from ...core.fence import stale
from ...runtime import fork
from .rule import token_of
from .sql import (
    POSTGRES,
    SQLITE,
    TABLE,
    Admission,
    SqlAnswer,
    Statement,
    aplay,
    commits_alone,
    driver_of,
    identifier,
    in_transaction,
    not_together,
    play,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rule import Carrier
    from .sql import Driver, LeaseTable, Plan

__all__ = ["AsyncRowFence", "RowFence"]

PARAMETER = "lifehold_token"


class _RowFence:
    """The words and statements, for both faces."""

    _asynchronous = False

    def __init__(
        self,
        connection: object,
        table: str,
        lease: Carrier | int,
        *,
        key: str = "id",
        column: str = "fence",
    ) -> None:
        self.table = identifier("table", table, dotted=True)
        self.key, self.column = identifier("key", key), identifier("column", column)
        self._connection, self._lease = connection, lease
        self._driver: Driver = driver_of(connection, asynchronous=self._asynchronous)

    @property
    def token(self) -> int:
        """The token of the lease. Raises StaleToken when it carries none."""
        return token_of(self._lease, self.table)

    @property
    def set(self) -> str:
        """For the SET of an UPDATE, with a named parameter."""
        return f"{self.column} = {self._driver.named.format(PARAMETER)}"

    @property
    def where(self) -> str:
        """For the WHERE of an UPDATE or DELETE: `... AND {where}`, with a named parameter."""
        return f"(coalesce({self.column}, 0) <= {self._driver.named.format(PARAMETER)})"

    @property
    def parameters(self) -> dict[str, int]:
        """What `set` and `where` name."""
        return {PARAMETER: self.token}

    def wrote(self, cursor: Any, rows: int = 1) -> None:
        """Raises StaleToken unless the statement wrote so many rows: roll back then.

        Of more than one row it raises InvalidArgument where each statement commits by itself: some
        would be written and some not.
        """
        count, token = cursor.rowcount, self.token
        if rows < 1 or count < 0 or count > rows:
            raise InvalidArgument(
                f"{self.table!r}: {count} rows were written where {rows} were expected: roll back"
            )
        if rows > 1 and not in_transaction(self._connection):
            raise InvalidArgument(
                f"{self.table!r}: {count} of {rows} rows are written and committed: begin a "
                "transaction first, so that several rows are written together or not at all"
            )
        if count < rows:
            error = stale(self.table, token, None)
            error.add_note(f"{count} of {rows} rows were admitted (a row may also not exist)")
            raise error

    def _plan(self, keys: tuple[Any, ...]) -> Plan:
        if not keys:
            raise InvalidArgument(f"{self.table!r}: advance() needs the keys of the rows")
        try:
            keys = tuple(sorted(keys))  # always in one order, or two holders wait for each other
        except TypeError as error:
            raise InvalidArgument(
                f"{self.table!r}: the keys of one advance() must be of one kind that has an order, "
                f"not {keys!r}"
            ) from error
        token = self.token
        coalesced = f"coalesce({self.column}, 0)"
        for key in keys:
            done = yield Statement(
                f"UPDATE {self.table} SET {self.column} = ? "  # noqa: S608
                f"WHERE {self.key} = ? AND {coalesced} <= ?{self._driver.returning}",
                (token, key, token),
            )
            if done.count >= 1:
                continue
            seen = yield Statement(
                f"SELECT {coalesced} FROM {self.table} WHERE {self.key} = ?",  # noqa: S608
                (key,),
            )
            name = f"{self.table} {key}"
            if not seen.rows:
                raise InvalidArgument(
                    f"{name!r}: there is no such row: insert it first, or guard it by a SqlFence, "
                    "which needs no row",
                    name=name,
                )
            raise stale(name, token, seen.rows[0][0])


class RowFence(_RowFence):
    """A fence in each row of a table.

    `connection`: of sqlite3 or psycopg 3; the transaction is yours. `key`, `column`: the columns
    that name the row and carry its fence. Where you cannot say how many rows a statement must
    write, or insert new ones, take a `SqlFence`.
    """

    def advance(self, *keys: Any) -> None:
        """Refuse older tokens for these rows from now on. To be committed before the first read.

        Raises StaleToken when this one is older itself; InvalidArgument for no such row.
        """
        play(self._connection, self._driver, self._plan(keys))


class AsyncRowFence(_RowFence):
    """The same for a connection of psycopg 3's async face, or of aiosqlite."""

    _asynchronous = True

    async def advance(self, *keys: Any) -> None:
        """Refuse older tokens for these rows from now on; see `RowFence.advance`."""
        await aplay(self._connection, self._driver, self._plan(keys))


# ------------------------------------------------------------------------------------------------
# SQLAlchemy 2: a session whose commits are admitted, and words for one UPDATE.
#
#    > guard = SessionFence(session, "account/7", lease)
#    > guard.advance(); session.commit()  # before the first read: older tokens are refused then
#    > with guard:                        # every commit of the session is admitted first
#    >     session.get(Account, 7).amount += 20
#    >     session.commit()               # StaleToken, and nothing is written
#
# Promise: nothing that the session has done reaches the database for good under a token older than
# one that was admitted: flushes, bulk statements, and what went through `session.connection()`. A
# session that writes into several databases is refused, since a fence guards its own alone.
# Rule: the admission of sql.py runs in `before_commit`, in the very transaction that is to be
# committed. That event, and neither `before_flush` nor `do_orm_execute`, sees all of these. A
# connection that is told to commit says so in its own `commit` alone: there it is admitted again.
# Not promised: anything against a COMMIT that SQLAlchemy does not see, as the driver's own.


__all__ = ["SessionFence", "fenced", "wrote"]

DRIVERS = {"sqlite": SQLITE, "postgresql": POSTGRES}


class SessionFence:
    """The fence `name` for a `Session`, an `AsyncSession`, or a `Connection` of SQLAlchemy.

    `name`, `lease`, `table`, `strict`: as of `SqlFence`. As a context manager (sessions only) it
    admits every commit meanwhile; `admit()` does so once, by hand. An async session is awaited for
    the two calls: `await session.run_sync(lambda _: guard.advance())`.
    """

    def __init__(
        self,
        session: Any,
        name: str,
        lease: Carrier | int,
        *,
        table: str = TABLE,
        strict: bool | LeaseTable = False,
    ) -> None:
        self._alchemy = fork.lazily("sqlalchemy")
        if isinstance(getattr(session, "registry", None), self._alchemy.util.ScopedRegistry):
            # Its events are those of the class; its session changes by thread and by `remove()`.
            raise InvalidArgument(
                f"{type(session).__name__} stands for another session in each scope, and a "
                "SessionFence guards one: call it, and give the session that it returns"
            )
        self._session = getattr(session, "sync_session", session)
        bound = self._session
        if not isinstance(bound, self._alchemy.Connection):
            if not hasattr(bound, "get_bind"):
                raise InvalidArgument(
                    "a SessionFence needs a Session, an AsyncSession or a Connection of "
                    f"SQLAlchemy, not {type(session).__name__}"
                )
            bound = bound.get_bind()
        driver = DRIVERS.get(bound.dialect.name)
        if driver is None:
            raise InvalidArgument(
                f"{bound.dialect.name} cannot be guarded by a SessionFence: sqlite and postgresql "
                "can; for others write the fence into the row, with fenced() and wrote()"
            )
        self._admission = Admission(driver, name, lease, table, strict)
        self._blocks: list[_Block] = []  # those entered

    def advance(self) -> None:
        """Refuse older tokens from now on. To be committed before the first read under a lease."""
        self._play(bound=False)

    def admit(self) -> None:
        """Admit the transaction that is open, or that begins with this. Raises StaleToken."""
        self._play(bound=True)

    def __enter__(self) -> SessionFence:
        if isinstance(self._session, self._alchemy.Connection):
            raise InvalidArgument(
                "a Connection is admitted by hand: call admit() in its transaction"
            )
        there = self._connections()
        for connection in there:
            self._refuse_loose(connection)
        self._blocks.append(_Block(self, there))
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks.pop().end()

    def _connections(self) -> set[object]:
        """Those whose transaction has begun: each may hold writes of the session already."""
        begun = self._session.get_transaction()
        there = set() if begun is None else {each for each, *_ in begun._connections.values()}
        bound = self._session.get_bind()
        if isinstance(bound, self._alchemy.Connection) and bound.in_transaction():
            there.add(bound)  # of the program: a session that was closed has left it begun
        return there

    def _refuse_loose(self, connection: Any) -> None:
        """At commit it would be too late: each statement would stay as it is written."""
        level = connection.get_execution_options().get("isolation_level")
        raw = connection.connection.driver_connection
        adapter = connection.connection.dbapi_connection  # of asyncpg it alone knows
        loose = level == "AUTOCOMMIT" or commits_alone(raw) or commits_alone(adapter)
        if loose and not in_transaction(raw):
            raise not_together(self._admission.name, "take an engine that is not AUTOCOMMIT")

    def _before_commit(self, session: Any) -> None:
        self._play(bound=True)
        session.flush()  # so that all its connections are there
        parts = session.get_transaction()._connections.values()  # no public name for them
        if len({id(connection) for connection, *_ in parts}) > 1:
            raise self._several()

    def _before_its_commit(self, connection: Any) -> None:
        """A connection commits: at the end of the session's own commit, or by itself."""
        try:
            if connection.engine is not self._session.get_bind().engine:
                raise self._several()
            self._play_on(connection, bound=True)
        except BaseException:
            # SQLAlchemy takes it for ended, and would lend it on with its writes pending.
            if not connection.invalidated:
                connection.dialect.do_rollback(connection.connection)
            raise

    def _several(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self._admission.name!r}: the session writes into several databases, and the fence "
            "stands in one of them: guard a session of each"
        )

    def _play(self, *, bound: bool) -> None:
        session = self._session
        is_connection = isinstance(session, self._alchemy.Connection)
        self._play_on(session if is_connection else session.connection(), bound=bound)

    def _play_on(self, connection: Any, *, bound: bool) -> None:
        plan = self._admission.plan(bound=bound)
        try:
            statement = next(plan)
            while True:
                try:
                    found = self._answer(connection, statement)
                except self._alchemy.exc.DBAPIError as error:
                    statement = plan.throw(error)
                else:
                    statement = plan.send(found)
        except StopIteration:
            return
        finally:
            plan.close()

    def _answer(self, connection: Any, statement: Statement) -> SqlAnswer:
        parts = statement.sql.split("?")
        sql = parts[0] + "".join(f":p{at}{part}" for at, part in enumerate(parts[1:]))
        given = {f"p{at}": each for at, each in enumerate(statement.parameters)}
        text = self._alchemy.text(sql).execution_options(preserve_rowcount=True)
        result = connection.execute(text, given)
        rows = tuple(tuple(row) for row in result) if result.returns_rows else ()
        raw = connection.connection.driver_connection
        return SqlAnswer(result.rowcount, rows, in_transaction(raw))


class _Block:
    """What one block hears until it ends; each method is called as its event.

    The methods are of one block: SQLAlchemy hears one function once.
    """

    OF_SESSION = ("after_begin", "before_commit")
    OF_CONNECTION = ("begin", "commit", "prepare_twophase", "commit_twophase")

    def __init__(self, guard: SessionFence, connections: set[object]) -> None:
        self._guard, self._event = guard, guard._alchemy.event
        self._connections: WeakSet[object] = WeakSet()  # of an engine each commit brings a new one
        for connection in connections:
            self._hear(connection)
        for name in self.OF_SESSION:
            self._event.listen(guard._session, name, getattr(self, name))

    def _hear(self, connection: object) -> None:
        self._connections.add(connection)
        for name in self.OF_CONNECTION:
            self._event.listen(connection, name, getattr(self, name))

    def end(self) -> None:
        for name in self.OF_SESSION:
            self._event.remove(self._guard._session, name, getattr(self, name))
        for connection in self._connections:
            for name in self.OF_CONNECTION:
                self._event.remove(connection, name, getattr(self, name))

    def before_commit(self, session: object) -> None:
        self._guard._before_commit(session)

    def after_begin(self, _session: object, _begun: object, connection: object) -> None:
        self._guard._refuse_loose(connection)
        self._hear(connection)

    def begin(self, connection: object) -> None:
        self._guard._refuse_loose(connection)

    def commit(self, connection: object) -> None:
        self._guard._before_its_commit(connection)

    def prepare_twophase(self, connection: object, _xid: object) -> None:
        self._guard._before_its_commit(connection)

    def commit_twophase(self, connection: object, _xid: object, is_prepared: bool) -> None:
        if not is_prepared:  # else it was admitted then, and its row is locked since
            self._guard._before_its_commit(connection)


def fenced(statement: Any, column: Any, lease: Carrier | int) -> object:
    """An UPDATE or DELETE of SQLAlchemy that leaves rows with a newer fence alone.

    `column`: of the fence, as `Account.fence` or `table.c.fence`; an UPDATE stores the token there.
    Give the result of its execution to `wrote`.
    """
    alchemy = fork.lazily("sqlalchemy")
    token = token_of(lease, str(column))
    statement = statement.where(alchemy.or_(column.is_(None), column <= token))
    if getattr(statement, "is_update", False):
        statement = statement.values({column: token})
    return statement


def wrote(result: Any, lease: Carrier | int, rows: int = 1) -> None:
    """Raises StaleToken unless so many rows were written: roll back then."""
    if rows < 1 or result.rowcount < 0 or result.rowcount > rows:
        raise InvalidArgument(
            f"{result.rowcount} rows were written where {rows} were expected: roll back"
        )
    if result.rowcount < rows:
        error = stale("rows", token_of(lease, "rows"), None)
        error.add_note(f"{result.rowcount} of {rows} rows were admitted (a row may also not exist)")
        raise error
