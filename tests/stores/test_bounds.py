"""How long a call on a store may take when the server is silent, and what it leaves open."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import lifehold
from badstore import lock_of, store_of
from ground import needs
from lifehold import aconnect, connect
from lifehold.core.backend import NoReply
from lifehold.core.errors import StoreUnavailable
from lifehold.store.memory import Memory

LIMIT = 3.0
SLACK = 4.0  # seconds by which a machine that is busy may be late


@pytest.fixture
def silent():
    """A server that can be stopped."""
    from servers import postgres

    with postgres.started() as server:
        yield server
        server.resume()


def took(call):
    began = time.monotonic()
    try:
        call()
    except lifehold.LifeholdError as error:
        return time.monotonic() - began, error
    return time.monotonic() - began, None


@needs("postgres")
def test_a_call_on_a_silent_server_ends_within_its_wait_and_one_timeout(silent):
    store = connect(silent.url, create=True, timeout=LIMIT)
    with store.lock("warm", wait=0):
        pass
    held = store.lock("held", ttl=60, heartbeat=0.5).acquire(wait=0)
    let_go = store.lock("let go", ttl=60, heartbeat=20).acquire(wait=0)
    other = connect(silent.url, timeout=LIMIT + 0.01)  # one that has to connect first
    silent.pause()
    calls = {
        "acquire(wait=0)": (lambda: store.lock("a").acquire(wait=0), 0.0),
        "acquire(wait=2)": (lambda: store.lock("b").acquire(wait=2), 2.0),
        "inspect": (lambda: store.inspect("a"), 0.0),
        "list": (store.list, 0.0),
        "release": (let_go.release, 0.0),
        "verify": (held.verify, 0.0),
        "connect": (lambda: other.lock("c").acquire(wait=0), 0.0),
    }
    found = {}

    def measure(name, call):
        found[name] = took(call)

    threads = [
        threading.Thread(target=measure, args=(name, call)) for name, (call, _) in calls.items()
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for name, (_, wait) in calls.items():
        seconds, error = found[name]
        assert isinstance(error, StoreUnavailable), name
        assert seconds < wait + LIMIT + SLACK, (name, seconds)
    refused = found["acquire(wait=0)"][1]
    assert refused.nonce or "was not reached" in str(refused)  # nothing was asked, or it is undone
    until = time.monotonic() + 60
    while not held._kept.suspended:
        assert time.monotonic() < until
        time.sleep(0.01)
    checks = [took(held.check) for _ in range(20)]  # by the deadline, which has not come
    assert all(error is None for _, error in checks)
    assert max(seconds for seconds, _ in checks) < LIMIT / 2
    silent.resume()
    while silent.execute("SELECT count(*) FROM lifehold_holder WHERE mark IS NOT NULL") != [(1,)]:
        assert time.monotonic() < until + 60, "what the lost requests took is given back behind"
        time.sleep(0.05)
    held.verify()
    held.release()


@needs("postgres")
def test_tasks_are_answered_within_the_same_bounds(silent):
    async def main():
        store = await aconnect(silent.url, create=True, timeout=LIMIT)
        async with store.lock("warm", wait=0):
            pass
        lease = await store.lock("held", ttl=60, heartbeat=20).acquire(wait=0)
        silent.pause()
        for call in (
            lambda: store.lock("a").acquire(wait=0),
            lambda: store.inspect("a"),
            store.list,
            lease.release,
        ):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await call()
            assert time.monotonic() - began < LIMIT + SLACK
        silent.resume()

    asyncio.run(main())


def test_a_check_after_a_lost_renewal_asks_behind_and_is_lost_at_the_deadline():
    class Hangs(Memory):
        """It answers when it is told to."""

        limit = 1.0
        prompt = False
        hangs = threading.Event()
        asked = 0

        async def renew(self, many):
            Hangs.asked += 1
            if Hangs.asked == 1:
                raise NoReply("the first renewal is lost")
            self.hangs.wait(120)
            raise NoReply("and so are the others")

    from lifehold.store.site import Site

    memory = Hangs()
    lease = lock_of(Site("test://", memory, memory), ttl=6.0).acquire()
    until = time.monotonic() + 60
    while not lease._kept.suspended:
        assert time.monotonic() < until
    for _ in range(100):
        lease.check()
    while Hangs.asked < 2:
        assert time.monotonic() < until
    while lease.held:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(lifehold.LeaseLost):
        lease.check()
    Hangs.hangs.set()
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


def test_what_two_lost_answers_have_taken_is_given_back_though_the_caller_has_gone():
    site, backend, memory = store_of({"all": "lost"})
    with pytest.raises(StoreUnavailable) as caught:
        lock_of(site, wait=0).acquire()
    assert caught.value.nonce
    assert "treat it as unknown" in str(caught.value)
    until = time.monotonic() + 60
    while memory._locks["x"].holders:
        assert time.monotonic() < until
        time.sleep(0.01)
    backend.wrong = {}


@needs("postgres")
def test_connections_that_nobody_uses_are_closed(pg_server, pg_url, monkeypatch):
    from lifehold.store.postgres import wire

    base = pg_url.rpartition("/")[2]
    open_now = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )

    def settle(to):
        until = time.monotonic() + 60
        while pg_server.execute(open_now, base) != [(to,)]:
            assert time.monotonic() < until, pg_server.execute(open_now, base)
            time.sleep(0.05)

    def many(store):
        gate = threading.Barrier(4)

        def work():
            with store.lock(str(threading.get_ident()), wait=0):
                gate.wait(60)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)

    with connect(pg_url, create=True) as store:
        lease = store.lock("kept", wait=0, ttl=600).acquire()  # no renewal opens one meanwhile
        many(store)
    settle(0)
    lease.verify()  # it opens one again
    lease.release()
    store.close()
    store.close()
    settle(0)
    monkeypatch.setattr(wire, "IDLE_SECONDS", 0.2)
    many(store)
    settle(0)

    async def tasks():
        async with await aconnect(pg_url) as store:
            async with store.lock("x", wait=0):
                pass
            store._site.closes[0]()
        await asyncio.to_thread(settle, 0)

    asyncio.run(tasks())


@pytest.mark.parametrize("url", ["memory://closed", "sqlite:///{}/x.db", "file://{}/jobs"])
def test_every_store_can_be_closed_and_used_again(url, tmp_path):
    with connect(url.format(tmp_path)) as store, store.lock("x", wait=0) as lease:
        store.close()
        lease.check()
        with pytest.raises(lifehold.NotAcquired):
            store.lock("x", wait=0).acquire()

    async def main():
        async with await aconnect(url.format(tmp_path)) as store, store.lock("x", wait=0):
            await store.close()

    asyncio.run(main())
