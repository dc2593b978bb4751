"""Connections to one PostgreSQL, over a blocking or an asynchronous client.

Promise: one request is one round trip on a connection that nobody else uses; whoever asks gets an
answer, or an error that says whether anything can have happened, within `limit` seconds.

How it could fail, and what keeps it. A server that is paused answers neither yes nor no: the wait
ends at its limit (wire.py), and the server's own `statement_timeout` ends what it still
does. A server that was restarted leaves dead connections: one that has anything to read while idle
is not used. A fork shares the sockets: the child closes its copies without a word to the server
(L9). A task or thread that is interrupted gives its connection up, unless the answer comes soon.
"""

from __future__ import annotations

import _thread
import os

from ...core.deadline import NEVER
from ...core.storage import NoReply, Unreachable
from ...runtime import clock, fork, heartbeat
from ..settle import settle
from . import wire
from .words import place, refused, said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

IDLE = 30.0  # seconds for which a connection stays open that nobody uses
LOOK = 5.0  # seconds between two looks for such
SHORTEST = 0.05  # seconds for an answer, where opening the connection has taken all of the limit
_open: dict[int, Any] = {}  # every connection of this process
_watched: list[Link] = []  # those that have idle connections
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
    _watched.clear()


def _watch(link: Link) -> None:
    """Have its idle connections closed in time, by one thread for all.

    The heartbeat thread is not asked: each lease that is taken would wake it.
    """
    with fork.gate:
        _watched.append(link)
        if len(_watched) > 1:
            return
        try:
            heartbeat.thread(_keep)
        except RuntimeError:  # no thread to be had: the next one tries again
            _watched.clear()
            link._watched = False


def _keep() -> None:
    _signal: Any = fork.lazily("_signal")
    if hasattr(_signal, "pthread_sigmask"):  # signals are for the thread that knows of them
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    generation = fork.generation
    while True:
        clock.pause(min(LOOK, IDLE / 2))
        for link in list(_watched):
            idle = link.sweep()
            with fork.gate:
                if not idle and generation == fork.generation and link in _watched:
                    _watched.remove(link)
        with fork.gate:
            if not _watched or generation != fork.generation:
                return


def close_all() -> None:
    """At the end of the process."""
    fork.here()  # L9  a child that C code has forked would say good-bye in its parent's name
    for connection in list(_open.values()):
        drop(connection)


def keep(connection: Any) -> Any:
    """Note a connection that was opened. Safe to repeat."""
    if not _open:
        atexit: Any = fork.lazily("atexit")
        atexit.unregister(close_all)
        atexit.register(close_all)
    _open[id(connection)] = connection
    return connection


def drop(connection: Any) -> None:
    """Close it at once, in any thread and without its event loop."""
    fork.here()
    if _open.pop(id(connection), None) is not None:
        connection.pgconn.finish()


class Link:
    """Connections of our own, `most` at most.

    `connect`: opens one, until an instant; `bell`: lets a caller wait for a free one; `plan`: what
    the URL asks for.
    """

    prepared = True

    def __init__(
        self, connect: Callable[[float], Any], bell: Callable[[], Any], plan: Any, most: int,
    ) -> None:  # fmt: skip
        self._connect, self._bell, self._plan = connect, bell, plan
        self.known, self.limit, self.most = plan.known, plan.limit, most
        self._begin()

    def _begin(self) -> None:
        self._mutex = _thread.allocate_lock()
        self._idle: list[tuple[float, wire.Line]] = []  # since when; the last used is used next
        self._watched = False  # by the thread that closes what is idle
        self._waiting: list[Any] = []
        weakref: Any = fork.lazily("weakref")
        self._lines = weakref.WeakSet()  # idle, or in a hand: one that is lost is not counted
        self._generation = fork.here()

    async def ask(
        self, query: str | Callable[[], tuple[str, bool]], given: Sequence[Any] = (),
        until: float = NEVER,
    ) -> list[tuple[Any, ...]]:  # fmt: skip
        """One statement, one round trip. Raises Unreachable, NoReply.

        `query`: or what says it, and whether it was prepared, once it is known what the connection
        leads to; `until`: the instant at which the caller wants no answer any more. In all it takes
        `limit` seconds: for a free connection, for a new one, and for the answer.
        """
        began = clock.now()
        until = min(until, began + self.limit)
        line = await self._take(until)
        try:
            text, prepared = (query, False) if isinstance(query, str) else query()
            lent = self._plan.pooled
            left = max(SHORTEST, until - clock.now())
            rows = await line.ask(text, given, left, prepared=prepared, lent=lent)
        except Exception as error:
            self._put(line, line.goes_on(error))
            raise told(error, self.known, clock.now() - began) from error
        except GeneratorExit:  # nothing can be awaited any more
            self._put(line, False)
            raise
        except BaseException:
            heard = False
            try:
                heard = await line.hear_out()
            finally:  # also when interrupted again
                self._put(line, heard)
            raise
        self._put(line, True)
        return rows

    # ---- one connection for one request

    async def _take(self, until: float) -> wire.Line:
        if self._generation != fork.here():
            self._begin()
        while True:
            bell = None
            with self._mutex:
                if self._idle:
                    line = self._idle.pop()[1]
                elif len(self._lines) < self.most:
                    line = wire.Line()
                    self._lines.add(line)
                else:
                    bell = self._bell()
                    self._waiting.append(bell)
            if bell is not None:
                await self._wait(bell, until)
            elif line.connection is None:
                return await self._opened(line, until)
            elif line.usable():
                return line
            else:
                self._put(line, False)

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

    async def _opened(self, line: wire.Line, until: float) -> wire.Line:
        try:
            connection = keep(await settle(self._connect(until)))
            weakref: Any = fork.lazily("weakref")
            weakref.finalize(line, drop, connection)  # also when nobody puts it back
            line.over(connection)
        except BaseException as error:
            self._gone(line)
            if isinstance(error, Exception) and hasattr(error, "sqlstate"):
                raise Unreachable(said(error, self.known)) from error
            raise
        return line

    def _put(self, line: wire.Line, goes_on: bool) -> None:
        """Give it back, or give it up."""
        if self._generation != fork.here():
            return  # L9  it was our parent's: a signal handler has forked
        if not goes_on:
            drop(line.connection)
            self._gone(line)
            return
        with self._mutex:
            self._idle.append((clock.now(), line))
            watched, self._watched = self._watched, True
        if not watched:
            _watch(self)
        self._ring()

    def sweep(self) -> bool:
        """Close what nobody has used for a while. Whether anything is idle still."""
        if self._generation != fork.here():
            return False
        with self._mutex:
            over = [each for each in self._idle if each[0] + IDLE <= clock.now()]
            self._idle = [each for each in self._idle if each not in over]
            self._watched = bool(self._idle)
        self._close(over)
        return self._watched

    def _close(self, idle: list[tuple[float, wire.Line]]) -> None:
        with self._mutex:
            for _, line in idle:
                self._lines.discard(line)
        for _, line in idle:
            drop(line.connection)

    def _gone(self, line: wire.Line) -> None:
        """One connection less."""
        with self._mutex:
            self._lines.discard(line)
        self._ring()

    def _ring(self) -> None:
        with self._mutex:
            bell = self._waiting.pop(0) if self._waiting else None
        if bell is not None:
            bell.ring()

    def close(self) -> None:
        """Close what is idle. It opens again when it is asked."""
        if self._generation != fork.here():
            return
        with self._mutex:
            idle, self._idle = self._idle, []
        self._close(idle)


def told(error: Exception, known: dict[str, Any], limit: float) -> Exception:
    """What a failed request means: Unreachable, NoReply, or itself where it is none of ours."""
    if isinstance(error, wire.Silent):
        return NoReply(f"{place(known)}: no answer within {limit:.3g} s")
    if hasattr(error, "sqlstate"):
        return refused(error, known)
    return error
