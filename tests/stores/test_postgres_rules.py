"""PostgreSQL answers as the reference does: random histories are played against both.

The server's clock is replaced by one that the test sets, so every answer can be compared exactly.
Some listeners are there and some are gone, as their locks at the server say.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ground import needs
from lifehold.core.backend import WHOLE, Order, Renewal, Request
from lifehold.core.owner import Owner
from lifehold.core.value import replace
from lifehold.runtime.blocking import finish
from lifehold.store.rules import LockState

pytestmark = needs("postgres")

START = 1_800_000_000.0
MARKS = [f"mark{number}" for number in range(6)]
SHAPES = [(1, 1, False), (3, 1, False), (3, 3, False), (WHOLE, 1, True), (WHOLE, WHOLE, False)]
HERE, GONE = 4711, 4712  # keys of listeners: with a word, in each request of a waiter
CLOCK = """
CREATE TABLE IF NOT EXISTS clock (at double precision NOT NULL);
CREATE OR REPLACE FUNCTION lifehold_now() RETURNS double precision LANGUAGE sql VOLATILE AS
    $$ SELECT at FROM clock $$;
INSERT INTO clock VALUES (0);
"""

marks = st.sampled_from(MARKS)
seconds = st.sampled_from([0.5, 1.0, 2.0, 5.0, 30.0])
acquires = st.tuples(
    st.just("acquire"), marks, seconds, st.sampled_from(SHAPES), st.booleans(), st.booleans(),
    st.sampled_from([0.0, 0.0, 1.5]), st.booleans(), st.sampled_from([None, HERE, HERE, GONE]),
)  # fmt: skip
steps = st.one_of(
    acquires,
    acquires,
    st.tuples(st.just("release"), marks),
    st.tuples(st.just("renew"), st.lists(st.tuples(marks, seconds), unique_by=lambda one: one[0])),
    st.tuples(st.just("lighten"), marks, seconds),
    st.tuples(
        st.just("order"),
        st.sampled_from(["break", "bump", "keep", "forget"]),
        st.sampled_from([0, 2**60, None]),
    ),
    st.tuples(st.just("sleep"), st.sampled_from([0.25, 0.5, 1.0, 2.0, 6.0, -1.0, -40.0])),
)


class Seeing(LockState):
    """The reference at a store that sees who listens."""

    def hears(self, wakeup):
        return wakeup.endswith(f" {HERE}")


def told(asked, given):
    """A waiter that is let in is told so."""
    token = "-" if given.token is None else given.token
    return asked.nonce, asked.handoff_id, str(token), given.slot, given.acquired_at, given.now


def read(payload):
    nonce, *more = payload.split(" ")
    if not more:
        return nonce
    word, token, slot, acquired_at, now = more
    return nonce, word, token, int(slot), float(acquired_at), float(now)


class Both:
    """One name in the reference and in PostgreSQL, and the bells that were rung."""

    def __init__(self, backend, listener, name):
        self.backend, self.listener, self.name = backend, listener, name
        self.book, self.now, self.calls = Seeing(name), START, []
        self.words = iter(range(10**6))

    def play(self, step):
        self.listener.execute("UPDATE clock SET at = %s", (self.now,))
        self.book.at(self.now, "", int(self.now * 1e6))
        verb, *given = step
        expected, answer = getattr(self, verb)(*given)
        assert answer == expected, step
        self.calls += [told(*one) for one in self.book.handed]
        self.calls += [wakeup.partition(" ")[0].removeprefix("bell_") for wakeup in self.book.calls]
        there = finish(self.backend.look((self.name,)))
        assert not there or there[0] == self.book.state(), step

    def end(self):
        """All calls came, in their order: notifications are told in the order of commits."""
        self.listener.execute("NOTIFY bell_mark0, 'the end'")
        rung = []
        for call in self.listener.notifies(timeout=30):
            if call.payload == "the end":
                break
            assert call.channel == f"bell_{call.payload.partition(' ')[0]}"
            rung.append(read(call.payload))
        assert rung == self.calls

    def sleep(self, length):
        self.now += length
        return None, None

    def acquire(self, nonce, ttl, shape, wait, fair, delay, claims, listener):
        capacity, weight, shared = shape
        gone = None
        if claims and self.book.holders:
            gone = self.book.holders[-1].version
        wakeup = f"bell_{nonce}" if listener is None else f"bell_{nonce} {listener}"
        word = "" if listener is None else f"word{next(self.words)}"
        asked = Request(
            self.name, nonce, ttl, Owner(pid=7, label=f"é{nonce}"), capacity, weight, shared, delay,
            wait, fair, 4.0, wakeup, gone, word,
        )  # fmt: skip
        expected = self.book.acquire(asked)
        return expected, finish(self.backend.acquire(asked))

    def release(self, nonce):
        return self.book.release(nonce), finish(self.backend.release(self.name, nonce))

    def renew(self, many):
        asked = [Renewal(self.name, nonce, ttl) for nonce, ttl in many]
        expected = self.now, tuple(self.book.renew(one) for one in asked)
        return expected, finish(self.backend.renew(asked))

    def lighten(self, nonce, ttl):
        asked = Renewal(self.name, nonce, ttl, 1)
        return (self.now, (self.book.renew(asked),)), finish(self.backend.renew((asked,)))

    def order(self, verb, least):
        if least is None:
            least = self.book.token or 7
        asked = Order(verb, self.name, "why", "me", least, text="left")
        known = finish(self.backend.look((self.name,)))
        expected, answer = self.book.order(asked), finish(self.backend.order(asked))
        if verb != "forget" and answer is not None:  # what was left is told by look() and forget
            expected, answer = replace(expected, kept=None), replace(answer, kept=None)
        return expected if known else None, answer


@pytest.fixture(scope="module")
def both(pg_server):
    import psycopg

    from lifehold.store.postgres import opening as postgres

    pg_server.execute("DROP DATABASE IF EXISTS rules WITH (FORCE)", "postgres")
    pg_server.execute("CREATE DATABASE rules", "postgres")
    site = postgres.site(pg_server.at("rules"))
    finish(site.backend.look(("",)))
    count = iter(range(10**6))
    with psycopg.connect(pg_server.at("rules"), autocommit=True) as listener:
        listener.execute(CLOCK)
        for nonce in MARKS:
            listener.execute(f"LISTEN bell_{nonce}")
        listener.execute("SELECT pg_advisory_lock(%s)", (HERE,))
        yield lambda: Both(site.backend, listener, f"näme{next(count)}")


def test_every_answer_is_that_of_the_reference(both):
    @settings(max_examples=60, deadline=None, database=None)
    @given(st.lists(steps, max_size=25))
    def play(history):
        playing = both()
        for step in history:
            playing.play(step)
        playing.end()

    play()


def test_the_histories_meet_every_kind_of_answer(both):
    """Else the comparison above would compare little."""
    playing = both()
    lock = (1, 1, False)
    playing.play(("acquire", "mark0", 2.0, lock, False, True, 0.0, False, None))
    playing.play(("acquire", "mark1", 2.0, lock, True, True, 0.0, False, None))
    playing.play(("acquire", "mark2", 2.0, (3, 1, False), True, True, 0.0, False, HERE))
    playing.play(("release", "mark0"))
    playing.play(("acquire", "mark1", 2.0, lock, True, True, 0.0, False, None))
    playing.play(("sleep", 6.0))
    playing.play(("acquire", "mark2", 2.0, lock, True, True, 1.0, False, None))
    playing.play(("acquire", "mark3", 2.0, lock, True, True, 0.0, False, GONE))
    playing.play(("acquire", "mark4", 2.0, lock, True, True, 0.0, False, HERE))
    playing.play(("sleep", 0.5))
    playing.play(("release", "mark2"))
    state = finish(playing.backend.look((playing.name,)))[0]
    assert [holder.nonce for holder in state.holders] == ["mark4"]
    assert state.waiters == ("mark3",)
    token = int((START + 6.5) * 1e6)
    assert state.token == token
    now = START + 6.5
    assert playing.calls == ["mark1", ("mark4", "word2", str(token), 0, now, now)]
    playing.end()
