"""What went wrong, by the fewest faults.

Promise: what comes back shows the same kind of violation, in the same scenario and seed, ended
right after it; and without any one of its faults it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.value import replace
from .outcome import SHIPPED, Outcome, Subject
from .run import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .scenario import Fault


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
