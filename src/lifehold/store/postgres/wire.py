"""One request to PostgreSQL by libpq itself: sent, waited for, its rows read.

Promise: one round trip, and at most `limit` seconds; then `Silent`. Nothing is begun or committed
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

from ...core.errors import InvalidArgument
from ...runtime import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Parameters = list[bytes | None]

BOOL, JSON, FLOAT, BOOLS = 16, 114, 701, 1000  # types of results, by their number in pg_type
WHOLES = frozenset((20, 21, 23))
IDLE = 0  # pq.TransactionStatus
MOMENT = 1.0  # seconds for an answer that nobody wants any more
UNDONE = frozenset(("40001", "40P01"))  # SQLSTATE: a serialization failure, a deadlock
LENT = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {}; "
ENDED = frozenset((5, 6, 7))  # pq.ExecStatus: an answer that could not be read, or an error


class Silent(Exception):
    """No answer within the limit."""

    sqlstate = None


class Failed(Exception):
    """The server's own words: SQLSTATE, severity, message."""

    def __init__(self, result: Any) -> None:
        found = (result.error_field(ord(letter)) for letter in "CVM")
        words = [field.decode("utf-8", "replace") if field else None for field in found]
        self.sqlstate, self.severity_nonlocalized, self.message_primary = words
        super().__init__(result.error_message.decode("utf-8", "replace").strip())

    @property
    def diag(self) -> Failed:
        """As of an error of psycopg."""
        return self


def parameters(given: Sequence[Any], codec: str = "utf-8") -> Parameters:
    """Values as PostgreSQL reads them in text. Raises InvalidArgument."""
    return [None if one is None else _text(one).encode(codec) for one in given]


def _text(one: Any) -> str:
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


class Line:
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
        select: Any = fork.lazily("select")
        self._looks: Any = None
        if hasattr(select, "poll"):
            self._looks = select.poll()
            self._looks.register(connection.pgconn.socket, select.POLLIN)

    async def ask(
        self,
        statement: str,
        given: Sequence[Any],
        limit: float,
        *,
        prepared: bool = False,
        lent: bool = False,
    ) -> list[tuple[Any, ...]]:
        """The rows of one statement with $1, $2 ..., or of one that was prepared under that name.

        `lent`: the session is others' too, and stays as it is.
        What the server undid because of others is asked again. Raises Silent, Failed,
        psycopg.OperationalError where the connection ended.
        """
        until, values = clock.now() + limit, parameters(given, self._codec)
        whole = ""
        if lent:
            whole = LENT.format(int(limit * 1000)) + self._filled(statement, values)
        while True:
            try:
                return await self._once(whole or statement, values, until, prepared, whole != "")
            except Failed as error:
                if error.sqlstate not in UNDONE or clock.now() >= until:
                    raise

    async def _once(
        self, statement: str, values: Parameters, until: float, prepared: bool, whole: bool
    ) -> list[tuple[Any, ...]]:
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
        return _rows(await self._answer(until), self._codec)

    async def run(self, text: str, until: float) -> list[tuple[Any, ...]]:
        """The rows of the last of some statements without values. Raises as `ask`."""
        return await self._once(text, [], until, False, True)

    def _filled(self, statement: str, values: Parameters) -> str:
        """The statement with its values in it."""
        pq: Any = fork.lazily("psycopg.pq")
        re: Any = fork.lazily("re")
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
            except Silent:
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
        """Whether it may be used again: its server answered, lives on, and is no replica now."""
        answered = isinstance(error, Failed) and error.sqlstate != "25006"
        return answered and not self.connection.closed

    def usable(self) -> bool:
        """Whether it has nothing to say while idle: what it says then is good-bye."""
        if self.connection.closed:
            return False
        return self._looks is None or not self._looks.poll(0)

    async def _answer(self, until: float) -> Any:
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
            select: Any = fork.lazily("select")
            fds = [self._pgconn.socket]
            heard = any(select.select(fds, fds if writes else [], [], left))
        else:
            select = fork.lazily("select")
            self._looks.modify(self._pgconn.socket, select.POLLIN | (writes and select.POLLOUT))
            heard = self._looks.poll(left * 1000)
        if not heard:
            raise Silent("no answer in time")


def _rows(result: Any, codec: str) -> list[tuple[Any, ...]]:
    if result.status in ENDED:
        raise Failed(result)
    columns = range(result.nfields)
    kinds = [result.ftype(column) for column in columns]
    return [
        tuple(_value(kinds[column], result.get_value(row, column), codec) for column in columns)
        for row in range(result.ntuples)
    ]


def _value(kind: int, raw: bytes | None, codec: str) -> Any:
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
        json: Any = fork.lazily("json")
        return json.loads(raw.decode(codec))
    return raw.decode(codec)


async def _told(fd: int, seconds: float, writes: bool) -> bool:
    """Whether asyncio's loop hears of it within so many seconds."""
    asyncio: Any = fork.lazily("asyncio")
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
    asyncio: Any = fork.lazily("asyncio")
    return asyncio.CancelledError


def _tell(heard: Any, found: bool) -> None:
    if not heard.done():
        heard.set_result(found)
