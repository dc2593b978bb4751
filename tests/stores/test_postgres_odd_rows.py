"""L13  A row of the tables that no step has written: it costs its own name alone."""

from __future__ import annotations

import psycopg
import pytest

from ground import needs
from lifehold import CorruptRecord, LifeholdError, connect
from lifehold.core.backend import Given, Renewal, Request, Unreachable
from lifehold.runtime import clock, process
from lifehold.runtime.blocking import finish
from lifehold.store.postgres.backend import PAGE

pytestmark = needs("postgres")
GOOD = {
    "name": "b", "slot": 0, "mark": "m", "nr": 1, "token": 5, "weight": 1, "shared": False,
    "ttl": 30.0, "delay": 0.0, "ends_at": 9e11, "acquired_at": 1.0, "renewals": 0, "owner": "{}",
}  # fmt: skip
ODD = [
    ("ends_at", "NaN"),
    ("ends_at", "Infinity"),
    ("acquired_at", "NaN"),
    ("acquired_at", "Infinity"),
    ("ttl", "NaN"),
    ("ttl", -5),
    ("delay", "Infinity"),
    ("weight", -5),
    ("token", -5),
    ("renewals", -1),
]


@pytest.mark.parametrize(("column", "odd"), ODD)
def test_an_odd_row_costs_its_own_name_and_an_order_removes_it(pg_url, column, odd):
    store = connect(pg_url)
    store.lock("a").acquire().release()
    row = GOOD | {column: odd}
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("INSERT INTO lifehold_lease VALUES ('b', 5, 1)")
        columns, marks = ", ".join(row), ", ".join(["%s"] * len(row))
        db.execute(f"INSERT INTO lifehold_holder ({columns}) VALUES ({marks})", [*row.values()])
    assert store.list() == ["a", "b"]
    assert [state.name for state in store.states() if not state.damage] == ["a"]
    with pytest.raises(CorruptRecord, match="removes it"):
        store.inspect("b")
    for wait in (0, 0.01):
        try:
            store.lock("b", wait=wait, notify=False).acquire().release()
        except LifeholdError:
            pass
    store.break_("b", "its row is none of ours")
    with store.lock("b", wait=0) as lease:
        assert lease.token > 5


@pytest.mark.parametrize("odd", [0, -1])
def test_a_holder_of_no_weight_keeps_others_out(pg_url, odd):
    store = connect(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as db:

        def is_spoilt():
            return db.execute("UPDATE lifehold_holder SET weight = %s", [odd]).rowcount == 1

        with store.lock("a").acquire() as lease:
            assert is_spoilt()
            with pytest.raises(CorruptRecord, match="weight is"):
                store.lock("a", wait=0).acquire()
            lease.verify()
        pair = store.read_write("b")
        with pair.acquire_write() as lease:
            db.execute("DELETE FROM lifehold_holder WHERE name = 'a'")
            assert is_spoilt()
            with pytest.raises(CorruptRecord, match="weight is"):
                pair.acquire_read(wait=0)
            lease.verify()


def test_a_last_token_beyond_the_range_is_told_and_removed(pg_url):
    store = connect(pg_url)
    store.lock("a").acquire().release()
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("UPDATE lifehold_lease SET token = 9223372036854775807")
    assert "token is" in store.states()[0].damage
    for ask in (lambda: store.lock("a", wait=0).acquire(), lambda: store.bump("a")):
        with pytest.raises(CorruptRecord, match="removes it"):
            ask()
    store.break_("a", "its token is none of ours")
    assert not store.states()[0].damage
    with store.lock("a", wait=0) as lease:
        assert 0 < lease.token < 2**62


ENCODINGS = {
    "LATIN1": ["jobs", "jobs/a", "jobsÿ", "jobsÿÿa", "jobsü", "jobt"],
    "SQL_ASCII": ["jobs", "jobs/a", "jobs日", "jobt"],
    "EUC_JP": ["jobs", "jobs/a", "jobs日", "jobt"],
    "UTF8": ["jobs", "jobs/a", "jobs日", "jobs\U0001f512", "jobt"],
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_names_are_listed_in_whatever_encoding_the_database_has(pg_server, encoding):
    base = f"in_{encoding.lower()}"
    how = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    pg_server.execute(f"CREATE DATABASE {base} {how}", "postgres")
    store = connect(pg_server.at(base))
    for name in ENCODINGS[encoding]:
        store.lock(name).acquire().release()
    assert sorted(store.list()) == sorted(ENCODINGS[encoding])
    begin = [name for name in ENCODINGS[encoding] if name.startswith("jobs")]
    assert sorted(store.list("jobs")) == sorted(begin)
    assert sorted(state.name for state in store.states("jobs")) == sorted(begin)
    with psycopg.connect(pg_server.at(base)) as db:
        db.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        page = PAGE.replace("{what}", "l.name").replace("{at}", "")
        for number, given in enumerate(("'jobs'", "''", "10"), 1):
            page = page.replace(f"${number}", given)
        plan = "".join(str(row[0]) for row in db.execute(f"EXPLAIN {page}"))
        assert "(name <" in plan.partition("Index Cond:")[2]


def held(store, count):
    """What renews so many leases that this store has given."""
    nonces = [f"nonce{number}" for number in range(count)]
    for nonce in nonces:
        request = Request(f"of {nonce}", nonce, 600.0, process.here())
        assert isinstance(finish(store._site.backend.acquire(request)), Given)
    return [Renewal(f"of {nonce}", nonce, 600.0) for nonce in nonces]


@pytest.mark.parametrize("what", ["locked", "damaged"])
@pytest.mark.parametrize("count", [2, 9])
def test_a_holders_row_that_cannot_be_renewed_costs_its_own_lease_alone(pg_url, what, count):
    """Thousands are renewed in one statement, which the server undoes as one."""
    store = connect(pg_url)
    asked, gone = held(store, count), Renewal("of nonce0", "somebody", 600.0)
    backend = store._site.backend.within(clock.now() + 4)
    with psycopg.connect(pg_url) as db:
        if what == "locked":
            db.execute("SELECT * FROM lifehold_holder WHERE name = 'of nonce1' FOR UPDATE")
        else:
            db.execute("UPDATE lifehold_holder SET renewals = 2147483647 WHERE mark = 'nonce1'")
            db.commit()
        there, kept = finish(backend.renew([*asked, gone]))
    assert there is not None
    assert isinstance(kept[1], Unreachable)
    assert [*kept[:1], *kept[2:]] == [True] * (count - 1) + [False]
    if what == "locked":
        assert finish(backend.renew(asked))[1] == (True,) * count
    ((limit,),) = finish(store._site.backend._beats.ask("SHOW lock_timeout"))
    assert limit == "0"  # it was of one statement


def test_where_each_row_is_locked_nothing_is_said_of_any(pg_url):
    store = connect(pg_url)
    asked = held(store, 2)
    with psycopg.connect(pg_url) as db:
        db.execute("SELECT * FROM lifehold_holder FOR UPDATE")
        there, kept = finish(store._site.backend.within(clock.now() + 1).renew(asked))
    assert there is None
    assert all(isinstance(one, Unreachable) for one in kept)


def test_many_rows_that_are_locked_cost_no_lease_of_another(pg_url):
    """Each makes several halves fail: were each of those waited for, no time was left."""
    store = connect(pg_url)
    asked = held(store, 64)
    with psycopg.connect(pg_url) as db:
        db.execute("SELECT * FROM lifehold_holder WHERE mark ~ '[13579]$' FOR UPDATE")
        _, kept = finish(store._site.backend.within(clock.now() + 4).renew(asked))
    assert [type(one) for one in kept] == [bool, Unreachable] * 32
    assert all(kept[::2])
