"""The five outages of docs/how-to/migrations.md: each happens as the page says, and its cure holds.

Every order is forced: a step begins when the server itself says that the one before it stands.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from ground import needs

psycopg = pytest.importorskip("psycopg")
from lifehold import LeaseLost, UnsafeGround, connect  # noqa: E402

SOON = 60.0
pytestmark = needs("postgres")


@pytest.fixture(scope="module")
def server():
    from servers import postgres

    with postgres.started() as server:
        yield server


@pytest.fixture
def ask(server):
    """Run one statement in a connection of its own; its rows."""

    def ask(text: str, *values):
        with psycopg.connect(server.url, autocommit=True) as connection:
            done = connection.execute(text, values)
            return done.fetchall() if done.description else []

    return ask


@pytest.fixture
def pod(server):
    """A connection of a pod's own, closed in the end."""
    opened = []

    def pod(url: str = server.url):
        opened.append(psycopg.connect(url, autocommit=True, prepare_threshold=None))
        return opened[-1]

    yield pod
    for connection in opened:
        connection.close()


def until(true):
    ends = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def behind(work, *words):
    """Run `work` in a thread; joined by `join`, which gives what it returned or raised."""
    result = []

    def run():
        try:
            result.append(work(*words))
        except psycopg.Error as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(SOON)
        assert result
        return result[0]

    return join


WAITS = """SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND cardinality(pg_blocking_pids(pid)) > 0"""


def test_a_flag_in_a_row_outlives_the_pod_that_set_it(server, ask):
    """Outage 1. A lease is free when its pod is gone, a session lock at once."""
    ask("DROP TABLE IF EXISTS migration_flag")
    ask("CREATE TABLE migration_flag (locked boolean)")
    ask("INSERT INTO migration_flag VALUES (false)")
    program = (
        "import sys, psycopg; from lifehold import connect; url = sys.argv[1];"
        "pod = psycopg.connect(url, autocommit=True);"
        "pod.execute('UPDATE migration_flag SET locked = true WHERE NOT locked');"
        "lease = connect(url).lock('flag', kind='session').acquire();"
        "print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"in\n"
        holder.kill()
    assert ask("SELECT locked FROM migration_flag") == [(True,)]  # for ever
    with connect(server.url).lock("flag", kind="session", wait=SOON):
        pass


@needs("pgbouncer")
def test_behind_a_transaction_pooler_two_pods_have_one_advisory_lock(server):
    """Outage 2. The session lock is refused there; the lease excludes."""
    from servers import pgbouncer

    with pgbouncer.before(server) as url:
        with (
            psycopg.connect(url, autocommit=True, prepare_threshold=None) as one,
            psycopg.connect(url, autocommit=True, prepare_threshold=None) as two,
        ):
            taken = [
                pod.execute("SELECT pg_try_advisory_lock(4711)").fetchone() for pod in (one, two)
            ]
        assert taken == [(True,), (True,)]  # one connection of the server served both
        store = connect(url)
        with pytest.raises(UnsafeGround):
            store.lock("pooled", kind="session").acquire(wait=0)
        with store.lock("pooled", wait=0):
            assert store.inspect("pooled") is not None


def test_a_pod_that_waits_in_one_statement_stops_an_index_from_being_built(server, ask, pod):
    """Outage 3. The server finds the circle and ends one of the two."""
    ask("DROP TABLE IF EXISTS orders")
    ask("CREATE TABLE orders (id integer)")
    one, two = pod(), pod()
    one.execute("SELECT pg_advisory_lock(4712)")
    waits = behind(two.execute, "SELECT pg_advisory_lock(4712)")
    until(lambda: ask(WAITS) == [(1,)])
    builds = behind(one.execute, "CREATE INDEX CONCURRENTLY orders_id ON orders (id)")
    ended = builds() if isinstance(builds(), psycopg.Error) else None
    if ended is None:
        ended = waits()
    else:
        one.execute("SELECT pg_advisory_unlock_all()")
        waits()
        assert ask("SELECT indisvalid FROM pg_index WHERE indexrelid = 'orders_id'::regclass") == [
            (False,)
        ]
    assert isinstance(ended, psycopg.errors.DeadlockDetected)


def test_a_pod_that_waits_in_slices_does_not(server, ask, monkeypatch):
    """The cure of outage 3."""
    monkeypatch.setattr("lifehold.store.postgres.session_server.Sessions.slice", 0.2)
    ask("DROP TABLE IF EXISTS orders")
    ask("CREATE TABLE orders (id integer)")
    store, came = connect(server.url), []

    def wait():
        with store.lock("build", kind="session", wait=SOON):
            came.append(True)

    with store.lock("build", kind="session", wait=0):
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: ask(WAITS) == [(1,)])
        ask("CREATE INDEX CONCURRENTLY orders_id ON orders (id)")
        assert not came
    thread.join(SOON)
    assert came == [True]


def test_an_advisory_lock_ends_with_its_connection_and_its_pod_is_not_told(server, ask, pod):
    """Outage 4. The session lock tells its holder; the other connection goes on as before."""
    locks, works, other = pod(), pod(), pod()
    locks.execute("SELECT pg_advisory_lock(4713)")
    ask("SELECT pg_terminate_backend(%s)", locks.info.backend_pid)
    until(lambda: other.execute("SELECT pg_try_advisory_lock(4713)").fetchone() == (True,))
    assert works.execute("SELECT 1").fetchone() == (1,)  # the first pod still works
    lease = connect(server.url).lock("silent", kind="session", wait=0).acquire()
    ask("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
    assert lease.lost.wait(SOON)
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_change_of_a_table_that_waits_makes_every_reader_wait(server, ask, pod):
    """Outage 5. No lock of pods helps; a lock_timeout does."""
    ask("DROP TABLE IF EXISTS orders")
    ask("CREATE TABLE orders (id integer)")
    report, migration, reader = pod(), pod(), pod()
    with report.transaction():
        report.execute("SELECT count(*) FROM orders")
        changes = behind(migration.execute, "ALTER TABLE orders ADD COLUMN note text")
        until(lambda: ask(WAITS) == [(1,)])
        reader.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            reader.execute("SELECT count(*) FROM orders")
    assert not isinstance(changes(), psycopg.Error)
    with report.transaction():
        report.execute("SELECT count(*) FROM orders")
        migration.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            migration.execute("ALTER TABLE orders ADD COLUMN more text")
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (0,)
