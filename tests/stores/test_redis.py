"""Redis as people have it: users, TLS, sockets, clients of their own, odd names, wrong servers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading

import pytest

from ground import needs
from lifehold import (
    InvalidArgument,
    Lock,
    NotAcquired,
    StoreUnavailable,
    UnsafeGround,
    aio,
    connect,
    events,
    once,
)
from lifehold.cli.choose_tree import ENDS, REDIS
from lifehold.core.backend import NoReply, Refused, Request, Unreachable
from lifehold.core.owner import Owner
from lifehold.runtime import clock
from lifehold.runtime.blocking import finish
from lifehold.store.redis.backend import _read_owner
from lifehold.store.redis.connect import RedisUrl
from lifehold.store.redis.scripts import keys, name_of
from lifehold.store.redis.wire import RedisConnection, RedisRefused
from patience import SOON, until

pytestmark = needs("redis")
IN_REDIS = [end for end in ENDS if end.given.get("place") == "redis"]
RIGHTS = "~lifehold:* &lifehold:* +@read +@write +@scripting +@pubsub +@connection +time"
USERS = (
    f"app on >hunter2 {RIGHTS} +info",
    f"blind on >hunter2 {RIGHTS}",
    "mute on >hunter2 ~lifehold:* &lifehold:* +@all -evalsha -eval",
    "other on >hunter2 ~theirs:* &theirs:* +@all",
    "timeless on >hunter2 ~lifehold:* &lifehold:* +@all -time",
)


@pytest.fixture(scope="module")
def guarded():
    """A server with a password, users and TLS."""
    from servers import redis

    with redis.started(password="hunter2", users=USERS, tls=True) as server:
        yield server


def as_user(server, user, password="hunter2"):
    return f"redis://{user}:{password}@127.0.0.1:{server.port}/0"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", ["url", "unix_url", "tls_url"])
def test_a_lock_is_one_lock_by_whatever_way_it_is_reached(guarded, way, protocol):
    url = getattr(guarded, way)
    store = connect(f"{url}{'&' if '?' in url else '?'}protocol={protocol}")
    name = f"way/{way}/{protocol}"
    with store.lock(name, wait=0) as lease:
        lease.verify()
        with pytest.raises(NotAcquired):
            connect(guarded.unix_url).lock(name, wait=0).acquire()
        assert "hunter2" not in f"{store!r} {store.ground()} {store.inspect(name)!r} {lease!r}"
    assert store.list(name) == [name]


def test_a_user_of_few_rights_does_all_and_one_may_be_blind(guarded):
    for user in ("app", "blind"):
        store = connect(as_user(guarded, user))
        held, came = store.lock(user, wait=0).acquire(), threading.Event()

        def wait(store=store, user=user, came=came):
            with store.lock(user, wait=SOON):
                came.set()

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda store=store: store._site.hands and store.waiters(user) == 1)  # noqa: B023
        held.release()
        thread.join(SOON)
        assert came.is_set()
        assert store.list(user) == [user]
    assert "nothing is known of its disk" in str(connect(as_user(guarded, "blind")).ground())


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("app", "wrong", "user and the password"),
        ("mute", "hunter2", "its ACL must allow"),
        ("other", "hunter2", "its ACL must allow"),
        ("timeless", "hunter2", "its ACL must allow"),
    ],
)
def test_who_may_not_is_told_what_to_do(guarded, user, password, words):
    store = connect(as_user(guarded, user, password))
    with pytest.raises(StoreUnavailable, match=words) as caught:
        store.lock("refused", wait=5).acquire()
    assert "hunter2" not in str(caught.value)
    assert str(guarded.port) in str(caught.value)


def test_no_password_no_tls_and_no_server_are_told_apart(guarded):
    cases = {
        f"redis://127.0.0.1:{guarded.port}/0": "wants a password",
        f"redis://:hunter2@127.0.0.1:{guarded.port}/99": "has no such database",
        f"redis://:hunter2@127.0.0.1:{guarded.tls_port}/0": "TLS",
        f"rediss://:hunter2@127.0.0.1:{guarded.tls_port}/0": "ssl_ca_certs",
        "redis://127.0.0.1:1/0": "nothing listens there",
        "unix:///nowhere/at/all.sock": "no such socket",
    }
    for url, words in cases.items():
        with pytest.raises(StoreUnavailable, match=words) as caught:
            connect(url).lock("x", wait=0).acquire()
        assert "hunter2" not in str(caught.value)


def test_a_port_that_speaks_no_tls_is_silent_and_that_is_guessed(guarded):
    url = f"rediss://:hunter2@127.0.0.1:{guarded.port}/0"
    with pytest.raises(StoreUnavailable, match="speaks no TLS there"):
        connect(url, timeout=0.3).lock("x", wait=0).acquire()


@pytest.mark.parametrize(
    "url",
    ["redis://:s3cr3t@h:x/0", "redis://:s3cr3t@h/zero", "redis://:s3cr3t@h/0?protocol=x",
     "redis://:s3/cr3t@h/0", "redis://h/abc?password=s3cr3t", "redis://h:x/0?password=s3cr3t"],
)  # fmt: skip
def test_a_bad_url_is_refused_and_its_password_masked(url):
    with pytest.raises(InvalidArgument) as caught:
        connect(url).lock("x", wait=0).acquire()
    assert "s3cr3t" not in str(caught.value)


def test_bad_options_are_refused(redis_server):
    for wrong in ({"timeout": 0}, {"timeout": "1"}, {"connections": 0}, {"client": 5}):
        with pytest.raises(InvalidArgument):
            connect(redis_server.url, **wrong)
    with pytest.raises(InvalidArgument, match="no such option"):
        connect(f"{redis_server.url}?nonsense=1").list()
    assert connect(f"{redis_server.url}?socket_timeout=2")._site.limit == 2.0


# ------------------------------------------------------------------------------------------------
# Names, keys and what lies there already.


NAMES = ["a{b}", "}{", "{}", "a%7Bb", "ü#?%/ *[x]", "x" * 512, "lifehold:{x}:lease"]


def test_every_name_has_its_own_keys_in_one_slot(redis_url):
    store = connect(redis_url)
    leases = [store.lock(name, wait=0).acquire() for name in NAMES]
    assert store.list() == sorted(NAMES)
    for name in NAMES:
        assert store.list(name) == [name]
        assert name_of(keys(name)[0]) == name
        tags = {key[key.index("{") + 1 : key.index("}")] for key in keys(name)}
        assert len(tags) == 1
        assert tags.pop()
    for lease in leases:
        lease.release()


def test_names_are_listed_in_pieces(redis_url):
    """Thousands of them, more than one answer of SCAN."""
    store = connect(redis_url)
    count = 1700
    for number in range(count):
        finish(store._site.backend._call("order", f"many/{number:05}", "bump", "0", "", ""))
    assert store.list("many/") == [f"many/{number:05}" for number in range(count)]
    assert store.list("many/0000") == [f"many/{number:05}" for number in range(10)]


@pytest.mark.parametrize("kind", ["string", "hash", "list"])
def test_a_key_of_another_program_is_held_and_left_alone(redis_url, redis_server, kind):
    key, client = keys("theirs")[0], redis_server.client()
    with client:
        made = {
            "string": lambda: client.set(key, "theirs"),
            "hash": lambda: client.hset(key, "lifehold", "theirs"),
            "list": lambda: client.rpush(key, "theirs"),
        }[kind]
        made()
        before = client.dump(key)
        store = connect(redis_url)
        for act in (store.lock("theirs", wait=0).acquire, lambda: store.inspect("theirs")):
            with pytest.raises(StoreUnavailable, match="choose another name"):
                act()
        with store.lock("ours", wait=0):
            assert store.list() == ["ours"]
        assert client.dump(key) == before


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        ("WRONGTYPE", "@user_script:4: WRONGTYPE Operation against a key", "choose another name"),
        ("OOM", "@user_script:57: @user_script: 57: -OOM command not allowed", "memory is full"),
        ("READONLY", "@user_script:3: @user_script: 3: -READONLY You can't", "name the primary"),
        ("ERR", "@user_script:2: @user_script: 2: The user executing the script can't run", "ACL"),
        ("ERR", "@user_script:45: attempt to perform arithmetic on a nil value", "attempt to"),
    ],
)
def test_what_a_script_was_refused_before_redis_7_is_told_alike(code, text, told):
    """As Redis 6.2.14 has it."""
    refused = RedisRefused(f"ERR Error running script (call to f_{'0a' * 20}): {text}.")
    assert refused.code == code
    error = RedisUrl("redis://h/0", 1.0).refused(refused, keys("x")[0])
    assert isinstance(error, NoReply if code == "ERR" else Unreachable)
    assert told in str(error)


@pytest.mark.parametrize("told", ["ERR Connection timed out", "upstream failure"])
def test_a_release_that_a_proxy_has_handed_on_is_no_loss(guarded, monkeypatch, told):
    """It answers by an error of its own, whatever the server did."""
    store = connect(guarded.url, timeout=7)
    lease = store.lock("handed on", wait=0).acquire()
    backend, said = store._site.backend, [RedisRefused(told)]
    run = backend._run

    async def through(*given, **more):
        found = await run(*given, **more)
        return [said.pop()] if said else found

    monkeypatch.setattr(backend, "_run", through)
    lease.release()
    assert said == []


def test_what_is_pushed_among_the_replies_answers_nothing():
    ours, theirs = socket.socketpair()
    line = RedisConnection(ours)
    theirs.sendall(b">2\r\n+MOVING\r\n:5\r\n:1\r\n>1\r\n+x\r\n|1\r\n+k\r\n+v\r\n:2\r\n")
    assert finish(line.ask([("ONE",), ("TWO",)], clock.now() + SOON)) == [1, 2]
    line.close()
    theirs.close()


HOLDER = b"5 1 0 0 30 0 9999999999 1 0 1 "  # before its owner, in JSON


@pytest.mark.parametrize(
    ("nonce", "text"),
    [
        (b"ab", b"junk"),
        (b"ab", HOLDER + b"[" * 200_000),
        (b"\xff\xfe", HOLDER + b"{}"),
        (b"ab", HOLDER + b'{"pid":[1],"host":{"a":1},"command":5,"user":[2],"label":9}'),
        (b"ab", HOLDER + b'{"pid":7,"host":{"a":1},"command":5,"user":[2],"label":9}'),
    ],
)
def test_a_hostile_holder_costs_its_own_name_at_most(redis_url, redis_server, nonce, text):
    lease, store = keys("hostile")[0], connect(redis_url)
    with redis_server.client() as client:
        client.hset(lease, mapping={"lifehold": "1", "token": "5", "capacity": "1"})
        client.hset(f"{lease.rpartition(':')[0]}:holders", nonce, text)
        try:
            with store.lock("ours", wait=0):
                assert "ours" in store.list()
                (ours,) = [each for each in store.states() if each.name == "ours"]
                assert ours.holders
        finally:
            client.delete(lease, f"{lease.rpartition(':')[0]}:holders")


def test_an_owner_of_no_sense_is_dropped():
    assert _read_owner(b'{"pid":7,"thread":3,"newer":[1]}') == Owner(7, thread=3)
    assert _read_owner(b'{"pid":7,"host":{"a":1},"command":5,"uid":true}') is None
    assert _read_owner(b'{"pid":[7],"host":"h"}') is None


@pytest.mark.parametrize("text", [b"\xff", b"ab 1", b"ab 1 x 0 1 2", b"ab 1 5 0 y 2"])
def test_a_message_of_somebody_else_ends_no_listening(redis_url, text):
    wakeups = connect(redis_url)._site.wakeups
    wakeups._heard(None, [b"message", wakeups.channel.encode(), text])


def test_what_a_newer_version_wrote_is_held(redis_url, redis_server):
    redis_server.call("HSET", keys("new")[0], "lifehold", "2", "token", "7")
    with pytest.raises(StoreUnavailable, match="newer lifehold"):
        connect(redis_url).lock("new", wait=0).acquire()


def test_all_keys_but_the_token_end_by_themselves(redis_url, redis_server):
    store = connect(redis_url)
    held = store.lock("ends", wait=0).acquire()
    thread = threading.Thread(target=lambda: store.lock("ends", wait=SOON).acquire().release())
    thread.start()
    until(lambda: store.waiters("ends") == 1)
    found = {key: redis_server.call("PTTL", key) for key in redis_server.call("KEYS", "*")}
    assert found.pop(keys("ends")[0]) == -1
    assert len(found) == 4
    assert all(0 < ms <= 200_000 for ms in found.values()), found
    held.release()
    thread.join(SOON)
    until(lambda: redis_server.call("KEYS", "*") == [keys("ends")[0]])


def test_names_that_nobody_uses_are_forgotten_and_no_other(redis_url, redis_server):
    store = connect(redis_url)
    with store.lock("idle", wait=0) as first:
        pass
    held = store.lock("held", wait=0).acquire()
    redis_server.call("HSET", keys("ahead")[0], "lifehold", "1", "token", str(2**62))
    assert store._site.prune(3600) == 0
    assert store._site.prune(0) == 1
    assert store.list() == ["ahead", "held"]
    held.release()
    with store.lock("idle", wait=0) as again:
        assert again.token > first.token


def test_a_name_is_forgotten_and_who_was_given_up_on_is_not_let_in_later(redis_url, redis_server):
    """L6  The request of a nonce that was given up may come behind the prune."""
    store = connect(redis_url)
    with store.lock("late", wait=0):
        pass
    backend, asked = store._site.backend, Request("late", "f" * 16, 30.0, store._site.owner(""))
    assert not finish(backend.release("late", asked.nonce))
    assert store._site.prune(0) == 1
    assert not redis_server.call("EXISTS", keys("late")[0])
    assert isinstance(finish(backend.acquire(asked)), Refused)
    assert not store.holders("late")
    store.lock("late", wait=0).acquire().release()


# ------------------------------------------------------------------------------------------------
# Servers on which a lock is not safe, or not just now.


@pytest.fixture
def changed(redis_server):
    """Settings of the shared server for one test."""
    before = {}

    def change(name, to):
        before.setdefault(name, redis_server.call("CONFIG", "GET", name)[name])
        redis_server.call("CONFIG", "SET", name, to)

    yield change
    for name, was in before.items():
        redis_server.call("CONFIG", "SET", name, was)


def test_a_server_that_evicts_keys_is_refused_until_it_does_not(redis_url, changed):
    changed("maxmemory-policy", "volatile-lru")
    store = connect(redis_url, timeout=9)
    with pytest.raises(UnsafeGround, match="CONFIG SET maxmemory-policy noeviction"):
        store.lock("evicted", wait=0).acquire()
    changed("maxmemory-policy", "noeviction")
    with store.lock("evicted", wait=0) as lease:
        lease.verify()


def test_a_server_that_begins_to_evict_is_found_while_it_runs(redis_url, changed, monkeypatch):
    store = connect(redis_url, timeout=8)
    lease = store.lock("found", wait=0).acquire()
    changed("maxmemory-policy", "allkeys-lru")
    store._site.backend.plan.looked_at = 0.0  # a minute later
    lease.verify()  # who holds a lease keeps it
    with pytest.raises(UnsafeGround, match="allkeys-lru"):
        store.lock("other", wait=0).acquire()
    lease.release()


def test_a_full_memory_refuses_grants_and_lets_renewals_and_releases_through(redis_url, changed):
    store = connect(redis_url)
    leases = [store.lock(f"full/{number}", wait=0).acquire() for number in range(3)]
    changed("maxmemory", "1")
    with pytest.raises(StoreUnavailable, match="memory is full"):
        store.lock("more", wait=0).acquire()
    for lease in leases:
        lease.verify()
        lease.release()
    changed("maxmemory", "0")
    assert [store.inspect(f"full/{number}") for number in range(3)] == [None] * 3
    assert store.list("more") == []


def test_scripts_that_were_flushed_are_sent_again(redis_url, redis_server):
    store = connect(redis_url)
    lease = store.lock("flushed", wait=0).acquire()
    redis_server.call("SCRIPT", "FLUSH", "SYNC")
    lease.verify()
    redis_server.call("SCRIPT", "FLUSH", "SYNC")
    lease.release()
    redis_server.call("SCRIPT", "FLUSH", "SYNC")
    assert store.inspect("flushed") is None


def test_a_replica_is_refused(redis_server):
    copy = redis_server.replica()
    try:
        with pytest.raises(StoreUnavailable, match="name the primary"):
            connect(copy.url).lock("copied", wait=0).acquire()
    finally:
        copy.kill()


def test_a_primary_that_becomes_a_replica_is_noticed(redis_server):
    from servers import redis

    with redis.started() as server:
        store = connect(server.url)
        lease = store.lock("demoted", wait=0, ttl=60).acquire()
        server.call("REPLICAOF", "127.0.0.1", redis_server.port)
        with pytest.raises(StoreUnavailable, match="name the primary"):
            store.inspect("demoted")  # by the connection that was open before
        with pytest.raises(StoreUnavailable, match="name the primary"):
            lease.release()
        with pytest.raises(StoreUnavailable, match="name the primary"):
            store.lock("demoted", wait=0).acquire()


# ------------------------------------------------------------------------------------------------
# A client of the program's own, forks, many leases.


def test_a_client_of_the_program_says_where_the_server_is(guarded):
    import redis

    with redis.Redis(port=guarded.port, password="hunter2", db=0) as client:
        store = connect("redis://", client=client)
        with store.lock("client", wait=0) as lease:
            lease.verify()
            assert connect(guarded.unix_url).inspect("client").token == lease.token
        assert "hunter2" not in f"{store!r} {store.ground()} {store._site.url}"
        assert f":{guarded.port}/0" in store._site.url


def test_an_asynchronous_client_too(guarded):
    from redis import asyncio as aredis

    async def main():
        client = aredis.Redis(unix_socket_path=str(guarded.socket), password="hunter2")
        store = await aio.aconnect("redis://", client=client)
        async with store.lock("aclient", wait=0) as lease:
            assert connect(guarded.unix_url).inspect("aclient").token == lease.token
        await client.aclose()

    asyncio.run(main())


def test_a_forked_child_has_connections_and_leases_of_its_own(redis_url):
    store = connect(redis_url)
    lease = store.lock("forked", wait=0).acquire()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = "wrong"
        try:
            inner = connect(redis_url)
            with pytest.raises(NotAcquired):
                inner.lock("forked", wait=0).acquire()
            with inner.lock("of the child", wait=0) as own:
                own.verify()
            told = "right"
        finally:
            os.write(write, told.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as end:
        assert end.read() == "right"
    os.waitpid(child, 0)
    lease.verify()
    lease.release()


def test_thousands_of_leases_are_renewed_together(redis_url, redis_server):
    site = connect(redis_url)._site
    from lifehold.core.backend import Renewal, Request
    from lifehold.runtime import process

    many = [f"renewed/{number}" for number in range(1000)]
    for name in many:
        finish(site.backend.acquire(Request(name, "n", 60.0, process.here())))
    _, kept = finish(site.backend.renew([Renewal(name, "n", 60.0) for name in (*many, "gone")]))
    assert kept == (True,) * 1000 + (False,)
    redis_server.call("SCRIPT", "FLUSH", "SYNC")
    _, kept = finish(site.backend.renew([Renewal(name, "n", 60.0) for name in many]))
    assert all(kept)


def test_a_url_with_a_name_is_a_lock(redis_url, caplog):
    with caplog.at_level(logging.ERROR), Lock(f"{redis_url}#payments/42", wait=0) as lease:
        assert connect(redis_url).inspect("payments/42").token == lease.token


def test_an_event_loop_that_is_busy_keeps_no_connection_from_threads(redis_url):
    """All that tasks may have are in their hands, and the loop is busy with a blocking call."""

    async def main():
        store = await aio.aconnect(redis_url, connections=2, timeout=SOON)
        tasks = [asyncio.create_task(store.inspect("busy")) for _ in range(20)]
        await asyncio.sleep(0)
        with connect(redis_url, connections=2, timeout=SOON).lock("busy", wait=0) as lease:
            lease.verify()
        await asyncio.gather(*tasks)

    asyncio.run(main())


@pytest.mark.parametrize("end", IN_REDIS, ids=lambda end: end.given["how"])
def test_the_lines_of_the_decision_tree_run(redis_url, end):
    done: list[object] = []
    names = {"connect": connect, "once": once, "done": done, "build": lambda: 5}
    line = end.python.replace(REDIS, redis_url).replace("...", "done.append(lease.check())")
    exec(line, names)
    assert names.get("result") == 5 if end.given["how"] == "once" else done == [None]


def test_a_release_that_a_closed_loop_never_began_is_done(redis_url):
    async def taken():
        store = await aio.aconnect(redis_url, timeout=SOON)
        return store, await store.lock("a", ttl=SOON).acquire()

    heard = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # asyncio tells of a task that was not finished
    kept, lease = loop.run_until_complete(taken())
    end = events.subscribe(heard.append)
    task = loop.create_task(lease.release())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    task.get_coro().close()
    end()
    with connect(redis_url) as store:
        store.lock("a", ttl=SOON).acquire(0).release()
    assert [type(each).__name__ for each in heard] == ["Released"]
    assert not task.done()
    del kept
