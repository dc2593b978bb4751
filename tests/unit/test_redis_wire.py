"""Commands as a Redis is sent them (store/redis/wire.py)."""

from __future__ import annotations

import itertools
import socket
import threading
from types import SimpleNamespace

import pytest

from lifehold.runtime import clock
from lifehold.runtime.blocking import finish
from lifehold.store.redis import wire

CALL = ("EVALSHA", "f" * 40, 2, "lifehold:{a}:lease", "lifehold:{a}:line", "nonce", 30.0, 1)


def spelled(*commands):
    """By the rule itself: each word behind its number of bytes."""
    out = b""
    for command in commands:
        out += b"*%d\r\n" % len(command)
        for each in command:
            word = each if isinstance(each, bytes) else str(each).encode()
            out += b"$%d\r\n%b\r\n" % (len(word), word)
    return out


@pytest.mark.parametrize(
    "command",
    [
        CALL,
        ("EVALSHA", "f" * 40, 2, "lifehold:{ä}:lease", "lifehold:{ä}:line", "nonce"),
        ("EVALSHA", "f" * 40, 2, b"\xff:lease", "lifehold:{a}:line", "nonce"),
        ("EVALSHA", "f" * 40, 1, "lifehold:{a}:lease", "ä"),
        ("EVALSHA", "f" * 40, 1, "lifehold:{a}:lease", b"\xff"),
        ("EVALSHA", "f" * 40, 1, "k" * 5000, "nonce"),
        ("EVALSHA", "f" * 40, "1", "lifehold:{a}:lease", "nonce"),
        ("INFO",),
        ("GETRANGE", b"\xff", 0, 10),
    ],
)
def test_a_command_is_sent_the_same_however_often(command):
    wire._begins.clear()
    for _ in range(2):  # then from what is kept
        assert wire.packed([command, CALL]) == spelled(command, CALL)


def test_what_is_kept_of_calls_has_a_bound():
    wire._begins.clear()
    for number in range(2 * wire.KNOWN + 1):
        wire.packed([("EVALSHA", "f" * 40, 1, f"key{number}", "nonce")])
    assert 0 < len(wire._begins) <= wire.KNOWN
    wire.packed([("EVALSHA", "f" * 40, 1, "k" * wire.SHORT, "nonce")])
    assert not any("k" * wire.SHORT in each for each in wire._begins.values())


# ---- the limit of an answer, whatever comes meanwhile


class Chatter(socket.socket):
    """Whoever reads from it gets this piece, each time."""

    piece = b""
    reads = 0

    def recv(self, *_):
        self.reads += 1
        assert self.reads < 500, "its end was not looked at"
        return self.piece

    def pending(self):
        return 1


@pytest.fixture
def ends(monkeypatch):
    """A clock that goes on by a millisecond with each look, and an end that is 50 looks away."""
    looks = itertools.count()

    def now():
        look = next(looks)
        assert look < 500, "its end was not looked at"
        return look / 1000

    monkeypatch.setattr(wire, "clock", SimpleNamespace(now=now))
    return 0.05


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


LONG = ("SET", "key", b"x" * (8 << 20))  # more than a socket takes at once


@pytest.mark.parametrize("said", [b"", b"+one\r\n" * 3], ids=["silent", "it has answered"])
def test_a_request_that_is_not_read_is_given_up_at_its_limit(pair, ends, said):
    ours, theirs = pair
    theirs.sendall(said)
    with pytest.raises(wire.NoRedisReply, match="in time"):
        finish(wire.RedisConnection(ours).ask([LONG, LONG], ends))


def test_a_request_whose_reader_has_gone_is_not_sent_on(pair, ends):
    ours, theirs = pair
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(wire.NoRedisReply, match="closed"):
        finish(wire.RedisConnection(ours).ask([LONG], ends))


def test_what_is_answered_while_a_request_is_sent_is_its_answer(pair):
    ours, theirs = pair
    theirs.sendall(b"+one\r\n")

    def serve():
        left = len(wire.packed([LONG, LONG]))
        while left:
            left -= len(theirs.recv(1 << 20))
        theirs.sendall(b"+two\r\n")

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    line = wire.RedisConnection(ours)
    assert finish(line.ask([LONG, LONG], clock.now() + 60)) == [b"one", b"two"]
    server.join()


@pytest.mark.parametrize("piece", [b"$99999999999\r\n", b"*0\r\n", b":1\r\n" * 9, b">1\r\n+x\r\n"])
def test_an_answer_that_never_ends_is_given_up_at_its_limit(pair, ends, monkeypatch, piece):
    monkeypatch.setattr(Chatter, "piece", piece)
    with Chatter(fileno=pair[0].detach()) as ours:
        line = wire.RedisConnection(ours)
        line._data += b"" if piece.startswith(b">") else b"*999999\r\n"
        with pytest.raises(wire.NoRedisReply, match="in time"):
            finish(line.ask([("PING",)], ends))


def test_an_answer_has_a_greatest_length(pair, monkeypatch):
    monkeypatch.setattr(wire, "LARGEST", 1 << 20)
    monkeypatch.setattr(Chatter, "piece", b"x" * (1 << 18))
    with Chatter(fileno=pair[0].detach()) as ours:
        line = wire.RedisConnection(ours)
        line._data += b"$99999999999\r\n"
        with pytest.raises(wire.NoRedisReply, match="longer than 1 MiB"):
            finish(line.ask([("PING",)], wire.NEVER))


def test_an_answer_that_has_come_is_taken_though_its_limit_is_over(pair, ends):
    ours, theirs = pair
    theirs.sendall(b"+late\r\n")
    assert finish(wire.RedisConnection(ours).ask([("PING",)], ends - 1)) == [b"late"]
