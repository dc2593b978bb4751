"""The simulator: the shipped lease engine under a virtual clock, and its known-bad cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifehold.core.errors import InvalidArgument
from lifehold.core.value import replace
from lifehold.testing.history import GENERATION, TOKEN
from lifehold.testing.simulate import SHIPPED, Scenario, shrunk, simulate
from lifehold.testing.simulate.node import Node, NodeRuntime
from lifehold.testing.simulate.run import ALWAYS_WRONG, GUARDED, ORDER, RISEN
from lifehold.testing.simulate.shapes import MUTEX, PERMITS, SHAPES
from lifehold.testing.simulate.world import ProcessGone, SimulatedWorld
from simulate.mutants import MUTANTS
from simulate.redlock import OfMostParty

SRC = Path(__file__).parents[2] / "src"
NEVER_SEEN = {*ALWAYS_WRONG, *GUARDED}
FORGOTTEN = {MUTEX, PERMITS, GENERATION}  # by a store that fails over, or a clock that stands still
PAUSED = Scenario(ttl=10.0, nodes=4, hours=0.2, think=1.0, hold=2.0, pause=12.0, pause_every=60.0)
STORM = Scenario(
    ttl=10.0, nodes=6, names=2, hours=0.1, think=1.0, patience=25.0, pause=9.0, pause_every=60.0,
    crash_every=100.0, skew=30.0, drift=0.03, latency=0.01, spike=0.01, loss=0.01, twice=0.02,
    cut=8.0, cut_every=60.0, cancel_every=60.0, step=5.0, step_every=100.0,
)  # fmt: skip


def first(plan, kind):
    """The first run that shows it, of a few."""
    for seed in range(1, 21):
        outcome = simulate(plan, seed)
        if kind in outcome.counts:
            return outcome
    pytest.fail(f"{kind} was not found")


def test_the_same_seed_twice_is_equal_to_the_byte():
    first, again = simulate(STORM, 7, keep=True), simulate(STORM, 7, keep=True)
    assert first.lines == again.lines
    assert replace(first, wall=0.0) == replace(again, wall=0.0)
    assert simulate(STORM, 8).digest != first.digest


def test_the_same_seed_is_equal_in_another_process():
    script = (
        "from lifehold.testing.simulate import *;"
        "print(simulate(Scenario(ttl=10.0, hours=0.05, loss=0.1, crash_every=60.0), 3).digest)"
    )
    told = set()
    for hashes in ("1", "2"):
        environ = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
        )
        told.add(done.stdout)
    assert len(told) == 1


@pytest.mark.parametrize("hands", [False, True], ids=["called", "handed over"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_shipped_engine_keeps_its_promises_in_a_storm(shape, hands):
    for seed in range(1, 5):
        outcome = simulate(replace(STORM, shape=shape, hands=hands), seed)
        assert not NEVER_SEEN & set(outcome.counts), (seed, *map(str, outcome.found))
        assert outcome.grants > 50
        assert min(outcome.turns.values()) > 0
        assert set(outcome.network.values()) > {0} or all(outcome.network.values())


def test_a_pause_longer_than_the_ttl_loses_the_lease_and_the_guard_refuses_the_late_write():
    outcome = simulate(PAUSED, 2)
    assert outcome.lost == outcome.pauses > 3
    assert outcome.data["plain late"] > 0
    assert outcome.data["refused"] >= outcome.data["plain late"]
    assert not NEVER_SEEN & set(outcome.counts), list(map(str, outcome.found))


def test_a_pause_that_the_lease_outlasts_loses_nothing():
    outcome = simulate(replace(PAUSED, ttl=30.0), 2)
    assert outcome.pauses > 3
    assert (outcome.lost, outcome.counts) == (0, {})


def test_a_crash_frees_the_lock_when_its_lease_is_over():
    outcome = simulate(replace(PAUSED, pause=0.0, crash_every=60.0), 1)
    assert outcome.recoveries
    assert min(outcome.recoveries) > 10 - 10 / 3 - 1
    assert outcome.recoveries[len(outcome.recoveries) // 2] < 10 + 1  # who comes next may crash too


def test_a_failover_that_loses_the_last_writes_keeps_tokens_growing_where_clocks_are_level():
    for seed in (1, 2, 3):
        outcome = simulate(replace(STORM, step=0.0, failover_every=60.0, behind=4.0), seed)
        assert not {TOKEN, RISEN, *GUARDED} & set(outcome.counts), list(map(str, outcome.found))
        assert any(fault.kind == "failover" for fault in outcome.faults)


def test_a_failover_to_a_clock_behind_is_seen_as_tokens_that_do_not_grow():
    free = replace(PAUSED, pause=0.0, nodes=3, names=4, hold=1.0)  # else an old holder keeps it
    behind = replace(free, failover_every=60.0, behind=5.0, clock_behind=60.0)
    found = first(behind, TOKEN)
    assert found.data["refused in vain"]
    assert not set(GUARDED) & set(found.counts)
    assert TOKEN not in simulate(replace(behind, clock_behind=0.0), found.seed).counts


def test_a_store_whose_clock_jumps_ahead_lets_two_in_and_the_guard_refuses():
    plan = replace(PAUSED, pause=0.0, hold=8.0, step=-20.0, step_every=30.0)  # a step back of -20
    outcome = first(plan, MUTEX)
    assert not {RISEN, TOKEN, *GUARDED} & set(outcome.counts)


def test_a_frozen_clock_makes_two_believe_and_the_guard_refuses_all_the_same():
    outcome = first(replace(PAUSED, frozen=True), MUTEX)
    assert not set(GUARDED) & set(outcome.counts)
    assert outcome.lost  # at the store, whatever the holder believes


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.subject.name)
def test_a_known_bad_rule_is_found_and_the_shipped_one_is_clean_in_the_same_seeds(mutant):
    found = mutant.first()
    assert found is not None, f"not found within {mutant.seeds} seeds"
    for seed in range(1, found.seed + 1):
        shipped = simulate(mutant.plan, seed, SHIPPED)
        assert not NEVER_SEEN & set(shipped.counts) - (FORGOTTEN if mutant.fails_over else set())


def test_redlock_that_subtracts_its_time_is_clean_where_the_other_is_not():
    mutant = next(each for each in MUTANTS if "Redlock" in each.subject.name)
    least = mutant.first().seed
    good = replace(mutant.subject, name="Redlock", party=OfMostParty)
    for seed in range(1, least + 6):
        outcome = simulate(mutant.plan, seed, good)
        assert outcome.grants > 10
        assert not NEVER_SEEN & set(outcome.counts)


def test_the_faults_of_a_run_can_be_played_again_and_made_fewer():
    mutant = next(each for each in MUTANTS if each.subject.name == "release without nonce")
    found = mutant.first()
    assert simulate(found.scenario, found.seed, mutant.subject, found.faults).digest == found.digest
    least = shrunk(found, MUTEX, mutant.subject)
    assert 0 < len(least.faults) < len(found.faults)
    assert least.counts[MUTEX]
    assert "pause" in str(least.faults[0])
    assert least.found[0].at <= found.found[0].at
    with pytest.raises(ValueError, match="shows no ORDER"):
        shrunk(found, ORDER, mutant.subject)


def test_a_paused_node_does_nothing_and_then_everything_in_order():
    world = SimulatedWorld(1)
    node, done = Node(world, "n0"), []
    for number in (1, 2, 3):
        node.alarm(node.now() + number, lambda number=number: done.append((number, world.now)))
    world.at(1.5, node.pause)
    world.at(9.0, node.wake)
    world.run(20.0)
    assert [(number, round(at, 3)) for number, at in done] == [(1, 1.0), (2, 9.0), (3, 9.0)]


def test_a_frozen_clock_stands_still_and_its_alarms_come_late():
    world = SimulatedWorld(1)
    node, done = Node(world, "n0"), []
    began = node.now()
    node.alarm(began + 5, lambda: done.append(world.now))
    world.at(1.0, node.stop_clock)
    world.at(11.0, node.start_clock)
    world.run(30.0)
    assert [round(at, 3) for at in done] == [15.0]
    assert round(node.now() - began, 3) == 20.0


def test_what_a_crashed_process_had_begun_has_no_effect():
    world = SimulatedWorld(1)
    node, done = Node(world, "n0"), []

    async def work():
        try:
            await NodeRuntime(node).sleep(5)
            done.append("slept")
        finally:
            with pytest.raises(ProcessGone):
                await NodeRuntime(node).sleep(1)
            done.append("left")

    task = node.spawn(work())
    world.at(1.0, node.crash)
    world.run(30.0)
    assert done == ["left"]
    assert task.done.done


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"ttl": 0}, "ttl"), ({"ttl": float("nan")}, "ttl"), ({"ttl": -1}, "ttl"),
        ({"ttl": 10, "heartbeat": 11}, "heartbeat"), ({"ttl": 10, "margin": 10}, "margin"),
        ({"nodes": 0}, "nodes"), ({"nodes": 2.5}, "nodes"), ({"names": 10**6}, "names"),
        ({"hours": 0}, "hours"), ({"hours": float("inf")}, "hours"), ({"pause": -1}, "pause"),
        ({"loss": 1}, "loss"), ({"loss": float("nan")}, "loss"), ({"drift": 0.6}, "drift"),
        ({"latency": 0}, "latency"), ({"patience": 0}, "patience"), ({"step": "5"}, "step"),
        ({"ttl": "10"}, "ttl"), ({"timeout": 0}, "timeout"), ({"shape": "mutex"}, "shape"),
        ({"permits": 0}, "permits"), ({"permits": 2.0}, "permits"), ({"permits": 600}, "permits"),
        ({"writers": 1.5}, "writers"), ({"downgrade": -0.1}, "downgrade"),
    ],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused_by_name(wrong, named):
    with pytest.raises(InvalidArgument, match=named):
        simulate(Scenario(**wrong), 1)
