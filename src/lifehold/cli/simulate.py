"""`lifehold simulate`: does a lease's setting survive, in words and figures."""

from __future__ import annotations

import sys

from ..core.errors import InvalidArgument
from ..core.value import as_dict, replace
from ..testing.simulate.run import simulate as played
from ..testing.simulate.scale import SIZES, model
from ..testing.simulate.scenario import Scenario, checked
from ..testing.simulate.verdict import SERIOUS, figures, judged, shrunk
from . import exits
from .options import arguments
from .options_simulate import SIMULATE
from .render import MARGIN, Page, put, say, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..testing.simulate.outcome import Outcome
    from ..testing.simulate.scale import MeasuredLoad
    from ..testing.simulate.verdict import SettingVerdict

SCHEMA = "lifehold.simulate/1"
# Where the command differs from a bare Scenario: what is asked for happens often enough to count.
USUAL = {
    "think": 2.0,
    "hours": 2.0,
    "pause_every": 60.0,
    "crash_every": 200.0,
    "cut_every": 300.0,
    "step_every": 600.0,
}
WORST_FIRST = (
    "GUARDED LOST",
    "GUARDED LATE",
    "FENCE",
    "RISEN",
    "TOKEN",
    "GENERATION",
    "MUTEX",
    "PERMITS",
    "ORDER",
    "STUCK",
    "GUARDED TORN",
    "PLAIN LATE",
    "PLAIN LOST",
    "PLAIN TORN",
)
BELIEFS = {
    "lock": "never did two believe to hold it",
    "readwrite": "never did a writer and another believe to hold it",
    "semaphore": "never did more believe to hold it than it has permits, nor two one slot",
}
SHOWN = 12  # last lines of a log
# What may be asked for, by the setting that says how often it comes.
OFTEN = {
    "crash_every": "crash_every",
    "cut": "cut_every",
    "step": "step_every",
    "failover_every": "failover_every",
}
NOT_OF_A_SCENARIO = ("seed", "scale", "shrink", "log", "json")


def simulate(words: list[str]) -> int:
    """The exit code of `lifehold simulate WORDS`."""
    given, _ = arguments(SIMULATE, words)
    settings = {
        name: value
        for name, value in given.items()
        if value is not None and name not in NOT_OF_A_SCENARIO
    }
    plan = checked(replace(Scenario(), **(USUAL | settings)))
    _refuse_unused(plan, given)
    if given["scale"]:
        return scaled(plan, given["json"])
    if given["log"]:
        for line in played(plan, given["seed"], keep=True).lines:
            say(line, prefix="")
    verdict = judged(plan, given["seed"])
    _refuse_untried(verdict, given)
    least = smallest(verdict) if given["shrink"] else None
    typed = [word for word in words if word not in ("--json", "--log", "--shrink")]
    if given["json"]:
        put(as_json(verdict, least))
    else:
        put(in_words(verdict, typed) + _least_in_words(least), fold=True, margin=MARGIN)
    return exits.DONE if verdict.survives else exits.FREE


def _refuse_unused(plan: Scenario, given: Mapping[str, Any]) -> None:
    """Who gives a setting that changes nothing expects something of it."""
    for name, shape in (
        ("permits", "semaphore"),
        ("writers", "readwrite"),
        ("downgrade", "readwrite"),
    ):
        if given[name] is not None and plan.shape != shape:
            raise InvalidArgument(f"--{name} is for --shape {shape}, and this is {plan.shape!r}")
    if given["scale"] and plan.shape != "lock":
        raise InvalidArgument("--scale is for locks: leave out --shape")


def _refuse_untried(verdict: SettingVerdict, given: Mapping[str, Any]) -> None:
    """Where nothing could go wrong, that nothing did says nothing."""
    outcome, plan = verdict.outcome, verdict.outcome.scenario
    within = f"in {_hours(plan.hours)}"
    if plan.pause and not outcome.pauses:
        raise InvalidArgument(
            f"{within} no pause met a holder, so nothing was tried: give more "
            "--hours, or a smaller --pause-every"
        )
    if not verdict.survives:
        return
    if not outcome.grants:
        raise InvalidArgument(
            f"{within} nothing was granted, so nothing was tried: give more --hours"
        )
    if not outcome.turns:  # the store gave, and its answers did not come
        raise InvalidArgument(
            f"{within} no grant reached its node, so nothing was tried: "
            "give more --hours, a longer --timeout, or less --latency or --loss"
        )
    met = {fault.kind.partition("_")[0] for fault in outcome.faults}
    for name, often in OFTEN.items():
        asked = given[name] and getattr(plan, often)
        if asked and name.removesuffix("_every") not in met:
            raise InvalidArgument(
                f"{within} there was no {name.removesuffix('_every')}, so it was not tried: give "
                f"more --hours, or a smaller --{often.replace('_', '-')}"
            )


def smallest(verdict: SettingVerdict) -> Outcome | None:
    """The worst of what went wrong, by the fewest faults. None when nothing did."""
    kind = worst(verdict.outcome)
    return shrunk(verdict.outcome, kind) if kind else None


def worst(outcome: Outcome) -> str | None:
    """The kind of violation that is looked at first."""
    return next((kind for kind in WORST_FIRST if outcome.counts.get(kind)), None)


def _shown(least: Outcome) -> str:
    return str(next(each for each in least.found if each.kind == worst(least)))


def _least_in_words(least: Outcome | None) -> str:
    if least is None:
        return ""
    page = Page("")
    for fault in least.faults:
        page.add("fault", str(fault))
    page.add("so that", _shown(least))
    for line in least.lines[-SHOWN:]:
        page.add("log", line)
    return "\n".join(page.lines)


def in_words(verdict: SettingVerdict, typed: Sequence[str]) -> str:
    """What was tried, what came of it, what to do."""
    outcome, plan = verdict.outcome, verdict.outcome.scenario
    seen, terms = figures(outcome), plan.terms
    fate = "survives" if verdict.survives else "does not survive"
    of = f" pauses of {plan.pause:g} s" if plan.pause else ""
    page = Page(
        f"ttl {terms.ttl:g} s, heartbeat {terms.heartbeat:.3g} s, margin {terms.margin:.3g} s: "
        f"{fate}{of}"
    )
    page.add(
        "simulated", f"{_hours(plan.hours)}, {_many(plan.nodes, 'node')} on",
        f"{_locks(plan)}, seed {outcome.seed}: {_many(outcome.grants, 'grant')},",
        f"in {outcome.wall:.1f} s",
    )  # fmt: skip
    page.add(
        "outlasts", f"every pause up to {verdict.certain:.3g} s; one up to",
        f"{verdict.lucky:.3g} s only if it begins just after a renewal",
    )  # fmt: skip
    if plan.pause:
        page.add("pauses", f"{outcome.pauses:,} met a holder, of which {outcome.lost:,} lost it",
                 "the lease")  # fmt: skip
    page.add("leases", f"{outcome.losses:,} of {outcome.grants:,} were lost to their holder")
    page.add("writes", _writes(seen))
    if plan.shape == "readwrite":
        page.add("reads", _reads(seen))
    page.add("two at once", _beliefs(outcome))
    if outcome.recoveries:
        page.add(
            "recovery", "after the crash of a holder the next was in within",
            f"{seen['recovery_p50']:.3g} s (half), {seen['recovery_p99']:.3g} s (99 %),",
            f"of {_many(len(outcome.recoveries), 'crash', 'crashes')}",
        )  # fmt: skip
    page.add(
        "waiting", f"{seen['wait_p50'] or 0:.3g} s (half), {seen['wait_p99'] or 0:.3g} s (99 %);",
        f"turns per node {seen['least_turns_of_a_node']} to {seen['most_turns_of_a_node']}",
    )  # fmt: skip
    page.add(
        "store", f"{seen['store_commands_per_second']:.3g} commands/s,",
        f"{seen['store_commands_per_grant']:.3g} per grant;",
        f"{seen['wake_ups_per_grant']:.2f} wake-ups per grant",
    )  # fmt: skip
    for kind in SERIOUS:
        if outcome.counts.get(kind):
            page.add(kind.lower(), _first(outcome, kind))
    _advise(page, verdict)
    page.add("log", outcome.digest)
    page.add("again", "lifehold simulate", *typed)
    return "\n".join(page.lines)


def _advise(page: Page, verdict: SettingVerdict) -> None:
    better = verdict.advice
    if better is not None:
        seen, terms = figures(better), better.scenario.terms
        slower = seen["recovery_p99"]
        page.add(
            "advice",
            f"--ttl {terms.ttl:g} --heartbeat {terms.heartbeat:.3g}: tried in the same",
            f"runs, {better.losses} of {better.grants} leases lost,",
            f"{seen['store_commands_per_second']:.3g} commands/s",
            *([f"and recovery within {slower:.3g} s (99 %)"] if slower else []),
        )
    elif not verdict.survives:
        page.add(
            "advice",
            "no longer ttl that was tried survives this: what goes wrong is none of",
            "the lease's length",
        )
    if not verdict.survives:
        page.add("and", "compare the token at the data: no ttl outlasts every pause")


def _writes(seen: Mapping[str, Any]) -> str:
    late = seen["late_writes_landed_unguarded"]
    if not late:
        return f"none of {seen['writes']:,} came late"
    kept = seen["late_writes_landed_guarded"] + seen["updates_lost_guarded"]
    fate = "all were refused" if not kept else f"{kept} landed all the same"
    checked_first = seen["late_writes_checked_just_before"]
    return (
        f"{late:,} of {seen['writes']:,} came late ({checked_first:,} of them by a holder that had "
        "checked its lease just before). Without a guard they landed, and lost "
        f"{_many(seen['updates_lost_unguarded'], 'update')}; where the data compares tokens {fate}"
    )


def _reads(seen: Mapping[str, Any]) -> str:
    torn, kept = seen["reads_torn_unguarded"], seen["reads_torn_guarded"]
    if not torn:
        return f"none of {seen['reads']:,} saw a change while its reader held"
    fate = f"{kept:,} still: a reader's token is its last writer's" if kept else "none did"
    return (
        f"{torn:,} of {seen['reads']:,} saw a change while the reader held, by a writer that came "
        f"late; where the data compares tokens {fate}"
    )


def _beliefs(outcome: Outcome) -> str:
    kinds = [kind for kind in ("MUTEX", "PERMITS") if outcome.counts.get(kind)]
    if not kinds:
        return BELIEFS[outcome.scenario.shape]
    count = sum(outcome.counts[kind] for kind in kinds)
    why = "a clock that stands still" if outcome.scenario.frozen else "clocks or a lost grant"
    who = "two" if outcome.scenario.shape == "lock" else "too many"
    first = _first(outcome, kinds[0])
    return f"{_many(count, 'time')} {who} believed to hold it ({why}): {first}"


def _locks(plan: Scenario) -> str:
    """What the nodes share."""
    what = {"readwrite": "reader/writer lock", "semaphore": f"semaphore of {plan.permits}"}.get(
        plan.shape, "lock"
    )
    return _many(plan.names, what, f"semaphores of {plan.permits}" if "of" in what else "")


def _first(outcome: Outcome, kind: str) -> str:
    found = next(each for each in outcome.found if each.kind == kind)
    return f"{outcome.counts[kind]}, first at {found.at:.3f} s: {found.text}"


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:g} h"
    return f"{hours * 60:.3g} min" if hours >= 1 / 60 else f"{hours * 3600:.3g} s"


def as_json(verdict: SettingVerdict, least: Outcome | None = None) -> str:
    """One object."""
    import json

    outcome, better = verdict.outcome, verdict.advice
    terms = outcome.scenario.terms
    return json.dumps(
        {
            "schema": SCHEMA,
            "survives": verdict.survives,
            "seed": outcome.seed,
            "digest": outcome.digest,
            "terms": as_dict(terms),
            "scenario": as_dict(outcome.scenario),
            "outlasts": {"certain": verdict.certain, "lucky": verdict.lucky},
            "figures": dict(figures(outcome)),
            "commands": dict(outcome.commands),
            "network": dict(outcome.network),
            "violations": [
                {
                    "kind": kind,
                    "count": count,
                    "found": [
                        {"at": each.at, "name": each.name, "text": each.text}
                        for each in outcome.found
                        if each.kind == kind
                    ],
                }
                for kind, count in sorted(outcome.counts.items())
            ],
            "smallest": None
            if least is None
            else {
                "faults": [as_dict(fault) for fault in least.faults],
                "found": _shown(least),
                "log": list(least.lines),
            },
            "advice": None
            if better is None
            else {
                "terms": as_dict(better.scenario.terms),
                "figures": dict(figures(better)),
            },
        },
        indent=2,
    )


# ------------------------------------------------------------------------------------------------
# `lifehold simulate --scale`: what many clients ask of a store.


SCALE_SCHEMA = "lifehold.simulate-scale/1"
LINE = 10  # clients per lock, where they share
SAME = 1.0  # seconds within which all begin, as after a deployment


def scaled(plan: Scenario, wants_json: bool) -> int:
    """The exit code. Takes about a minute for the largest sizes."""
    terms = plan.terms
    if sys.stderr is not None and sys.stderr.isatty():
        say(f"counting for up to {SIZES[-1]:,} clients: this takes about a minute")
    rows = []
    for size in SIZES:
        alone = model(size, terms.ttl, terms.heartbeat)
        burst = model(size, terms.ttl, terms.heartbeat, spread=SAME)
        lines = model(size, terms.ttl, terms.heartbeat, line=LINE)
        rows.append((size, alone, burst, lines))
    put(
        scale_as_json(rows) if wants_json else scale_in_words(plan, rows),
        fold=not wants_json,
        margin=MARGIN,
    )
    return exits.DONE


def scale_in_words(
    plan: Scenario, rows: list[tuple[int, MeasuredLoad, MeasuredLoad, MeasuredLoad]]
) -> str:
    """The table, and how to read it."""
    terms = plan.terms
    cells = [["CLIENTS", "A LEASE EACH", "BUSIEST 0.1 s", "STARTED AT ONCE", f"LINES OF {LINE}"]]
    cells += [
        [
            f"{size:,}",
            f"{alone.mean:,.1f}",
            f"{alone.peak:,.0f}",
            f"{burst.peak:,.0f}",
            f"{lines.mean:,.1f}",
        ]
        for size, alone, burst, lines in rows
    ]
    size, alone, _, lines = rows[-1]
    page = Page(
        f"ttl {terms.ttl:g} s, heartbeat {terms.heartbeat:.3g} s: commands per second at the store"
    )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    page.lines.append(
        table([[cell.rjust(w) for cell, w in zip(row, widths, strict=True)] for row in cells])
    )
    page.add(
        "a holder",
        f"{alone.mean / size:.3g} commands/s: one per heartbeat. Half the",
        "heartbeat, twice the load",
    )
    page.add(
        "waiters",
        f"in lines of {LINE}: {lines.mean / size:.3g} commands/s per client,",
        f"with {lines.handovers / size:.2g} grants/s",
    )
    page.add(
        "at once",
        "clients that begin in the same second renew in the same second ever",
        "after: spread their starts, or hold many leases in one process, whose renewals go",
        "together, 1,000 to a command",
    )
    return "\n".join(page.lines)


def scale_as_json(rows: list[tuple[int, MeasuredLoad, MeasuredLoad, MeasuredLoad]]) -> str:
    """One object."""
    import json

    return json.dumps(
        {
            "schema": SCALE_SCHEMA,
            "sizes": [
                {
                    "clients": size,
                    "a_lease_each": as_dict(alone),
                    "started_at_once": as_dict(burst),
                    "in_lines": as_dict(lines),
                }
                for size, alone, burst, lines in rows
            ],
        },
        indent=2,
    )
