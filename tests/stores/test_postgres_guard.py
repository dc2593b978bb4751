"""A guard that holds the row of a lease for its transaction, beside the real store of it."""

from __future__ import annotations

import threading
import time

import pytest

from ground import needs
from lifehold import InvalidArgument, StaleToken, connect
from lifehold.fence import SqlFence

pytestmark = needs("postgres")

TTL = 2.0


@pytest.fixture
def work(pg_url):
    """A transaction of the program's own, in the database of the store."""
    import psycopg

    with psycopg.connect(pg_url) as connection:
        connection.execute(
            "CREATE TABLE lifehold_fence (name text PRIMARY KEY, token bigint NOT NULL)"
        )
        connection.commit()
        yield connection


def test_a_transaction_longer_than_the_ttl_costs_its_holder_no_lease(pg_url, work):
    lease = connect(pg_url, ttl=TTL).lock("long", wait=0).acquire()
    SqlFence(work, "data", lease, strict=True).admit()
    lease.verify()
    until = time.monotonic() + 1.5 * TTL
    while time.monotonic() < until:
        lease.check()
        time.sleep(0.1)
    lease.release()  # nobody waits: it goes through at once
    work.commit()


def test_who_comes_next_comes_behind_the_commit(pg_url, work):
    store, other = connect(pg_url, ttl=TTL), connect(pg_url, ttl=TTL, timeout=30)
    lease = store.lock("next", wait=0).acquire()
    SqlFence(work, "data", lease, strict=True).admit()
    lease.release()
    seen = []

    def come():
        with other.lock("next", wait=30) as after:
            seen.append((committed.is_set(), after.token))

    committed = threading.Event()
    comer = threading.Thread(target=come)
    comer.start()
    comer.join(0.5)
    assert comer.is_alive()
    committed.set()
    work.commit()
    comer.join(90)
    assert seen == [(True, seen[0][1])]
    assert seen[0][1] > lease.token
    with pytest.raises(StaleToken):
        SqlFence(work, "data", lease, strict=True).admit()
    work.rollback()


def test_a_late_writer_is_not_admitted_beside_a_reader_who_has_its_token(pg_url, work):
    shared = connect(pg_url, ttl=30).read_write("both", wait=30)
    with shared.writing() as late:
        pass
    with shared.reading() as reader:
        assert reader.token == late.token
        with pytest.raises(InvalidArgument, match="one holder"):
            SqlFence(work, "data", late, strict=True).admit()
        work.rollback()
