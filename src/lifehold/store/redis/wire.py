"""Requests to one Redis: sent, waited for, their replies read; and the connections for them.

Promise: some commands are one round trip on a connection that nobody else uses, and take at most
`limit` seconds in all: for a free connection, for a new one, and for the replies. A connection is a
socket that never blocks: threads, tasks of asyncio and of trio wait for it each in its own way
(`Waits`). redis-py opens it, and knows of TLS, passwords and sockets.

How it could fail, and what keeps it. A server that is paused answers neither yes nor no: the wait
ends at its limit. A server that was restarted leaves dead connections: one that has anything to say
while idle is not used. Whoever is interrupted gives its connection up: what it has asked for may
still come, and is undone by its nonce (L6; scripts.py). A fork shares the sockets: the child closes
its copies (L9).
"""

from __future__ import annotations

import _thread
import os
import socket
import sys
from weakref import ref

from ...core.backend import NoReply, Unreachable
from ...core.deadline import NEVER
from ...runtime import clock, fork, heartbeat, native
from ...runtime.blocking import ThreadWakeup, finish
from ..settle import settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import select
    from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
    from typing import Any, Protocol, TypeVar

    from ...runtime import eventloop

    T = TypeVar("T")
    K = TypeVar("K", bound="Placed")

    Command = Sequence[str | bytes | int | float]
    Reply = Any  # bytes, int, None, list of such, RedisRefused; RESP3 has a few more

    class Placed(Protocol):
        """A server, which errors name."""

        @property
        def place(self) -> str: ...

    class ConnectionWakeup(Protocol):
        """On what one waits for a free connection."""

        def ring(self) -> None: ...
        def wait(self, seconds: float) -> object:
            """Sleep until it rings; a task awaits it."""
            ...

    class Opens(Protocol):
        """How a pool's connections are opened: a RedisUrl."""

        limit: float
        place: str
        where: tuple[str, int] | None

        def opened(self, until: float = ..., *, strict: bool = ...) -> RedisConnection:
            """A new one, by the calling thread."""
            ...
else:
    asyncio = fork.later("asyncio", globals())
    eventloop = fork.later("lifehold.runtime.eventloop", globals())
    select = fork.later("select", globals())

IDLE_SECONDS = 30.0  # seconds for which a connection stays open that nobody uses
LOOK = 5.0  # seconds between two looks for such
PIECE = 1 << 16  # bytes read at once
LARGEST = 512 << 20  # bytes of one reply: as many as Redis keeps in one text
MOMENT = 5.0  # seconds for the rest of what has begun to come


class RedisRefused(Exception):
    """What the server said in place of an answer. `code`: its first word."""

    def __init__(self, text: str) -> None:
        text = _within(text)
        super().__init__(text)
        self.code = text.partition(" ")[0]


def _within(text: str) -> str:
    """What a script was refused, as Redis 7 has it; before, it stood behind the script and line."""
    if text.startswith("ERR Error running script"):
        inner = text.rpartition("@user_script:")[2].partition(": ")[2].removeprefix("-")
        if inner.partition(" ")[0].isupper():
            return inner
    return text


class NoRedisReply(Exception):
    """No reply in time, or the connection ended before it."""


# ------------------------------------------------------------------------------------------------
# The protocol: commands to bytes, and bytes to replies (RESP2 and RESP3).


_begins: dict[tuple[str | bytes | float, ...], str] = {}  # of calls of a script about one name
KNOWN, SHORT = 512, 2048  # of them, of so many characters at most


def packed(commands: Sequence[Command]) -> bytes:
    """Commands as they are sent."""
    out = []
    for command in commands:
        out.append(f"*{len(command)}\r\n")
        words: Command = command
        count = command[2] if command[0] == "EVALSHA" else None
        if isinstance(count, int):  # the same words each time, up to the last key
            head = tuple(command[: 3 + count])
            if begin := _begins.get(head) or _begun(head):
                out.append(begin)
                words = command[3 + count :]
        for one in words:
            if isinstance(one, bytes):
                return _packed(commands)
            word = one if isinstance(one, str) else repr(one)
            out.append(f"${len(word)}\r\n{word}\r\n")
    text = "".join(out)
    return text.encode() if text.isascii() else _packed(commands)  # a length is of bytes


def _begun(head: tuple[str | bytes | float, ...]) -> str:
    """These words as they are sent; "" where they are not worth keeping."""
    words = [each if isinstance(each, str) else repr(each) for each in head]
    begin = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    if len(begin) > SHORT or not begin.isascii() or any(isinstance(each, bytes) for each in head):
        return ""
    if len(_begins) >= KNOWN:
        _begins.clear()
    _begins[head] = begin
    return begin


def _packed(commands: Sequence[Command]) -> bytes:
    out = []
    for command in commands:
        out.append(b"*%d\r\n" % len(command))
        for one in command:
            word = one if isinstance(one, bytes) else str(one).encode()
            out.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(out)


class _Incomplete(Exception):
    """The rest of a reply has not come yet."""


def parsed(data: bytes | bytearray, at: int) -> tuple[Reply, int]:
    """The reply that begins there, and where the next does. Raises _Incomplete, NoRedisReply."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _Incomplete
    kind, head, after = bytes(data[at : at + 1]), data[at + 1 : end], end + 2
    try:
        if kind in (b"$", b"=", b"!"):
            return _blob(data, kind, int(head), after)
        if kind in (b":", b"("):
            return int(head), after
        if kind in (b"*", b"~", b">", b"%", b"|"):
            return _many(data, kind, int(head), after)
        if kind == b"+":
            return bytes(head), after
        if kind == b"-":
            return RedisRefused(head.decode("utf-8", "replace")), after
        if kind == b"_":
            return None, after
        if kind == b"#":
            return head == b"t", after
        if kind == b",":
            return float(head), after
    except (ValueError, RecursionError):  # L13
        pass
    raise NoRedisReply("what answers there is no Redis")


def _blob(data: bytes | bytearray, kind: bytes, size: int, at: int) -> tuple[Reply, int]:
    if size < 0:
        return None, at
    if len(data) < at + size + 2:
        raise _Incomplete
    text = bytes(data[at : at + size])
    if kind == b"!":
        return RedisRefused(text.decode("utf-8", "replace")), at + size + 2
    return text[4:] if kind == b"=" else text, at + size + 2


def _many(data: bytes | bytearray, kind: bytes, size: int, at: int) -> tuple[Reply, int]:
    if size < 0:
        return None, at
    found = []
    for _ in range(size * 2 if kind in (b"%", b"|") else size):
        one, at = parsed(data, at)
        found.append(one)
    if kind == b"|":  # attributes: said besides, before the reply itself
        return parsed(data, at)
    return tuple(found) if kind == b">" else found, at


# ------------------------------------------------------------------------------------------------
# How a caller waits: a thread, a task of asyncio, a task of trio.


class Waits:
    """A thread waits for a socket by poll(2). `wakeup`: on what it waits for a free connection."""

    wakeup: Callable[[], ConnectionWakeup] = ThreadWakeup

    async def ready(self, sock: socket.socket, until: float, writes: bool) -> bool:
        """Whether it can be read from, or written to, before that instant."""
        left = max(0.0, until - clock.now())
        if not hasattr(select, "poll"):
            return any(select.select([sock], [sock] if writes else [], [], left))
        looks = select.poll()
        looks.register(sock, select.POLLIN | (select.POLLOUT if writes else 0))
        return bool(looks.poll(left * 1000))

    async def call(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Carry out what blocks. `undo` what comes when the caller has gone."""
        return work()


class TaskWaits:
    """A task waits in its own event loop, of asyncio or trio."""

    @staticmethod
    def wakeup() -> ConnectionWakeup:
        return eventloop.Signal()

    async def ready(self, sock: socket.socket, until: float, writes: bool) -> bool:
        left = max(0.0, until - clock.now())
        trio = eventloop.running_trio()
        if trio is None:
            return await _heard(sock.fileno(), left, writes)
        wait = trio.lowlevel.wait_writable if writes else trio.lowlevel.wait_readable
        with trio.move_on_after(left) as scope:
            await wait(sock)
        return not scope.cancelled_caught

    async def call(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        return await eventloop.EVENT_LOOP.in_thread(work, undo)


THREAD, TASK = Waits(), TaskWaits()


async def _heard(fd: int, seconds: float, writes: bool) -> bool:
    """Whether asyncio's loop hears of it within so many seconds."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[bool] = loop.create_future()
    alarm = loop.call_later(seconds, _tell, heard, False)
    (loop.add_writer if writes else loop.add_reader)(fd, _tell, heard, True)
    try:
        return bool(await heard)
    finally:
        alarm.cancel()
        (loop.remove_writer if writes else loop.remove_reader)(fd)


def _tell(heard: asyncio.Future[bool], found: bool) -> None:
    if not heard.done():
        heard.set_result(found)


# ------------------------------------------------------------------------------------------------
# Several servers asked at once, by one thread.
#
# Each question is a coroutine that hands on what it waits for: a socket, until an instant. Whoever
# has not answered when all is settled, and the grace is over, is given up: its connection is
# closed, and what it was asked for may still come (L6).


GRACE = 0.25  # seconds that are waited for the others


class _Parked:
    """A question that waits for its socket."""

    __slots__ = ("sock", "until", "writes")

    def __init__(self, sock: socket.socket, until: float, writes: bool) -> None:
        self.sock, self.until, self.writes = sock, until, writes

    def __await__(self) -> Generator[_Parked, bool, bool]:
        return (yield self)


class SharedWaits(Waits):
    """Waits of a question that is asked together with others: none blocks the thread of all."""

    async def ready(self, sock: socket.socket, until: float, writes: bool) -> bool:
        return bool(await _Parked(sock, until, writes))

    async def call(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        """In a thread of its own: a server that is paused takes a connection, and says nothing."""
        ours, theirs = socket.socketpair()
        came: list[T] = []
        failed: list[Exception] = []
        wanted = [True]  # whoever takes it last undoes

        def run() -> None:
            try:
                came.append(work())
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                failed.append(error)
            theirs.close()
            if not _taken(wanted):
                for made in came:
                    undo(made)

        try:
            heartbeat.thread(run)
        except RuntimeError:  # there is none to be had
            ours.close()
            theirs.close()
            return work()
        try:
            await self.ready(ours, NEVER, False)
        except BaseException:
            if not _taken(wanted):
                for made in came:
                    undo(made)
            raise
        finally:
            ours.close()
        for error in failed:
            raise error
        return came[0]


def _taken(one: list[bool]) -> bool:
    """Whether we are the first to take it, in one step."""
    try:
        return one.pop()
    except IndexError:
        return False


SHARED = SharedWaits()


def together(
    asked: Mapping[K, Coroutine[_Parked, bool | None, T]],
    until: float,
    settled: Callable[[dict[K, T | Exception]], bool],
    failures: tuple[type[Exception], ...],
) -> dict[K, T | Exception]:
    """What each has answered, or the error in its place."""
    found: dict[K, T | Exception] = {}
    parked: dict[K, _Parked] = {}

    def go(server: K, answer: bool | None) -> None:
        parked.pop(server, None)
        try:
            parked[server] = asked[server].send(answer)
        except StopIteration as end:
            found[server] = end.value
        except failures as error:
            found[server] = error

    for server in asked:
        go(server, None)
    ends = until
    while parked:
        now = clock.now()
        if ends == until and settled(found):
            ends = min(until, now + GRACE)
        if now >= ends:
            break
        ready = _ready(parked, min([ends, *(each.until for each in parked.values())]) - now)
        for server, wait in list(parked.items()):
            if ready[server]:
                go(server, True)
            elif clock.now() >= wait.until:
                go(server, False)
    for server in parked:
        asked[server].close()
        found[server] = NoReply(f"{server.place}: no answer in time")
    return found


def _ready(parked: dict[K, _Parked], seconds: float) -> dict[K, bool]:
    """Which of the sockets have something to say, within that time."""
    seconds = max(0.0, seconds)
    numbers = {server: each.sock.fileno() for server, each in parked.items()}
    if not hasattr(select, "poll"):
        socks = [each.sock for each in parked.values()]
        filled = [each.sock for each in parked.values() if each.writes]
        there = {sock for some in select.select(socks, filled, [], seconds) for sock in some}
        return {server: each.sock in there for server, each in parked.items()}
    looks = select.poll()
    for server, each in parked.items():
        looks.register(numbers[server], select.POLLIN | (select.POLLOUT if each.writes else 0))
    heard = {number for number, _ in looks.poll(seconds * 1000)}
    return {server: numbers[server] in heard for server in parked}


# ------------------------------------------------------------------------------------------------
# One connection, and the pool of them.


# Every socket of this process. It is not held here: one that nobody has in hand, since its opening
# was interrupted, is closed by Python.
_open: set[ref[socket.socket]] = set()


def _all_open() -> list[socket.socket]:
    return [sock for each in _open.copy() if (sock := each()) is not None]


@fork.in_child
def _leave_to_parent() -> None:
    """L9  The copies of the descriptors are closed, without a word to the server."""
    for sock in _all_open():
        try:
            os.close(sock.detach())
        except OSError:
            continue  # it was closed already
    _open.clear()


def close_all() -> None:
    """At the end of the process."""
    fork.here()
    for sock in _all_open():
        drop(sock)


def keep(sock: socket.socket) -> socket.socket:
    """Note a socket that was opened."""
    _open.difference_update([each for each in _open.copy() if each() is None])
    if not _open:
        atexit = fork.lazily("atexit")
        atexit.unregister(close_all)
        atexit.register(close_all)
    _open.add(ref(sock))
    return sock


def drop(sock: socket.socket) -> None:
    """Close it at once, in any thread."""
    fork.here()
    known = ref(sock)
    if known in _open:
        _open.discard(known)
        sock.close()


class RedisConnection:
    """A socket to a Redis, on which one request goes at a time."""

    __slots__ = ("__weakref__", "_data", "_encrypted", "_looks", "sock", "where")

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self.sock, self._data = keep(sock), bytearray()
        self.where: tuple[str, int] | None = None  # of several servers the one that it leads to
        self._encrypted = hasattr(sock, "pending")
        self._looks: select.poll | None = None  # made once; gevent's is of one thread's hub alone
        if hasattr(select, "poll") and not native.is_replaced():
            self._looks = select.poll()
            self._looks.register(sock, select.POLLIN)

    async def ask(
        self, commands: Sequence[Command], until: float, waits: Waits | TaskWaits = THREAD
    ) -> list[Reply]:
        """The replies, in one round trip. Raises NoRedisReply."""
        try:
            await self._send(packed(commands), until, waits)
            replies: list[Reply] = []
            while len(replies) < len(commands):
                reply = await self.hear(until, waits)
                if not isinstance(reply, tuple):  # what RESP3 pushes in between answers nothing
                    replies.append(reply)
                elif clock.now() >= until:
                    raise NoRedisReply("no answer in time")
            return replies
        except OSError as error:
            raise NoRedisReply(f"the connection ended: {error.strerror or error}") from error

    async def _send(self, data: bytes, until: float, waits: Waits | TaskWaits) -> None:
        rest: bytes | memoryview = data
        while True:
            try:
                sent = self.sock.send(rest)
                if sent == len(rest):
                    return
                rest = memoryview(rest)[sent:]
            except OSError as error:
                if not _would_block(error):
                    raise
                self._took()  # a reply that is left there ends each wait at once
                if clock.now() >= until or not await waits.ready(self.sock, until, True):
                    raise NoRedisReply("no answer in time") from None

    async def hear(self, until: float, waits: Waits | TaskWaits = THREAD) -> Reply:
        """The next reply, or push of a channel. Raises NoRedisReply, OSError."""
        tried = 0  # bytes with which it was incomplete
        while True:
            if len(self._data) > tried:
                try:
                    reply, end = parsed(self._data, 0)
                except _Incomplete:
                    tried = len(self._data)
                else:
                    del self._data[:end]
                    return reply
            late = tried and clock.now() >= until  # it has begun, and comes on and on
            if late or not (self._encrypted or await self._speaks(until, waits)):
                raise NoRedisReply("no answer in time")
            await self._read(until, waits)

    async def _speaks(self, until: float, waits: Waits | TaskWaits) -> bool:
        """Whether it has something to say before that instant."""
        if waits is not THREAD or self._looks is None or self.sock.fileno() < 0:
            return await waits.ready(self.sock, until, False)
        return bool(self._looks.poll(max(0.0, until - clock.now()) * 1000))

    async def _read(self, until: float, waits: Waits | TaskWaits) -> None:
        while not self._took():
            if clock.now() >= until or not await waits.ready(self.sock, until, False):
                raise NoRedisReply("no answer in time")

    def _took(self) -> bool:
        """Whether a piece was there to be read. Raises NoRedisReply, OSError."""
        try:
            piece = self.sock.recv(PIECE)
        except OSError as error:
            if not _would_block(error):
                raise
            return False
        if not piece:
            raise NoRedisReply("the server has closed the connection")
        self._data += piece
        if len(self._data) > LARGEST:
            raise NoRedisReply(f"its answer is longer than {LARGEST >> 20} MiB")
        return True

    def pushed(self, seconds: float) -> Reply:
        """What a channel says within that time; None for nothing. Raises NoRedisReply, OSError."""
        pending = getattr(self.sock, "pending", None)  # of TLS: what it has read already
        if not self._data and not (pending and pending()):
            if not finish(self._speaks(clock.now() + seconds, THREAD)):
                return None
            finish(self._read(clock.now() + MOMENT, THREAD))
        return finish(self.hear(clock.now() + seconds + MOMENT))

    def usable(self) -> bool:
        """Whether it has nothing to say while idle: what it says then is good-bye."""
        if self.sock.fileno() < 0 or self._data:
            return False
        if self._looks is not None and not self._encrypted:
            return not self._looks.poll(0)
        try:
            self.sock.recv(1, 0 if self._encrypted else socket.MSG_PEEK)
        except OSError as error:
            return _would_block(error)
        return False

    def close(self) -> None:
        drop(self.sock)


def _would_block(error: OSError) -> bool:
    """Whether the socket has just nothing to read, or no room."""
    return isinstance(error, BlockingIOError) or type(error).__name__.startswith("SSLWant")


class _Loan:
    """What one question has of a pool: `lines`, one connection or none yet, and since when.

    L9  It goes to and fro in one step of C each: a signal comes before it, or after.
    """

    __slots__ = ("lines", "wakeup")

    def __init__(self) -> None:
        self.lines: list[tuple[float, RedisConnection]] = []
        self.wakeup: ConnectionWakeup | None = None


def _move(source: list[T], to: list[T]) -> None:
    """The last of one list to the other; none is no error."""
    try:
        to.extend(map(source.pop, (-1,)))
    except IndexError:
        return


class RedisPool:
    """Connections of our own, `most` at most. `plan`: opens one (connect.py).

    L9  Tasks have as many of their own: an event loop that is busy keeps none from a thread.
    """

    def __init__(self, plan: Opens, most: int) -> None:
        self.plan, self.most = plan, most
        self._of_tasks: RedisPool | None = None
        self.strict = True  # a server that evicts keys is refused
        self._begin()

    def _begin(self) -> None:
        self._mutex = _thread.RLock()  # the handler of a signal asks, too
        self._idle: list[tuple[float, RedisConnection]] = []  # since when; last in, first out
        self._used: set[_Loan] = set()  # in hands, or being opened
        self._waiting: list[ConnectionWakeup] = []
        self._urgent: list[ConnectionWakeup] = []  # before all of those
        self._watched = False  # by the thread that closes what is idle
        self._generation = fork.here()

    async def ask(
        self,
        commands: Sequence[Command],
        until: float = NEVER,
        waits: Waits | TaskWaits = THREAD,
        urgent: bool = False,
    ) -> list[Reply]:
        """One round trip. Raises Unreachable, NoReply; a refusal is among the replies.

        `urgent`: what frees a lock goes before all who wait for a connection, and may open one more
        than `most`.
        """
        pool = self if isinstance(waits, Waits) else self._for_tasks()
        return await pool._ask(commands, until, waits, urgent)

    def _for_tasks(self) -> RedisPool:
        fork.here()
        with fork.gate:
            if self._of_tasks is None:
                self._of_tasks = RedisPool(self.plan, self.most)
                self._of_tasks.strict = self.strict
            return self._of_tasks

    async def _ask(
        self, commands: Sequence[Command], until: float, waits: Waits | TaskWaits, urgent: bool
    ) -> list[Reply]:
        began = clock.now()
        until = min(until, began + self.plan.limit)
        loan, good = _Loan(), False
        try:
            line = await self._take(loan, until, waits, urgent)
            replies = await line.ask(commands, until, waits)
            # one that only reads is a replica by now: the next one is looked at anew
            refused = [one.code for one in replies if isinstance(one, RedisRefused)]
            good = "READONLY" not in refused
        except NoRedisReply as error:
            took = clock.now() - began
            raise NoReply(f"{self.plan.place}: {error} ({took:.3g} s)") from error
        finally:  # it may be interrupted, or closed with its loop
            try:
                self._give_back(loan, good)
            except BaseException:  # and here too
                self._give_back(loan, False)
                raise
        return replies

    # ---- one connection for one request

    async def _take(
        self, loan: _Loan, until: float, waits: Waits | TaskWaits, urgent: bool
    ) -> RedisConnection:
        if self._generation != fork.here():
            self._begin()
        began = clock.now()
        while not self._taken(loan, waits, urgent):
            await self._wait(loan, until)
        while loan.lines:
            line = loan.lines[-1][1]
            if line.where == self.plan.where and line.usable():
                return line
            line.close()
            loan.lines.clear()
            with self._mutex:
                _move(self._idle, loan.lines)
        loan.lines.append((began, await self._opened(until, waits)))
        return loan.lines[-1][1]

    def _taken(self, loan: _Loan, waits: Waits | TaskWaits, urgent: bool) -> bool:
        """Whether one is free, or may be opened; else it is rung."""
        with self._mutex:
            if len(self._used) >= self.most + urgent:
                loan.wakeup = waits.wakeup()
                (self._urgent if urgent else self._waiting).append(loan.wakeup)
                return False
            self._used.add(loan)
            _move(self._idle, loan.lines)
            return True

    async def _wait(self, loan: _Loan, until: float) -> None:
        wakeup = loan.wakeup
        assert wakeup is not None
        await settle(wakeup.wait(max(0.0, until - clock.now())))
        if self._forgotten(wakeup) and clock.now() >= until:
            raise Unreachable(
                f"{self.plan.place}: all {self.most} connections were in use for "
                f"{self.plan.limit:g} s: allow more with connect(url, connections=...)"
            )

    def _forgotten(self, wakeup: ConnectionWakeup) -> bool:
        """Whether it was not rung; it is not going to be."""
        with self._mutex:
            for each in (self._urgent, self._waiting):
                try:
                    each.remove(wakeup)
                    return True
                except ValueError:
                    continue
            return False

    async def _opened(self, until: float, waits: Waits | TaskWaits) -> RedisConnection:
        return await waits.call(
            lambda: self.plan.opened(until, strict=self.strict), RedisConnection.close
        )

    def _give_back(self, loan: _Loan, good: bool) -> None:
        """What it has, once: to be called again where it was interrupted."""
        if self._generation != fork.here():
            return  # L9  it was our parent's: a signal handler has forked
        with self._mutex:
            if loan not in self._used:
                good = False  # of a pool before a fork, or given back already
            if good and loan.lines:
                loan.lines[:] = [(clock.now(), loan.lines[-1][1])]
                _move(loan.lines, self._idle)
            self._used.discard(loan)
        for _, line in loan.lines:
            line.close()
        if loan.wakeup is not None:
            self._forgotten(loan.wakeup)
        if self._urgent or self._waiting:
            self._ring()  # it, or a ring that was for us, who go away
        if good and not self._watched:
            self._watch()

    def _watch(self) -> None:
        """See that what is idle is closed in time."""
        with self._mutex:
            starts, self._watched = not self._watched, True
        if starts:
            try:
                heartbeat.thread(self._keep)
            except RuntimeError:  # no thread to be had: the next one tries again
                self._watched = False

    def _ring(self) -> None:
        with self._mutex:
            free = self.most - len(self._used)
            for line in (self._urgent, self._waiting if free > 0 else []):
                try:
                    wakeup = line.pop(0)
                    break
                except IndexError:
                    continue
            else:
                return
        wakeup.ring()

    # ---- what nobody uses

    def _keep(self) -> None:
        """The thread that closes it."""
        generation = self._generation
        while generation == fork.generation:
            clock.pause(min(LOOK, IDLE_SECONDS / 2))
            over = clock.now() - IDLE_SECONDS
            with self._mutex:
                old = [line for since, line in self._idle if since <= over]
                self._idle = [each for each in self._idle if each[0] > over]
                self._watched = bool(self._idle)
                if not self._watched:
                    generation = -1
            for line in old:
                line.close()

    def close(self) -> None:
        """Close what is idle. It opens again when it is asked."""
        if self._of_tasks is not None:
            self._of_tasks.close()
        if self._generation != fork.here():
            return
        with self._mutex:
            idle, self._idle = self._idle, []
        for _, line in idle:
            line.close()


def awaits_sockets() -> bool:
    """Whether the running loop can wait for a socket: that of Windows cannot."""
    if eventloop.running_trio() is not None:
        return True
    loop = asyncio.get_running_loop()
    return sys.platform != "win32" or "Proactor" not in type(loop).__name__
