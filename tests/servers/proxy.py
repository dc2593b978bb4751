"""A TCP proxy before a server: slow, jittering, cut, half open, or losing the n-th reply.

    with Proxy(server.port) as proxy:
        proxy.lose(3)        # the third reply from now on is thrown away with its connection
        proxy.replies        # how many there were: each is one round trip

`framing` finds where replies end. `postgres_replies` does for PostgreSQL: a reply ends with
ReadyForQuery; the first one of a connection answers its greeting, and is not counted.
`redis_replies` does for Redis, RESP2 and RESP3: each command has a reply, also those by which a
client greets; what is published comes by itself, and is not counted.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator


def postgres_replies() -> Callable[[bytes], Iterator[tuple[bytes, bool]]]:
    """For one connection: pieces of what the server sent, and whether a reply ends there."""
    rest = bytearray()
    greeted = False

    def feed(data: bytes) -> Iterator[tuple[bytes, bool]]:
        nonlocal greeted
        rest.extend(data)
        out = bytearray()
        while len(rest) >= 5:
            length = int.from_bytes(rest[1:5], "big") + 1
            if len(rest) < length:
                break
            message = bytes(rest[:length])
            del rest[:length]
            out += message
            if message[:1] == b"Z":
                yield bytes(out), greeted
                out.clear()
                greeted = True
            elif message[:1] == b"A":  # a notification comes by itself
                yield bytes(out), False
                out.clear()
        if out:
            yield bytes(out), False

    return feed


def redis_replies() -> Callable[[bytes], Iterator[tuple[bytes, bool]]]:
    """For one connection: pieces of what the server sent, and whether a reply ends there."""
    rest = bytearray()

    def feed(data: bytes) -> Iterator[tuple[bytes, bool]]:
        rest.extend(data)
        while (end := _value_ends(rest, 0)) > 0:
            message = bytes(rest[:end])
            del rest[:end]
            yield message, not (message[:1] == b">" or _PUBLISHED.match(message))

    return feed


_PUBLISHED = re.compile(rb"\*[34]\r\n\$\d+\r\n[ps]?message\r\n")
_PAIRS, _MANY, _SIZED = b"%|", b"*~>", b"$=!"


def _value_ends(data: bytearray, at: int) -> int:
    """Where the value that begins at `at` ends, 0 while it is not all there."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return 0
    kind, count = data[at : at + 1], data[at + 1 : line]
    after = line + 2
    if kind in _SIZED:
        after += int(count) + 2 if int(count) >= 0 else 0
        return after if len(data) >= after else 0
    values = int(count) if kind in _MANY else 2 * int(count) if kind in _PAIRS else 0
    values += kind == b"|"  # attributes stand before the value that they are of
    for _ in range(values):
        after = _value_ends(data, after)
        if after == 0:
            return 0
    return after


class Proxy:
    """Between clients and 127.0.0.1:`upstream`. Its own port: `port`.

    `delay`, `jitter`: seconds before each piece is handed on, the second at random; `stalled`:
    nothing is handed on, and nobody is told. What the connections that are open at `hold()` ask is
    kept until `deliver()`, also when the client has closed meanwhile; newer ones are not held.
    `kept`: how many pieces were.
    """

    def __init__(self, upstream: int, framing=postgres_replies) -> None:
        self.upstream, self.framing = upstream, framing
        self.delay = self.jitter = 0.0
        self.stalled = threading.Event()
        self.replies = 0
        self.lost = 0
        self._lose: set[int] = set()
        self._held: set[socket.socket] = set()
        self._delivers = threading.Event()
        self.kept = 0
        self._mutex = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lose(self, *numbers: int) -> None:
        """The n-th reply from now on, of all connections together; 1 is the next."""
        with self._mutex:
            self._lose = {self.replies + number for number in numbers}

    def hold(self) -> None:
        with self._mutex:
            self._held = {server for _, server in self._pairs}
            self._delivers.clear()

    def deliver(self) -> None:
        self._delivers.set()

    def cut(self) -> None:
        """End every connection."""
        with self._mutex:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _end(end)

    def close(self) -> None:
        self.stalled.clear()
        self.deliver()
        _end(self._server)
        self.cut()
        for thread in self._threads:
            thread.join(60)

    # ---- the threads

    def _start(self, call, *given: object) -> None:
        thread = threading.Thread(target=call, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream), 10)
            except OSError:
                _end(client)
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._mutex:
                self._pairs.append((client, server))
            self._start(self._up, client, server)
            self._start(self._down, client, server)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                self._slowly()
                if server in self._held:
                    self.kept += 1
                    self._delivers.wait()
                server.sendall(data)
        except OSError:
            pass
        _end(server)
        _end(client)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        feed = self.framing()
        try:
            while data := server.recv(65536):
                for piece, ends in feed(data):
                    if ends and self._is_lost():
                        return
                    self._slowly()
                    client.sendall(piece)
        except OSError:
            pass
        finally:
            _end(client)
            _end(server)

    def _is_lost(self) -> bool:
        with self._mutex:
            self.replies += 1
            if self.replies not in self._lose:
                return False
            self.lost += 1
            return True

    def _slowly(self) -> None:
        while self.stalled.is_set():
            time.sleep(0.01)
        pause = self.delay + self.jitter * random.random()
        if pause:
            time.sleep(pause)


def _end(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()
