"""`who`, `ls`, `wait` and `clear` of a lock that another library has made at a key in Redis."""

from __future__ import annotations

import json
import shlex
import threading

import pytest
import redis

from ground import needs
from lifehold import connect
from lifehold.cli import wait
from lifehold.compat.redis_lock import Lock
from lifehold.ops import stored
from servers.redis import started, until

pytestmark = needs("redis")
REDISSON = "8743c9c0-0795-4907-87fd-6c719a6b4586:42"
BASE64 = "q83vEjRWeJq83vEjRWeJq83v"


@pytest.fixture(scope="module")
def redis_server():
    with started() as one:
        yield one


@pytest.fixture
def client(redis_server):
    with redis_server.client(decode_responses=True) as made:
        made.flushall()
        yield made
        made.flushall()


def test_who_tells_the_family_what_is_left_of_its_ttl_and_that_a_lease_is_another_lock(
    lifehold, redis_server, client
):
    redis.lock.Lock(client, "job", timeout=600).acquire()
    with redis_server.counting() as calls:
        done = lifehold("who", "--json", f"{redis_server.url}#job")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["locks"]
    assert (found["state"], found["family"]) == ("held", "redis-py")
    assert "its key ends in " in found["holder"]["evidence"]
    assert stored.ANOTHER in found["note"]
    written = set(calls) & {"set", "del", "hset", "expire", "pexpire", "publish"}
    assert not written
    with connect(redis_server.url).lock("job", wait=0):  # as the note says
        assert stored.answer("job", f"{redis_server.url}#job").family == ""


@pytest.mark.parametrize(
    ("key", "make", "family"),
    [
        ("lock:job", lambda client, key: client.set(key, BASE64), "python-redis-lock"),
        ("job", lambda client, key: client.lock(key).acquire(), "redis-py"),
        ("job", lambda client, key: client.hset(key, REDISSON, 1), "Redisson"),
    ],
)
def test_a_lock_without_an_end_is_suspect_and_cleared_by_its_printed_remedy_alone(
    lifehold, redis_server, client, key, make, family
):
    make(client, key)
    url = f"{redis_server.unix_url}#{key}"
    found = stored.answer(url, url)
    assert (found.state, found.family) == ("suspect", family)
    for force in ("", BASE64[:8], REDISSON[:8]):
        done = stored.clear(url, force=force)
        assert (done.action, done.word, done.left) == ("kept", "", True)
        assert client.exists(key)
    told = lifehold("clear", url)
    assert told.returncode == 1
    assert f"a lock of {family}, which lifehold never ends" in told.stdout
    _, _, words = done.next.partition("redis-cli -s ")
    socket, number, base, *command = shlex.split(words)
    assert (socket, number, base) == (redis_server.unix_url[7:].partition("?")[0], "-n", "0")
    assert client.execute_command(*command) == 1
    assert stored.answer(url, url).state == "free"


def test_of_our_own_face_the_holder_is_named(redis_server, client):
    with Lock(client, "job", timeout=600) as lock:
        found = stored.answer("job", f"{redis_server.url}#job")
        assert found.holder.token == lock.token
        assert found.holder.owner.pid


def test_a_key_that_is_no_lock_leaves_the_name_free_and_is_told(redis_server, client):
    client.rpush("job", "x")
    client.set("other", "some text", px=600_000)
    first, second = (stored.answer("", f"{redis_server.url}#{name}") for name in ("job", "other"))
    assert (first.state, second.state) == ("free", "free")
    assert "a list, which is no lock" in first.note
    assert "it ends in " in second.note
    assert stored.answer("", f"{redis_server.url}#nothing").note == ""


def test_a_user_who_may_read_our_keys_alone_is_told_what_was_not_seen(redis_server, client):
    client.execute_command(*"ACL SETUSER few on >pw ~lifehold:* &lifehold:* +@all".split())
    client.lock("job", timeout=600).acquire()
    url = f"redis://few:pw@127.0.0.1:{redis_server.port}/0#job"
    try:
        found = stored.answer("job", url)
        assert (found.state, found.note) == ("free", stored.UNSEEN)
    finally:
        client.execute_command("ACL", "DELUSER", "few")


def test_ls_has_those_that_can_be_told_by_how_their_keys_begin(lifehold, redis_server, client):
    client.set("lock:report", BASE64, px=600_000)
    client.set("redlock:all", "8743c9c0-0795-4907-87fd-6c719a6b4586", px=600_000)
    client.set("lock:data", "whatever")
    client.set("my-lock:x", BASE64)
    client.rpush("lock:many", 1)
    client.lock("hidden", timeout=600).acquire()
    with connect(redis_server.url).lock("ours"):
        done = lifehold("ls", "--json", redis_server.url)
        found = {each["name"]: each for each in json.loads(done.stdout)["locks"]}
    families = {name.partition("#")[2]: each["family"] for name, each in found.items()}
    assert families == {"ours": "", "lock:report": "python-redis-lock", "redlock:all": "pottery"}
    assert {each["state"] for each in found.values()} == {"held"}
    done = lifehold("ls", "--json", f"{redis_server.url}#hidden")
    assert json.loads(done.stdout)["locks"][0]["family"] == "redis-py"


def test_wait_ends_when_the_other_librarys_lock_is_gone(redis_server, client, monkeypatch):
    lock = client.lock("job", timeout=600, thread_local=False)
    lock.acquire()
    looks = []
    monkeypatch.setattr(wait, "stand", lambda *_: looks.append(1) and False)
    url, ended = f"{redis_server.url}#job", []
    thread = threading.Thread(target=lambda: ended.append(wait.until_free("job", url, wait.NEVER)))
    thread.start()
    until("it waits", lambda: len(looks) > 2)
    assert not ended
    lock.release()
    thread.join(60)
    assert ended[0].state == "free"
