"""One request to PostgreSQL by libpq itself: sent, waited for, its rows read.

Promise: one round trip, and at most `limit` seconds; then `Silent`. Nothing is begun or committed
besides: outside of a transaction each statement is one of its own. The cursors of psycopg do the
same and more, in three times the time.

How it could fail, and what keeps it. A server that is paused: the wait ends by itself, blocking or
awaited. Who is interrupted in the wait must give the connection up, since its answer still comes.
"""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..runtime import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Parameters = list[bytes | None]

BOOL, JSON, FLOAT, BOOLS = 16, 114, 701, 1000  # types of results, by their number in pg_type
WHOLES = frozenset((20, 21, 23))
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


async def ask(
    connection: Any, statement: str, given: Sequence[Any], limit: float, *, prepared: bool = False
) -> list[tuple[Any, ...]]:
    """The rows of one statement with $1, $2 ..., or of one that was prepared under that name.

    Raises Silent, Failed, psycopg.OperationalError where the connection ended.
    """
    libpq = connection.pgconn
    codec: str = connection.info.encoding
    values = parameters(given, codec)
    wait = _awaited if hasattr(connection, "__aenter__") else _blocking
    until = clock.now() + limit
    if prepared:
        libpq.send_query_prepared(statement.encode(), values)
    else:
        libpq.send_query_params(statement.encode(codec), values)
    while libpq.flush():  # the server reads slowly, and may want to be heard first
        await wait(libpq.socket, until, writes=True)
        libpq.consume_input()
    last = None
    while True:
        await wait(libpq.socket, until)
        libpq.consume_input()
        while not libpq.is_busy():
            result = libpq.get_result()
            if result is None:
                return _rows(last, codec)
            last = result if last is None or last.status not in ENDED else last


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


# ---- until the server is heard


async def _blocking(fd: int, until: float, *, writes: bool = False) -> None:
    """In this thread, which a signal may interrupt."""
    select: Any = fork.lazily("select")
    left = max(0.0, until - clock.now())
    if hasattr(select, "poll"):
        looks = select.poll()
        looks.register(fd, select.POLLIN | (select.POLLOUT if writes else 0))
        found = looks.poll(left * 1000)
    else:
        found = any(select.select([fd], [fd] if writes else [], [], left))
    if not found:
        raise Silent


async def _awaited(fd: int, until: float, *, writes: bool = False) -> None:
    """In this task of asyncio."""
    asyncio: Any = fork.lazily("asyncio")
    loop = asyncio.get_running_loop()
    heard = loop.create_future()
    alarm = loop.call_later(max(0.0, until - clock.now()), _tell, heard, False)
    loop.add_reader(fd, _tell, heard, True)
    if writes:
        loop.add_writer(fd, _tell, heard, True)
    try:
        found = await heard
    finally:
        alarm.cancel()
        loop.remove_reader(fd)
        if writes:
            loop.remove_writer(fd)
    if not found:
        raise Silent


def _tell(heard: Any, found: bool) -> None:
    if not heard.done():
        heard.set_result(found)
