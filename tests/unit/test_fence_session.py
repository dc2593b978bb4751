"""A session of SQLAlchemy whose commits are admitted, and one UPDATE with a fence of its own."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from ground import needs, require
from lifehold import InvalidArgument, StaleToken
from lifehold.fence import SessionFence, create_table, fenced, wrote

pytestmark = needs("package:sqlalchemy")


@pytest.fixture(scope="module")
def account():
    from sqlalchemy import BigInteger, Column, Integer
    from sqlalchemy.orm import declarative_base

    class Account(declarative_base()):
        __tablename__ = "account"
        id = Column(Integer, primary_key=True)
        amount = Column(Integer)
        fence = Column(BigInteger)

    return Account


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'db'}"
    return request.getfixturevalue("postgres").replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
def engine(url, account):
    from sqlalchemy import create_engine, text

    engine = create_engine(url)
    account.metadata.drop_all(engine)
    account.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("drop table if exists lifehold_fence"))
        connection.execute(text(create_table()))
        connection.execute(
            account.__table__.insert(), [{"id": 7, "amount": 0}, {"id": 9, "amount": 0}]
        )
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine):
    from sqlalchemy.orm import Session

    with Session(engine) as session:
        yield session


def amount(engine, account):
    from sqlalchemy import select

    with engine.connect() as connection:
        return connection.execute(select(account.amount).where(account.id == 7)).scalar_one()


def advanced(engine, token):
    with engine.begin() as connection:
        SessionFence(connection, "a", token).advance()


def by_flush(session, account):
    session.get(account, 7).amount = 50
    session.flush()


def by_object(session, account):
    session.get(account, 7).amount = 50


def by_bulk(session, account):
    from sqlalchemy import update

    session.execute(update(account).values(amount=50))


def by_connection(session, account):
    from sqlalchemy import text

    session.connection().execute(text("update account set amount = 50"))


def by_insert_in_a_savepoint(session, account):
    with session.begin_nested():
        session.add(account(id=8, amount=50))
    session.get(account, 7).amount = 50


@pytest.mark.parametrize(
    "write", [by_flush, by_object, by_bulk, by_connection, by_insert_in_a_savepoint]
)
def test_nothing_of_a_late_session_is_committed_however_it_wrote(write, session, engine, account):
    with SessionFence(session, "a", 5):
        session.get(account, 7).amount = 40
        session.commit()
        assert amount(engine, account) == 40
        advanced(engine, 6)
        with pytest.raises(StaleToken) as caught:
            act(write, session, account)
        session.rollback()
    assert (caught.value.token, caught.value.fence) == (5, 6)
    assert amount(engine, account) == 40


def act(write, session, account):
    write(session, account)
    session.commit()


def of_the_connection(session):
    session.connection().commit()


def of_its_transaction(session):
    session.connection().get_transaction().commit()


def of_its_transaction_in_a_savepoint(session):
    session.connection().begin_nested()
    by_connection(session, None)
    session.connection().get_transaction().commit()


CONNECTION_COMMITS = [of_the_connection, of_its_transaction, of_its_transaction_in_a_savepoint]


@pytest.mark.parametrize("begun", ["before", "inside"])
@pytest.mark.parametrize("commit", CONNECTION_COMMITS)
def test_a_late_connection_of_the_session_does_not_commit(session, engine, account, begun, commit):
    advanced(engine, 6)
    if begun == "before":
        by_connection(session, account)
    with SessionFence(session, "a", 5):
        by_connection(session, account)
        with pytest.raises(StaleToken):
            commit(session)
        session.rollback()
        assert amount(engine, account) == 0
        by_connection(session, account)
        with pytest.raises(StaleToken):
            commit(session)
    session.close()
    assert amount(engine, account) == 0
    by_connection(session, account)
    commit(session)
    assert amount(engine, account) == 50  # after its block nothing is guarded


def test_a_refused_connection_leaves_no_write_to_the_next_one_of_its_pool(engine, account):
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    one = create_engine(engine.url, pool_size=1, max_overflow=0)
    advanced(engine, 6)
    with Session(one) as session, SessionFence(session, "a", 5):
        by_connection(session, account)
        with pytest.raises(StaleToken):
            of_the_connection(session)
    with one.connect() as connection:
        assert connection.execute(text("select max(amount) from account")).scalar_one() == 0
        connection.commit()
    one.dispose()
    assert amount(engine, account) == 0


def test_each_commit_of_a_connection_is_admitted(session, engine, account):
    from sqlalchemy import text

    pay = text("update account set amount = amount + 1")
    with SessionFence(session, "a", 5):
        for commit in (of_the_connection, of_its_transaction, of_the_connection):
            session.connection().execute(pay)
            with session.begin_nested():
                session.execute(pay)
            commit(session)
        assert amount(engine, account) == 6
        advanced(engine, 6)
        session.connection().execute(pay)
        with pytest.raises(StaleToken):
            of_the_connection(session)
        session.close()
    assert amount(engine, account) == 6


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_an_admission_that_went_with_its_savepoint_is_made_anew(session, engine, account):
    with SessionFence(session, "a", 5):
        outer = session.begin_nested()
        session.begin_nested()
        session.get(account, 7).amount = 40
        session.get_nested_transaction().commit()
        outer.rollback()
        advanced(engine, 6)
        by_connection(session, account)
        with pytest.raises(StaleToken):
            of_the_connection(session)
        session.rollback()
    assert amount(engine, account) == 0


def test_a_session_of_a_given_connection_is_guarded_and_let_go(engine, account):
    from sqlalchemy.orm import Session

    with engine.connect() as connection:
        for token in (5, 6):
            with Session(connection) as session, SessionFence(session, "a", token):
                by_connection(session, account)
                connection.commit()
        with Session(connection) as session, SessionFence(session, "a", 5):
            by_connection(session, account)
            with pytest.raises(StaleToken):
                connection.commit()
            connection.rollback()
        assert not [*connection.dispatch.commit, *connection.dispatch.begin]


def test_what_a_closed_session_left_to_its_given_connection_is_not_committed_late(engine, account):
    from sqlalchemy.orm import Session

    advanced(engine, 6)
    with engine.connect() as connection:
        begun = connection.begin()
        session = Session(connection)
        by_connection(session, account)
        session.close()  # the transaction is of the program, and stays
        with SessionFence(session, "a", 5), pytest.raises(StaleToken):
            begun.commit()
        assert not [*connection.dispatch.commit, *connection.dispatch.begin]
    assert amount(engine, account) == 0


def test_a_given_connection_is_heard_only_while_it_has_a_transaction(engine, account):
    from sqlalchemy.orm import Session

    with engine.connect() as connection:
        with SessionFence(Session(connection), "a", 5):
            assert not [*connection.dispatch.commit]
        connection.close()
        with SessionFence(Session(connection), "a", 5):
            pass


def test_a_transaction_of_two_phases_is_admitted_in_its_first(session, engine, account):
    """As the events tell it: a server may be set up without the second phase."""
    advanced(engine, 6)
    with SessionFence(session, "a", 5):
        for told in (("prepare_twophase", "x"), ("commit_twophase", "x", False)):
            by_connection(session, account)
            with pytest.raises(StaleToken):
                getattr(session.connection().dispatch, told[0])(session.connection(), *told[1:])
            session.rollback()
        connection = session.connection()
        connection.dispatch.commit_twophase(connection, "x", True)


def test_a_connection_that_begins_to_commit_each_statement_is_refused(session, engine, account):
    with SessionFence(session, "a", 5):
        by_connection(session, account)
        of_the_connection(session)
        advanced(engine, 6)
        session.connection().execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(InvalidArgument, match="one transaction"):
            by_connection(session, account)
        session.close()
    assert amount(engine, account) == 50


def test_the_guard_ends_with_its_block(session, engine, account):
    advanced(engine, 6)
    with SessionFence(session, "a", 5):
        pass
    by_flush(session, account)
    session.commit()
    assert amount(engine, account) == 50


def test_a_guard_that_is_entered_twice_guards_until_its_last_block_ends(session, engine, account):
    guard = SessionFence(session, "a", 5)
    with guard:
        with guard, guard:
            pass
        advanced(engine, 6)
        with pytest.raises(StaleToken):
            act(by_flush, session, account)
        session.rollback()
    act(by_flush, session, account)
    assert amount(engine, account) == 50


def test_blocks_of_one_guard_in_several_threads_may_end_in_any_order(session, engine, account):
    guard, inside, go_on = SessionFence(session, "a", 5), threading.Event(), threading.Event()

    def enter():
        with guard:
            inside.set()
            assert go_on.wait(60)

    other = threading.Thread(target=enter)
    with guard:
        other.start()
        assert inside.wait(60)
    advanced(engine, 6)
    with pytest.raises(StaleToken):
        act(by_flush, session, account)
    session.rollback()
    go_on.set()
    other.join(60)
    act(by_flush, session, account)
    assert amount(engine, account) == 50


def test_a_missing_table_and_a_stale_advance_are_told(session, engine):
    with pytest.raises(InvalidArgument, match="CREATE TABLE IF NOT EXISTS other"):
        SessionFence(session, "a", 5, table="other").advance()
    session.rollback()
    advanced(engine, 6)
    with pytest.raises(StaleToken):
        SessionFence(session, "a", 5).admit()
    session.rollback()


def test_an_error_of_the_database_is_one_of_sqlalchemy(session, engine):
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    with engine.begin() as connection:
        connection.execute(text("drop table lifehold_fence"))
        connection.execute(text("create table lifehold_fence (other integer)"))
    with pytest.raises(DBAPIError):
        SessionFence(session, "a", 5).advance()
    session.rollback()


def loose_engine(url, how):
    """One whose connections commit each statement by itself."""
    from sqlalchemy import create_engine

    if how == "made so":
        return create_engine(url, isolation_level="AUTOCOMMIT")
    if how == "an option":
        return create_engine(url).execution_options(isolation_level="AUTOCOMMIT")
    name, value = ("isolation_level", None) if url.startswith("sqlite") else ("autocommit", True)
    return create_engine(url, connect_args={name: value})


@pytest.mark.parametrize("how", ["made so", "an option", "by the driver"])
@pytest.mark.parametrize("begun", ["before", "inside"])
def test_a_session_that_commits_each_statement_is_refused(url, engine, account, how, begun):
    from sqlalchemy.orm import Session

    loose = loose_engine(url, how)
    advanced(engine, 6)
    for token in (5, 7):
        with Session(loose) as session:
            if begun == "before":
                assert session.get(account, 7).amount == 0
            with (
                pytest.raises(InvalidArgument, match="one transaction"),
                SessionFence(session, "a", token),
            ):
                act(by_flush, session, account)
            act(by_flush, session, account) if token == 7 else session.rollback()
        assert amount(engine, account) == (50 if token == 7 else 0)  # unguarded, it writes
    loose.dispose()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_session_whose_transactions_are_begun_by_hand_is_guarded(engine, account):
    from sqlalchemy import create_engine, event
    from sqlalchemy.orm import Session

    by_hand = create_engine(engine.url, connect_args={"isolation_level": None})
    event.listen(by_hand, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with Session(by_hand) as session, SessionFence(session, "a", 5):
        act(by_flush, session, account)
        assert amount(engine, account) == 50
        advanced(engine, 6)
        session.get(account, 7).amount = 60
        with pytest.raises(StaleToken):
            session.commit()
        session.rollback()
    by_hand.dispose()
    assert amount(engine, account) == 50


def test_a_block_of_the_session_may_begin_in_the_guards_own(session, engine, account):
    with SessionFence(session, "a", 5), session.begin():
        session.get(account, 7).amount = 50
    assert amount(engine, account) == 50


def test_a_session_that_writes_into_several_databases_is_refused(engine, account, tmp_path):
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    other = create_engine(f"sqlite:///{tmp_path / 'other'}")
    account.metadata.create_all(other)
    with Session(engine, binds={account: other}) as session, SessionFence(session, "a", 5):
        session.add(account(id=1, amount=50))
        with pytest.raises(InvalidArgument, match="several databases"):
            session.commit()
        session.rollback()
    with other.connect() as connection:
        assert connection.execute(text("select count(*) from account")).scalar_one() == 0
    other.dispose()


def test_the_connection_of_another_database_does_not_commit_by_itself(engine, account, tmp_path):
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    other = create_engine(f"sqlite:///{tmp_path / 'other'}")
    account.metadata.create_all(other)
    with other.begin() as connection:
        connection.execute(text(create_table()))
    with Session(engine, binds={account: other}) as session, SessionFence(session, "a", 5):
        connection = session.connection({"mapper": account})
        connection.execute(text("insert into account (id, amount) values (1, 50)"))
        with pytest.raises(InvalidArgument, match="several databases"):
            connection.commit()
    with other.connect() as connection:
        assert connection.execute(text("select count(*) from account")).scalar_one() == 0
    other.dispose()


def test_a_row_with_a_newer_fence_is_left_alone(session, engine, account):
    from sqlalchemy import delete, update

    def pay(token, amount):
        statement = update(account).where(account.id == 7).values(amount=amount)
        wrote(session.execute(fenced(statement, account.fence, token)), token)
        session.commit()

    pay(6, 60)
    with pytest.raises(StaleToken):
        pay(5, 50)
    session.rollback()
    gone = delete(account).where(account.id == 7)
    with pytest.raises(StaleToken):
        wrote(session.execute(fenced(gone, account.__table__.c.fence, 5)), 5)
    session.rollback()
    assert amount(engine, account) == 60


def test_of_several_rows_of_a_statement_all_must_be_admitted(session, engine, account):
    from sqlalchemy import update

    one = fenced(update(account).where(account.id == 9).values(amount=1), account.fence, 6)
    wrote(session.execute(one), 6)
    session.commit()
    both = fenced(update(account).values(amount=50), account.fence, 5)
    with pytest.raises(StaleToken) as caught:
        wrote(session.execute(both), 5, rows=2)
    session.rollback()
    assert "1 of 2 rows" in caught.value.__notes__[0]
    assert amount(engine, account) == 0
    with pytest.raises(InvalidArgument, match="2 rows were written where 1"):
        wrote(session.execute(fenced(update(account).values(amount=1), account.fence, 6)), 6)
    session.rollback()


def test_an_async_session_is_guarded_by_the_same_event(url, engine, account):
    require("package:greenlet", "package:aiosqlite")
    from sqlalchemy import update
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def main():
        slow = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncSession(slow) as session:
            guard = SessionFence(session, "a", 6)
            await session.run_sync(lambda _: guard.advance())
            await session.commit()
            with guard:
                (await session.get(account, 7)).amount = 60
                await session.commit()
            with SessionFence(session, "a", 5):
                (await session.get(account, 7)).amount = 50
                with pytest.raises(StaleToken):
                    await session.commit()
                await session.rollback()
                await session.execute(update(account).values(amount=50))
                with pytest.raises(StaleToken):
                    await (await session.connection()).commit()
                await session.rollback()
        await slow.dispose()

    asyncio.run(main())
    assert amount(engine, account) == 60


@pytest.mark.parametrize("how", ["made so", "an option"])
def test_an_async_session_that_commits_each_statement_is_refused(url, engine, account, how):
    require("package:greenlet", "package:aiosqlite")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    given = {"isolation_level": "AUTOCOMMIT"}
    given = given if how == "made so" else {"execution_options": given}

    async def main():
        loose = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"), **given)
        async with AsyncSession(loose) as session:
            with (
                pytest.raises(InvalidArgument, match="one transaction"),
                SessionFence(session, "a", 5),
            ):
                await session.get(account, 7)
        await loose.dispose()

    asyncio.run(main())


def test_an_asyncpg_that_commits_each_statement_is_refused(session):
    """Its adapter alone knows of it, not the connection below."""
    from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_connection

    raw = SimpleNamespace(is_in_transaction=lambda: False)
    adapter = AsyncAdapt_asyncpg_connection(None, raw)
    pooled = SimpleNamespace(driver_connection=raw, dbapi_connection=adapter)
    connection = SimpleNamespace(connection=pooled, get_execution_options=dict)
    guard = SessionFence(session, "a", 5)
    guard._refuse_loose(connection)
    adapter.set_isolation_level("autocommit")
    with pytest.raises(InvalidArgument, match="one transaction"):
        guard._refuse_loose(connection)


def test_what_cannot_be_guarded_is_refused_in_words(engine):
    with pytest.raises(InvalidArgument, match="needs a Session"):
        SessionFence(object(), "a", 5)
    with engine.connect() as connection:
        with pytest.raises(InvalidArgument, match="by hand"):
            SessionFence(connection, "a", 5).__enter__()
        other = SimpleNamespace(
            get_bind=lambda: SimpleNamespace(dialect=SimpleNamespace(name="mysql"))
        )
        with pytest.raises(InvalidArgument, match="mysql cannot be guarded"):
            SessionFence(other, "a", 5)


def test_a_scoped_session_is_refused_and_its_session_is_guarded(engine, account):
    """It stands for another one in each thread and after `remove()`; a fence guards one."""
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    advanced(engine, 6)
    for scope in (None, lambda: 1):
        scoped = scoped_session(sessionmaker(engine), scopefunc=scope)
        with pytest.raises(InvalidArgument, match=r"scoped_session.*call it"):
            SessionFence(scoped, "a", 5)
        by_connection(scoped, account)  # begun before the block
        with SessionFence(scoped(), "a", 5):
            with pytest.raises(StaleToken):
                of_the_connection(scoped)
            scoped.rollback()
            assert amount(engine, account) == 0
            with Session(engine) as other:  # of the same class, and guarded by nothing
                other.get(account, 9).amount = 50
                other.commit()
        scoped.remove()


def test_an_async_scoped_session_is_refused_in_words(url, engine):
    require("package:greenlet", "package:aiosqlite")
    from sqlalchemy.ext.asyncio import (
        async_scoped_session,
        async_sessionmaker,
        create_async_engine,
    )

    async def main():
        slow = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        scoped = async_scoped_session(async_sessionmaker(slow), scopefunc=asyncio.current_task)
        with pytest.raises(InvalidArgument, match=r"async_scoped_session.*call it"):
            SessionFence(scoped, "a", 5)
        SessionFence(scoped(), "a", 5)
        await scoped.remove()
        await slow.dispose()

    asyncio.run(main())
