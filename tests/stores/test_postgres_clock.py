"""The server's clock steps under leases: what is promised then, and what is not, as it is told."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from ground import faketime, needs
from lifehold import LeaseLost, NotAcquired, connect

pytestmark = needs("postgres")
SOON = 60.0


@pytest.fixture
def step(pg_server, pg_url):
    """Set the clock of this database, which is all that leases know of time, off by so much."""
    connect(pg_url).list()

    def off_by(seconds):
        pg_server.execute(
            "CREATE OR REPLACE FUNCTION lifehold_now() RETURNS double precision LANGUAGE sql"
            f" VOLATILE AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision"
            f" + {seconds} $$",
            pg_url.rpartition("/")[2],
        )

    return off_by


def test_a_step_back_leaves_one_holder_whose_successor_has_a_greater_token(pg_url, step):
    store = connect(pg_url)
    lease = store.lock("job", wait=0, ttl=5).acquire()
    lease.verify()
    step(-3600)
    lease.verify()
    with pytest.raises(NotAcquired):
        store.lock("job", wait=0).acquire()
    began = time.monotonic()
    while store.inspect("job").token == lease.token and time.monotonic() < began + 6:
        lease.check()  # renewed past its first ttl, by a clock that was set back
    assert "seen to go backwards 1 times" in str(store.ground())
    lease.release()
    with store.lock("job", wait=0) as after:
        assert after.token > lease.token


def test_after_a_step_back_a_dead_holder_blocks_for_its_ttl_and_no_longer(pg_url, step):
    store = connect(pg_url)
    dead = store.lock("job", wait=0, ttl=2, lock_delay=1).acquire()
    dead._kept.stop()  # nobody renews it any more
    step(-3600)
    seen = store.inspect("job")
    assert seen.alive == "unknown"
    assert "was set back" in seen.evidence
    began = time.monotonic()
    with store.lock("job", wait=SOON) as after:
        assert after.token > dead.token
    assert time.monotonic() < began + 2 + 1 + 60  # ttl, delay, and a machine that is busy
    assert "a step back" in str(store.ground())
    with pytest.raises(LeaseLost):
        dead.release()


def test_after_a_step_back_a_dead_waiter_that_was_called_blocks_nobody(pg_url, pg_server, step):
    store, base = connect(pg_url), pg_url.rpartition("/")[2]
    with store.lock("job", wait=0):
        pg_server.execute(
            "SELECT lifehold_1_acquire('job', 'dead', 30, 0, '{}', 1, 1, false, true, true, 15,"
            " '', NULL)", base,
        )  # fmt: skip
    assert pg_server.execute("SELECT called_at FROM lifehold_waiter", base) != [(None,)]
    step(-3600)
    with store.lock("job", wait=SOON):
        assert store.waiters("job") == 0


def test_a_step_forward_lets_the_next_one_in_with_a_greater_token_and_the_first_is_told(
    pg_url, step
):
    store = connect(pg_url)
    first = store.lock("job", wait=0, ttl=30).acquire()
    step(3600)
    with store.lock("job", wait=0) as second:
        assert second.token > first.token  # by which the data refuses what the first still writes
        with pytest.raises(LeaseLost):
            first.verify()
    with pytest.raises(LeaseLost):
        first.release()
    assert "a step forward ends them early" in str(store.ground())


@pytest.fixture
def stepped():
    """A server whose own clock can be set, in all its processes: the store on it, and what sets."""
    from servers import postgres

    home = Path(tempfile.mkdtemp(prefix="lifehold-clock-"))
    server, offset = postgres.Server(home / "pg"), home / "offset"
    home.chmod(0o755)
    offset.write_text("+0\n")
    server.make()
    server.more = {
        "LD_PRELOAD": faketime() or "", "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    try:
        server.start()
        server.execute("CREATE DATABASE test", "postgres")
        yield server, lambda by: offset.write_text(f"{by}\n")
    finally:
        postgres.remove(server)
        shutil.rmtree(home, ignore_errors=True)


@needs("libfaketime")
def test_a_servers_clock_set_back_by_an_hour_costs_a_dead_holders_ttl_and_no_more(stepped):
    server, set_clock = stepped
    store = connect(server.url, create=True)
    dead = store.lock("job", wait=0, ttl=4, lock_delay=1).acquire()
    dead._kept.stop()
    line = store.lock("line", wait=0).acquire()
    server.execute(  # one that was called and is dead, behind a pooler: nobody hears for it
        "INSERT INTO lifehold_waiter (name, mark, weight, dies_at, bell, called_at)"
        " VALUES ('line', 'dead', 1, lifehold_now() + 15, '', lifehold_now())"
    )
    before = server.execute("SELECT lifehold_now()")[0][0]
    set_clock("-3600")
    assert server.execute("SELECT lifehold_now()")[0][0] < before - 3000
    line.release()
    began = time.monotonic()
    with store.lock("line", wait=SOON):
        assert time.monotonic() < began + 1 + 5
    began = time.monotonic()
    with store.lock("job", wait=SOON) as after:
        assert time.monotonic() < began + 4 + 1 + 1 + 5  # and a machine that is busy
        assert after.token > dead.token
        after.verify()
    with pytest.raises(LeaseLost):
        dead.release()
