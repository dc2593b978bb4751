"""Two clients of one name at the same instant, at a server: nobody is left in line uncalled.

Each round begins at a barrier with a random head start, so that their statements meet at every
point. `hasty` is the same store without the one update that lets them meet: it must be found.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from ground import needs
from lifehold.store.postgres.sql import SCHEMA

pytestmark = needs("postgres")

BUSY = (
    "UPDATE lifehold_holder h SET busy = true WHERE h.name = p_name AND h.slot = 0 AND NOT h.busy;"
)
HASTY = SCHEMA.replace(BUSY, "")
ACQUIRE = """SELECT given FROM
    lifehold_1_acquire(%s, %s, 30, 0, '{}', 1, 1, false, true, true, 60, %s, NULL)"""
RELEASE = "SELECT lifehold_1_release(%s, %s)"
UNCALLED = "SELECT count(*) FROM lifehold_waiter WHERE name = %s AND called_at IS NULL"


class Client(threading.Thread):
    """Says its lines at the server, one a round, each behind a short pause of its own."""

    def __init__(self, url, rounds, barrier, seed):
        super().__init__()
        self.url, self.rounds, self.barrier = url, rounds, barrier
        self.dice, self.said, self.error = random.Random(seed), [], None

    def run(self):
        import psycopg

        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                for query, given in self.rounds:
                    self.barrier.wait(90)
                    until = time.perf_counter() + self.dice.random() * 0.0006
                    while time.perf_counter() < until:
                        pass
                    self.said.append(connection.execute(query, given).fetchone()[0])
        except BaseException as error:
            self.error = error
            self.barrier.abort()


def meet(url, schema, count):
    """So many rounds of one who leaves and one who comes; the names of those left uncalled."""
    import psycopg

    names = [f"meeting {number}" for number in range(count)]
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as raw:
        raw.execute(schema)
        for name in names:  # the second time it is taken as by one who is alone
            for nonce in ("before", "leaver"):
                assert raw.execute(ACQUIRE, (name, nonce, "")).fetchone() == (True,)
                if nonce == "before":
                    raw.execute(RELEASE, (name, nonce))
        barrier = threading.Barrier(2)
        leaver = Client(url, [(RELEASE, (name, "leaver")) for name in names], barrier, 1)
        comer = Client(url, [(ACQUIRE, (name, "comer", "bell")) for name in names], barrier, 2)
        for client in (leaver, comer):
            client.start()
        for client in (leaver, comer):
            client.join(120)
            assert client.error is None
        assert all(leaver.said)
        left = []
        for name, came in zip(names, comer.said, strict=True):
            (uncalled,) = raw.execute(UNCALLED, (name,)).fetchone()
            if uncalled:
                left.append(name)
            assert came or raw.execute(ACQUIRE, (name, "comer", "")).fetchone() == (True,)
        return left, comer.said


def test_who_leaves_calls_whoever_gets_in_line_meanwhile(pg_url):
    left, came = meet(pg_url, SCHEMA, 800)
    assert not left
    assert set(came) == {True, False}  # they did meet on both sides


def test_without_the_row_that_both_write_somebody_is_left_in_line(pg_url):
    left, _ = meet(pg_url, HASTY, 800)
    assert left


@pytest.mark.parametrize("shape", ["lock", "readers", "permits"])
def test_no_step_stands_in_the_way_of_another(pg_url, shape):
    """Renewals of many names, turns, orders and lighter weights, from six sides: no deadlock."""
    import psycopg

    capacity, weight, shared = {
        "lock": (1, 1, "false"), "readers": (1000, 1, "true"), "permits": (3, 1, "false"),
    }[shape]  # fmt: skip
    names = ["a", "b", "c"]
    with psycopg.connect(pg_url, autocommit=True) as raw:
        raw.execute(SCHEMA)
    take = (
        f"SELECT given::int FROM lifehold_1_acquire(%s, %s, 0.05, 0, '{{}}', {capacity}, {weight},"
        f" {shared}, true, true, 1, 'bell', NULL)"
    )
    renew = "SELECT 1 FROM lifehold_1_renew(%s, %s, %s::float8[])"
    lighten = "SELECT 1 FROM lifehold_1_lighten(%s, %s, 0.05, 1)"
    order = "SELECT 1 FROM (SELECT lifehold_1_order(%s, %s, 'why', 'me', 0, '')) o"
    barrier = threading.Barrier(6)
    clients = []
    for number in range(6):
        dice, nonce = random.Random(number), f"mark{number}"
        rounds = []
        for _ in range(150):
            name = dice.choice(names)
            given = dice.sample(names, 3)
            rounds.append(
                dice.choice(
                    [
                        (take, (name, nonce)),
                        (take, (name, nonce)),
                        (RELEASE.replace("SELECT", "SELECT 1 +") + "::int", (name, nonce)),
                        (renew, (given, [nonce] * 3, [0.05] * 3)),
                        (lighten, (name, nonce)),
                        (order, (dice.choice(["bump", "break"]), name)),
                    ]
                )
            )
        clients.append(Client(pg_url, rounds, barrier, number))
    for client in clients:
        client.start()
    for client in clients:
        client.join(120)
    assert [client.error for client in clients] == [None] * 6


def until_it_waits(raw, pid):
    """Until that session waits for a row of another one."""
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    until = time.monotonic() + 60
    while raw.execute(query, (pid,)).fetchone() != (True,):
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("first", "second"),
    [("1, 1, false", "1, 1, false"), ("1, 1, false", "3, 1, false"),
     ("1000, 1, true", "1000, 1000, false"), ("1000, 1000, false", "1000, 1, true")],
)  # fmt: skip
def test_who_comes_a_moment_too_late_changes_neither_token_nor_capacity(pg_url, first, second):
    """Both saw a free name. The guards of who is in compare with the token of the lease."""
    import psycopg

    take = (
        "SELECT given, token FROM lifehold_1_acquire('met', '{}', 30, 0, '{{}}', {}, false, true,"
        " 60, '', NULL)"
    )
    there = "SELECT token, capacity FROM lifehold_lease WHERE name = 'met'"
    with psycopg.connect(pg_url) as early, psycopg.connect(pg_url, autocommit=True) as late:
        late.execute(SCHEMA)
        late.execute(take.format("before", first))
        late.execute("SELECT lifehold_1_release('met', 'before')")
        given, token = early.execute(take.format("early", first)).fetchone()
        assert given
        pid, said = late.info.backend_pid, []
        comer = threading.Thread(
            target=lambda: said.append(late.execute(take.format("late", second)).fetchone())
        )
        comer.start()
        with psycopg.connect(pg_url, autocommit=True) as raw:
            until_it_waits(raw, pid)
        early.commit()
        comer.join(90)
        assert said == [(False, None)]
        assert late.execute(there).fetchone() == (token, int(first.partition(",")[0]))
