"""Who leaves lets in whoever is first in line, in its own step; and what if that one is away."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ground import needs
from lifehold import connect
from lifehold.core.acquire import Ask
from lifehold.runtime.blocking import finish
from lifehold.store.redis.scripts import keys
from patience import SOON, until

pytestmark = needs("redis")

JOB = dict(zip(("lease", "holders", "line", "dies", "waiters"), keys("job"), strict=False))


class Waiter(threading.Thread):
    """Stands in line, and holds the lock until it may leave."""

    def __init__(self, store, name):
        super().__init__(daemon=True)
        self.store, self.name_of_lock = store, name
        self.came, self.may_leave, self.lease = threading.Event(), threading.Event(), None

    def run(self):
        with self.store.lock(self.name_of_lock, wait=SOON) as self.lease:
            self.came.set()
            self.may_leave.wait(SOON)

    def leave(self):
        assert self.came.wait(SOON)
        self.may_leave.set()
        self.join(SOON)


class Raw:
    """What is in the keys of `job`."""

    def __init__(self, server):
        self.server = server

    def holders(self):
        return sorted(self.server.call("HKEYS", JOB["holders"]))

    def waiters(self):
        """Of each in line: nonce, whether it can be let in, its record."""
        found = []
        for nonce in self.server.call("ZRANGE", JOB["line"], 0, -1):
            text = self.server.call("HGET", JOB["waiters"], nonce)
            if text is not None:
                found.append((nonce, text.split(" ")[4] != "-", text))
        return found

    def stands(self, count):
        """Until so many stand in line, each of whom can be let in."""
        until(lambda: [handy for _, handy, _ in self.waiters()] == [True] * count)


@pytest.fixture
def raw(redis_server, redis_url):
    return Raw(redis_server)


def in_line(raw, store, name="job"):
    """One in line, who has a listener."""
    before = len(raw.waiters())
    waiter = Waiter(store, name)
    waiter.start()
    raw.stands(before + 1)
    return waiter


def count_of(backend, name):
    """What a backend is asked from now on."""
    asked, ask = [], getattr(backend, name)

    async def counted(*given):
        asked.append(given)
        return await ask(*given)

    setattr(backend, name, counted)
    return asked


def test_who_leaves_lets_in_whoever_is_first(raw, redis_url):
    store = connect(redis_url, connections=7)  # a store of this test
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    (nonce,) = store.states("job")[0].waiters
    asked = count_of(store._site.backend, "acquire")
    lease.release()
    assert raw.holders() == [nonce]
    assert waiter.came.wait(SOON)
    assert waiter.lease.token > lease.token
    assert waiter.lease.nonce.startswith(nonce)
    assert asked == []
    assert waiter.lease.remaining() < 27.0  # since it asked, and not since it heard
    waiter.lease.verify()
    waiter.leave()
    assert store.inspect("job") is None


def test_one_that_was_killed_in_line_is_passed_at_once(raw, redis_url, redis_server):
    script = "import sys, lifehold; lifehold.connect(sys.argv[1]).lock('job', wait=60).acquire()"
    store = connect(redis_url)
    lease = store.lock("job", wait=0).acquire()
    with subprocess.Popen([sys.executable, "-c", script, redis_url]) as dead:
        raw.stands(1)
        channel = raw.waiters()[0][2].split(" ")[3]
        waiter = in_line(raw, store)
        dead.kill()
    _, nonce = store.states("job")[0].waiters
    until(lambda: channel not in redis_server.call("PUBSUB", "CHANNELS"))
    lease.release()
    assert raw.holders() == [nonce]
    waiter.leave()


def test_who_does_not_hear_of_it_finds_it_by_looking(raw, redis_url):
    store = connect(redis_url, connections=6)
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    store._site.wakeups.told = lambda text: None
    lease.release()
    waiter.leave()
    assert waiter.lease.token > lease.token
    assert store.inspect("job") is None


def test_who_has_gone_gives_back_what_comes_for_it(raw, redis_url, redis_server):
    """Its last request was late, and came behind its release: nobody waits with that nonce."""
    store = connect(redis_url, connections=5)
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    site, lock = store._site, store.lock("job", wait=SOON)._mechanism
    turn = site.waiter()
    asked = count_of(site.backend, "acquire")
    finish(lock._ask(turn, wait=True))
    (request,) = asked.pop()
    lock._left(turn, Ask("job"))
    redis_server.call("DEL", keys("job")[6])  # so late that its undoing is forgotten
    finish(site.backend.acquire(request))
    until(lambda: len(store.states("job")[0].waiters) == 2)
    waiter.may_leave.set()
    lease.release()
    waiter.leave()
    until(lambda: store.inspect("job") is None)


def test_a_lease_is_not_handed_to_who_has_not_asked_lately(raw, redis_url, redis_server):
    store = connect(redis_url)
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    ((nonce, _, text),) = raw.waiters()
    fields = text.split(" ")
    fields[5] = repr(float(fields[5]) - 6.5)
    redis_server.call("HSET", JOB["waiters"], nonce, " ".join(fields))
    lease.release()
    waiter.leave()  # it came all the same, by asking
    assert waiter.lease.token > lease.token


def test_readers_are_let_in_by_the_writer_that_leaves(raw, redis_url):
    sides = connect(redis_url).read_write("job")
    came, may_leave = threading.Barrier(5), threading.Event()

    def read():
        with sides.reading(wait=SOON):
            came.wait(SOON)
            may_leave.wait(SOON)

    readers = [threading.Thread(target=read) for _ in range(4)]
    with sides.writing(wait=0) as writer:
        for reader in readers:
            reader.start()
        raw.stands(4)
    came.wait(SOON)
    holders = connect(redis_url).states("job")[0].holders
    assert [holder.token for holder in holders] == [writer.token] * 4
    may_leave.set()
    for reader in readers:
        reader.join(SOON)
