"""SQLAlchemy 2: a session whose commits are admitted, and words for one UPDATE.

    guard = SessionFence(session, "account/7", lease)
    guard.advance(); session.commit()   # before the first read: older tokens are refused from here
    with guard:                         # every commit of the session is admitted first
        session.get(Account, 7).amount += 20
        session.commit()                # StaleToken, and nothing is written

Promise: nothing that the session has done reaches the database for good under a token older than
one that was admitted: flushes, bulk statements, and what went through `session.connection()`. A
session that writes into several databases is refused, since a fence guards its own alone.
Rule: the admission of sql.py runs in `before_commit`, in the very transaction that is to be
committed. That event, and neither `before_flush` nor `do_orm_execute`, sees all of these.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.fence import stale
from ...runtime import fork
from .rule import token_of
from .sql import TABLE, Admission
from .steps import POSTGRES, SQLITE, Answer, in_transaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rule import Carrier
    from .sql import LeaseTable
    from .steps import Statement

__all__ = ["SessionFence", "fenced", "wrote"]

DRIVERS = {"sqlite": SQLITE, "postgresql": POSTGRES}


class SessionFence:
    """The fence `name` for a `Session`, an `AsyncSession`, or a `Connection` of SQLAlchemy.

    `name`, `lease`, `table`, `strict`: as of `SqlFence`. As a context manager (sessions only) it
    admits every commit meanwhile; `admit()` does so once, by hand. An async session is awaited for
    the two calls: `await session.run_sync(lambda _: guard.advance())`.
    """

    def __init__(
        self, session: Any, name: str, lease: Carrier | int, *, table: str = TABLE,
        strict: bool | LeaseTable = False,
    ) -> None:  # fmt: skip
        self._session = getattr(session, "sync_session", session)
        self._alchemy: Any = fork.lazily("sqlalchemy")
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
        self._alchemy.event.listen(self._session, "before_commit", self._before_commit)
        return self

    def __exit__(self, *_: object) -> None:
        self._alchemy.event.remove(self._session, "before_commit", self._before_commit)

    def _before_commit(self, session: Any) -> None:
        self._play(bound=True)
        session.flush()  # so that all its connections are there
        parts = session.get_transaction()._connections.values()  # no public name for them
        if len({id(connection) for connection, *_ in parts}) > 1:
            raise InvalidArgument(
                f"{self._admission.name!r}: the session writes into several databases, and the "
                "fence stands in one of them: guard a session of each"
            )

    def _play(self, *, bound: bool) -> None:
        session = self._session
        is_connection = isinstance(session, self._alchemy.Connection)
        connection = session if is_connection else session.connection()
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

    def _answer(self, connection: Any, statement: Statement) -> Answer:
        parts = statement.sql.split("?")
        sql = parts[0] + "".join(f":p{at}{part}" for at, part in enumerate(parts[1:]))
        given = {f"p{at}": each for at, each in enumerate(statement.parameters)}
        text = self._alchemy.text(sql).execution_options(preserve_rowcount=True)
        result = connection.execute(text, given)
        rows = tuple(tuple(row) for row in result) if result.returns_rows else ()
        raw = connection.connection.driver_connection
        return Answer(result.rowcount, rows, in_transaction(raw))


def fenced(statement: Any, column: Any, lease: Carrier | int) -> Any:
    """An UPDATE or DELETE of SQLAlchemy that leaves rows with a newer fence alone.

    `column`: of the fence, as `Account.fence` or `table.c.fence`; an UPDATE stores the token there.
    Give the result of its execution to `wrote`.
    """
    alchemy: Any = fork.lazily("sqlalchemy")
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
