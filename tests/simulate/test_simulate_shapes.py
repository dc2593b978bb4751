"""The simulator's readers, writers and semaphores: what their judge and their history show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifehold.core.value import replace
from lifehold.testing.history import READ, SLOT, WRITE, judge
from lifehold.testing.simulate import Scenario, shrunk, simulate
from lifehold.testing.simulate.run import ALWAYS_WRONG, GUARDED, TORN
from lifehold.testing.simulate.shapes import MUTEX, PERMITS, READWRITE, SEMAPHORE, SHAPES
from simulate.mutants import MUTANTS

SRC = Path(__file__).parents[2] / "src"
PAUSED = Scenario(ttl=10.0, nodes=5, hours=0.2, think=1.0, pause=12.0, pause_every=60.0)
READERS = replace(PAUSED, shape=READWRITE)
SEATS = replace(PAUSED, shape=SEMAPHORE, permits=2)


def turns_of(outcome):
    return [turn for turns in outcome.history.values() for turn in turns]


def overlaps(turns, what):
    """Pairs that were in together."""
    ordered = sorted((turn for turn in turns if turn.what == what), key=lambda turn: turn.entered)
    return sum(
        other.entered < turn.left
        for at, turn in enumerate(ordered)
        for other in ordered[at + 1 : at + 10]
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_seed_twice_is_equal_to_the_byte_in_each_shape(shape):
    plan = replace(READERS, shape=shape, loss=0.05, crash_every=60.0)
    first, again = simulate(plan, 7, keep=True), simulate(plan, 7, keep=True)
    assert first.lines == again.lines
    assert replace(first, wall=0.0) == replace(again, wall=0.0)


def test_shapes_are_equal_in_another_process_too():
    script = (
        "from lifehold.testing.simulate import *;"
        "print(*(simulate(Scenario(ttl=10.0, hours=0.05, loss=0.1, crash_every=60.0, shape=shape),"
        " 3).digest for shape in ('readwrite', 'semaphore')))"
    )
    told = set()
    for hashes in ("1", "2"):
        environ = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
        )
        told.add(done.stdout)
    assert len(told) == 1


def test_readers_are_in_together_and_a_writer_is_alone():
    outcome = simulate(READERS, 1)
    turns = turns_of(outcome)
    assert {turn.what for turn in turns} == {READ, WRITE}
    assert overlaps(turns, READ) > 20
    assert not overlaps(turns, WRITE)
    assert not judge(turns)
    assert outcome.data["reads"] > 50


def test_a_writer_that_reads_on_keeps_its_token_and_lets_readers_in():
    outcome = simulate(replace(READERS, downgrade=1.0, writers=0.5), 1, keep=True)
    grants = {}
    for turn in turns_of(outcome):
        grants.setdefault(turn.who, []).append(turn)
    both = [turns for turns in grants.values() if len(turns) == 2]
    assert len(both) > 10
    for first, then in both:
        assert (first.what, then.what) == (WRITE, READ)
        assert first.token == then.token
        assert first.left <= then.entered
    beside = [then for _, then in both]
    others = [turn for turn in turns_of(outcome) if turn.what == READ]
    assert any(
        one.entered < other.left and other.entered < one.left
        for one in beside for other in others if other.who != one.who
    )  # fmt: skip


def test_a_semaphore_has_as_many_in_as_it_has_permits_each_in_a_slot_of_its_own():
    outcome = simulate(SEATS, 2)
    turns = turns_of(outcome)
    assert {turn.what for turn in turns} == {SLOT}
    assert {turn.slot for turn in turns} == {0, 1}
    assert overlaps(turns, SLOT) > 20
    assert not judge(turns, permits=2)
    assert {finding.kind for finding in judge(turns, permits=1)} == {PERMITS}


@pytest.mark.parametrize("plan", [READERS, SEATS], ids=["readwrite", "semaphore"])
def test_late_writes_land_without_a_guard_and_are_refused_with_one(plan):
    outcomes = [simulate(plan, seed) for seed in (1, 2, 3)]
    assert sum(outcome.data["plain late"] for outcome in outcomes) > 0
    assert sum(outcome.data["refused"] for outcome in outcomes) > 0
    for outcome in outcomes:
        assert not {*ALWAYS_WRONG, *GUARDED} & set(outcome.counts), list(map(str, outcome.found))


def test_a_writer_that_comes_late_changes_what_a_reader_reads_whatever_the_data_compares():
    """A reader has the token of its last writer: its own late write looks like a good one."""
    outcome = next(one for one in (simulate(READERS, seed) for seed in range(1, 21))
                   if TORN in one.counts)  # fmt: skip
    least = shrunk(outcome, TORN)
    assert least.counts[TORN]
    assert {fault.kind for fault in least.faults} == {"pause"}
    assert not set(GUARDED) & set(outcome.counts)


@pytest.mark.parametrize("plan", [READERS, SEATS], ids=["readwrite", "semaphore"])
def test_a_pause_that_the_lease_outlasts_loses_nothing(plan):
    outcome = simulate(replace(plan, ttl=30.0), 2)
    assert outcome.pauses > 3
    assert (outcome.lost, outcome.counts) == (0, {})


def test_a_frozen_clock_lets_too_many_in_and_the_guard_refuses_their_late_writes():
    for plan in (READERS, SEATS):
        found = [simulate(replace(plan, frozen=True), seed) for seed in range(1, 6)]
        assert any({MUTEX, PERMITS} & set(outcome.counts) for outcome in found)
        assert not any(set(GUARDED) & set(outcome.counts) for outcome in found)


def test_a_crash_frees_a_permit_when_its_lease_is_over():
    outcome = simulate(replace(SEATS, pause=0.0, hours=0.5, crash_every=30.0), 1)
    assert outcome.crashes > 10
    assert not outcome.counts, list(map(str, outcome.found))


def test_the_history_shows_what_the_judge_has_seen():
    """Two that share no code come to the same: the one looks at instants, the other reads turns."""
    for name in ("heads counted, not weights", "a slot by count", "one permit more"):
        mutant = next(each for each in MUTANTS if each.subject.name == name)
        outcome = mutant.first()
        permits = outcome.scenario.permits if outcome.scenario.shape == SEMAPHORE else None
        seen = {finding.kind for turns in outcome.history.values()
                for finding in judge(turns, permits)}  # fmt: skip
        assert seen >= set(outcome.counts) & {MUTEX, PERMITS}
