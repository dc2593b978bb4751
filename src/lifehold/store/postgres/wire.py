"""One request to PostgreSQL by libpq itself: sent, waited for, its rows read.

Promise: one round trip, and at most `limit` seconds; then `NoAnswer`. Nothing is begun or committed
besides: outside of a transaction each statement is one of its own. The cursors of psycopg do the
same and more; a pair costs the client 1.2 to 1.3 times the CPU by them.

L13  A connection that is lent, by a pooler or a pool of the program, may have any isolation level
    and any limits, and has to keep them. So what is asked there says both for itself: `LENT` and
    the statement go as one text, which the server runs as one transaction, and undoes as one.

How it could fail, and what keeps it. A server that is paused: the wait ends by itself, blocking or
awaited. Who is interrupted in the wait hears the answer out for a moment (`hear_out`), so that what
is asked next, on whatever connection, comes behind it; else the connection must be given up.
"""

from __future__ import annotations

import _thread
import os

from ...core.backend import NoReply, Unable, Unreachable
from ...core.deadline import NEVER
from ...core.errors import InvalidArgument
from ...runtime import clock, fork, heartbeat
from ..settle import settle
from .messages import place, refused, said

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import json
    import select
    from collections.abc import Callable, Sequence
    from typing import Any

    Parameters = list[bytes | None]
else:
    asyncio = fork.later("asyncio", globals())
    json = fork.later("json", globals())
    select = fork.later("select", globals())

BOOL, JSON, FLOAT, BOOLS = 16, 114, 701, 1000  # types of results, by their number in pg_type
WHOLES = frozenset((20, 21, 23))
IDLE = 0  # pq.TransactionStatus
MOMENT = 1.0  # seconds for an answer that nobody wants any more
UNDONE = frozenset(("40001", "40P01"))  # SQLSTATE: a serialization failure, a deadlock
LENT = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {}; "
ENDED = frozenset((5, 6, 7))  # pq.ExecStatus: an answer that could not be read, or an error


UNHELD = (
    "{!r:.80} cannot be told in the encoding of this connection ({}): leave its client_encoding at "
    "UTF8, and use a database in UTF8"
)


class NoAnswer(Exception):
    """No answer within the limit."""

    sqlstate = None


class QueryFailed(Exception):
    """The server's own words: SQLSTATE, severity, message."""

    def __init__(self, result: Any) -> None:
        found = (result.error_field(ord(letter)) for letter in "CVM")
        words = [field.decode("utf-8", "replace") if field else None for field in found]
        self.sqlstate, self.severity_nonlocalized, self.message_primary = words
        super().__init__(result.error_message.decode("utf-8", "replace").strip())

    @property
    def diag(self) -> QueryFailed:
        """As of an error of psycopg."""
        return self


def parameters(given: Sequence[Any], codec: str = "utf-8") -> Parameters:
    """Values as PostgreSQL reads them in text. Raises InvalidArgument, Unable."""
    try:
        return [None if one is None else _text(one).encode(codec) for one in given]
    except UnicodeEncodeError as error:
        raise Unable(UNHELD.format(error.object, codec)) from error


def _text(one: object) -> str:
    if isinstance(one, str):
        if "\0" in one:
            raise InvalidArgument(f"PostgreSQL keeps no text with a NUL: {one!r}")
        return one
    if isinstance(one, bool):
        return "t" if one else "f"
    if isinstance(one, list):
        return "{" + ",".join(_quoted(_text(each)) for each in one) + "}"
    return repr(one)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class ServerConnection:
    """A connection of psycopg, `connection`, on which one request goes at a time."""

    __slots__ = ("__weakref__", "_awaited", "_codec", "_looks", "_pgconn", "connection")

    def __init__(self, connection: Any = None) -> None:
        self.connection = connection
        if connection is not None:
            self.over(connection)

    def over(self, connection: Any) -> None:
        """Go over this connection from now on."""
        self.connection, self._pgconn = connection, connection.pgconn
        self._codec: str = connection.info.encoding
        self._awaited = hasattr(connection, "__aenter__")
        self._looks: Any = None
        if hasattr(select, "poll"):
            self._looks = select.poll()
            self._looks.register(connection.pgconn.socket, select.POLLIN)

    async def ask(
        self,
        statement: str,
        given: Sequence[object],
        limit: float,
        *,
        prepared: bool = False,
        lent: bool = False,
    ) -> list[tuple[object, ...]]:
        """The rows of one statement with $1, $2 ..., or of one that was prepared under that name.

        `lent`: the session is others' too, and stays as it is.
        What the server undid because of others is asked again. Raises NoAnswer, QueryFailed,
        psycopg.OperationalError where the connection ended.
        """
        until, values = clock.now() + limit, parameters(given, self._codec)
        whole = ""
        if lent:
            whole = LENT.format(int(limit * 1000)) + self._filled(statement, values)
        while True:
            try:
                return await self._once(whole or statement, values, until, prepared, whole != "")
            except QueryFailed as error:
                if error.sqlstate not in UNDONE or clock.now() >= until:
                    raise

    async def _once(
        self, statement: str, values: Parameters, until: float, prepared: bool, whole: bool
    ) -> list[tuple[object, ...]]:
        pgconn = self._pgconn
        if whole:
            pgconn.send_query(statement.encode(self._codec))
        elif prepared:
            pgconn.send_query_prepared(statement.encode(), values)
        else:
            pgconn.send_query_params(statement.encode(self._codec), values)
        while pgconn.flush():  # the server reads slowly, and may want to be heard first
            await self._wait(until, writes=True)
            pgconn.consume_input()
        try:
            return _rows(await self._answer(until), self._codec)
        except UnicodeDecodeError as error:  # whatever was asked for has been done
            raise InvalidArgument(UNHELD.format(error.object, self._codec)) from error

    async def run(self, text: str, until: float) -> list[tuple[object, ...]]:
        """The rows of the last of some statements without values. Raises as `ask`."""
        return await self._once(text, [], until, False, True)

    def _filled(self, statement: str, values: Parameters) -> str:
        """The statement with its values in it."""
        pq = fork.lazily("psycopg.pq")
        re = fork.lazily("re")
        quote = pq.Escaping(self._pgconn).escape_literal

        def value(found: Any) -> str:
            one = values[int(found[1]) - 1]
            return "NULL" if one is None else bytes(quote(one)).decode(self._codec)

        text: str = re.sub(r"\$(\d+)", value, statement)
        return text

    async def calls(self, seconds: float) -> list[str]:
        """What NOTIFY has said within that time, as soon as there is anything; [] for nothing.

        Raises psycopg.OperationalError where the connection ended.
        """
        pgconn = self._pgconn
        told = [*iter(pgconn.notifies, None)]  # they may have come with an answer
        if not told:
            try:
                await self._wait(clock.now() + seconds)
            except NoAnswer:
                return []
            pgconn.consume_input()
            told = [*iter(pgconn.notifies, None)]
        return [call.extra.decode(self._codec) for call in told]

    async def hear_out(self) -> bool:
        """After an interruption: whether the connection is free again, soon.

        A task that is cancelled once more meanwhile, as by anyio at each step, listens on.
        """
        until = clock.now() + MOMENT
        while self._pgconn.transaction_status != IDLE:
            try:
                await self._answer(until)
                break
            except Exception:  # noqa: BLE001 - it is given up
                return False
            except BaseException as error:
                if not self._awaited or not isinstance(error, _cancelled()):
                    raise
                if clock.now() >= until:
                    return False
            try:
                self._pgconn.consume_input()  # what has come while the next cancel was on its way
            except Exception:  # noqa: BLE001
                return False
        return bool(self._pgconn.transaction_status == IDLE)

    def goes_on(self, error: Exception) -> bool:
        """Whether it may be used again: its server answered, lives on, and is no replica now.

        Unable: it was not even asked.
        """
        answered = isinstance(error, QueryFailed) and error.sqlstate != "25006"
        return (answered or isinstance(error, Unable)) and not self.connection.closed

    def usable(self) -> bool:
        """Whether it has nothing to say while idle: what it says then is good-bye."""
        if self.connection.closed:
            return False
        return self._looks is None or not self._looks.poll(0)

    async def _answer(self, until: float) -> object:
        pgconn, last = self._pgconn, None
        while True:
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    return last
                last = result if last is None or last.status not in ENDED else last
            await self._wait(until)
            pgconn.consume_input()

    async def _wait(self, until: float, *, writes: bool = False) -> None:
        """Until the server is heard, or can be written to."""
        left = max(0.0, until - clock.now())
        if self._awaited:
            heard = await _told(self._pgconn.socket, left, writes)
        elif self._looks is None:
            fds = [self._pgconn.socket]
            heard = any(select.select(fds, fds if writes else [], [], left))
        else:
            self._looks.modify(self._pgconn.socket, select.POLLIN | (writes and select.POLLOUT))
            heard = self._looks.poll(left * 1000)
        if not heard:
            raise NoAnswer("no answer in time")


def _rows(result: Any, codec: str) -> list[tuple[object, ...]]:
    if result.status in ENDED:
        raise QueryFailed(result)
    columns = range(result.nfields)
    kinds = [result.ftype(column) for column in columns]
    return [
        tuple(_value(kinds[column], result.get_value(row, column), codec) for column in columns)
        for row in range(result.ntuples)
    ]


def _value(kind: int, raw: bytes | None, codec: str) -> object:
    if raw is None:
        return None
    if kind == BOOL:
        return raw == b"t"
    if kind in WHOLES:
        return int(raw)
    if kind == FLOAT:
        return float(raw)
    if kind == BOOLS:
        return [one == b"t" for one in raw[1:-1].split(b",") if one]
    if kind == JSON:
        return json.loads(raw.decode(codec))
    return raw.decode(codec)


async def _told(fd: int, seconds: float, writes: bool) -> bool:
    """Whether asyncio's loop hears of it within so many seconds."""
    loop = asyncio.get_running_loop()
    heard = loop.create_future()
    alarm = loop.call_later(seconds, _tell, heard, False)
    loop.add_reader(fd, _tell, heard, True)
    if writes:
        loop.add_writer(fd, _tell, heard, True)
    try:
        return bool(await heard)
    finally:
        alarm.cancel()
        loop.remove_reader(fd)
        if writes:
            loop.remove_writer(fd)


def _cancelled() -> Any:
    return asyncio.CancelledError


def _tell(heard: Any, found: bool) -> None:
    if not heard.done():
        heard.set_result(found)


# ------------------------------------------------------------------------------------------------
# Connections to one PostgreSQL, over a blocking or an asynchronous client.
#
# Promise: one request is one round trip on a connection that nobody else uses; whoever asks gets an
# answer, or an error that says whether anything can have happened, within `limit` seconds.
#
# How it could fail, and what keeps it. A server that is paused answers neither yes nor no: the wait
# ends at its limit (wire.py), and the server's own `statement_timeout` ends what it still does. A
# server that was restarted leaves dead connections: one that has anything to read while idle is not
# used. A fork shares the sockets: the child closes its copies without a word to the server (L9). A
# task or thread that is interrupted gives its connection up, unless the answer comes soon.


IDLE_SECONDS = 30.0  # seconds for which a connection stays open that nobody uses
LOOK = 5.0  # seconds between two looks for such
SHORTEST = 0.05  # seconds for an answer, where opening the connection has taken all of the limit
_open: dict[int, Any] = {}  # every connection of this process
_watched: list[ConnectionPool] = []  # those that have idle connections
_watches = False  # whether a thread closes them in time
_inherited: list[
    object
] = []  # those of the parent: never closed by libpq, which would say good-bye


@fork.in_child
def _leave_to_parent() -> None:
    """L9  The copies of the descriptors are closed, so that the parent's end is seen as one."""
    global _watches
    _watches = False
    for connection in _open.values():
        _inherited.append(connection)
        try:
            os.close(connection.fileno())
        except Exception:  # noqa: BLE001, S112 - libpq's own errors: it was closed already
            continue
    _open.clear()
    _watched.clear()


def _watch(link: ConnectionPool) -> None:
    """Have its idle connections closed in time, by one thread for all.

    The heartbeat thread is not asked: each lease that is taken would wake it.
    """
    global _watches
    with fork.gate:
        _watched.append(link)
        starts, _watches = not _watches, True
        try:
            if starts:
                heartbeat.thread(_keep)
        except BaseException as error:  # no thread to be had, or a signal: the next one tries again
            _watches = link._watched = False
            _watched.remove(link)
            if not isinstance(error, RuntimeError):
                raise


def _keep() -> None:
    global _watches
    _signal = fork.lazily("_signal")
    if hasattr(_signal, "pthread_sigmask"):  # signals are for the thread that knows of them
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    generation = fork.generation
    while True:
        clock.pause(min(LOOK, IDLE_SECONDS / 2))
        for link in list(_watched):
            idle = link.sweep()
            with fork.gate:
                if not idle and generation == fork.generation and link in _watched:
                    _watched.remove(link)
        with fork.gate:
            if generation != fork.generation:
                return
            if not _watched:
                _watches = False
                return


def close_all() -> None:
    """At the end of the process."""
    fork.here()  # L9  a child that C code has forked would say good-bye in its parent's name
    for connection in list(_open.values()):
        drop(connection)


def keep(connection: object) -> object:
    """Note a connection that was opened. Safe to repeat."""
    if not _open:
        atexit = fork.lazily("atexit")
        atexit.unregister(close_all)
        atexit.register(close_all)
    _open[id(connection)] = connection
    return connection


def drop(connection: Any) -> None:
    """Close it at once, in any thread and without its event loop."""
    fork.here()
    if _open.pop(id(connection), None) is not None:
        connection.pgconn.finish()


class ConnectionPool:
    """Connections of our own, `most` at most.

    `connect`: opens one, until an instant; `wakeup`: lets a caller wait for a free one; `plan`:
    what the URL asks for.
    """

    prepared = True

    def __init__(
        self,
        connect: Callable[[float], object],
        wakeup: Callable[[], Any],
        plan: Any,
        most: int,
    ) -> None:
        self._connect, self._wakeup, self._plan = connect, wakeup, plan
        self.known, self.limit, self.most = plan.known, plan.limit, most
        self._begin()

    def _begin(self) -> None:
        self._mutex = _thread.RLock()  # the handler of a signal asks, too
        self._idle: list[
            tuple[float, ServerConnection]
        ] = []  # since when; the last used is used next
        self._watched = False  # by the thread that closes what is idle
        self._waiting: list[Any] = []
        self._first: list[Any] = []  # who is served before those: who lets go of something
        weakref = fork.lazily("weakref")
        self._lines = weakref.WeakSet()  # idle, or in a hand: one that is lost is not counted
        self._generation = fork.here()

    async def ask(
        self,
        query: str | Callable[[], tuple[str, bool]],
        given: Sequence[object] = (),
        until: float = NEVER,
        *,
        first: bool = False,
    ) -> list[tuple[object, ...]]:
        """One statement, one round trip. Raises Unreachable, NoReply.

        `query`: or what says it, and whether it was prepared, once it is known what the connection
        leads to; `until`: the instant at which the caller wants no answer any more; `first`: it has
        the next free connection. In all it takes `limit` seconds: for a free connection, for a new
        one, and for the answer.
        """
        began = clock.now()
        until = min(until, began + self.limit)
        line = await self._take(until, first)
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

    async def _take(self, until: float, first: bool) -> ServerConnection:
        while True:
            if self._generation != fork.here():
                self._begin()
            wakeup = None
            with self._mutex:
                line = self._free()
                if line is None:
                    wakeup = self._wakeup()
                    (self._first if first else self._waiting).append(wakeup)
                    if self._idle:  # put back by the handler of a signal, just before
                        wakeup.ring()
            if line is None:
                await self._wait(wakeup, until)
            elif line.connection is None:
                return await self._opened(line, until)
            elif line.usable():
                return line
            else:
                self._put(line, False)

    def _free(self) -> ServerConnection | None:
        """One that is idle, or a new one; None where there are enough.

        Under the mutex, which the handler of a signal has too: so it takes first, and looks then.
        """
        try:
            return self._idle.pop()[1]
        except IndexError:
            line = ServerConnection()
        self._lines.add(line)
        if len(self._lines) <= self.most:
            return line
        self._lines.discard(line)
        return None

    async def _wait(self, wakeup: Any, until: float) -> None:
        try:
            await settle(wakeup.wait(max(0.0, until - clock.now())))
        except BaseException:
            if not self._forgotten(wakeup):
                self._ring()  # it was rung for us, who go away: let the next one have it
            raise
        if self._forgotten(wakeup) and clock.now() >= until and not self._idle:
            raise Unreachable(
                f"{place(self.known)}: all {self.most} connections were in use for {self.limit:g} "
                "s: allow more with connect(url, connections=...)"
            )

    def _forgotten(self, wakeup: object) -> bool:
        """Whether it was not rung; it is not going to be."""
        with self._mutex:
            for each in (self._first, self._waiting):
                try:
                    each.remove(wakeup)
                    return True
                except ValueError:
                    continue
            return False

    async def _opened(self, line: ServerConnection, until: float) -> ServerConnection:
        try:
            connection = keep(await settle(self._connect(until)))
            weakref = fork.lazily("weakref")
            weakref.finalize(line, drop, connection)  # also when nobody puts it back
            line.over(connection)
        except BaseException as error:
            self._gone(line)
            if isinstance(error, Exception) and hasattr(error, "sqlstate"):
                raise Unreachable(said(error, self.known)) from error
            raise
        return line

    def _put(self, line: ServerConnection, goes_on: bool) -> None:
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
            over = [each for each in self._idle if each[0] + IDLE_SECONDS <= clock.now()]
            self._idle = [each for each in self._idle if each not in over]
            self._watched = bool(self._idle)
        self._close(over)
        return self._watched

    def _close(self, idle: list[tuple[float, ServerConnection]]) -> None:
        with self._mutex:
            for _, line in idle:
                self._lines.discard(line)
        for _, line in idle:
            drop(line.connection)

    def _gone(self, line: ServerConnection) -> None:
        """One connection less."""
        with self._mutex:
            self._lines.discard(line)
        self._ring()

    def _ring(self) -> None:
        with self._mutex:
            for each in (self._first, self._waiting):
                try:
                    wakeup = each.pop(0)
                    break
                except IndexError:
                    continue
            else:
                return
        wakeup.ring()

    def close(self) -> None:
        """Close what is idle. It opens again when it is asked."""
        if self._generation != fork.here():
            return
        with self._mutex:
            idle, self._idle = self._idle, []
        self._close(idle)


def told(error: Exception, known: dict[str, object], limit: float) -> Exception:
    """What a failed request means: Unreachable, NoReply, or itself where it is none of ours."""
    if isinstance(error, NoAnswer):
        return NoReply(f"{place(known)}: no answer within {limit:.3g} s")
    if hasattr(error, "sqlstate"):
        return refused(error, known)
    return error
