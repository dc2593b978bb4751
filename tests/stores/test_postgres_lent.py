"""Connections of the server that are lent, by a pooler or a pool of the program: left as they were.

Whatever isolation level, limits and search_path they have, leases are right on them.
"""

from __future__ import annotations

import threading
import time

import pytest

from ground import needs
from lifehold import NotAcquired, connect
from lifehold.core.errors import InvalidArgument, StoreUnavailable

pytestmark = needs("postgres")
SEEN = (
    "SELECT name, setting FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout',"
    " 'default_transaction_isolation', 'search_path', 'application_name', 'client_encoding',"
    " 'synchronous_commit', 'default_transaction_read_only', 'idle_in_transaction_session_timeout')"
)


def settings(connection):
    """Of each server's connection that the pooler lends, as another program finds them."""
    found = {}
    for _ in range(10):
        with connection.transaction():
            pid = connection.execute("SELECT pg_backend_pid()").fetchone()
            found[pid] = dict(connection.execute(SEEN).fetchall())
    return found


@needs("pgbouncer")
@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_behind_a_pooler_the_session_of_another_program_stays_as_it_was(pg_server, level):
    import psycopg

    from servers import pgbouncer

    connect(pg_server.url, create=True).list()
    for text in (
        f"ALTER DATABASE test SET default_transaction_isolation = '{level}'",
        "ALTER DATABASE test SET statement_timeout = '10min'",
    ):
        pg_server.execute(text)
    try:
        with (
            pgbouncer.before(pg_server) as url,
            psycopg.connect(url, autocommit=True, prepare_threshold=None) as program,
        ):
            before = settings(program)
            store = connect(url, timeout=9)
            with store.lock(level, wait=0) as lease:
                lease.verify()
                with pytest.raises(NotAcquired):
                    store.lock(level, wait=0).acquire()
                assert store.list(level) == [level]
            store.bump(level)
            assert settings(program) == before
            assert {one["default_transaction_isolation"] for one in before.values()} == {level}
    finally:
        pg_server.execute("ALTER DATABASE test RESET ALL")


def test_a_step_in_another_isolation_level_is_refused_by_name(pg_url):
    import psycopg

    connect(pg_url, create=True).list()
    steps = (
        "SELECT lifehold_1_release('x', 'y')",
        "SELECT lifehold_1_renew('{x}', '{y}', '{1}')",
        "SELECT lifehold_1_order('bump', 'x', '', '', 0, '')",
        "SELECT lifehold_1_lighten('x', 'y', 1, 1)",
        "SELECT lifehold_1_acquire('x', 'y', 1, 0, '{}', 1, 1, false, false, true, 1, '', NULL)",
    )
    for step in steps:
        with psycopg.connect(pg_url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with pytest.raises(psycopg.Error, match=r"READ COMMITTED.*REPEATABLE READ"):
                connection.execute(step)


@needs("package:psycopg_pool")
@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_a_pool_of_another_isolation_level_lets_no_reader_in_beside_a_writer(
    pg_server, pg_url, level
):
    from psycopg_pool import ConnectionPool

    connect(pg_url, create=True).list()
    base = pg_url.rpartition("/")[2]
    pg_server.execute(f"ALTER DATABASE {base} SET default_transaction_isolation = '{level}'")
    inside, wrong, grants = [], [], []
    end = time.monotonic() + 4

    with ConnectionPool(pg_url, min_size=4, max_size=4, open=True) as pool:
        store = connect("postgresql://", pool=pool)

        def work(number):
            both = store.read_write("rw", ttl=10, wait=30)
            while time.monotonic() < end:
                side = "w" if number % 2 else "r"
                with both.writing() if side == "w" else both.reading():
                    inside.append(side)
                    if "w" in inside and len(inside) > 1:
                        wrong.append(tuple(inside))
                    time.sleep(0.001)
                    inside.remove(side)
                    grants.append(side)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        with pool.connection() as connection:
            assert connection.execute("SHOW transaction_isolation").fetchone() == (level,)
    assert not wrong
    assert {"r", "w"} == set(grants)


@needs("package:psycopg_pool")
def test_a_connection_that_was_closed_in_a_pool_is_told_and_given_back(pg_url):
    from psycopg_pool import ConnectionPool

    with ConnectionPool(pg_url, min_size=1, max_size=1, open=True) as pool:
        store = connect("postgresql://", pool=pool, create=True, timeout=30)
        store.lock("a", wait=0).acquire().release()
        connection = pool.getconn()
        pool.putconn(connection)
        connection.close()
        with pytest.raises(StoreUnavailable, match=r"the pool of the program: .*is closed"):
            store.list()
        assert store.list() == ["a"]  # the pool has opened another


@needs("package:psycopg_pool")
def test_what_the_encoding_of_a_connection_cannot_hold_is_told_with_the_remedy(pg_url):
    from psycopg_pool import ConnectionPool

    ours, odd = connect(pg_url, create=True), {"client_encoding": "SQL_ASCII"}
    with ConnectionPool(pg_url, min_size=1, max_size=1, kwargs=odd, open=True) as pool:
        store = connect("postgresql://", pool=pool)
        lent = pool.getconn()
        pool.putconn(lent)
        for name in "é日":
            with pytest.raises(StoreUnavailable, match=r"\(ascii\): leave its client_encoding at"):
                store.lock(name, wait=60).acquire()
        with pool.connection() as connection:
            assert connection is lent  # nothing was sent on it
        ours.lock("é", wait=0).acquire().release()
        store.lock("a", wait=0).acquire().release()
        with pytest.raises(InvalidArgument, match="leave its client_encoding at UTF8"):
            store.list()
        assert ours.list() == ["a", "é"]
        assert not ours.inspect("a")


def test_who_runs_under_a_schema_that_became_newer_is_refused_at_its_next_question(pg_url):
    import psycopg

    store = connect(pg_url, create=True)
    lease = store.lock("x", wait=0).acquire()
    with psycopg.connect(pg_url, autocommit=True) as other:
        other.execute("UPDATE lifehold_schema SET version = 9, least = 9")
        for ask in (lease.verify, store.lock("y", wait=0).acquire, lambda: store.bump("x")):
            with pytest.raises(StoreUnavailable, match="newer"):
                ask()
        other.execute("UPDATE lifehold_schema SET version = 4, least = 1")
    lease.verify()
    lease.release()
