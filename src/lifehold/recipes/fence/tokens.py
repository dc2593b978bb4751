"""Registries: where an HTTP service remembers the newest token of each name.

    MemoryTokens()                              one process, gone with it
    FileTokens("/var/lib/app/tokens")           the processes of one machine
    SqlTokens(lambda: sqlite3.connect("t.db"))  SQLite, PostgreSQL, or a pool's `connection`
    AsyncSqlTokens(pool.connection)             the same for tasks

Promise: `admit` compares and stores in one step; once it has returned, older tokens are refused by
everybody who shares the registry. One method, so that your own is quickly written.
"""

from __future__ import annotations

import hashlib
import os

from ...core.errors import InvalidArgument
from ...core.fence import admit
from ...runtime import fork
from .file import FencedFile
from .rule import check_name, token_of
from .sql import TABLE, AsyncSqlFence, SqlFence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, Protocol

    class Registry(Protocol):
        """The newest token of each name. `blocks`: a call may hold up an event loop."""

        blocks: bool

        def admit(self, name: str, token: int) -> Awaitable[None] | None:
            """Store the token, unless a newer one has been seen: then StaleToken."""
            ...


class MemoryTokens:
    """In the memory of this process, and forgotten with it.

    After a restart older tokens pass until a newer one comes.
    """

    blocks = False

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def admit(self, name: str, token: int) -> None:
        with fork.gate:
            fence = self._tokens.get(name, 0)
            self._tokens[name] = admit(check_name(name), token_of(token, name), fence)


class FileTokens:
    """In a folder, a file for each name, on the disk before a request is let in.

    `options`: of `FencedFile`: `durable`, `mode`, `shared`, `server_locks`, `wait`.
    """

    blocks = True

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        self._folder, self._options = os.path.abspath(os.fspath(folder)), options

    def admit(self, name: str, token: int) -> None:
        digest = hashlib.sha256(check_name(name).encode()).hexdigest()
        FencedFile(f"{self._folder}/{digest}", token, **self._options).advance()


class SqlTokens:
    """In a table of SQLite or PostgreSQL, made by `create_table`.

    `connect`: called for each request; a connection, which is closed then, or a context manager
    that lends one, as `pool.connection` of psycopg_pool.
    """

    blocks = True

    def __init__(self, connect: Callable[[], Any], *, table: str = TABLE) -> None:
        self._connect, self._table = connect, table

    def admit(self, name: str, token: int) -> None:
        made = self._connect()
        if not hasattr(made, "cursor"):
            with made as connection:
                self._advance(connection, name, token)
            return
        try:
            self._advance(made, name, token)
        finally:
            made.close()

    def _advance(self, connection: Any, name: str, token: int) -> None:
        try:
            SqlFence(connection, name, token, table=self._table).advance()
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


class AsyncSqlTokens:
    """The same with an async connection.

    `connect`: answers an awaitable (`psycopg.AsyncConnection.connect(...)`) or an async context
    manager that lends one (`pool.connection()`, `aiosqlite.connect(...)`).
    """

    blocks = False

    def __init__(self, connect: Callable[[], Any], *, table: str = TABLE) -> None:
        self._connect, self._table = connect, table

    async def admit(self, name: str, token: int) -> None:
        made = self._connect()
        if hasattr(made, "__aenter__"):
            async with made as connection:
                await self._advance(connection, name, token)
            return
        connection = await made
        try:
            await self._advance(connection, name, token)
        finally:
            await connection.close()

    async def _advance(self, connection: Any, name: str, token: int) -> None:
        try:
            await AsyncSqlFence(connection, name, token, table=self._table).advance()
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()


def check_registry(registry: Any) -> Any:
    """Raises InvalidArgument for what has no `admit`."""
    if not callable(getattr(registry, "admit", None)):
        raise InvalidArgument(
            "registry must have a method admit(name, token), as MemoryTokens() has, not "
            f"{registry!r}"
        )
    return registry
