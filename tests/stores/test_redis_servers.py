"""The harness itself: what tests of Redis rely on (servers/redis.py, servers/redis_groups.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ground import needs
from servers.proxy import Proxy, redis_replies
from servers.redis import started, until

pytestmark = needs("redis")
TESTS = Path(__file__).parent.parent


def test_a_killed_server_comes_back_with_its_file_or_empty():
    with started(aof=True) as server:
        server.call("SET", "kept", "1")
        port, before = server.port, server.pid
        server.restart()
        assert (server.port, server.call("GET", "kept")) == (port, "1")
        assert server.pid != before
        server.restart(empty=True)
        assert server.call("GET", "kept") is None


def test_passwords_users_tls_and_the_socket_are_those_that_were_asked_for():
    import redis

    with started(password="hush", users=("ana on >pw ~ana:* &* +get +ping",), tls=True) as server:
        for url in (server.url, server.unix_url, server.tls_url):
            with contextlib.closing(redis.Redis.from_url(url)) as client:
                assert client.ping()
        with contextlib.closing(server.client(username="ana", password="pw")) as ana:
            assert ana.get("ana:x") is None
            with pytest.raises(redis.exceptions.NoPermissionError):
                ana.set("ana:x", "1")
        with (
            contextlib.closing(server.client(password=None)) as nobody,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            nobody.ping()


@needs("linux")
def test_a_server_ends_with_a_test_run_that_was_killed(tmp_path):
    run = (
        "import sys; from pathlib import Path; from servers.redis import Server\n"
        f"print(Server(Path({str(tmp_path)!r}, 's')).start().pid, flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert _runs(pid)
        process.send_signal(signal.SIGKILL)
        until("the server ends", lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    """Whether it is a process that does anything: one that has ended may wait to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_proxy_loses_the_reply_and_not_the_command(redis_server, redis_url, protocol):
    import redis

    with (
        Proxy(redis_server.port, redis_replies) as proxy,
        contextlib.closing(redis_server.client(port=proxy.port, protocol=protocol)) as client,
    ):
        assert client.ping()
        client.hset("h", mapping={"a": "1" * 70000, "b": ""})
        before = proxy.replies
        assert client.hgetall("h") == {"a": "1" * 70000, "b": ""}
        assert client.get("none") is None
        assert proxy.replies == before + 2
        proxy.lose(2)
        assert client.incr("n") == 1
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert (redis_server.call("GET", "n"), proxy.lost) == ("2", 1)


def test_commands_are_counted_also_those_of_a_script(redis_server, redis_url):
    with contextlib.closing(redis_server.client()) as client:
        client.ping()
        with redis_server.counting() as calls:
            client.eval("redis.call('INCR', KEYS[1]) return redis.call('INCR', KEYS[1])", 1, "n")
    assert (calls["eval"], calls["incr"]) == (1, 2)


def test_a_paused_server_answers_again_when_it_goes_on():
    import redis

    with started() as server, contextlib.closing(server.client(socket_timeout=0.2)) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        until("it answers", client.ping)


def test_a_failover_loses_the_writes_that_no_replica_has():
    from servers import redis_groups

    with redis_groups.sentinels() as group:
        group.primary.call("SET", "seen", "1")
        assert group.primary.call("WAIT", 2, 30000) == 2
        before = group.primary
        group.cut_off()
        before.call("SET", "unseen", "1")
        now = group.fail_over()
        assert now is not before
        assert (now.call("GET", "seen"), now.call("GET", "unseen")) == ("1", None)
        assert group.agreed() == now.port


def test_a_slot_is_moved_by_steps_and_a_replica_takes_over():
    import redis

    from servers import redis_groups

    with redis_groups.cluster() as cluster:
        slot = cluster.slot("{jobs}")
        source = cluster.owner(slot)
        target = next(each for each in cluster.primaries if each is not source)
        source.call("SET", "{jobs}a", "1")
        cluster.begin_move(slot, target)
        with pytest.raises(redis.exceptions.AskError):
            source.call("GET", "{jobs}b")
        assert cluster.carry(slot, target) == 1
        cluster.end_move(slot, target)
        with pytest.raises(redis.exceptions.MovedError):
            source.call("GET", "{jobs}a")
        assert (target.call("GET", "{jobs}a"), cluster.owner(slot)) == ("1", target)
        new = cluster.fail_over(target)
        cluster.wait_ok()
        assert cluster.owner(slot) is new
