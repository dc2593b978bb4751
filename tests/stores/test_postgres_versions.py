"""L12  Versions of the schema: clients of an older, of this and of the next one exclude each other.

postgres_schema_1.sql is the schema as version 1 made it, and so on. Whoever is called old here
speaks to it as that version did: by its functions.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ground import needs
from lifehold import NotAcquired, connect
from lifehold.core.errors import StoreUnavailable
from lifehold.store.postgres.sql import SCHEMA
from lifehold.store.postgres.upkeep import migrate
from patience import until

pytestmark = needs("postgres")

HERE = Path(__file__).parent
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
NEXT = (
    SCHEMA.replace("> 4 THEN", "> 5 THEN")
    .replace("VALUES (4, 1)", "VALUES (5, 1)")
    .replace("greatest(there.version, 4)", "greatest(there.version, 5)")
    + "ALTER TABLE lifehold_holder ADD COLUMN mood text; ALTER TABLE lifehold_lease ADD mood text;"
)


class Foreign:
    """A client of another version, by its functions."""

    def __init__(self, connection, mark):
        self.connection, self.nonce = connection, mark

    def _one(self, query, *given):
        return self.connection.execute(query, given).fetchone()

    def acquire(self, name, *, shared=False, wait=False, ttl=30.0):
        """The token, or None where it was refused."""
        capacity, weight = (1000, 1) if shared else (1, 1)
        given, token = self._one(
            "SELECT given, token FROM lifehold_1_acquire(%s, %s, %s, 0, '{}', %s, %s, %s,"
            " %s, true, 15, '', NULL)",
            name, self.nonce, ttl, capacity, weight, shared, wait,
        )  # fmt: skip
        return (token or 0) if given else None

    def release(self, name):
        return self._one("SELECT lifehold_1_release(%s, %s)", name, self.nonce)[0]

    def renew(self, name):
        query = "SELECT kept FROM lifehold_1_renew(ARRAY[%s], ARRAY[%s], ARRAY[30.0]::float8[])"
        return self._one(query, name, self.nonce)[0]


@pytest.fixture
def raw(pg_url):
    import psycopg

    with psycopg.connect(pg_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as made:
        yield made


@pytest.fixture(params=[1, 2, 3])
def older(raw, request):
    """The number of the version whose tables are there."""
    raw.execute((HERE / f"postgres_schema_{request.param}.sql").read_text())
    return request.param


def until_somebody_waits(raw):
    """Until a session waits for what another one has locked."""
    until(lambda: raw.execute(WAITING).fetchone() != (0,))


def test_a_holder_of_version_1_is_kept_out_of_nothing_while_its_tables_are_brought_up(
    older, raw, pg_url
):
    old, late = Foreign(raw, "old"), Foreign(raw, "late")
    token = old.acquire("held")
    assert token
    assert old.acquire("left")
    assert old.release("left")
    assert late.acquire("held", wait=True) is None
    ours = connect(pg_url)
    with pytest.raises(NotAcquired):
        ours.lock("held", wait=0).acquire()
    assert raw.execute("SELECT version, least FROM lifehold_schema").fetchone() == (4, 1)
    assert old.renew("held") == [True]
    assert old.release("held")
    with pytest.raises(NotAcquired):  # it stood in line before the change, and is called
        ours.lock("held", wait=0).acquire()
    after = late.acquire("held")
    assert after > token
    assert late.release("held")
    with ours.lock("held", wait=0) as lease:
        assert lease.token > after
        assert old.acquire("held") is None
    with ours.lock("left", wait=0):
        assert old.acquire("left") is None


def test_an_interrupted_migration_waits_for_no_table_any_more(older, raw, pg_url):
    """Behind its request for one, whoever wants a lock of ours would wait."""
    import psycopg

    code = (
        "import sys; from lifehold.store.postgres import upkeep; upkeep.MIGRATION_LIMIT = 3600.0; "
        "upkeep.migrate(sys.argv[1])"
    )
    with psycopg.connect(pg_url) as other:
        other.execute("SELECT token FROM lifehold_lease FOR SHARE")
        with subprocess.Popen([sys.executable, "-c", code, pg_url]) as change:
            until_somebody_waits(raw)
            change.send_signal(signal.SIGINT)
        until(lambda: raw.execute(WAITING).fetchone() == (0,))
    assert migrate(pg_url).before == older


def test_the_change_comes_behind_a_step_of_version_1_and_not_in_its_middle(older, raw, pg_url):
    """Tables are locked in the order in which each step locks them, so neither is undone."""
    import psycopg

    brought_up = []
    comer = threading.Thread(target=lambda: brought_up.append(migrate(pg_url).after))
    with psycopg.connect(pg_url) as step:
        assert Foreign(step, "first").acquire("held")
        comer.start()
        until_somebody_waits(raw)
        assert Foreign(step, "second").acquire("held", wait=True) is None
    comer.join(90)
    assert brought_up == [4]
    assert raw.execute("SELECT mark FROM lifehold_waiter").fetchall() == [("second",)]


def test_the_change_comes_behind_a_step_of_version_1_that_waits_for_its_row(older, raw, pg_url):
    """It would go on by the old rules among clients of the new ones."""
    import psycopg

    Foreign(raw, "before").acquire("guarded")
    ended = []
    with (
        psycopg.connect(pg_url) as guard,
        psycopg.connect(pg_url, autocommit=True) as other,
    ):
        guard.execute("SELECT token FROM lifehold_lease FOR SHARE")
        step = threading.Thread(
            target=lambda: ended.append(Foreign(other, "step").acquire("guarded", wait=True))
        )
        step.start()
        until_somebody_waits(raw)
        change = threading.Thread(target=lambda: ended.append(migrate(pg_url).after))
        change.start()
        change.join(1.0)
        early = list(ended)
        guard.commit()
        step.join(90)
        change.join(90)
    assert early == []
    assert sorted(ended, key=bool) == [None, 4]
    (line,) = raw.execute("SELECT mark FROM lifehold_waiter").fetchall()
    assert line == ("step",)


def test_old_and_new_clients_take_turns(older, raw, pg_url):
    ours = connect(pg_url).lock("turns", wait=0)
    old = Foreign(raw, "old")
    tokens = []
    for _ in range(5):
        with ours as lease:
            tokens.append(lease.token)
            assert old.acquire("turns") is None
        tokens.append(old.acquire("turns"))
        with pytest.raises(NotAcquired):
            ours.acquire()
        assert old.renew("turns") == [True]
        assert old.release("turns")
        assert not old.release("turns")
    assert tokens == sorted(set(tokens))


def test_the_next_version_and_this_one_exclude_each_other(raw, pg_url):
    ours = connect(pg_url)
    with ours.lock("before", wait=0) as early:
        raw.execute(NEXT)
        early.verify()
        assert migrate(pg_url).after == 5  # what is newer stays
        theirs = Foreign(raw, "theirs")
        assert theirs.acquire("before", wait=True) is None
        early.verify()
    token = theirs.acquire("before")
    assert token > early.token
    with pytest.raises(NotAcquired):
        connect(pg_url).lock("before", wait=0).acquire()
    assert theirs.release("before")
    assert "schema 5" in str(connect(pg_url).ground())


def test_the_schema_of_this_version_refuses_to_go_over_a_newer_one(raw, pg_url):
    import psycopg

    raw.execute(NEXT)
    with pytest.raises(psycopg.errors.RaiseException, match="of version 5"):
        raw.execute(SCHEMA)


def test_the_migration_can_be_run_again_beside_those_who_work(pg_url):
    assert migrate(pg_url).after == 4
    store = connect(pg_url)
    with store.lock("kept", wait=0) as lease:
        assert migrate(pg_url).after == 4
        lease.verify()


def test_who_may_not_bring_tables_up_works_on_the_old_ones_and_is_told(older, raw, pg_url):
    kept = connect(pg_url, create=False)
    with kept.lock("as before", wait=0) as lease:
        lease.verify()
        with pytest.raises(NotAcquired):
            connect(pg_url, create=False).lock("as before", wait=0).acquire()
    assert raw.execute("SELECT version FROM lifehold_schema").fetchone() == (older,)
    assert f"its tables are of version {older}" in str(kept.ground())


def test_on_tables_that_cannot_let_in_who_waits_a_waiter_is_called_as_before(older, raw, pg_url):
    """The functions there know a bell as the name of a channel, and nothing else."""
    store = connect(pg_url, create=False)
    came = threading.Event()

    def wait():
        with store.lock("called", wait=30):
            came.set()

    for _ in range(2):  # the second one has a listener from its first request on
        came.clear()
        lease = store.lock("called", wait=0).acquire()
        waiter = threading.Thread(target=wait)
        waiter.start()
        while not (found := raw.execute("SELECT bell FROM lifehold_waiter").fetchone()):
            time.sleep(0.005)
        assert found == (store._site.wakeups.channel,)
        lease.release()
        waiter.join(90)
        assert came.is_set()
    assert store._site.hands == (older >= 3)  # since then it is let in unasked


def test_where_there_are_no_tables_create_false_names_the_remedy(pg_url):
    with pytest.raises(StoreUnavailable, match="its tables are not there"):
        connect(pg_url, create=False).list()


def test_who_reads_for_long_does_not_stop_the_others_from_working(older, raw, pg_url):
    """The tables cannot be brought up behind a dump that runs; the old ones do meanwhile."""
    import psycopg

    with psycopg.connect(pg_url) as dump:
        dump.execute("LOCK TABLE lifehold_holder IN ACCESS SHARE MODE")
        with connect(pg_url).lock("meanwhile", wait=0) as lease:
            assert lease.token
    assert raw.execute("SELECT version FROM lifehold_schema").fetchone() == (older,)


def test_who_comes_while_another_makes_the_tables_waits_for_them(raw, pg_url):
    """Longer than for a change of tables that work as they are."""
    import psycopg

    made = []
    comer = threading.Thread(target=lambda: made.append(connect(pg_url).list()))
    with psycopg.connect(pg_url) as first:
        first.execute(SCHEMA)
        comer.start()
        until_somebody_waits(raw)
        comer.join(2.5)
    comer.join(90)
    assert made == [[]]


def test_what_a_grant_writes_is_narrow_while_the_holder_is_the_same(pg_url, raw):
    """An old snapshot keeps all that was written: the record of the holder would be most of it."""
    store = connect(pg_url, create=True)
    label = "x" * 400
    with store.lock("hot", wait=0, label=label) as lease:
        assert store.inspect("hot").owner.label == label
    size = "SELECT pg_column_size(h.*) FROM lifehold_holder h WHERE name = 'hot'"
    assert raw.execute(size).fetchone()[0] < 250
    seen = "SELECT xmin::text, owner FROM lifehold_owner WHERE name = 'hot'"
    before = raw.execute(seen).fetchone()
    for _ in range(5):
        with store.lock("hot", wait=0, label=label):
            pass
    assert raw.execute(seen).fetchone() == before
    with store.lock("hot", wait=0, label="another") as lease:
        assert store.inspect("hot").owner.label == "another"
        with pytest.raises(NotAcquired, match="label another"):
            store.lock("hot", wait=0).acquire()
        lease.verify()
    with store.semaphore("slots", 2, wait=0, label="one"), store.semaphore(
        "slots", 2, wait=0, label="two"
    ):  # fmt: skip
        assert {each.owner.label for each in store.holders("slots")} == {"one", "two"}


def test_who_holds_since_before_the_change_is_shown_as_before(older, raw, pg_url):
    record = '{"pid": 7, "label": "of old"}'
    raw.execute(
        "SELECT lifehold_1_acquire('held', 'old', 60, 0, %s, 1, 1, false, false, true, 15, '',"
        " NULL)", (record,),
    )  # fmt: skip
    store = connect(pg_url, create=True)
    assert store.inspect("held").owner.label == "of old"
    assert store.states()[0].holders[0].owner.label == "of old"
