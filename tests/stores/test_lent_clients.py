"""A store over a client of the caller's lives as long as somebody uses it, and keeps no client."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from ground import needs
from lifehold.store import opening
from lifehold.stores import connect


@pytest.fixture(
    params=[
        pytest.param("redis", marks=needs("package:redis")),
        pytest.param("postgres", marks=needs("postgres", "package:psycopg_pool")),
    ]
)
def lent(request):
    """Makes a store over a client, a new one unless given: (the client, the store)."""
    if request.param == "redis":
        import redis

        url = request.getfixturevalue("redis_url")

        def make(client=None):
            client = client or redis.Redis.from_url(url)
            return client, connect(url, client=client)

        yield make
        return
    import psycopg_pool

    url, pools = request.getfixturevalue("pg_url"), weakref.WeakSet()

    def make(client=None):
        pool = client or psycopg_pool.ConnectionPool(url, min_size=1, open=True)
        pools.add(pool)
        return pool, connect(url, pool=pool, create=True)

    yield make
    for pool in pools:
        pool.close()


def use(store):
    """Hand-overs, so that somebody has listened, too."""
    lock = store.lock("busy", ttl=30)
    lease = lock.acquire(wait=20)
    waits = threading.Thread(target=lambda: store.lock("busy", ttl=30).acquire(wait=20).release())
    waits.start()
    lease.release()
    waits.join()


def test_a_client_that_nobody_uses_any_more_is_collected_with_its_store(lent):
    gone = []
    for _ in range(3 + opening.NEWEST):
        client, store = lent()
        use(store)
        gone.append((weakref.ref(client), weakref.ref(store._site)))
        getattr(client, "close", lambda: None)()
        del client, store
    gc.collect()
    assert [(client(), site()) for client, site in gone[:3]] == [(None, None)] * 3
    kept = lent()
    assert kept[1]
    assert len(opening._lent) <= opening.NEWEST + 1  # it forgets those that were gone before


def test_who_connects_for_each_use_finds_the_store_of_before(lent):
    client, store = lent()
    use(store)
    site = weakref.ref(store._site)
    del store
    gc.collect()
    assert lent(client)[1]._site is site()


def test_equal_options_are_one_store_whoever_made_them():
    urls = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]
    assert connect(quorum=urls) == connect(quorum=[*urls])


def test_two_stores_over_one_client_are_one_as_long_as_one_is_used(lent):
    client, store = lent()
    lease = store.lock("kept", ttl=30).acquire(wait=20)
    site = weakref.ref(store._site)
    del store
    opening._newest.clear()
    gc.collect()
    assert lent(client)[1]._site is site()
    assert lent()[1]._site is not site()
    lease.release()


@needs("fork")
def test_a_child_begins_a_lent_store_anew_while_there_is_one(lent):
    client, store = lent()
    lease = store.lock("parents", ttl=30).acquire(wait=20)
    assert [*store._site._in_hand]
    child = os.fork()
    if not child:
        os._exit(len([*store._site._in_hand]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lease.check()
    lease.release()
    assert lent(client)[1] == store
