"""A role that owns nothing and has exactly what the migration grants: all that leases need works.

And what it lacks without that is told with the command that gives it, which then does.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
import time
from pathlib import Path

import pytest

from ground import needs
from lifehold import LeaseLost, NotAcquired, StoreUnavailable, aconnect, connect, once
from lifehold.cli.main import main
from lifehold.ops import stored
from lifehold.store.postgres.sql import SCHEMA, VERSION
from lifehold.store.postgres.upkeep import RIGHTS, TABLES, grants, migrate, statements, upgrade

pytestmark = needs("postgres")
SOON = 60.0
OLDER = (Path(__file__).parent / "postgres_schema_2.sql").read_text()


@pytest.fixture
def closed(pg_server, pg_url):
    """A database in which nobody may do anything by himself; the URL of the role app in it."""
    base = pg_url.rpartition("/")[2]
    for text in (
        "DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "GRANT USAGE ON SCHEMA public TO app",
        "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
    ):
        pg_server.execute(text, base)
    return pg_url.replace("lifehold@", "app@")


def test_the_rights_name_every_table_and_no_other():
    made = [text.split()[5] for text in statements(SCHEMA)
            if text.startswith("CREATE TABLE")]  # fmt: skip
    assert sorted(made) == sorted(TABLES) == sorted(RIGHTS)


def test_a_role_with_the_granted_rights_alone_can_do_all_that_leases_need(closed, pg_url):
    migrate(pg_url, "app")
    store = connect(closed)
    with store.lock("job", wait=0, max_hold=60) as lease:
        lease.verify()
        with pytest.raises(NotAcquired):
            store.lock("job", wait=0).acquire()
        assert store.inspect("job").token == lease.token
        assert store.list() == ["job"]
    with store.read_write("config").writing() as writer:
        writer.downgrade()
    with store.semaphore("gpu", 2), store.semaphore("gpu", 2, wait=0) as second:
        assert second.slot == 1
    held = store.lock("job", wait=0).acquire()
    came = threading.Event()

    def wait():
        with store.lock("job", wait=SOON):
            came.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    end = time.monotonic() + SOON
    while store.waiters("job") != 1:
        assert time.monotonic() < end
    held.release()
    waiter.join(SOON)
    assert came.is_set()
    assert "NOTIFY (listening)" in str(store.ground())
    broken = store.lock("job", wait=0).acquire()
    store.break_("job", "a trial")
    with pytest.raises(LeaseLost):
        broken.verify()
    with pytest.raises(LeaseLost):
        broken.release()
    assert store.bump("job", 2**62) == 2**62
    assert once(f"{closed}#migrate", lambda: 42) == 42
    assert once(f"{closed}#migrate", lambda: 43) == 42

    async def task():
        async with (await aconnect(closed)).lock("task", wait=5) as lease:
            await lease.verify()

    asyncio.run(task())
    found = stored.check(closed)
    assert found.ready
    assert {each.what for each in found.findings} >= {"rights", "leases", "waking", "tables"}


def test_a_role_that_was_granted_an_older_version_works_on_when_the_tables_are_brought_up(
    closed, pg_url, pg_server
):
    base = pg_url.rpartition("/")[2]
    for text in (*statements(OLDER), *grants("app")):
        if not any(word in text for word in ("lifehold_3_", "lifehold_4_", "ON lifehold_owner")):
            pg_server.execute("BEGIN;" + text + ";COMMIT", base)
    migrate(pg_url)
    store = connect(closed)
    with store.lock("job", wait=0):
        waiter = threading.Thread(target=lambda: store.lock("job", wait=SOON).acquire().release())
        waiter.start()
        end = time.monotonic() + SOON
        while store.waiters("job") != 1:
            assert time.monotonic() < end
    waiter.join(SOON)
    assert not waiter.is_alive()


@pytest.mark.parametrize("table", [each for each in TABLES if "session" not in each])
def test_each_right_that_is_missing_is_named_and_refuses_before_anything_is_held(
    closed, pg_url, pg_server, table
):
    migrate(pg_url, "app")
    base = pg_url.rpartition("/")[2]
    pg_server.execute(f"REVOKE ALL ON {table} FROM app", base)
    found = stored.check(closed)
    assert not found.ready
    why = found.findings[-1].why
    assert "may not even read" in why if table == "lifehold_schema" else f"on {table}" in why
    assert "--grant app" in why


def test_the_command_that_an_error_prints_makes_it_work(closed, monkeypatch, capsys):
    with pytest.raises(StoreUnavailable, match="permission denied for schema") as caught:
        connect(closed).list()
    _, _, words = str(caught.value).partition("lifehold store migrate")
    monkeypatch.setenv("PGUSER", "lifehold")  # the owner's, as the operator has it
    assert main(["store", "migrate", *shlex.split(words)]) == 0
    assert "the role 'app' has all that is needed" in capsys.readouterr().out
    assert connect(closed).list() == []


def test_what_is_printed_as_sql_is_what_the_migration_runs(pg_url, closed):
    import psycopg

    with psycopg.connect(pg_url) as connection:
        for text in upgrade("app"):
            connection.execute(text)
    assert stored.check(closed).ready
    assert migrate(pg_url).before == VERSION
