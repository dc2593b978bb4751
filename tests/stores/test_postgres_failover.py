"""A standby takes over, and versions live side by side: what of a store outlives that."""

from __future__ import annotations

import time

import pytest

from ground import needs
from lifehold import connect

pytestmark = needs("postgres")
SOON = 90.0


@pytest.fixture
def primary():
    from servers import postgres

    with postgres.started() as server:
        yield server


@pytest.fixture
def standby(primary):
    from servers import postgres

    made = []

    def make():
        home = primary.home.with_name(primary.home.name + "-standby")
        made.append(primary.standby(home))
        until = time.monotonic() + SOON
        while not primary.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"):
            assert time.monotonic() < until
        return made[0]

    yield make
    for server in made:
        postgres.remove(server)


def caught_up(primary, standby):
    (position,) = primary.execute("SELECT pg_current_wal_lsn()")[0]
    until = time.monotonic() + SOON
    while not standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")[0][0]:
        assert time.monotonic() < until


def cut_off(standby):
    """From here on it receives nothing, so what the primary grants is lost with it."""
    standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
    standby.execute("SELECT pg_reload_conf()")
    until = time.monotonic() + SOON
    while standby.execute("SELECT pid FROM pg_stat_wal_receiver"):
        assert time.monotonic() < until


def test_tokens_grow_over_a_failover_that_loses_grants_as_long_as_the_clock_is_level(
    primary, standby
):
    with connect(primary.url).lock("moved", wait=0) as lease:
        first = lease.token
    copy = standby()
    caught_up(primary, copy)
    assert "1 asynchronous standby" in str(connect(primary.url).ground())
    cut_off(copy)
    with connect(primary.url).lock("moved", wait=0) as lost:
        assert lost.token > first
    primary.kill()
    copy.promote()
    with connect(copy.url).lock("moved", wait=0) as after:
        assert after.token > lost.token


def test_a_clock_that_is_behind_and_lost_grants_repeat_a_token_until_bump(primary, standby):
    """What is not promised, shown; `.ground()` says so, `bump` repairs it."""
    connect(primary.url).list()
    copy = standby()
    caught_up(primary, copy)
    cut_off(copy)
    with connect(primary.url).lock("back", wait=0) as lost:
        assert lost.token
    primary.kill()
    copy.promote()
    copy.execute(  # the clock of the new server, 60 s behind
        "CREATE OR REPLACE FUNCTION lifehold_now() RETURNS double precision LANGUAGE sql AS"
        " $$ SELECT extract(epoch FROM clock_timestamp())::double precision - 60 $$"
    )
    store = connect(copy.url)
    with store.lock("back", wait=0) as after:
        assert after.token < lost.token  # a guard that saw the lost one refuses this one
    assert "bump(name)" in str(store.ground())
    assert store.bump("back", lost.token) >= lost.token
    with store.lock("back", wait=0) as repaired:
        assert repaired.token > lost.token


def test_a_replica_is_refused_by_name(primary, standby):
    connect(primary.url).list()
    copy = standby()
    caught_up(primary, copy)
    with pytest.raises(Exception, match="name the primary"):
        connect(copy.url).list()
    both = f"postgresql://lifehold@127.0.0.1:{copy.port},127.0.0.1:{primary.port}/test"
    with connect(both).lock("both", wait=0) as lease:  # libpq looks for the one that writes
        assert lease.token
