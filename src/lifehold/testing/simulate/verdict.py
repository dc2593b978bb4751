"""Does a setting survive? A run, its figures, tried advice; a finding by the fewest faults.

Promise: a setting *survives* when no holder lost its lease, no two believed at once, and no write
came late, in the simulated time and with that seed. It is what was seen, and no proof. Advice is
given only when a run with the same seed and the same faults bore it out.
Rule: a lease outlasts a pause that begins just before a renewal when
ttl - margin - heartbeat >= pause + what one renewal may take (L8).
"""

from __future__ import annotations

from math import ceil

from ...core.errors import InvalidArgument
from ...core.value import replace, value
from .outcome import SHIPPED, Outcome, Subject
from .run import simulate
from .shapes import MUTEX, PERMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .scenario import Fault, Scenario

TRIES = 4  # longer ttls that are tried before no advice is given
LONGER = 1.3
SPARE = 0.5  # seconds
SERIOUS = (
    "RISEN",
    "TOKEN",
    "GENERATION",
    "FENCE",
    "ORDER",
    "STUCK",
    "GUARDED LATE",
    "GUARDED LOST",
)


@value
class SettingVerdict:
    """What is said of a setting.

    `outcome`: of the run; `certain`, `lucky`: seconds of a pause that the lease always outlasts,
    and of one that it outlasts when it begins just after a renewal; `advice`: the outcome with a
    longer ttl that did survive, None where none was needed or found.
    """

    survives: bool
    outcome: Outcome
    certain: float
    lucky: float
    advice: Outcome | None = None


def judged(plan: Scenario, seed: int) -> SettingVerdict:
    """Play it, and look for a setting that survives where this one does not."""
    outcome = simulate(plan, seed)
    terms = plan.terms
    lucky = terms.ttl - terms.margin
    good = survived(outcome)
    advice = None if good or not curable(outcome) else advised(outcome)
    return SettingVerdict(good, outcome, lucky - terms.heartbeat, lucky, advice)


def survived(outcome: Outcome) -> bool:
    """Nothing was lost, nothing went wrong."""
    return not outcome.losses and not outcome.counts


def curable(outcome: Outcome) -> bool:
    """Whether a longer lease may help: it does not against clocks and standbys."""
    return bool(outcome.losses) and not any(outcome.counts.get(kind) for kind in SERIOUS)


def advised(outcome: Outcome) -> Outcome | None:
    """The same runs with a ttl that they survive, None when none of a few did."""
    plan = outcome.scenario
    length = longer(plan)
    for _ in range(TRIES):
        try:
            tried = replace(plan, ttl=float(length), heartbeat=None, margin=None)
            found = simulate(tried, outcome.seed, faults=outcome.faults)
        except InvalidArgument:
            return None
        if survived(found):
            return found
        length = ceil(length * LONGER)
    return None


def longer(plan: Scenario) -> int:
    """The ttl that should do, with the usual heartbeat and margin."""
    trouble = max(plan.pause, plan.cut * 1.5) * (1 + plan.drift) + SPARE + plan.latency
    part = 1 - 1 / 3 - 1 / 10
    if plan.loss or plan.spike or plan.cut:
        trouble += plan.timeout  # the first renewal after it may be lost too, and is tried again
        part -= 1 / 12
    return max(ceil(trouble / part), ceil(plan.ttl))


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """Of values in order, None of none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def figures(outcome: Outcome) -> Mapping[str, float | int | None]:
    """The numbers of a run, for people and for programs."""
    seconds, data = outcome.scenario.seconds, outcome.data
    commands = sum(outcome.commands.values())
    grants = outcome.grants or 1
    return {
        "grants": outcome.grants,
        "grants_that_nobody_took": outcome.grants - sum(outcome.turns.values()),
        "pauses_of_a_holder": outcome.pauses,
        "leases_lost_in_a_pause": outcome.lost,
        "leases_lost": outcome.losses,
        "crashes_of_a_holder": outcome.crashes,
        "two_believed": outcome.counts.get(MUTEX, 0) + outcome.counts.get(PERMITS, 0),
        "writes": data["writes"],
        "late_writes_landed_unguarded": data["plain late"],
        "late_writes_checked_just_before": data["late asked"],
        "updates_lost_unguarded": data["plain lost"],
        "writes_refused_guarded": data["refused"],
        "late_writes_landed_guarded": data["guarded late"],
        "updates_lost_guarded": data["guarded lost"],
        "reads": data["reads"],
        "reads_torn_unguarded": data["plain torn"],
        "reads_torn_guarded": data["guarded torn"],
        "recovery_p50": quantile(outcome.recoveries, 0.5),
        "recovery_p99": quantile(outcome.recoveries, 0.99),
        "wait_p50": quantile(outcome.waits, 0.5),
        "wait_p99": quantile(outcome.waits, 0.99),
        "wait_longest": max(outcome.waits, default=None),
        "most_turns_of_a_node": max(outcome.turns.values(), default=0),
        "least_turns_of_a_node": min(outcome.turns.values(), default=0),
        "store_commands_per_second": commands / seconds,
        "store_commands_per_grant": commands / grants,
        "wake_ups_per_grant": outcome.wakes / grants,
        "simulated_seconds": seconds,
        "events": outcome.events,
    }


# ------------------------------------------------------------------------------------------------
# What went wrong, by the fewest faults.
#
# Promise: what comes back shows the same kind of violation, in the same scenario and seed, ended
# right after it; and without any one of its faults it does not.


def shrunk(outcome: Outcome, kind: str, subject: Subject = SHIPPED) -> Outcome:
    """The same seed, up to the first violation of that kind, with as few faults as still show one.

    Without what is left out everything after it comes at other times, so some that are left only
    keep time. Raises ValueError when the outcome shows none.
    """
    if not outcome.counts.get(kind):
        raise ValueError(f"seed {outcome.seed} shows no {kind}")
    best = _up_to(outcome, kind, outcome.faults, subject)
    assert best is not None
    size = max(1, len(best.faults) // 2)
    while best.faults:
        start, shorter = 0, False
        while start < len(best.faults):
            fewer = best.faults[:start] + best.faults[start + size :]
            tried = _up_to(simulate(best.scenario, best.seed, subject, fewer), kind, fewer, subject)
            if tried is not None:
                best, shorter = tried, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return best


def _up_to(
    outcome: Outcome, kind: str, faults: Sequence[Fault], subject: Subject
) -> Outcome | None:
    """The same run, ended right after its first violation of that kind. None when it has none."""
    for seen in outcome.found:
        if seen.kind == kind:
            plan = replace(outcome.scenario, hours=(seen.at + 0.001) / 3600)
            return simulate(plan, outcome.seed, subject, [f for f in faults if f.at <= seen.at])
    return None
