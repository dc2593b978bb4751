"""Who holds a lock that another library made, as far as its key tells (ops/redis_locks.py)."""

from __future__ import annotations

import os
import shlex
import time

import pytest
import redis

from ground import needs
from lifehold.compat.redis_lock import Lock
from lifehold.ops.redis_locks import MOST, answer, side_keys
from patience import steadily

pytestmark = needs("redis")
REDISSON = "8743c9c0-0795-4907-87fd-6c719a6b4586"


@pytest.fixture(params=[False, True], ids=["bytes", "decoded"])
def client(request, redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=request.param) as made:
        yield made


def test_of_ours_the_record_names_process_time_and_token(client):
    with Lock(client, "job", timeout=60) as lock:
        found = answer(client, "job")
        assert (found.state, found.family, found.kind) == ("held", "redis-py", "lease")
        assert found.holder.owner.pid == os.getpid()
        assert found.holder.token == lock.token
        assert found.holder.alive == "alive"
        assert abs(found.holder.since - time.time()) < 60
    assert answer(client, "job").state == "free"


def test_a_record_is_never_taken_for_another_holders(client):
    """Theirs took the key after ours had run out, or was removed by hand."""
    Lock(client, "job", timeout=60).acquire()
    client.delete("job")
    assert answer(client, "job").state == "free"
    redis.lock.Lock(client, "job", timeout=60).acquire()
    found = answer(client, "job")
    assert found.holder.owner is None
    assert found.holder.token is None


def test_of_redis_py_the_value_says_when_it_asked(client):
    lock = redis.lock.Lock(client, "job", timeout=60)
    lock.acquire()
    found = answer(client, "job")
    assert (found.state, found.family) == ("held", "redis-py")
    assert abs(found.holder.since - time.time()) < 60
    assert lock.local.token.decode() in found.holder.evidence


@pytest.mark.parametrize(
    ("key", "value", "family"),
    [
        ("lock:job", "q83vEjRWeJq83vEjRWeJq83v", "python-redis-lock"),
        ("redlock:job", "c3d1f1a2-5b0e-4c59-9d0a-6f1f2e9b7a41", "pottery"),
        ("job", "aB3dE6gH9jK2mN5pQ8sT1v", "redlock-py"),
        ("job", "whatever it is", ""),
        ("job", "c3d1f1a25b0e4c599d0a6f1f2e9b7a41", ""),
    ],
)
def test_the_shape_of_key_and_value_tells_the_family_and_names_nobody(client, key, value, family):
    client.set(key, value, px=60_000)
    found = answer(client, key)
    assert (found.state, found.family) == ("held", family)
    assert found.holder.owner is None
    assert found.note


def test_a_string_that_never_ends_is_suspect_and_its_remedy_removes_that_very_value(client):
    client.set("it's mine", "a 'quoted' value")
    found = answer(client, "it's mine")
    assert (found.state, found.holder.alive) == ("suspect", "unknown")
    (remedy,) = found.remedy
    assert "redis-cli EVAL" in remedy
    assert """'it'"'"'s mine'""" in remedy
    assert client.get("it's mine") is not None
    assert carried_out(client, found) == 1
    assert not client.exists("it's mine")


def carried_out(client, found):
    """What the remedy does, in the words that a shell makes of it."""
    (remedy,) = found.remedy
    return client.execute_command(*shlex.split(remedy.partition("redis-cli ")[2]))


def test_a_remedy_ends_the_lock_that_was_judged_and_no_later_one(client):
    client.set("lock:job", "q83vEjRWeJq83vEjRWeJq83v")
    of_strings = answer(client, "lock:job")
    client.hset("report", f"{REDISSON}:42", 1)
    of_redisson = answer(client, "report")
    client.set("lock:job", "q83vEjRWeJq83vEjRWeJqAAA")
    client.delete("report")
    client.hset("report", f"{REDISSON}:7", 1)
    for found in (of_strings, of_redisson):
        assert carried_out(client, found) == 0
    assert client.exists("lock:job", "report") == 2


def test_a_remedy_wakes_those_who_wait_as_their_own_library_does(client):
    client.set("lock:job", "q83vEjRWeJq83vEjRWeJq83v")
    assert carried_out(client, answer(client, "lock:job")) == 1
    assert client.lrange("lock-signal:job", 0, -1) in ([b"1"], ["1"])
    client.hset("report", f"{REDISSON}:42", 1)
    with client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe("redisson_lock__channel:{report}")
        heard.get_message(timeout=60)
        assert carried_out(client, answer(client, "report")) == 1
        assert heard.get_message(timeout=60)["data"] in (b"0", "0")


def test_of_redisson_each_client_and_thread_is_a_holder(client):
    client.hset("job", mapping={f"{REDISSON}:42": 2})
    client.pexpire("job", 30_000)
    found = answer(client, "job")
    assert (found.state, found.family) == ("held", "Redisson")
    assert f"client {REDISSON}, thread 42, taken 2 times" in found.holder.evidence
    client.hset("job", mapping={"mode": "read", f"{REDISSON}:43": 1})
    found = answer(client, "job")
    assert len(found.others) == 1
    assert "mode read" in found.note
    client.persist("job")
    found = answer(client, "job")
    assert found.state == "suspect"
    assert carried_out(client, found) == 1
    assert not client.exists("job")


def test_what_is_no_lock_is_called_so_and_nothing_is_written(redis_server, client):
    client.rpush("job", "x")
    assert "a list" in answer(client, "job").note
    client.delete("job")
    client.hset("job", "a", "b")
    assert "no lock of Redisson" in answer(client, "job").note

    def judge():  # the server is shared: a thread of a test before may ask it something
        with redis_server.counting() as calls:
            answer(client, "job")
            answer(client, b"\xff{}")
        read = {"type", "pttl", "hlen", "hrandfield", "hstrlen", "hmget", "getrange"}
        assert set(calls) <= read | {"hello", "client|setinfo"}

    steadily(judge)


MANY = 200_000


def test_of_a_lock_with_very_many_holders_some_are_shown_and_the_others_counted(client):
    fields = {f"{REDISSON}:{n}": 1 for n in range(MANY)} | {"mode": "read"}
    pairs = [part for pair in fields.items() for part in pair]
    for at in range(0, len(pairs), 50_000):
        client.hset("job", items=pairs[at : at + 50_000])
    before = received(client)
    found = answer(client, "job")
    assert received(client) - before < 20_000
    assert (found.state, found.family) == ("suspect", "Redisson")
    assert len(found.others) == MOST - 1
    assert "mode read" in found.note
    assert f"{MANY - MOST} more of its {MANY + 1} fields" in found.note
    assert not found.remedy  # which would name all of them


def received(client):
    """Bytes that the server has sent to whom it may be."""
    return client.info("stats")["total_net_output_bytes"]


def test_no_value_comes_here_that_is_longer_than_any_lock_has(client):
    client.setrange("job", 1 << 26, "x")
    client.hset("report", mapping={f"{REDISSON}:1": 1, f"{REDISSON}:2": "x" * (1 << 26)})
    before = received(client)
    found = answer(client, "job")
    assert (found.state, found.family, found.remedy) == ("suspect", "", ())
    found = answer(client, "report")
    assert "thread 1" in found.holder.evidence
    assert "1 more of its 2 fields" in found.note
    assert received(client) - before < 1 << 18


def test_a_record_beside_a_key_is_read_as_far_as_it_is_one_of_ours(client):
    with Lock(client, "job", timeout=60):
        client.hset(side_keys(b"job").owner, "owner", "x" * (1 << 26))
        before = received(client)
        found = answer(client, "job")
        assert received(client) - before < 1 << 18
    assert (found.state, found.family, found.holder.owner) == ("held", "redis-py", None)


def test_a_remedy_that_no_shell_would_take_is_not_printed(client):
    client.set("job", "x" * 2000)
    assert answer(client, "job").state == "suspect"
    assert not answer(client, "job").remedy
