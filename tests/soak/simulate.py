"""Many seeds: the shipped engine in storms and failovers, and every known-bad rule.

    python -m soak.simulate [--seeds 60] [--first 1]      (PYTHONPATH=tests)

Ends with status 1 when the shipped engine shows anything that it must not, when a known-bad rule is
not found, or when a seed played twice differs. What is found is shrunk and printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from lifehold.core.value import replace
from lifehold.testing.history import GENERATION
from lifehold.testing.simulate import Scenario, shrunk, simulate
from lifehold.testing.simulate.run import ALWAYS_WRONG, GUARDED
from lifehold.testing.simulate.shapes import MUTEX, PERMITS, READWRITE, SEMAPHORE
from simulate.mutants import MUTANTS

STORM = Scenario(
    ttl=10.0, nodes=6, names=2, hours=0.25, think=1.0, patience=25.0, pause=9.0, pause_every=100.0,
    crash_every=200.0, skew=30.0, drift=0.03, latency=0.01, spike=0.01, loss=0.01, twice=0.02,
    cut=8.0, cut_every=60.0, cancel_every=60.0, step=5.0, step_every=200.0,
)  # fmt: skip
ALL = {*ALWAYS_WRONG, *GUARDED}
KNOWN = ALL - {MUTEX, PERMITS, GENERATION}  # where a store forgets who is in
PLANS = {
    "storm": (STORM, ALL),
    "long pauses": (replace(STORM, pause=25.0, loss=0.0), ALL),
    "slow network": (
        replace(STORM, latency=0.5, spike=0.1, spike_length=12.0, timeout=4.0, ttl=30.0),
        ALL,
    ),
    "one lock, many nodes": (replace(STORM, nodes=20, names=1, hold=0.3), ALL),
    "handed over": (replace(STORM, hands=True), ALL),
    "handed over, slow network": (
        replace(STORM, hands=True, latency=0.5, spike=0.1, spike_length=12.0, timeout=4.0),
        ALL,
    ),
    # A grant that the store has lost is unknown to it: two may believe, and the guard refuses.
    "failover": (replace(STORM, failover_every=100.0, behind=4.0, step=0.0), KNOWN),
    # A clock that stands still in a stopped guest: the same.
    "frozen": (replace(STORM, frozen=True, pause=25.0), ALL - {MUTEX, PERMITS}),
}
SHAPED = {
    f"{shape}, {name}": (replace(plan, shape=shape), never)
    for shape in (READWRITE, SEMAPHORE)
    for name, (plan, never) in PLANS.items()
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    wrong = 0
    for name, (plan, never) in (PLANS | SHAPED).items():
        total: Counter[str] = Counter()
        hours = wall = 0.0
        for seed in seeds:
            outcome = simulate(plan, seed)
            total.update(outcome.counts)
            total["grants"] += outcome.grants
            total["refused"] += outcome.data["refused"]
            hours, wall = hours + plan.hours, wall + outcome.wall
            for kind in sorted(never & set(outcome.counts)):
                wrong += 1
                least = shrunk(outcome, kind)
                print(f"{name}, seed {seed}: {kind}", *least.faults, *least.found, sep="\n  ")
        if simulate(plan, given.first).digest != simulate(plan, given.first).digest:
            wrong += 1
            print(f"{name}: the same seed twice differs")
        print(f"{name:34} {len(seeds)} seeds, {hours:.0f} h in {wall:.0f} s: {dict(total)}")
    for mutant in MUTANTS:
        found = mutant.first()
        wrong += found is None
        seen = [each for each in found.found if each.kind in mutant.kinds] if found else []
        at = f"seed {found.seed}, {seen[0]}" if found else "NOT FOUND"
        print(f"{mutant.subject.name:45} {at}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
