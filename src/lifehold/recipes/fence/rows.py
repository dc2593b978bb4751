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

from ...core.errors import InvalidArgument
from ...core.fence import stale
from .rule import token_of
from .steps import Statement, aplay, driver_of, identifier, in_transaction, play

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rule import Carrier
    from .steps import Driver, Plan

__all__ = ["AsyncRowFence", "RowFence"]

PARAMETER = "lifehold_token"


class _RowFence:
    """The words and statements, for both faces."""

    _asynchronous = False

    def __init__(
        self, connection: Any, table: str, lease: Carrier | int, *, key: str = "id",
        column: str = "fence",
    ) -> None:  # fmt: skip
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
        token = self.token
        coalesced = f"coalesce({self.column}, 0)"
        for key in sorted(keys):  # always in one order, or two holders wait for each other
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
