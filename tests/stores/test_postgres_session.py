"""kind="session": advisory locks of PostgreSQL, and what they are told of their end.

Real servers, processes and sockets; judged by what the server says is held at the end.
"""

from __future__ import annotations

import asyncio
import os
import threading

import psycopg
import pytest

from ground import needs
from lifehold import (
    AcquireCancelled,
    Cancel,
    InvalidArgument,
    LeaseLost,
    Lock,
    NotAcquired,
    StoreUnavailable,
    SystemRefused,
    Timeout,
    UnsafeGround,
    connect,
)
from lifehold.aio import aconnect
from lifehold.store.postgres.session_sql import derived, key_of
from lifehold.store.postgres.upkeep import migrate
from patience import SOON, until

pytestmark = needs("postgres")
LOCKS = """FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE locktype = 'advisory' AND d.datname = current_database() AND"""
HELD = f"SELECT pid {LOCKS} granted"
WAITING = f"SELECT pid {LOCKS} NOT granted"
END = f"SELECT pg_terminate_backend(pid) {LOCKS} granted"


@pytest.fixture
def store(pg_url):
    return connect(pg_url)


@pytest.fixture
def ask(pg_server, pg_url):
    """Rows of a statement in the database of the test."""
    return lambda text: pg_server.execute(text, pg_url.rpartition("/")[2])


def session(store, name, **options):
    return store.lock(name, kind="session", **options)


# ---- the key


def test_the_key_of_a_name_is_what_sql_computes(ask):
    for name in ("nightly", "größe/日本", "100%_x", "it's"):
        quoted = name.replace("'", "''")
        digest = f"encode(sha256(convert_to('{quoted}', 'UTF8')), 'hex')"
        ((found,),) = ask(f"SELECT ('x' || left({digest}, 16))::bit(64)::bigint")
        assert derived(name) == found
    assert derived("nightly") == 3043134503785307926  # for ever


@pytest.mark.parametrize(
    ("given", "text", "seen"),
    [
        (4711, "key:4711", (0, 4711, 1)),
        (-1, "key:-1", (0xFFFFFFFF, 0xFFFFFFFF, 1)),
        ((1, -2), "key:1,-2", (1, 0xFFFFFFFE, 2)),
        ("key:72707369", "key:72707369", (0, 72707369, 1)),
        ("key:1,2", "key:1,2", (1, 2, 2)),
        (2**63 - 1, f"key:{2**63 - 1}", (2**31 - 1, 2**32 - 1, 1)),
    ],
)
def test_a_number_is_the_key_itself(store, ask, given, text, seen):
    assert key_of(given).text == text
    with session(store, given, wait=0):
        assert ask(f"SELECT classid, objid, objsubid {LOCKS} granted") == [seen]
        assert store.inspect(text).owner.pid == os.getpid()


@pytest.mark.parametrize("given", [2**63, (1, 2**31), (1, 2, 3), "key:x", "key:", True, 1.5, ""])
def test_what_is_no_key_is_refused(given):
    with pytest.raises(InvalidArgument):
        key_of(given)


def test_other_stores_and_shapes_say_that_they_have_none(store):
    with pytest.raises(InvalidArgument, match="a lock of PostgreSQL"):
        connect("memory://").lock("x", kind="session")
    with pytest.raises(InvalidArgument, match="one holder"):
        store.read_write("x", kind="session")
    for wrong in ({"fair": False}, {"lock_delay": 1}):
        with pytest.raises(InvalidArgument, match="takes no"):
            session(store, "x", **wrong)


# ---- beside others


def test_another_tool_keeps_ours_out_and_is_named(pg_url, store):
    with psycopg.connect(pg_url, autocommit=True, application_name="their tool") as theirs:
        theirs.execute("SELECT pg_advisory_lock(1, 2)")
        with pytest.raises(Timeout) as caught:
            session(store, (1, 2), wait=0.05).acquire()
        for part in ("'their tool'", f"pid {theirs.info.backend_pid}", "user lifehold",
                     "alive  yes", "its process began", "--kind session"):  # fmt: skip
            assert part in str(caught.value), part
        assert "'their tool'" in store.inspect("key:1,2").owner.command
    with session(store, (1, 2), wait=SOON):
        pass


def test_all_who_share_it_are_named(pg_url, store):
    with psycopg.connect(pg_url) as one, psycopg.connect(pg_url) as two:
        for reader in (one, two):
            reader.execute("SELECT pg_advisory_lock_shared(7)")
        with pytest.raises(NotAcquired):
            session(store, 7, wait=0).acquire()
        pids = {holder.owner.pid for holder in store.holders("key:7")}
        assert pids == {one.info.backend_pid, two.info.backend_pid}


def test_ours_keeps_another_tool_out(pg_url, store):
    with psycopg.connect(pg_url, autocommit=True) as theirs:
        ask = f"SELECT pg_try_advisory_lock({derived('migrate')})"
        with session(store, "migrate", wait=0):
            assert theirs.execute(ask).fetchone() == (False,)
        assert theirs.execute(ask).fetchone() == (True,)


def test_two_names_of_one_key_are_one_lock(store):
    name = f"key:{derived('twice')}"
    with session(store, "twice", wait=0) as first, pytest.raises(NotAcquired):
        session(store, name, wait=0).acquire()
    with session(store, name, wait=0) as second:
        assert second.token > first.token


def test_a_token_is_above_that_of_a_lease_of_the_name_and_above_a_bump(store):
    with store.lock("both", wait=0) as lease:
        pass
    assert store.bump("both", 2**61) == 2**61
    with session(store, "both", wait=0) as ours:
        assert ours.token == 2**61 + 1 > lease.token
    with session(store, "both", wait=0) as later:
        assert later.token > ours.token


def test_strict_guards_compare_with_the_table_of_sessions(store, pg_url):
    from lifehold.fence import LeaseTable, SqlFence, StaleToken

    late = session(store, "guarded", wait=0).acquire()
    with psycopg.connect(pg_url) as data:
        data.execute("CREATE TABLE lifehold_fence (name text PRIMARY KEY, token bigint NOT NULL)")
        strictly = {"strict": LeaseTable("lifehold_session")}
        SqlFence(data, "rows", late, **strictly).admit()
        data.commit()
        session(store, "guarded").break_("it hangs")
        with session(store, "guarded", wait=SOON), pytest.raises(StaleToken):
            SqlFence(data, "rows", late, **strictly).admit()
    with pytest.raises(LeaseLost):
        late.release()


def test_a_role_that_may_not_write_the_table_is_told_what_to_grant(store, pg_url, ask):
    store.list()  # makes the tables
    ask("CREATE ROLE mute LOGIN")
    ask("GRANT SELECT ON lifehold_schema TO mute")
    theirs = connect(pg_url.replace("lifehold@", "mute@"))
    with pytest.raises(StoreUnavailable, match="--grant mute"):
        session(theirs, "granted", wait=0).acquire()
    until(lambda: not ask(HELD))  # an error behind the lock does not undo it: the session did
    migrate(pg_url, "mute")
    with session(theirs, "granted", wait=0) as lease:
        assert lease.token
    with session(store, "granted", wait=0) as lease:  # of a role whose sessions it cannot see
        assert theirs.inspect("granted").nonce == lease.nonce
        with pytest.raises(SystemRefused, match="could not be broken"):
            theirs.break_("granted", "it may not")
        lease.verify()


def test_without_its_table_it_excludes_all_the_same(pg_url, ask):
    bare = connect(pg_url, create=False)
    with session(bare, "bare", wait=0, label="x") as lease:
        assert lease.token is None
        assert "its table is not there" in lease.token_reason
        with pytest.raises(NotAcquired) as caught:
            session(bare, "bare", wait=0).acquire()
        assert caught.value.holder.owner.pid == os.getpid()
        lease.verify()
    assert ask("SELECT to_regclass('lifehold_session')") == [(None,)]
    assert not ask(HELD)


# ---- its end is told


def heard(lease):
    told = threading.Event()
    lease.lost.add_callback(told.set)
    return told


def test_a_session_that_is_ended_is_told_by_callback_check_and_release(store, ask):
    lease = session(store, "ended", wait=0).acquire()
    told = heard(lease)
    ask(END)
    assert told.wait(SOON)
    with pytest.raises(LeaseLost, match="administrator command"):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    with session(store, "ended", wait=SOON) as after:
        assert after.token > lease.token


def test_who_breaks_it_is_noted_and_the_holder_is_told(store, ask):
    lease = session(store, "broken", wait=0).acquire()
    assert store.break_("broken", "it hangs").nonce == lease.nonce
    with pytest.raises(LeaseLost):
        lease.check()  # looks at the socket: no event is waited for
    with pytest.raises(LeaseLost):
        lease.release()
    asked = "SELECT verb, reason, token FROM lifehold_audit WHERE name = 'broken'"
    assert ask(asked) == [("break", "it hangs", lease.token)]


def test_a_lock_that_its_session_holds_no_more_is_told_by_the_next_beat(store):
    lease = session(store, "discarded", wait=0).acquire()
    wire = lease._grant.handle[0].session
    asked = wire.ask("DISCARD ALL")
    until(lambda: asked.over)
    with pytest.raises(LeaseLost, match="does not know it"):
        lease.verify()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_task_whose_lock_is_lost_is_cancelled(pg_url, ask):
    async def main():
        store = await aconnect(pg_url)
        lease = await session(store, "scope", wait=0).acquire()

        async def work():
            with lease.cancel_on_loss():
                await asyncio.to_thread(ask, END)
                await asyncio.sleep(SOON)

        with pytest.raises(LeaseLost):
            await work()
        with pytest.raises(LeaseLost):
            await lease.release()

    asyncio.run(main())


# ---- waiting


def wait_in(store, name, came, number=0, **options):
    def work():
        with session(store, name, wait=SOON, **options):
            came.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_who_waits_comes_in_in_the_order_of_the_servers_line(store, ask, monkeypatch):
    monkeypatch.setattr(
        "lifehold.store.postgres.session_server.Sessions.slice", 60.0
    )  # nobody stands in line anew
    held, came = session(store, "line", wait=0).acquire(), []
    threads = []
    for number in range(8):
        threads.append(wait_in(store, "line", came, number))
        until(lambda: len(ask(WAITING)) == number + 1)  # noqa: B023
    assert store.waiters("line") == 8
    held.release()
    for thread in threads:
        thread.join(SOON)
    assert came == list(range(8))


def test_who_waits_longer_than_a_slice_stands_in_line_anew(store, ask, monkeypatch):
    monkeypatch.setattr("lifehold.store.postgres.session_server.Sessions.slice", 0.05)
    held, came = session(store, "slices", wait=0).acquire(), []
    thread = wait_in(store, "slices", came)
    begun = "SELECT min(query_start) FROM pg_stat_activity WHERE query LIKE '%unlock_all();%'"
    until(lambda: ask(WAITING))
    until(lambda: len({*(row[0] for _ in range(9) for row in ask(begun) if row[0])}) > 1)
    held.release()
    thread.join(SOON)
    assert came == [0]
    assert not ask(HELD)


def test_a_migration_that_builds_an_index_does_not_wait_for_who_waits_for_it(
    store, ask, monkeypatch
):
    """CREATE INDEX CONCURRENTLY waits for every statement that is older than it is."""
    monkeypatch.setattr("lifehold.store.postgres.session_server.Sessions.slice", 0.2)
    ask("CREATE TABLE rows (a integer)")
    came = []
    with session(store, "migrate", wait=0):
        thread = wait_in(store, "migrate", came)
        until(lambda: ask(WAITING))
        ask("CREATE INDEX CONCURRENTLY ON rows (a)")
        assert not came
    thread.join(SOON)
    assert came == [0]


def test_a_wait_that_is_given_up_leaves_no_place_in_line(store, ask):
    with session(store, "given up", wait=0):
        with pytest.raises(Timeout, match="it is held"):
            session(store, "given up", wait=0.05).acquire()
        assert not ask(WAITING)
        token = Cancel()
        timer = threading.Thread(target=lambda: (until(lambda: ask(WAITING)), token.cancel()))
        timer.start()
        with pytest.raises(AcquireCancelled):
            session(store, "given up").acquire(cancel=token, wait=SOON)
        timer.join(SOON)
        assert not ask(WAITING)


def test_a_wait_that_is_given_up_just_behind_the_lock_leaves_nothing_held(store, pg_url, ask):
    """The statement is undone, the advisory lock that it took is not."""
    token, key = Cancel(), derived("behind")
    with session(store, "behind", wait=0):
        pass
    with psycopg.connect(pg_url) as record, psycopg.connect(pg_url, autocommit=True) as theirs:
        record.execute("SELECT * FROM lifehold_session FOR UPDATE")
        theirs.execute(f"SELECT pg_advisory_lock({key})")

        def give_up():
            until(lambda: ask(WAITING))
            theirs.execute(f"SELECT pg_advisory_unlock({key})")
            until(lambda: ask(HELD) and not ask(WAITING))  # it waits for the row of its record
            token.cancel()

        thread = threading.Thread(target=give_up)
        thread.start()
        with pytest.raises(AcquireCancelled):
            session(store, "behind").acquire(cancel=token, wait=SOON)
        thread.join(SOON)
        assert not ask(HELD)


def test_a_task_that_is_cancelled_leaves_the_line(pg_url, ask):
    async def main():
        store = await aconnect(pg_url)
        async with session(store, "task", wait=0):
            waiting = asyncio.create_task(session(store, "task").acquire(SOON))
            await asyncio.to_thread(until, lambda: ask(WAITING))
            assert await store.waiters("task") == 1
            assert (await store.inspect("task")).owner.pid == os.getpid()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(until, lambda: not ask(WAITING))

    asyncio.run(main())
    until(lambda: not ask(HELD))


def test_sessions_that_nobody_needs_are_closed(store, ask, monkeypatch):
    monkeypatch.setattr("lifehold.store.postgres.session_server.Sessions.linger", 0.05)
    with session(store, "short", wait=0):
        pass
    named = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'lifehold pid%'"
    until(lambda: ask(f"{named} AND datname = current_database()") == [(0,)])


# ---- a pooler


@needs("pgbouncer")
def test_behind_a_pooler_it_is_refused_with_the_remedy(pg_server):
    from servers import pgbouncer

    for mode in ("transaction", "session"):
        with pgbouncer.before(pg_server, mode) as url:
            for lock in (Lock(f"{url}#x", kind="session"), session(connect(url), "x")):
                with pytest.raises(UnsafeGround, match="Connect to the server itself") as caught:
                    lock.acquire(wait=0)
                assert "take a lease" in str(caught.value)
            with session(connect(pg_server.url), "x", wait=0) as lease:
                assert connect(url).inspect("x").token == lease.token  # to look is no harm
            with psycopg.connect(url) as others:  # maybe on that very connection of the server
                assert others.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_a_password_is_not_told(pg_server):
    url = pg_server.url.replace("lifehold@", "nobody:s3cret@")
    with pytest.raises(StoreUnavailable) as caught:
        Lock(f"{url}#x", kind="session", wait=0).acquire()
    assert "s3cret" not in str(caught.value)
    assert "look at the user" in str(caught.value)
