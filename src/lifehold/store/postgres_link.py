"""Connections to one PostgreSQL, over a blocking or an asynchronous client.

Promise: one request is one round trip on a connection that nobody else uses; whoever asks gets an
answer, or an error that says whether anything can have happened, within `limit` seconds.

How it could fail, and what keeps it. A server that is paused answers neither yes nor no: the
heartbeat thread shuts the connection down at its limit, and the server's own `statement_timeout`
ends what it still does. A server that was restarted leaves dead connections: one that has anything
to read while idle is not used. A fork shares the sockets: the child closes its copies without a
word to the server (L9). A task or thread that is interrupted gives its connection up.
"""

from __future__ import annotations

import _thread
import os

from ..core.storage import NoReply, Unreachable
from ..runtime import clock, fork, heartbeat
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


class Watch:
    """Shuts down a connection whose answer does not come."""

    __slots__ = ("cut", "fd", "mutex", "over", "strike")

    def __init__(self, connection: Any, limit: float) -> None:
        self.mutex = _thread.allocate_lock()
        self.over = self.cut = False
        self.fd = connection.fileno()
        try:
            self.strike = heartbeat.at(clock.now() + limit, self._cut)
        except RuntimeError:  # no thread to be had: the server's own limit remains
            self.strike = _nothing

    def _cut(self) -> None:
        with self.mutex:  # so the descriptor is still that of this connection
            if self.over:
                return
            self.cut = True
            sockets: Any = fork.lazily("socket")
            with sockets.socket(fileno=os.dup(self.fd)) as copy:
                try:
                    copy.shutdown(sockets.SHUT_RDWR)
                except OSError:
                    pass  # the other side was faster

    def end(self) -> bool:
        """The answer came, or never will. Whether it was cut."""
        with self.mutex:
            self.over = True
        self.strike()
        return self.cut


def _nothing() -> None:
    """No appointment was made."""


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
        self, query: str | Callable[[], str], given: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """One statement, one round trip. Raises Unreachable, NoReply.

        `query`: or what says it, once it is known what the connection leads to.
        """
        connection = await self._take()
        try:
            watch, cut = Watch(connection, self.limit), False
            try:
                text = query if isinstance(query, str) else query()
                cursor = await settle(connection.execute(text, given))
                rows: list[tuple[Any, ...]] = await settle(cursor.fetchall())
            finally:
                cut = watch.end()
        except Exception as error:
            if not hasattr(error, "sqlstate"):  # not of the client library: a bug, or no memory
                self._lose(connection)
                raise
            if cut:
                self._lose(connection)
                where = place(self.known)
                raise NoReply(f"{where}: no answer within {self.limit:g} s") from error
            state = getattr(error, "sqlstate", "")
            if connection.closed or state == "25006":  # a replica now: ask others
                self._lose(connection)
            else:
                self._free(connection)
            raise refused(error, self.known) from error
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
