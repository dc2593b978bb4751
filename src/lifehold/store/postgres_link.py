"""Connections to one PostgreSQL, over a blocking or an asynchronous client.

Promise: one request is one round trip on a connection that nobody else uses; whoever asks gets an
answer, or an error that says whether anything can have happened, within `limit` seconds.

How it could fail, and what keeps it. A server that is paused answers neither yes nor no: the wait
ends at its limit (postgres_wire.py), and the server's own `statement_timeout` ends what it still
does. A server that was restarted leaves dead connections: one that has anything to read while idle
is not used. A fork shares the sockets: the child closes its copies without a word to the server
(L9). A task or thread that is interrupted gives its connection up.
"""

from __future__ import annotations

import _thread
import os

from ..core.storage import NoReply, Unreachable
from ..runtime import clock, fork
from . import postgres_wire as wire
from .postgres_words import place, refused, said
from .settle import settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_open: dict[int, Any] = {}  # every connection of this process
_inherited: list[Any] = []  # those of the parent: never closed by libpq, which would say good-bye


@fork.in_child
def _leave_to_parent() -> None:
    """L9  The copies of the descriptors are closed, so that the parent's end is seen as one."""
    for connection in _open.values():
        _inherited.append(connection)
        try:
            os.close(connection.fileno())
        except Exception:  # noqa: BLE001, S112 - libpq's own errors: it was closed already
            continue
    _open.clear()


def close_all() -> None:
    """At the end of the process."""
    for connection in list(_open.values()):
        drop(connection)


def keep(connection: Any) -> Any:
    """Note a connection that was opened."""
    if not _open:
        atexit: Any = fork.lazily("atexit")
        atexit.unregister(close_all)
        atexit.register(close_all)
    _open[id(connection)] = connection
    return connection


def drop(connection: Any) -> None:
    """Close it at once, in any thread and without its event loop."""
    if _open.pop(id(connection), None) is not None:
        connection.pgconn.finish()


class Link:
    """Connections of our own, `most` at most.

    `connect`: opens one; `bell`: lets a caller wait for a free one; `known`: host, database and so
    on, for messages.
    """

    prepared = True

    def __init__(
        self, connect: Callable[[], Any], bell: Callable[[], Any], known: dict[str, Any],
        limit: float, most: int,
    ) -> None:  # fmt: skip
        self._connect, self._bell, self.known = connect, bell, known
        self.limit, self.most = limit, most
        self._begin()

    def _begin(self) -> None:
        self._mutex = _thread.allocate_lock()
        self._idle: list[Any] = []
        self._waiting: list[Any] = []
        self._count = 0
        self._generation = fork.here()

    async def ask(
        self, query: str | Callable[[], tuple[str, bool]], given: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """One statement, one round trip. Raises Unreachable, NoReply.

        `query`: or what says it, and whether it was prepared, once it is known what the connection
        leads to.
        """
        connection = await self._take()
        try:
            text, prepared = (query, False) if isinstance(query, str) else query()
            rows = await wire.ask(connection, text, given, self.limit, prepared=prepared)
        except Exception as error:
            if isinstance(error, wire.Failed) and goes_on(connection, error):
                self._free(connection)
            else:
                self._lose(connection)
            raise told(error, self.known, self.limit) from error
        except BaseException:
            self._lose(connection)
            raise
        self._free(connection)
        return rows

    # ---- one connection for one request

    async def _take(self) -> Any:
        if self._generation != fork.here():
            self._begin()
        until = clock.now() + self.limit
        while True:
            bell = None
            with self._mutex:
                if self._idle:
                    connection = self._idle.pop()
                elif self._count < self.most:
                    self._count += 1
                    connection = None
                else:
                    bell = self._bell()
                    self._waiting.append(bell)
            if bell is not None:
                await self._wait(bell, until)
            elif connection is None:
                return await self._opened()
            elif usable(connection):
                return connection
            else:
                self._lose(connection)

    async def _wait(self, bell: Any, until: float) -> None:
        try:
            await settle(bell.wait(max(0.0, until - clock.now())))
        except BaseException:
            if not self._forgotten(bell):
                self._ring()  # it was rung for us, who go away: let the next one have it
            raise
        if self._forgotten(bell) and clock.now() >= until:
            raise Unreachable(
                f"{place(self.known)}: all {self.most} connections were in use for {self.limit:g} "
                "s: allow more with connect(url, connections=...)"
            )

    def _forgotten(self, bell: Any) -> bool:
        """Whether it was not rung; it is not going to be."""
        with self._mutex:
            if bell not in self._waiting:
                return False
            self._waiting.remove(bell)
            return True

    async def _opened(self) -> Any:
        try:
            return keep(await settle(self._connect()))
        except Exception as error:
            self._free(None)
            if hasattr(error, "sqlstate"):
                raise Unreachable(said(error, self.known)) from error
            raise
        except BaseException:
            self._free(None)
            raise

    def _lose(self, connection: Any) -> None:
        drop(connection)
        self._free(None)

    def _free(self, connection: Any) -> None:
        with self._mutex:
            if connection is None:
                self._count -= 1
            else:
                self._idle.append(connection)
        self._ring()

    def _ring(self) -> None:
        with self._mutex:
            bell = self._waiting.pop(0) if self._waiting else None
        if bell is not None:
            bell.ring()

    def close(self) -> None:
        """Close what is idle. It opens again when it is asked."""
        with self._mutex:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
        for connection in idle:
            drop(connection)


def told(error: Exception, known: dict[str, Any], limit: float) -> Exception:
    """What a failed request means: Unreachable, NoReply, or itself where it is none of ours."""
    if isinstance(error, wire.Silent):
        return NoReply(f"{place(known)}: no answer within {limit:g} s")
    if hasattr(error, "sqlstate"):
        return refused(error, known)
    return error


def goes_on(connection: Any, error: wire.Failed) -> bool:
    """Whether a connection may be used again: its server took it, and is no replica now."""
    return error.sqlstate != "25006" and not connection.closed


def usable(connection: Any) -> bool:
    """Whether an idle connection has nothing to say: what it says then is good-bye."""
    if connection.closed:
        return False
    select: Any = fork.lazily("select")
    if not hasattr(select, "poll"):
        return True
    looks = select.poll()
    looks.register(connection.fileno(), select.POLLIN)
    return not looks.poll(0)
