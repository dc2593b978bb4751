"""Redis answers as the reference does: the shared claims, and random histories beside it.

The clock of the scripts is replaced by one that the test sets, so every answer can be compared
exactly. Some listeners are there and some are gone, as the server counts them.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ground import needs
from lifehold import connect
from lifehold.core.backend import WHOLE, Order, Renewal, Request
from lifehold.core.owner import Owner
from lifehold.core.value import replace
from lifehold.runtime.blocking import finish
from lifehold.store.redis.opening import opened
from lifehold.store.redis.scripts import scripts
from lifehold.store.rules import LockState
from lifehold.testing.backends import StoreSubject, cases

pytestmark = needs("redis")

SET_CLOCK = """
local now = tonumber(redis.call('HGET', 'clock', 'now'))
local micros = redis.call('HGET', 'clock', 'micros')
"""
START = 1_800_000_000.0
SHAPES = [(1, 1, False), (3, 1, False), (3, 3, False), (WHOLE, 1, True), (WHOLE, WHOLE, False)]
HERE, GONE = "here", "gone"  # channels of listeners

marks = st.integers(0, 5)
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
        st.sampled_from([0, 2**53 - 2, 2**60 + 1, 2**63 - 3, None]),
    ),
    st.tuples(st.just("sleep"), st.sampled_from([0.25, 0.5, 1.0, 2.0, 6.0, -1.0, -40.0])),
)


@pytest.fixture(scope="module")
def clocked(redis_server):
    """A site whose scripts read a clock of the test's, and what sets it."""
    site = opened(redis_server.unix_url)
    site.backend._scripts = scripts(SET_CLOCK)
    client = redis_server.client()

    def set_clock(at):
        client.hset("clock", mapping={"now": repr(at), "micros": str(int(at * 1e6))})

    yield site, set_clock, client
    client.close()
    site.close()


SERVED = {}
SUBJECT = StoreSubject("redis", lambda: SERVED["site"])
TIMED = StoreSubject("redis", lambda: SERVED["timed"], lambda at: SERVED["clock"](at))  # noqa: PLW0108


@pytest.mark.parametrize("case", cases(SUBJECT, histories=(100, 101)), ids=str)
def test_redis_keeps_the_rules(case, redis_server):
    SERVED["site"] = connect(redis_server.unix_url)._site
    if why := case.why_not():
        pytest.skip(why)
    case.run()


@pytest.mark.parametrize("seed", range(8))
def test_redis_answers_by_its_clock_as_the_reference_does(seed, clocked):
    SERVED["timed"], SERVED["clock"], _ = clocked
    cases(TIMED, histories=(seed,))[-1].run()


class Seeing(LockState):
    """The reference at a store that sees who listens."""

    def hears(self, wakeup):
        return wakeup == HERE


def told(asked, given):
    token = "-" if given.token is None else given.token
    return asked.nonce, asked.handoff_id, str(token), given.slot, given.acquired_at, given.now


def read(payload):
    nonce, *more = payload.split(" ")
    if not more:
        return nonce
    word, token, slot, acquired_at, now = more
    return nonce, word, token, int(slot), float(acquired_at), float(now)


class Both:
    """One name in the reference and in Redis, and who was told what. Nobody comes back."""

    def __init__(self, site, set_clock, client, heard, name):
        self.backend, self.set_clock, self.client = site.backend, set_clock, client
        self.heard, self.name = heard, name
        self.book, self.now, self.calls, self.rung = Seeing(name), START, [], []
        self.words, self.fresh = itertools.count(), itertools.count(6)
        self.nonces = [f"{name}.{number}" for number in range(6)]

    def play(self, step):
        self.set_clock(self.now)
        self.book.at(self.now, "", int(self.now * 1e6))
        verb, *given = step
        expected, answer = getattr(self, verb)(*given)
        assert answer == expected, step
        self.calls += [told(*one) for one in self.book.handed]
        self.calls += [wakeup for wakeup in self.book.calls if wakeup == HERE]
        there = finish(self.backend.look((self.name,)))
        assert not there or there[0] == self.book.state(), step

    def end(self):
        """All who could hear it were told, in order; of a call the channel is known."""
        self.client.publish(HERE, "the end")
        rung = []
        while (text := self.heard()) != "the end":
            found = read(text)
            rung.append(found if isinstance(found, tuple) else HERE)
        assert rung == self.calls

    def sleep(self, length):
        self.now += length
        return None, None

    def acquire(self, who, ttl, shape, wait, fair, delay, claims, listener):
        capacity, weight, shared = shape
        gone = self.book.holders[-1].version if claims and self.book.holders else None
        word = "" if listener is None else f"word{next(self.words)}"
        asked = Request(
            self.name, self.nonces[who], ttl, Owner(pid=7, label=f"é {who}"), capacity, weight,
            shared, delay, wait, fair, 4.0, listener or "", gone, word,
        )  # fmt: skip
        return self.book.acquire(asked), finish(self.backend.acquire(asked))

    def release(self, who):
        nonce = self.nonces[who]
        self.nonces[who] = f"{self.name}.{next(self.fresh)}"
        return self.book.release(nonce), finish(self.backend.release(self.name, nonce))

    def renew(self, many):
        asked = [Renewal(self.name, self.nonces[who], ttl) for who, ttl in many]
        expected = self.now if asked else None, tuple(self.book.renew(one) for one in asked)
        return expected, finish(self.backend.renew(asked))

    def lighten(self, who, ttl):
        asked = Renewal(self.name, self.nonces[who], ttl, 1)
        return (self.now, (self.book.renew(asked),)), finish(self.backend.renew((asked,)))

    def order(self, verb, least):
        if least is None:
            least = self.book.token or 7
        asked = Order(verb, self.name, "why", "me", least, text="lëft\n")
        known = finish(self.backend.look((self.name,)))
        expected, answer = self.book.order(asked), finish(self.backend.order(asked))
        if answer is not None:
            expected, answer = replace(expected, kept=None), replace(answer, kept=None)
        return expected if known else None, answer


@pytest.fixture(scope="module")
def both(clocked):
    site, set_clock, client = clocked
    count, channel = itertools.count(), client.pubsub()
    channel.subscribe(HERE)
    assert channel.get_message(timeout=30)["type"] == "subscribe"

    def heard():
        while True:
            message = channel.get_message(timeout=30)
            if message is not None and message["type"] == "message":
                return message["data"]

    yield lambda: Both(site, set_clock, client, heard, f"näme{{{next(count)}}}")
    channel.close()


def test_every_answer_is_that_of_the_reference(both):
    @settings(max_examples=200, deadline=None, database=None)
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
    playing.play(("acquire", 0, 2.0, lock, False, True, 0.0, False, None))
    playing.play(("acquire", 1, 2.0, lock, True, True, 0.0, False, HERE))
    playing.play(("acquire", 2, 2.0, (3, 1, False), True, True, 0.0, False, HERE))
    playing.play(("sleep", 0.25))
    playing.play(("release", 0))
    first = playing.nonces[1]
    state = finish(playing.backend.look((playing.name,)))[0]
    assert [holder.nonce for holder in state.holders] == [first]
    playing.play(("acquire", 3, 2.0, lock, True, True, 0.0, False, GONE))
    playing.play(("acquire", 4, 2.0, lock, True, True, 1.0, False, HERE))
    playing.play(("release", 1))
    state = finish(playing.backend.look((playing.name,)))[0]
    assert [holder.nonce for holder in state.holders] == [playing.nonces[4]]
    assert state.waiters == (playing.nonces[3],)
    token, now = str(int((START + 0.25) * 1e6) + 1), START + 0.25
    assert playing.calls[-1] == (playing.nonces[4], "word3", token, 0, now, now)
    playing.end()


def test_who_has_not_asked_lately_is_called_and_a_clock_set_back_is_clamped(both):
    """The rare rules, each once: random histories meet them seldom."""
    lock, playing = (1, 1, False), both()
    playing.play(("acquire", 0, 30.0, lock, False, True, 0.0, False, None))
    playing.play(("acquire", 1, 2.0, lock, True, True, 0.0, False, HERE))
    playing.play(("sleep", 1.0))  # more than a quarter of its ttl
    playing.play(("release", 0))
    assert finish(playing.backend.look((playing.name,)))[0].holders == ()
    assert playing.calls == [HERE]
    playing.play(("acquire", 1, 30.0, lock, True, True, 0.0, False, HERE))
    for who in (2, 3):
        playing.play(("acquire", who, 30.0, lock, True, True, 0.0, False, HERE))
    playing.play(("sleep", -40.0))
    playing.play(("acquire", 3, 30.0, lock, True, True, 0.0, False, HERE))  # clamps what is ahead
    playing.play(("sleep", 3.5))
    playing.play(("acquire", 3, 30.0, lock, True, True, 0.0, False, HERE))
    playing.play(("sleep", 1.0))  # so 2 is dead, and 1 is in for 30 s from the first look on
    playing.play(("acquire", 3, 30.0, lock, True, True, 0.0, False, HERE))
    assert finish(playing.backend.look((playing.name,)))[0].waiters == (playing.nonces[3],)
    playing.play(("sleep", 25.5))
    playing.play(("acquire", 4, 30.0, lock, True, True, 0.0, False, HERE))
    assert finish(playing.backend.look((playing.name,)))[0].holders[0].nonce == playing.nonces[4]
    playing.end()


def test_who_comes_in_calls_the_next_one_for_whom_there_is_room(both):
    playing = both()
    playing.play(("acquire", 0, 30.0, (3, 3, False), False, True, 0.0, False, None))
    for who in (1, 2):
        playing.play(("acquire", who, 30.0, (3, 1, False), True, True, 0.0, False, None))
    playing.play(("release", 0))  # calls one: no herd
    playing.play(("acquire", 1, 30.0, (3, 1, False), True, True, 0.0, False, None))
    playing.play(("sleep", 1.0))  # who was called and has not come is passed
    playing.play(("renew", []))
    assert finish(playing.backend.look((playing.name,)))[0].waiters == ()
    playing.end()
