"""Guards of SQL rows: the same claims on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import lifehold
from ground import needs
from lifehold import InvalidArgument, Lock, ReadWriteLock, StaleToken
from lifehold.fence import (
    AsyncRowFence,
    AsyncSqlFence,
    LeaseTable,
    RowFence,
    SqlFence,
    create_table,
)

TABLES = [
    "drop table if exists account, lifehold_fence, leases",
    "create table account (id integer primary key, amount integer, fence bigint)",
    "create table leases (name varchar(99) primary key, token bigint, nonce varchar(99))",
    create_table(),
    "insert into account values (7, 0, 0), (9, 0, null)",
    "insert into leases values ('lock', 5, 'a')",
]
LEASES = LeaseTable("leases", nonce="nonce")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs("package:psycopg"))])
def connect(request, tmp_path):
    """Makes connections to one database with the tables in it."""
    opened = []
    if request.param == "sqlite":
        base = sqlite3.connect(tmp_path / "db", timeout=30)
        tables = TABLES[1:]

        def make(**options):
            return sqlite3.connect(tmp_path / "db", timeout=30, check_same_thread=False, **options)
    else:
        import psycopg

        dsn, tables = request.getfixturevalue("postgres"), TABLES
        base = psycopg.connect(dsn)

        def make(**options):
            return psycopg.connect(dsn, **options)

    for text in tables:
        base.execute(text)
    base.commit()
    base.close()

    def kept(**options):
        opened.append(make(**options))
        return opened[-1]

    kept.driver = request.param
    yield kept
    for each in opened:
        each.close()


def amounts(connection):
    found = [tuple(row) for row in connection.execute("select id, amount from account order by id")]
    connection.rollback()
    return dict(found)


def pay(connection, row, amount, *keys):
    """The user's own UPDATE."""
    named = "%(amount)s" if "%(" in row.set else ":amount"
    keys = ", ".join(map(str, keys))
    done = connection.execute(
        f"update account set amount = {named}, {row.set} where id in ({keys}) and {row.where}",
        {"amount": amount, **row.parameters},
    )
    row.wrote(done, keys.count(",") + 1)


# ---- the fence in a table of its own


def test_a_late_transaction_is_refused_and_an_equal_one_is_not(connect):
    late, now = connect(), connect()
    SqlFence(late, "a", 5).admit()
    late.commit()
    SqlFence(now, "a", 6).admit()
    now.commit()
    SqlFence(now, "a", 6).admit()
    now.commit()
    with pytest.raises(StaleToken) as caught:
        SqlFence(late, "a", 5).admit()
    late.rollback()
    assert (caught.value.name, caught.value.token, caught.value.fence) == ("a", 5, 6)
    SqlFence(late, "b", 5).admit()  # names are apart
    late.rollback()


def test_advance_refuses_a_late_writer_before_its_successor_wrote(connect):
    late, now = connect(), connect()
    SqlFence(late, "a", 5).advance()
    late.commit()
    late.execute("select amount from account where id = 7").fetchone()
    late.rollback()
    SqlFence(now, "a", 6).advance()
    now.commit()
    late.execute("update account set amount = 1 where id = 7")
    with pytest.raises(StaleToken), late:
        SqlFence(late, "a", 5).admit()
    assert amounts(now) == {7: 0, 9: 0}


def test_a_successor_waits_for_an_admitted_transaction_to_end(connect):
    late, now = connect(), connect()
    SqlFence(late, "a", 5).admit()
    late.execute("update account set amount = 1 where id = 7")
    seen = []

    def succeed():
        SqlFence(now, "a", 6).admit()
        seen.append(now.execute("select amount from account where id = 7").fetchone()[0])
        now.commit()

    thread = threading.Thread(target=succeed)
    thread.start()
    thread.join(0.2)
    assert seen == []
    late.commit()
    thread.join(90)
    assert seen == [1]


def test_transactions_of_many_threads_are_written_in_the_order_of_their_tokens(connect):
    reader = connect()
    reader.execute("create table written (place integer, token bigint)")
    reader.commit()
    landed, late = [], []

    def work(seed):
        dice, connection = random.Random(seed), connect()
        for step in range(25):
            token = step * 4 + dice.randrange(12)
            try:
                SqlFence(connection, "a", token).admit()
            except StaleToken:
                connection.rollback()
                late.append(token)
                continue
            place = "coalesce(max(place), 0) + 1"
            connection.execute(f"insert into written select {place}, {token} from written")
            connection.commit()
            landed.append(token)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = reader.execute("select place, token from written order by place").fetchall()
    reader.execute("drop table written")
    reader.commit()
    assert [place for place, _ in found] == list(range(1, len(landed) + 1))
    tokens = [token for _, token in found]
    assert tokens == sorted(tokens)
    assert sorted(landed) == tokens
    assert late


def test_a_fence_outside_of_a_transaction_is_refused(connect):
    options = {"isolation_level": None} if connect.driver == "sqlite" else {"autocommit": True}
    connection = connect(**options)
    SqlFence(connection, "a", 5).advance()
    with pytest.raises(InvalidArgument, match="one transaction"):
        SqlFence(connection, "a", 5).admit()
    if connect.driver == "sqlite":
        connection.execute("begin")
        SqlFence(connection, "a", 6).admit()
        connection.execute("commit")
    else:
        with connection.transaction():
            SqlFence(connection, "a", 6).admit()


def test_a_missing_table_is_told_with_the_statement_that_makes_it(connect):
    connection = connect()
    with pytest.raises(InvalidArgument, match="CREATE TABLE IF NOT EXISTS other"):
        SqlFence(connection, "a", 5, table="other").advance()
    connection.rollback()
    connection.execute(create_table("other"))
    SqlFence(connection, "a", 5, table="other").advance()
    connection.rollback()


def test_strict_refuses_from_the_moment_the_lock_has_a_new_holder(connect):
    late, store = connect(), connect()
    ours = SimpleNamespace(token=5, nonce="a", name="lock")
    guard = SqlFence(late, "x", ours, strict=LEASES)
    guard.admit()
    late.rollback()
    store.execute("update leases set token = 6, nonce = 'b'")
    store.commit()
    with pytest.raises(StaleToken) as caught:
        guard.admit()
    late.rollback()
    assert (caught.value.token, caught.value.fence) == (5, 6)


@pytest.mark.parametrize("row", ["token = 5, nonce = null", "token = 4, nonce = 'a'"])
def test_strict_refuses_a_grant_that_was_given_back_or_forgotten(connect, row):
    late, store = connect(), connect()
    store.execute(f"update leases set {row}")
    store.commit()
    ours = SimpleNamespace(token=5, nonce="a", name="lock")
    with pytest.raises(StaleToken, match="not held by the grant"):
        SqlFence(late, "x", ours, strict=LEASES).admit()
    late.rollback()


def test_strict_compares_a_bare_token_with_a_row_that_is_named(connect):
    connection = connect()
    lease = LeaseTable("leases", lock="lock")
    SqlFence(connection, "x", 5, strict=lease).admit()
    connection.rollback()
    with pytest.raises(StaleToken):
        SqlFence(connection, "x", 4, strict=lease).admit()
    connection.rollback()
    with pytest.raises(InvalidArgument, match="no row for the lock"):
        SqlFence(connection, "x", 5, strict=LeaseTable("leases", lock="other")).admit()
    connection.rollback()
    with pytest.raises(InvalidArgument, match="name of the lock"):
        SqlFence(connection, "x", 5, strict=True).admit()
    connection.rollback()


def test_strict_refuses_a_nonce_that_it_could_not_compare(connect):
    connection = connect()
    named = LeaseTable("leases", nonce="nonce", lock="lock")
    for bare in (5, SimpleNamespace(token=5, name="lock")):
        with pytest.raises(InvalidArgument, match="nonce"):
            SqlFence(connection, "x", bare, strict=named)


@pytest.mark.parametrize("strict", [1, 0, "yes", "", "leases", LeaseTable], ids=repr)
def test_strict_is_a_bool_or_a_table_of_leases(connect, strict):
    with pytest.raises(InvalidArgument, match="strict must be"):
        SqlFence(connect(), "x", 5, strict=strict)


def test_strict_refuses_a_token_where_no_writer_has_been(connect):
    connection, store = connect(), connect()
    store.execute("update leases set token = null")
    store.commit()
    with pytest.raises(StaleToken, match="not held by the grant"):
        SqlFence(connection, "x", 5, strict=LeaseTable("leases", lock="lock")).admit()
    connection.rollback()


def test_strict_is_for_locks_whose_row_it_can_name(connect):
    connection = connect()
    named = {"token": 5, "nonce": "a"}
    for lease, why in [
        (SimpleNamespace(name="sqlite:///x#a%20b", **named), "needs the name"),
        (SimpleNamespace(name="lock", exclusive=False, fences="lock#0", **named), "one holder"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            SqlFence(connection, "x", lease, strict=LEASES).admit()
        connection.rollback()
    ours = SimpleNamespace(name="postgresql://host/db#lock", **named)
    SqlFence(connection, "x", ours, strict=LEASES).admit()
    connection.rollback()


def test_strict_knows_the_leases_of_a_store_in_the_same_database(tmp_path):
    store = lifehold.connect(f"sqlite:///{tmp_path / 'db'}")
    connection = sqlite3.connect(tmp_path / "db", timeout=30)
    with store.lock("account/7", ttl=30) as late:
        connection.execute(create_table())
        guard = SqlFence(connection, "x", late, strict=True)
        guard.admit()
        connection.commit()
    with store.lock("account/7", ttl=30):
        with pytest.raises(StaleToken) as caught:
            guard.admit()
        connection.rollback()
        assert caught.value.fence > late.token
    connection.close()


@pytest.mark.parametrize("first", ["writer", "alone"])
def test_strict_admits_no_late_writer_beside_a_reader_who_has_its_token(tmp_path, first):
    store = lifehold.connect(f"sqlite:///{tmp_path / 'db'}")
    shared = store.read_write("account/7", ttl=30)
    connection = sqlite3.connect(tmp_path / "db", timeout=30)
    connection.execute(create_table())
    with shared.writing() if first == "writer" else store.lock("account/7", ttl=30) as late:
        pass
    with shared.reading() as reader:
        assert reader.token == late.token
        for strict in (True, LeaseTable("main.lifehold_names", lock="account/7")):
            with pytest.raises(InvalidArgument, match="one holder"):
                SqlFence(connection, "x", late, strict=strict).admit()
            connection.rollback()
    connection.close()


def test_strict_is_not_for_the_permits_of_a_lock_that_is_named(tmp_path):
    store = lifehold.connect(f"sqlite:///{tmp_path / 'db'}")
    connection = sqlite3.connect(tmp_path / "db", timeout=30)
    connection.execute(create_table())
    with store.semaphore("pool", 3, ttl=30) as permit:
        guard = SqlFence(connection, permit.fences, permit, strict=LeaseTable(lock="pool"))
        with pytest.raises(InvalidArgument, match="one holder"):
            guard.admit()
        connection.rollback()
    connection.close()


def test_strict_holds_the_next_holder_of_a_store_back_until_the_commit(postgres):
    import psycopg

    from lifehold.store.postgres import sql as of_the_store

    options = "-csearch_path=of_the_store"
    with (
        psycopg.connect(postgres, options=options) as connection,
        psycopg.connect(postgres, options=options) as store,
    ):
        connection.execute("create schema of_the_store")
        connection.execute(of_the_store.TABLES)
        connection.execute(create_table())
        connection.execute("insert into lifehold_lease (name, token) values ('account/7', 5)")
        connection.commit()
        lease = SimpleNamespace(name="postgresql:///app#account/7", token=5, exclusive=True)
        guard = SqlFence(connection, "x", lease, strict=True)
        guard.admit()
        take = "select token from lifehold_lease for no key update nowait"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            store.execute(take)
        store.rollback()
        connection.commit()
        store.execute(take)
        store.execute("update lifehold_lease set token = 6")
        store.commit()
        with pytest.raises(StaleToken):
            guard.admit()
        connection.rollback()


def test_the_row_factory_of_a_connection_does_not_matter(connect):
    connection = connect()
    if connect.driver == "sqlite":
        connection.row_factory = lambda cursor, row: {"row": row}
    else:
        from psycopg.rows import dict_row

        connection.row_factory = dict_row
    SqlFence(connection, "a", 6).advance()
    connection.commit()
    with pytest.raises(StaleToken) as caught:
        SqlFence(connection, "a", 5).advance()
    connection.rollback()
    assert caught.value.fence == 6


# ---- the fence in the rows themselves


def test_a_late_update_of_a_row_changes_nothing(connect):
    connection = connect()
    pay(connection, RowFence(connection, "account", 6), 60, 7)
    connection.commit()
    with pytest.raises(StaleToken), connection:
        pay(connection, RowFence(connection, "account", 5), 50, 7)
    assert amounts(connect()) == {7: 60, 9: 0}


def test_a_late_read_modify_write_is_refused_before_its_successor_wrote(connect):
    late, now = connect(), connect()
    row = RowFence(late, "account", 5)
    row.advance(7)
    late.commit()
    (amount,) = late.execute("select amount from account where id = 7").fetchone()
    late.rollback()
    RowFence(now, "account", 6).advance(7)
    now.commit()
    with pytest.raises(StaleToken), late:
        pay(late, row, amount + 1, 7)
    assert amounts(now) == {7: 0, 9: 0}


def test_of_several_rows_all_are_written_or_none(connect):
    late, now = connect(), connect()
    RowFence(now, "account", 6).advance(9)
    now.commit()
    with pytest.raises(StaleToken) as caught, late:
        pay(late, RowFence(late, "account", 5), 50, 7, 9)
    assert "1 of 2 rows" in caught.value.__notes__[0]
    assert amounts(now) == {7: 0, 9: 0}
    with now:
        pay(now, RowFence(now, "account", 6), 60, 7, 9)
    assert amounts(connect()) == {7: 60, 9: 60}


def test_several_rows_outside_of_a_transaction_are_refused_whatever_was_written(connect):
    options = {"isolation_level": None} if connect.driver == "sqlite" else {"autocommit": True}
    connection = connect(**options)
    with pytest.raises(InvalidArgument, match="begin a transaction"):
        pay(connection, RowFence(connection, "account", 5), 50, 7, 9)


def test_advance_of_rows_is_all_of_them_or_a_clear_error(connect):
    connection = connect()
    RowFence(connection, "account", 6).advance(9, 7)
    connection.commit()
    with pytest.raises(StaleToken) as caught:
        RowFence(connection, "account", 5).advance(7)
    connection.rollback()
    assert (caught.value.name, caught.value.fence) == ("account 7", 6)
    with pytest.raises(InvalidArgument, match="no such row"):
        RowFence(connection, "account", 6).advance(8)
    connection.rollback()
    with pytest.raises(InvalidArgument, match="keys of the rows"):
        RowFence(connection, "account", 6).advance()
    for keys in [(7, "x"), (None, 7), ({}, 7)]:
        with pytest.raises(InvalidArgument, match="one kind"):
            RowFence(connection, "account", 6).advance(*keys)


def test_more_rows_than_expected_are_no_success(connect):
    connection = connect()
    row = RowFence(connection, "account", 5)
    done = connection.execute(
        f"update account set amount = 1, {row.set} where {row.where}", row.parameters
    )
    with pytest.raises(InvalidArgument, match="2 rows were written where 1"):
        row.wrote(done)
    connection.rollback()


# ---- async


@needs("package:aiosqlite")
def test_the_async_guards_of_sqlite_keep_the_rule(tmp_path):
    import aiosqlite

    async def main():
        async with aiosqlite.connect(tmp_path / "db") as connection:
            for text in TABLES[1:]:
                await connection.execute(text)
            await kept_by(connection)

    asyncio.run(main())


def test_the_async_guards_of_postgresql_keep_the_rule(postgres):
    import psycopg

    async def main():
        async with await psycopg.AsyncConnection.connect(postgres) as connection:
            for text in TABLES:
                await connection.execute(text)
            await kept_by(connection)

    asyncio.run(main())


async def kept_by(connection):
    await AsyncSqlFence(connection, "a", 6).advance()
    await AsyncRowFence(connection, "account", 6).advance(7)
    await connection.commit()
    await AsyncSqlFence(connection, "a", 6).admit()
    await connection.commit()
    with pytest.raises(StaleToken):
        await AsyncSqlFence(connection, "a", 5).admit()
    await connection.rollback()
    row = AsyncRowFence(connection, "account", 5)
    with pytest.raises(StaleToken):
        await row.advance(7)
    await connection.rollback()
    done = await connection.execute(
        f"update account set amount = 1, {row.set} where id = 7 and {row.where}", row.parameters
    )
    with pytest.raises(StaleToken):
        row.wrote(done)
    await connection.rollback()


# ---- what is refused, and the rule at large


def test_what_is_no_token_and_what_orders_nobody_is_refused(tmp_path):
    connection = sqlite3.connect(":memory:")
    connection.execute(create_table())
    for bad, why in [
        (None, "needs the lease"), ("5", "not str"), (True, "not bool"), (-1, "no token"),
        (2**63, "no token"), (object(), "not object"),
    ]:  # fmt: skip
        with pytest.raises(InvalidArgument, match=why):
            SqlFence(connection, "a", bad).advance()
    none = SimpleNamespace(token=None, token_reason="a data file carries none")
    with pytest.raises(StaleToken, match="a data file carries none"):
        SqlFence(connection, "a", none).advance()
    lock = ReadWriteLock(tmp_path / "lock")
    with lock.writing() as lease:
        SqlFence(connection, "a", lease).advance()
        lease.downgrade()
        with pytest.raises(InvalidArgument, match="shared lease"):
            SqlFence(connection, "a", lease).advance()
    with Lock(tmp_path / "lock") as lease:
        SqlFence(connection, "a", lease).advance()
    permit = SimpleNamespace(token=5, exclusive=False, fences="gpu#0")
    SqlFence(connection, permit.fences, permit).advance()
    connection.close()


def test_names_that_would_change_the_statement_are_refused():
    connection = sqlite3.connect(":memory:")
    for bad in ("a b", "a;drop table x", "a.b.c", "", "1a", 'a"', None):
        with pytest.raises(InvalidArgument, match="plain SQL name"):
            SqlFence(connection, "a", 5, table=bad)
        with pytest.raises(InvalidArgument, match="plain SQL name"):
            RowFence(connection, "account", 5, column=bad)
    for bad in ("", "a\0b", "x" * 501, None, b"a", "\udc80"):
        with pytest.raises(InvalidArgument, match="name"):
            SqlFence(connection, bad, 5)
    with pytest.raises(InvalidArgument, match="no connection that can be guarded"):
        SqlFence(object(), "a", 5)
    with pytest.raises(InvalidArgument, match="take SqlFence and RowFence"):
        AsyncSqlFence(connection, "a", 5)
    connection.close()


ACT = some.tuples(some.integers(1, 6), some.sampled_from(["advance", "admit", "row", "rows"]))


@settings(max_examples=60, deadline=None)
@given(some.lists(ACT, max_size=20))
def test_whatever_the_order_no_token_is_admitted_after_a_newer_one(acts):
    connection = sqlite3.connect(":memory:")
    for text in TABLES[1:]:
        connection.execute(text)
    connection.commit()
    table, rows = 0, {7: 0, 9: 0}
    for token, act in acts:
        row = RowFence(connection, "account", token)
        try:
            with connection:
                if act == "advance":
                    SqlFence(connection, "a", token).advance()
                elif act == "admit":
                    SqlFence(connection, "a", token).admit()
                elif act == "row":
                    pay(connection, row, token, 7)
                else:
                    pay(connection, row, token, 7, 9)
        except StaleToken:
            newest = {"row": rows[7], "rows": max(rows.values())}.get(act, table)
            assert newest > token
        else:
            if act in ("advance", "admit"):
                assert token >= table
                table = token
            else:
                keys = [7] if act == "row" else [7, 9]
                assert all(token >= rows[key] for key in keys)
                rows |= dict.fromkeys(keys, token)
    assert amounts(connection) == rows
    connection.close()
