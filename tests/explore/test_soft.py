"""Mutants of the soft kind, each of which is found."""

from __future__ import annotations

import pytest

from explore.claims.soft import (
    TERMS,
    NoFlock,
    dead,
    quiet,
    soft_client,
)
from lifehold.core import renew
from lifehold.core.deadline import NEVER
from lifehold.core.grant import Grant
from lifehold.core.owner import ALIVE, DEAD, LifeVerdict
from lifehold.core.value import replace
from lifehold.local.judge import LivenessJudge
from lifehold.local.record_handle import RecordFile
from lifehold.testing.explore import MUTEX, TOKEN, Client, Exploration, Model
from lifehold.testing.remembered import TimedModel

pytestmark = pytest.mark.large


def found(*programs, crashes=1, model=Model, start=None):
    """The kinds of violation that turn up first."""
    game = Exploration(
        *(Client(program, nonces="same") for program in programs),
        crashes=crashes, model=model(), start=start, quiet=quiet,
    )  # fmt: skip
    return game.run(seconds=100, stop_at=frozenset({MUTEX})).kinds


@pytest.fixture
def never_looks_again(monkeypatch):
    """A takeover by a path alone: what liblockfile and the recipes of the field do (A0)."""
    monkeypatch.setattr(RecordFile, "is_at", lambda self, path: True)


def test_a_takeover_that_does_not_look_again_lets_two_in(never_looks_again):
    two = soft_client(rounds=2)
    assert MUTEX in found(two, two, start=dead())


@pytest.mark.soak
def test_a_takeover_without_a_guard_lets_two_in(monkeypatch):
    monkeypatch.setattr(RecordFile, "guard", lambda self: True)
    one = soft_client()
    assert MUTEX in found(one, one, one, model=NoFlock, start=dead(witness=False))


@pytest.mark.soak
def test_a_renewal_that_does_not_look_at_the_clock_again_lets_two_in(monkeypatch):
    async def gullible(mechanism, runtime, tenure):
        if tenure.late(runtime.now()):
            return NEVER
        answer = await mechanism.renew(tenure.grant)
        if isinstance(answer, Grant):
            tenure.grant = answer
        return NEVER

    monkeypatch.setattr("explore.claims.soft.beat", gullible)
    renews, waits = soft_client(terms=TERMS, renew=1), soft_client(terms=TERMS, wait=None)
    assert MUTEX in found(renews, waits, crashes=0, model=lambda: TimedModel(free=1))
    assert renew.beat is not gullible


def test_an_observer_who_counts_from_before_it_looked_lets_two_in(monkeypatch):
    """A lease that is counted from a look at another record runs out too early."""

    def hasty(self, case, path, record, patience, before, now):
        return replace(case, state=DEAD, evidence="it was there a while ago")

    monkeypatch.setattr(LivenessJudge, "_timed", hasty)
    tries, waits = soft_client(terms=TERMS), soft_client(terms=TERMS, wait=None)
    assert MUTEX in found(tries, waits, crashes=0, model=lambda: TimedModel(free=1))


def test_a_judge_who_guesses_lets_two_in(monkeypatch):
    """By age or by a bare number, as the field's tools do."""

    def guess(self, marker, one_kernel):
        return (
            LifeVerdict(DEAD, "it is old")
            if self.actor.alive(0) == DEAD
            else LifeVerdict(ALIVE, "")
        )

    monkeypatch.setattr("explore.claims.soft.Oracle.without_witness", guess)
    one = soft_client()
    assert MUTEX in found(one, one, model=NoFlock, start=dead(witness=False))


@pytest.mark.soak
def test_a_counter_that_goes_with_the_record_repeats_tokens(monkeypatch):
    """With a clock that stands still the file beside the lock is all that makes them grow."""
    monkeypatch.setattr(
        "lifehold.local.soft.draw", lambda files, path, last, clock, mode, exactly: clock
    )
    two = soft_client(rounds=2)
    assert TOKEN in found(two, two, start=None)
