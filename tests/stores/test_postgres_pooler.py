"""Leases in PostgreSQL behind PgBouncer with transaction pooling, and in pools of the caller's."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ground import needs
from lifehold import NotAcquired, StoreUnavailable, connect
from lifehold.core.errors import InvalidArgument
from lifehold.ops import stored


@needs("pgbouncer")
def test_behind_a_pooler_leases_are_kept_and_waiters_look_for_themselves(pg_server):
    from servers import pgbouncer

    direct = connect(pg_server.url)
    with pgbouncer.before(pg_server) as url:
        store = connect(url, timeout=9)
        for _ in range(10):  # more often than a prepared statement would need to be missed
            with store.lock("pooled", wait=0) as lease:
                lease.verify()
                with pytest.raises(NotAcquired):
                    direct.lock("pooled", wait=0).acquire()
        assert "a pooler stands between" in str(store.ground())
        found = stored.check(url)
        assert found.ready
        assert [one.what for one in found.findings if one.verdict == "note"] == ["waking"]
        held = direct.lock("pooled", wait=0).acquire()
        came = threading.Event()

        def wait():
            with store.lock("pooled", wait=60):
                came.set()

        thread = threading.Thread(target=wait)
        thread.start()
        until = time.monotonic() + 60
        while direct.waiters("pooled") != 1:
            assert time.monotonic() < until
        held.release()
        thread.join(60)
        assert came.is_set()


@needs("postgres", "package:psycopg_pool")
def test_a_pool_of_the_callers_own_is_used_for_requests(pg_server):
    from psycopg_pool import ConnectionPool

    with ConnectionPool(pg_server.url, min_size=1, max_size=2, open=True) as pool:
        store = connect("postgresql://", pool=pool)
        with store.lock("own pool", wait=0) as lease:
            lease.verify()
            with pool.connection() as connection:
                assert not connection.autocommit  # left as it was
                row = connection.execute("SELECT token FROM lifehold_lease WHERE name = 'own pool'")
                assert row.fetchone()[0] == lease.token
        assert store.inspect("own pool") is None
        one, two = pool.getconn(), pool.getconn()
        with pytest.raises(StoreUnavailable, match="pool"):
            connect("postgresql://", pool=pool, timeout=0.2).inspect("own pool")
        pool.putconn(one)
        pool.putconn(two)


@needs("postgres", "package:psycopg_pool")
def test_an_asynchronous_pool_of_the_callers_own_is_awaited(pg_server):
    from psycopg_pool import AsyncConnectionPool

    from lifehold.aio import aconnect

    async def main():
        async with AsyncConnectionPool(pg_server.url, min_size=1, max_size=2, open=False) as pool:
            store = await aconnect("postgresql://", pool=pool)
            async with store.lock("own async pool", wait=0) as lease:
                await lease.verify()
                assert (await store.inspect("own async pool")).token == lease.token
            assert pool.get_stats()["requests_num"] >= 3

    asyncio.run(main())


def test_what_is_no_pool_is_refused():
    with pytest.raises(InvalidArgument, match="pool"):
        connect("postgresql://h/db", pool="a pool")
