"""Leases in PostgreSQL as a program meets them: grants, hand-over, and a clear no."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ground import needs
from lifehold import LeaseLost, Lock, StoreUnavailable, connect
from lifehold.core.errors import InvalidArgument
from lifehold.stores import aconnect

pytestmark = needs("postgres")


@pytest.fixture(scope="module")
def store(pg_server):
    return connect(pg_server.url)


def test_one_holder_at_a_time_and_its_token_grows(store):
    with store.lock("plain", wait=0) as first:
        assert not store.lock("plain", wait=0).locked() or store.inspect("plain").alive == "alive"
        with pytest.raises(Exception, match="held"):
            store.lock("plain", wait=0).acquire()
        assert store.inspect("plain").token == first.token
        first.verify()
    with store.lock("plain", wait=0) as second:
        assert second.token > first.token
    assert store.inspect("plain") is None
    assert "plain" in store.list("pla")


def test_names_are_kept_as_they_are(store):
    for name in ("100%_x", "100%yx", "quo\"te's", "back\\slash", "größe/日本", "$1 {a,b}"):
        with store.lock(name, wait=0):
            assert store.inspect(name) is not None
            assert name in store.list(name)
    assert store.list("100%_") == ["100%_x"]


def test_a_thread_that_waits_is_called(store):
    held = store.lock("called", wait=0).acquire()
    came = threading.Event()

    def wait():
        with store.lock("called", wait=30) as lease:
            assert lease.token > held.token
            came.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not store.waiters("called"):
        pass
    held.release()
    thread.join(90)
    assert came.is_set()
    assert "NOTIFY (listening)" in str(store.ground())


def test_a_task_that_waits_is_called_and_its_connections_end_with_its_loop(pg_server):
    async def main():
        store = await aconnect(pg_server.url)
        held = await store.lock("tasks").acquire()

        async def wait():
            async with store.lock("tasks", wait=30) as lease:
                return lease.token

        waiting = asyncio.create_task(wait())
        while not await store.waiters("tasks"):  # noqa: ASYNC110 - it is the server that knows
            await asyncio.sleep(0.001)
        await held.release()
        assert await waiting > held.token
        assert "PostgreSQL" in str(await store.ground())

    def sessions():
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lifehold'"
        return pg_server.execute(asked)[0][0]

    before = sessions()
    asyncio.run(main())
    for _ in range(1000):  # a session ends a moment after its connection
        if sessions() <= before + 2:  # one more of threads, and the one that listens
            break
    assert sessions() <= before + 2


def test_a_broken_lease_is_noted_with_who_and_why(store, pg_server):
    lease = store.lock("broken", wait=0).acquire()
    assert store.break_("broken", "it's late").token == lease.token
    assert store.bump("broken", 2**62) == 2**62
    with pytest.raises(Exception, match="broken"):
        lease.verify()
    with pytest.raises(LeaseLost):
        lease.release()
    asked = "SELECT verb, reason, token FROM lifehold_audit WHERE name = 'broken' ORDER BY nr"
    found = pg_server.execute(asked)
    assert [row[:2] for row in found] == [("break", "it's late"), ("bump", "")]
    assert found[1][2] == 2**62
    with store.lock("broken", wait=0) as after:
        assert after.token == 2**62 + 1


def test_many_leases_are_renewed_in_one_round_trip(store):
    from lifehold.core.backend import Renewal
    from lifehold.runtime.blocking import finish
    from lifehold.store.postgres import backend as postgres

    leases = [store.lock(f"many/{number}", wait=0).acquire() for number in range(50)]
    backend = store._site.backend
    assert isinstance(backend, postgres.Postgres)
    asked = [Renewal(lease.name.partition("#")[2], lease._grant.mark, 30.0) for lease in leases]
    _, kept = finish(backend.renew([*asked, Renewal("many/0", "another", 30.0)]))
    assert kept == (*[True] * 50, False)
    for lease in leases:
        lease.release()


# ---- a clear no


def told(url, **options):
    with pytest.raises(StoreUnavailable) as caught:
        Lock(f"{url}#x", wait=0).acquire() if not options else connect(url, **options).inspect("x")
    text = str(caught.value)
    assert "s3cret" not in text
    return text


def test_no_word_about_a_lock_tells_the_password():
    lock = Lock("postgresql://ana:s3cret@127.0.0.1:1/db?sslmode=disable#n", wait=0)
    assert "s3cret" not in f"{lock!r} {lock.path} {connect('postgresql://ana:s3cret@h/db')!r}"
    for wrong in ({"kind": "soft"}, {"cleanup": True}):
        with pytest.raises(InvalidArgument) as caught:
            Lock("postgresql://ana:s3cret@h/db#n", **wrong)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        Lock("postgresql://ana:s3cret@h/db")
    assert "s3cret" not in str(caught.value)


def test_a_port_where_nobody_listens_is_told():
    assert "start the server" in told("postgresql://u:s3cret@127.0.0.1:1/db")


def test_a_database_that_is_not_there_is_told(pg_server):
    assert "create it" in told(pg_server.at("nothing"))


def test_a_role_that_is_not_there_is_told(pg_server):
    url = pg_server.url.replace("lifehold@", "nobody:s3cret@")
    assert "look at the user" in told(url)


def test_tls_that_the_server_does_not_speak(pg_server):
    assert "TLS" in told(pg_server.url + "?sslmode=require")


def test_tables_that_may_not_be_made(pg_url):
    assert "lifehold store migrate" in told(pg_url, create=False)


def test_a_role_that_may_nothing_is_told_the_command_that_lets_it(pg_server, pg_url):
    base = pg_url.rpartition("/")[2]
    pg_server.execute("CREATE ROLE poor LOGIN", base)
    url = pg_url.replace("lifehold@", "poor@")
    said = f"lifehold store migrate {pg_url.replace('lifehold@', '')} --grant poor"
    assert said in told(url)
    connect(pg_url).list()
    assert said in told(url)


def test_a_schema_that_is_too_new(pg_server, pg_url):
    connect(pg_url).list()
    base = pg_url.rpartition("/")[2]
    pg_server.execute("UPDATE lifehold_schema SET version = 9, least = 9", base)
    assert "use a newer lifehold" in told(pg_url, create=True, timeout=9)


@pytest.mark.parametrize("url", ["postgresql://u:s3cret%zz@h/db", "postgresql://h/db?nonsense=1"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(InvalidArgument) as caught:
        connect(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": "x"}, {"connections": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidArgument, match="must be"):
        connect("postgresql://h/db", **options)
