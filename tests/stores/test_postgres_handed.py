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
from patience import SOON, until

pytestmark = needs("postgres")

HOLDERS = "SELECT mark FROM lifehold_holder WHERE mark IS NOT NULL"
WORDS = "SELECT word FROM lifehold_waiter ORDER BY place"
LISTENERS = """SELECT count(*) FROM pg_locks l JOIN lifehold_waiter w ON w.listener =
    (l.classid::bigint << 32) | l.objid::bigint WHERE l.locktype = 'advisory'"""


@pytest.fixture
def raw(pg_url):
    import psycopg

    connect(pg_url).list()
    with psycopg.connect(pg_url, autocommit=True) as made:
        yield made


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


def stands(raw, count):
    """Until so many stand in line, each of whom can be let in."""

    def ready():
        return [word is not None for (word,) in raw.execute(WORDS)] == [True] * count

    until(ready)


def in_line(raw, store, name="job"):
    """One in line, who has a listener."""
    before = raw.execute(WORDS).rowcount
    waiter = Waiter(store, name)
    waiter.start()
    stands(raw, before + 1)
    return waiter


def test_who_leaves_lets_in_whoever_is_first(raw, pg_url):
    store = connect(pg_url)
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    (nonce,) = store.states("job")[0].waiters
    asked = count_of(store._site.backend, "acquire")
    lease.release()
    assert [found for (found,) in raw.execute(HOLDERS)] == [nonce]
    assert waiter.came.wait(SOON)
    assert waiter.lease.token > lease.token
    assert waiter.lease.nonce.startswith(nonce)
    assert asked == []
    assert waiter.lease.remaining() < 27.0  # since it asked, and not since it heard
    waiter.lease.verify()
    waiter.leave()
    assert store.inspect("job") is None


def count_of(backend, name):
    """What a backend is asked from now on."""
    asked, ask = [], getattr(backend, name)

    async def counted(*given):
        asked.append(given)
        return await ask(*given)

    setattr(backend, name, counted)
    return asked


def test_a_lease_that_was_handed_over_outlives_a_crash_of_the_server():
    """It is on the server's disk before its holder hears of it."""
    from servers import postgres

    with postgres.started() as server:
        for _ in range(3):
            store = connect(server.url, timeout=5)
            lease = store.lock("crash", wait=0, ttl=60).acquire()
            waiter = Waiter(store, "crash")
            waiter.start()
            until(lambda: server.execute(WORDS) not in ([], [(None,)]))
            lease.release()
            assert waiter.came.wait(SOON)
            server.kill()
            server.start()
            waiter.lease.verify()
            waiter.leave()


def test_one_that_was_killed_in_line_is_passed_at_once(raw, pg_url):
    script = "import sys, lifehold; lifehold.connect(sys.argv[1]).lock('job', wait=60).acquire()"
    store = connect(pg_url)
    lease = store.lock("job", wait=0).acquire()
    with subprocess.Popen([sys.executable, "-c", script, pg_url]) as dead:
        stands(raw, 1)
        waiter = in_line(raw, store)
        dead.kill()
    _, nonce = store.states("job")[0].waiters
    until(lambda: raw.execute(LISTENERS).fetchone() == (1,))
    lease.release()
    assert [found for (found,) in raw.execute(HOLDERS)] == [nonce]
    waiter.leave()


def test_who_does_not_hear_of_it_finds_it_by_looking(raw, pg_url):
    store = connect(pg_url)
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    store._site.wakeups.told = lambda text: None
    lease.release()
    waiter.leave()
    assert waiter.lease.token > lease.token
    assert store.inspect("job") is None


def test_who_has_gone_gives_back_what_comes_for_it(raw, pg_url):
    """Its last request was late, and came behind its release: nobody waits with that mark."""
    store = connect(pg_url)
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    site, lock = store._site, store.lock("job", wait=SOON)._mechanism
    turn = site.waiter()
    asked = count_of(site.backend, "acquire")
    finish(lock._ask(turn, wait=True))
    (request,) = asked.pop()
    lock._left(turn, Ask("job"))
    finish(site.backend.acquire(request))
    until(lambda: len(store.states("job")[0].waiters) == 2)
    waiter.may_leave.set()
    lease.release()
    waiter.leave()
    until(lambda: store.inspect("job") is None)


def test_a_lease_is_not_handed_to_who_has_not_asked_lately(raw, pg_url):
    store = connect(pg_url)
    lease = store.lock("job", wait=0).acquire()
    waiter = in_line(raw, store)
    raw.execute("UPDATE lifehold_waiter SET asked_at = asked_at - 6.5")
    lease.release()
    found = raw.execute("SELECT called_at IS NOT NULL FROM lifehold_waiter").fetchall()
    waiter.leave()  # it came all the same, by asking
    assert found in ([(True,)], [])
    assert raw.execute("SELECT renewals FROM lifehold_holder WHERE slot = 0").fetchone() == (0,)


def test_readers_are_let_in_by_the_writer_that_leaves(raw, pg_url):
    sides = connect(pg_url).read_write("config")
    came, may_leave = threading.Barrier(5), threading.Event()

    def read():
        with sides.reading(wait=SOON):
            came.wait(SOON)
            may_leave.wait(SOON)

    readers = [threading.Thread(target=read) for _ in range(4)]
    with sides.writing(wait=0) as writer:
        for reader in readers:
            reader.start()
        stands(raw, 4)
    came.wait(SOON)
    tokens = raw.execute("SELECT token FROM lifehold_holder WHERE mark IS NOT NULL").fetchall()
    assert tokens == [(writer.token,)] * 4
    may_leave.set()
    for reader in readers:
        reader.join(SOON)
