"""L13  What answers is no Redis, or a broken one: an error in words, and it costs itself alone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from decimal import Decimal

import pytest
import redis

from ground import needs
from lifehold import InvalidArgument, LifeholdError, connect
from lifehold.cli.main import main
from lifehold.compat.redis_lock import Lock
from lifehold.core.backend import Unreachable
from lifehold.ops.redis_locks import side_keys
from lifehold.store.redis import upkeep
from servers.redis import started

pytestmark = needs("redis")
INFO = b"redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
HELLO = b"%2\r\n+proto\r\n:3\r\n+version\r\n+7.0.15\r\n"


def text(of):
    return b"$%d\r\n%b\r\n" % (len(of), of)


def listed(*words):
    return b"*%d\r\n%b" % (len(words), b"".join(map(text, words)))


class Odd:
    """A server that knows the protocol, and gives the answers of a table to some commands."""

    def __init__(self, **answers):
        self.answers = {"INFO": text(INFO), "HELLO": HELLO, "TIME": listed(b"17", b"5"), **answers}
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line):
        with contextlib.suppress(OSError, ValueError), line, line.makefile("rb") as asked:
            while head := asked.readline():
                words = []
                for _ in range(int(head[1:])):
                    size = int(asked.readline()[1:])
                    words.append(asked.read(size))
                    asked.read(2)
                line.sendall(self.answers.get(words[0].upper().decode(), b"+OK\r\n"))

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextlib.contextmanager
def odd(**answers):
    with contextlib.closing(Odd(**answers)) as server:
        yield server


NO_REDIS = {
    "no number": b":abc\r\n",
    "no length": b"$abc\r\n",
    "no real number": b",abc\r\n",
    "a number of many digits": b":" + b"9" * 5000 + b"\r\n",
    "deep": b"*1\r\n" * 3000,
    "nothing": b"*0\r\n",
    "one number": b":7\r\n",
    "a word": b"+x\r\n",
    "null": b"$-1\r\n",
    "since never": text(b"5 0 inf 1"),
    "since no number": text(b"5 0 nan nan"),
    "since the end of time": text(b"5 0 1e300 1"),
}


@pytest.mark.parametrize("answer", NO_REDIS.values(), ids=NO_REDIS)
def test_an_odd_answer_is_an_error_in_words(answer, capsys):
    with odd(EVALSHA=answer, EVAL=answer, SCAN=answer) as server:
        store = connect(server.url, timeout=2)
        for ask in (
            lambda: store.lock("a", ttl=5, wait=0).acquire(),
            lambda: store.inspect("a"),
            store.list,
        ):
            with pytest.raises(LifeholdError) if answer != NO_REDIS["null"] else nothing():
                ask()
        for words in (["who", f"{server.url}#a"], ["ls", server.url], ["doctor", server.url]):
            assert main(words) != 70
        assert "Traceback" not in capsys.readouterr().err


def nothing():
    return contextlib.suppress(LifeholdError)


@pytest.mark.parametrize("answer", [b":7\r\n", b":abc\r\n"], ids=["a number", "no number"])
def test_one_odd_server_of_a_quorum_costs_no_lease(answer):
    with started() as one, started() as two, odd(EVALSHA=answer, EVAL=answer) as server:
        store = connect(quorum=[one.url, two.url, server.url], longest_ttl=2, timeout=2)
        with store.lock("a", ttl=1, wait=10, notify=False) as lease:
            renewed = time.monotonic() + 2
            while time.monotonic() < renewed:
                lease.check()
                time.sleep(0.05)


SERVED = {
    "nothing": b"*0\r\n",
    "a number": b":1\r\n",
    "no epoch": listed(b"ip", b"127.0.0.1", b"port", b"1"),
    "no port": listed(b"ip", b"127.0.0.1", b"port", b"x", b"config-epoch", b"1"),
    "a port too great": listed(b"ip", b"127.0.0.1", b"port", b"999999", b"config-epoch", b"1"),
}


@pytest.mark.parametrize("answer", SERVED.values(), ids=SERVED)
def test_an_odd_sentinel_is_an_error_in_words_and_costs_itself_alone(answer, redis_server):
    one = redis_server
    good = listed(
        b"ip", b"127.0.0.1", b"port", b"%d" % one.port, b"config-epoch", b"2", b"quorum", b"1"
    )
    with odd(SENTINEL=answer) as bad, odd(SENTINEL=good) as well:
        with pytest.raises(LifeholdError):
            connect(f"redis+sentinel://127.0.0.1:{bad.port}/svc", timeout=2).lock("a").acquire()
        with pytest.raises(Unreachable):
            upkeep.examine(f"redis+sentinel://127.0.0.1:{bad.port}/svc")
        both = f"redis+sentinel://127.0.0.1:{bad.port},127.0.0.1:{well.port}/svc"
        with connect(both, timeout=4).lock("odd sentinel", wait=0) as lease:
            lease.check()


def slots(host, port):
    node = b"*2\r\n" + host + b":%d\r\n" % port
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + node


MAPS = {
    "a number": b":1\r\n",
    "a list of numbers": b"*1\r\n:1\r\n",
    "no node": b"*1\r\n*2\r\n:0\r\n:16383\r\n",
    "an empty node": b"*1\r\n*3\r\n:0\r\n:16383\r\n*0\r\n",
    "no text": slots(text(b"\xff"), 5),
    "a port too great": slots(text(b"127.0.0.1"), 99999),
}


@pytest.mark.parametrize("answer", MAPS.values(), ids=MAPS)
def test_an_odd_map_of_a_cluster_is_an_error_in_words(answer):
    with odd(CLUSTER=answer) as server, pytest.raises(LifeholdError):
        connect(f"redis+cluster://127.0.0.1:{server.port}", timeout=2).lock("a").acquire()


@pytest.mark.parametrize(
    "referral",
    ["MOVED", "MOVED 1 x", "MOVED x 127.0.0.1:1", "MOVED 1 127.0.0.1:99999", "ASK 1", "MOVED 1 :0"],
)
def test_an_odd_referral_is_an_error_in_words(referral):
    answer = b"-%b\r\n" % referral.encode()
    with odd(EVALSHA=answer, EVAL=answer) as server:
        server.answers["CLUSTER"] = slots(text(b"127.0.0.1"), server.port)
        with pytest.raises(LifeholdError):
            connect(f"redis+cluster://127.0.0.1:{server.port}", timeout=2).lock("a").acquire()


@pytest.mark.parametrize("line", ["maxmemory:abc", "loading:yes", "connected_slaves:x"])
def test_doctor_says_that_a_server_answers_oddly(line):
    info = text(INFO + line.encode() + b"\r\n")
    told = pytest.raises(Unreachable, match="none that Redis gives")
    with odd(INFO=info, EVAL=b"*0\r\n") as server, told:
        upkeep.examine(server.url)


def test_an_option_that_a_url_cannot_give_is_named():
    with pytest.raises(InvalidArgument, match="socket_keepalive_options"):
        connect("redis://127.0.0.1:1/0?socket_keepalive_options=x").lock("a", wait=0).acquire()


@pytest.mark.parametrize("last", ["inf", "nan", "1e300", "9" * 30, "-5", "abc"])
def test_a_last_token_that_no_step_wrote_lets_no_token_sink(redis_url, last):
    """L4  In redis-py's lock, replaced."""
    with redis.Redis.from_url(redis_url) as client:
        before = Lock(client, "job", timeout=5)
        with before:
            given = before.token
        client.set(side_keys(b"job").token, last)
        with Lock(client, "job", timeout=5) as lock:
            assert given < lock.token < 2**53


def test_a_timeout_may_be_any_number(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        lock = Lock(client, "job", timeout=Decimal("1.5"))
        assert lock.acquire(blocking=False)
        assert 0 < client.pttl("job") <= 1500
        lock.release()
        assert not client.exists("job")
