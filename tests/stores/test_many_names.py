"""A store with very many names: they are told in pages, beside which leases live, and forgotten."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time

import pytest

from ground import needs
from lifehold import InvalidArgument, aconnect, connect
from lifehold.cli.main import main
from lifehold.core.backend import Renewal, Request
from lifehold.core.errors import StoreUnavailable
from lifehold.core.value import replace
from lifehold.runtime import process
from lifehold.runtime.blocking import finish
from lifehold.store.memory import Memory
from lifehold.store.site import PAGE
from patience import until

MANY = 20_000
SERIES = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
NAMES = "INSERT INTO lifehold_names SELECT printf('order/%08d', i), 1, 1 FROM n"
CHAIRS = """INSERT INTO lifehold_chairs
    SELECT printf('order/%08d', i), 1, printf('m%d', i), 1, 1, 0, 0, 3600, 0, {ends}, '{clock}',
        0, 0, '{{}}' FROM n"""
POSTGRES = """
INSERT INTO lifehold_lease SELECT 'order/' || lpad(i::text, 8, '0'), 1, 1
    FROM generate_series(1, {many}) i;
INSERT INTO lifehold_holder (name, slot, mark, nr, token, weight, shared, ttl, delay, ends_at,
        acquired_at, owner)
    SELECT 'order/' || lpad(i::text, 8, '0'), 0, 'm' || i, 1, 1, 1, false, 3600, 0,
        lifehold_now() + 3600, 0, '{{}}' FROM generate_series(1, {many}) i;
ANALYZE"""


def fill_sqlite(path, backend, many=MANY):
    """`many` names that are held, by one statement: nobody has the time to take them one by one."""
    with sqlite3.connect(path) as db:
        db.execute(SERIES + NAMES, (many,))
        ends = backend._now() + 3600
        db.execute(SERIES + CHAIRS.format(ends=ends, clock=backend.clock), (many,))
    db.close()


def fill_postgres(server, url, many=MANY):
    server.execute(POSTGRES.format(many=many), url.rpartition("/")[2])


def test_a_list_of_all_names_keeps_no_renewal_of_sqlite_waiting(tmp_path):
    store = connect(f"sqlite:///{tmp_path}/x.db")
    lease = store.lock("mine", ttl=30, heartbeat=0.25, wait=0).acquire()
    fill_sqlite(tmp_path / "x.db", store._site.backend)
    over = threading.Event()

    def others():
        while not over.is_set():  # whoever takes a lock meanwhile
            with store.lock("other", wait=30):
                pass

    beside = threading.Thread(target=others)
    beside.start()
    states = store.states("order/")
    over.set()
    beside.join(60)
    assert len(states) == MANY
    assert all(state.holders for state in states)
    assert store.list("order/") == [state.name for state in states]
    lease.check()
    lease.release()


def test_a_list_in_the_middle_of_its_page_holds_up_no_renewal_of_sqlite(tmp_path, monkeypatch):
    """However long a page may take: it has a connection of its own."""
    from lifehold.store.sqlite import backend as room

    store = connect(f"sqlite:///{tmp_path}/x.db")
    lease = store.lock("mine", wait=0).acquire()
    read, reached, go_on = room.page, threading.Event(), threading.Event()

    def slow(*given):
        reached.set()
        assert go_on.wait(90)
        return read(*given)

    monkeypatch.setattr(room, "page", slow)
    found = []
    reader = threading.Thread(target=lambda: found.extend(store.states()))
    reader.start()
    assert reached.wait(90)
    lease.verify()
    with store.lock("other", wait=0):
        pass
    go_on.set()
    reader.join(90)
    assert [state.name for state in found][:1] == ["mine"]
    lease.release()


@needs("postgres")
def test_a_list_of_all_names_of_postgresql_takes_no_long_question(pg_server, pg_url, monkeypatch):
    """A renewal waits behind one page at most: each has as many names as a page, and no more."""
    from lifehold.store.postgres.backend import Postgres

    store = connect(pg_url, create=True)
    lease = store.lock("mine", ttl=60, heartbeat=1.0, wait=0).acquire()
    fill_postgres(pg_server, pg_url)
    asked, sizes = Postgres.page, []

    async def page(self, *given, **named):
        found = await asked(self, *given, **named)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(Postgres, "page", page)
    states = store.states("order/")
    assert len(states) == MANY
    assert max(sizes) <= PAGE <= 1000
    assert len(sizes) >= MANY // PAGE
    assert all(state.holders for state in states)
    assert store.list("order/") == [state.name for state in states]
    assert max(sizes) <= PAGE
    assert next(store.walk("order/00000007")).name == "order/00000007"
    assert asyncio.run(listed(pg_url)) == ["mine"]
    lease.verify()
    lease.release()


async def listed(url):
    store = await aconnect(url, create=True)
    async with store:
        return await store.list("mi")


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=needs("postgres"))])
def store(request, tmp_path):
    if request.param == "memory":
        return connect(f"memory://{tmp_path.name}")
    if request.param == "sqlite":
        return connect(f"sqlite:///{tmp_path}/x.db")
    return connect(request.getfixturevalue("pg_url"), create=True)


def test_names_that_are_idle_are_forgotten_and_tokens_grow_all_the_same(store):
    with store.lock("old", wait=0) as lease:
        token = lease.token
    with store.semaphore("slots", 3, wait=0), store.semaphore("slots", 3, wait=0):
        pass
    store.bump("ahead", least=2**60)
    held = store.lock("held", wait=0).acquire()
    assert store.prune(60) == 0  # used a moment ago
    backend = store._site.backend
    upto, gone = finish(backend.prune("", 0.0, 1000))  # as if that moment were long ago
    assert (upto, gone) == ("slots", 2)
    assert store.list() == ["ahead", "held"]
    assert finish(backend.prune("slots", 0.0, 1000)) == (None, 0)
    held.verify()
    held.release()
    with store.lock("old", wait=0) as lease:
        assert lease.token > token
    with store.lock("ahead", wait=0) as lease:
        assert lease.token > 2**60
    for wrong in (0, 59, -1, True, "1d", float("nan"), float("inf")):
        with pytest.raises(InvalidArgument):
            store.prune(wrong)


def test_a_name_that_only_the_dead_stand_in_line_for_is_forgotten(store):
    backend, me = store._site.backend, process.here()
    finish(backend.acquire(Request("a", "holder", 0.05, me)))
    finish(backend.acquire(Request("a", "waiter", 0.05, me, wait=True, patience=0.05)))
    until(lambda: store.inspect("a") is None and store.waiters("a") == 0)
    assert finish(backend.prune("", 0.0, 1000)) == ("a", 1)
    assert store.list() == []
    with store.lock("a", wait=0):
        assert store.waiters("a") == 0


def test_a_name_whose_holder_died_with_another_boot_is_forgotten_and_no_other(tmp_path):
    """By its record: of a clock that is not ours nobody can tell when a lease ends."""
    store = connect(f"sqlite:///{tmp_path}/x.db")
    backend, me = store._site.backend, process.here()
    other = "11111111-2222-3333-4444-555555555555"
    dead = replace(me, boot_id=other)
    for name, owner in (("dead", dead), ("delay", dead), ("living", me), ("unknown", None)):
        finish(backend.acquire(Request(name, f"of {name}", 0.01, owner)))
    with sqlite3.connect(tmp_path / "x.db") as db:
        db.execute("UPDATE lifehold_chairs SET clock = ?", (f"{other} 4026531834",))
        db.execute("UPDATE lifehold_chairs SET delay = 9.0 WHERE name = 'delay'")
    db.close()
    assert finish(backend.prune("", 60.0, 1000)) == ("unknown", 0)  # it was used just now
    assert finish(backend.prune("", 0.0, 1000)) == ("unknown", 1)
    assert store.list() == ["delay", "living", "unknown"]


def test_tasks_forget_names_too(tmp_path):
    async def main():
        async with await aconnect(f"sqlite:///{tmp_path}/x.db") as store:
            async with store.lock("x", wait=0):
                pass
            assert await store.prune(60) == 0
            assert await store.list() == ["x"]

    asyncio.run(main())


def test_who_takes_a_name_while_it_is_forgotten_has_it_alone(store):
    """Turns of three, beside one that forgets all that is free at every instant."""
    over, inside, tokens = threading.Event(), [], []

    def forget():
        while not over.is_set():
            finish(store._site.backend.prune("", 0.0, 1000))
            time.sleep(0.001)  # as an operator's command would: the others are to come in

    def work():
        for _ in range(100):
            with store.lock("x", wait=60) as lease:
                inside.append(1)
                assert len(inside) == 1
                tokens.append(lease.token)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    sweeper = threading.Thread(target=forget)
    sweeper.start()
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    over.set()
    sweeper.join(90)
    assert len(tokens) == 300
    assert tokens == sorted(set(tokens))


def test_the_command_says_how_many_were_forgotten(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/x.db"
    with connect(url).lock("n", wait=0):
        pass
    with sqlite3.connect(tmp_path / "x.db") as db:
        db.execute("UPDATE lifehold_names SET token = 1")
    db.close()
    assert main(["store", "prune", url]) == 64
    assert main(["store", "check", "--older-than", "1d", url]) == 64
    capsys.readouterr()
    assert main(["store", "prune", "--older-than", "1d", url]) == 0
    assert capsys.readouterr().out == f"sqlite:///{tmp_path}/x.db: 1 name forgotten\n"
    assert main(["store", "prune", "--older-than", "1d", "--json", url]) == 0
    assert '"forgotten": 0' in capsys.readouterr().out
    assert connect(url).list() == []


@needs("postgres")
def test_only_the_owner_of_the_tables_forgets_names(pg_server, pg_url):
    from lifehold.ops import stored

    base = pg_url.rpartition("/")[2]
    pg_server.execute(
        "DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN END $$", base
    )
    stored.migrate(pg_url, "app")
    store = connect(pg_url.replace("lifehold@", "app@"))
    with store.lock("n", wait=0):
        pass
    with pytest.raises(StoreUnavailable, match="only the owner of the tables forgets names"):
        store.prune(60)


class Times:
    """A clock that the test sets."""

    at, utc = 10_000.0, 1_700_000_000_000_000

    def now(self):
        return self.at

    def utc_us(self):
        return self.utc


def sqlite_of(tmp_path, times):
    from lifehold.store.sqlite.backend import Sqlite
    from lifehold.store.sqlite.database import Database

    file = Database(str(tmp_path / "x.db"), busy=30.0, synchronous="normal", shared=False)
    return Sqlite(file, times.now, times.utc_us)


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_after_a_clock_was_set_back_nothing_blocks_for_longer_than_its_ttl(engine, tmp_path):
    """The rules of the reference; PostgreSQL is compared with it by random histories."""
    times = Times()
    made = sqlite_of(tmp_path, times) if engine == "sqlite" else Memory(times.now, times.utc_us)
    me = process.here()

    def ask(mark, **more):
        return finish(made.acquire(Request("a", mark, 5.0, me, delay=1.0, **more)))

    assert ask("1" * 16).token
    assert not hasattr(ask("2" * 16, wait=True, patience=3.0), "token")
    assert finish(made.renew((Renewal("a", "1" * 16, 5.0),)))[1] == (True,)
    times.at -= 3600
    refused = ask("3" * 16, wait=True, patience=3.0)
    assert refused.holders[0].ends_in == 6.0
    times.at += 5.9
    assert not hasattr(ask("3" * 16, wait=True, patience=3.0), "token")
    times.at += 0.2  # the first in line has not asked again: its place died after its patience
    assert ask("3" * 16, wait=True, patience=3.0).token
