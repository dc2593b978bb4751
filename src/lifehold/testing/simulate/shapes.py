"""What a name is: a lock, a reader/writer lock or a semaphore; and who may be in beside whom.

The shipped engine serves the three by one rule of capacity and weight. The judge does not believe
that rule: it counts by the words that people use, writers, readers and slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.backend import WHOLE
from ..history import READ, SLOT, WRITE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.grant import Grant
    from .people import SimulatedHolder
    from .scenario import Scenario

LOCK, READWRITE, SEMAPHORE = SHAPES = ("lock", "readwrite", "semaphore")
MUTEX, PERMITS = "MUTEX", "PERMITS"
SIDES: dict[str, dict[str, Any]] = {
    WRITE: {"capacity": WHOLE, "weight": WHOLE},
    READ: {"capacity": WHOLE, "weight": 1, "shared": True},
}


def capacity(plan: Scenario) -> int:
    """Of each name."""
    return {READWRITE: WHOLE, SEMAPHORE: plan.permits}.get(plan.shape, 1)


def what_of(lock: Any) -> str:
    """What its holder is, in the words of the history."""
    if lock.shared:
        return READ
    return SLOT if lock.slotted else WRITE


def slot_of(lock: Any, grant: Grant) -> int | None:
    """Which slot of a semaphore it is."""
    return int(lock.slot_of(grant)) if lock.slotted else None


def clash(
    believers: Sequence[SimulatedHolder], plan: Scenario
) -> tuple[str, tuple[SimulatedHolder, ...]] | None:
    """The kind of wrong that their being in together is, and who is in it; None when they may."""
    if len(believers) > 1 and any(each.what == WRITE for each in believers):
        return MUTEX, tuple(believers)
    taken: dict[int | None, SimulatedHolder] = {}
    for each in believers:
        if each.what != SLOT:
            continue
        if (other := taken.setdefault(each.slot, each)) is not each:
            return MUTEX, (other, each)
    return (PERMITS, tuple(taken.values())) if len(taken) > plan.permits else None
