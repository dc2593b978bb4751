"""One request by libpq: its values, its length, its errors, and an answer that nobody waits for."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import pytest

from ground import needs
from lifehold import InvalidArgument, connect
from lifehold.core.backend import NoReply, Unreachable
from lifehold.runtime import blocking
from lifehold.runtime.blocking import finish
from lifehold.store.postgres import wire
from lifehold.store.postgres.connect import PostgresUrl, TaskWakeup
from lifehold.store.postgres.messages import refused
from lifehold.store.postgres.wire import ConnectionPool

pytestmark = needs("postgres")

LONG = ["x" * 5000 + f'"\\{{}},é{number}' for number in range(2000)]
PLAN = SimpleNamespace(known={}, limit=10.0, pooled=False)
BACK = "SELECT cardinality($1::text[]), ($1::text[])[8], length($2)"


@pytest.fixture
def line(pg_url):
    import psycopg

    connection = psycopg.connect(pg_url, autocommit=True)
    yield wire.ServerConnection(connection)
    connection.pgconn.finish()  # also in the middle of an answer


def asked(line, query, *given, limit=10.0):
    return finish(line.ask(query, given, limit))


def awaited(url, work):
    """What `await work(line)` answers, on a connection of an event loop."""
    import psycopg

    async def run():
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        try:
            return await work(wire.ServerConnection(connection))
        finally:
            connection.pgconn.finish()

    return asyncio.run(run())


@pytest.mark.parametrize("text", ["", "NULL", "null", '"', "\\", "{}", "a,b", "ü 𝄞\n", "'; --"])
def test_a_text_comes_back_as_it_was_alone_and_in_a_list(line, text):
    assert asked(line, "SELECT $1::text, ($2::text[])[2]", text, ["first", text]) == [(text, text)]


def test_each_type_that_the_functions_answer_with(line):
    query = (
        "SELECT true, 7::int2, -1::bigint, 1.5::float8, null, '[1, null]'::json, array[true, false]"
    )
    assert asked(line, query) == [(True, 7, -1, 1.5, None, [1, None], [True, False])]
    assert asked(line, "SELECT array[]::bool[], $1::bool, $2::float8", False, 0.1) == [
        ([], False, 0.1)
    ]
    assert asked(line, "SELECT $1::int + 1, $2::text IS NULL", 41, None) == [(42, True)]
    assert asked(line, "SELECT 1 WHERE false") == []


def test_what_postgresql_cannot_keep_is_refused_before_it_is_cut_short(line):
    with pytest.raises(InvalidArgument, match="NUL"):
        asked(line, "SELECT $1::text", "a\0b")
    assert line.usable()


def test_what_is_longer_than_every_buffer_gets_through(line, pg_url):
    wanted = [(len(LONG), LONG[7], 30_000_000)]
    assert asked(line, BACK, LONG, "y" * 30_000_000) == wanted
    assert awaited(pg_url, lambda line: line.ask(BACK, (LONG, "y" * 30_000_000), 20.0)) == wanted


def test_an_error_of_the_server_leaves_the_connection_usable(line):
    with pytest.raises(wire.QueryFailed, match="division by zero") as caught:
        asked(line, "SELECT 1/0")
    assert (caught.value.sqlstate, caught.value.diag.severity_nonlocalized) == ("22012", "ERROR")
    assert line.goes_on(caught.value)
    assert asked(line, "SELECT 1") == [(1,)]


def test_what_the_server_undid_because_of_others_is_asked_again(line):
    """A sequence counts on in what is undone: the third try gets through."""
    asked(line, "CREATE SEQUENCE tries")
    asked(
        line,
        "CREATE FUNCTION third(state text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('tries') < 3 THEN RAISE EXCEPTION 'undone' USING ERRCODE = state; END IF;"
        " RETURN currval('tries'); END $$",
    )
    assert asked(line, "SELECT third($1)", "40P01") == [(3,)]
    asked(line, "SELECT setval('tries', 1)")
    with pytest.raises(wire.QueryFailed, match="undone"):
        asked(line, "SELECT third($1)", "22012")


def test_a_connection_that_the_server_ends_is_not_used_again(line):
    with pytest.raises(Exception, match="terminating") as caught:
        asked(line, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert hasattr(caught.value, "sqlstate")
    assert not line.goes_on(caught.value)
    assert not line.usable()


def test_no_answer_within_the_limit_is_said_and_the_connection_given_up(line):
    with pytest.raises(wire.NoAnswer) as caught:
        asked(line, "SELECT pg_sleep(5)", limit=0.2)
    assert not line.goes_on(caught.value)


def test_who_is_cancelled_hears_the_answer_out(pg_url):
    async def work(line):
        task = asyncio.create_task(line.ask("SELECT pg_sleep(0.3)", (), 10.0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await line.hear_out(), await line.ask("SELECT 2", (), 10.0)

    assert awaited(pg_url, work) == (True, [(2,)])


def test_who_is_cancelled_again_and_again_hears_the_answer_out(pg_url):
    async def work(line):
        link = ConnectionPool(lambda _: _self(line.connection), TaskWakeup, PLAN, 1)
        task = asyncio.create_task(link.ask("SELECT pg_sleep(0.3)"))
        await asyncio.sleep(0.05)
        while not task.done():  # as anyio does it
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        return await link.ask("SELECT pg_backend_pid()") == [(line.connection.info.backend_pid,)]

    assert awaited(pg_url, work)


async def _self(one):
    return one


def test_who_is_interrupted_twice_gives_the_connection_up_and_its_place(pg_url):
    """The second interruption comes while the first one hears the answer out."""
    plan = PostgresUrl(pg_url, 2.0, create=True)
    link = ConnectionPool(
        lambda _: finish(plan.connect("Connection")), blocking.ThreadWakeup, plan, 1
    )
    finish(link.ask("SELECT 1"))
    moments = [0.05, 0.05]

    def strike(*_):
        if moments:
            signal.setitimer(signal.ITIMER_REAL, moments.pop())
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, moments.pop())
        with pytest.raises(KeyboardInterrupt):
            finish(link.ask("SELECT pg_sleep(0.8)"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not moments
    assert finish(link.ask("SELECT 2")) == [(2,)]
    link.close()


def test_a_connection_that_is_lost_between_two_steps_is_closed_and_not_counted(pg_url, monkeypatch):
    """A signal may raise anywhere: also where nobody has the connection in a hand yet."""
    plan = PostgresUrl(pg_url, 1.0, create=True)
    link = ConnectionPool(
        lambda _: finish(plan.connect("Connection")), blocking.ThreadWakeup, plan, 1
    )
    usable, moments = wire.ServerConnection.usable, [KeyboardInterrupt, KeyboardInterrupt]

    def interrupted(line):
        if moments:
            raise moments.pop()
        return usable(line)

    monkeypatch.setattr(wire.ServerConnection, "usable", interrupted)
    pids = [finish(link.ask("SELECT pg_backend_pid()"))]
    while moments:
        with pytest.raises(KeyboardInterrupt):
            finish(link.ask("SELECT 1"))
        pids.append(finish(link.ask("SELECT pg_backend_pid()")))
    assert len({pid for ((pid,),) in pids}) == 3
    link.close()


@pytest.mark.parametrize("times", [1, 1_000_000])
def test_an_answer_that_takes_too_long_is_not_heard_out(pg_url, times):
    async def work(line):
        link = ConnectionPool(lambda _: _self(line.connection), TaskWakeup, PLAN, 1)
        task = asyncio.create_task(link.ask("SELECT pg_sleep(4)"))
        await asyncio.sleep(0.05)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
            if task.done():
                break
        with pytest.raises(asyncio.CancelledError):
            await task
        return line.connection.closed

    assert awaited(pg_url, work)


def test_calls_are_heard_also_when_they_come_with_an_answer(line, pg_server, pg_url):
    asked(line, "LISTEN here")
    assert finish(line.calls(0.01)) == []
    database = pg_url.rpartition("/")[2]
    pg_server.execute("NOTIFY here, 'one'", database)
    assert finish(line.calls(10.0)) == ["one"]
    asked(line, "NOTIFY here, 'two'")
    assert finish(line.calls(10.0)) == ["two"]


def test_a_name_goes_through_whatever_encoding_the_environment_asks_for(pg_url, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = connect(f"{pg_url}?application_name=elsewhere")
    with store.lock("наме 𝄞", wait=0):
        assert store.list() == ["наме 𝄞"]


@pytest.mark.parametrize(
    ("state", "kind"), [("08006", NoReply), ("08P01", NoReply), ("40001", Unreachable)]
)
def test_a_pooler_that_has_lost_its_server_leaves_the_outcome_open(state, kind):
    """It lives on, so it says no more than ERROR; the step may have been done."""
    diag = SimpleNamespace(severity_nonlocalized="ERROR", message_primary="server lost")
    assert type(refused(SimpleNamespace(sqlstate=state, diag=diag), {})) is kind
