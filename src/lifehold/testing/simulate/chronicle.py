"""The history of a run, as its nodes could have written it down, for the checker of histories.

Promise: a turn lasts from the instant at which its holder came to believe that it holds to the one
at which it ceased to, by true time: it let go, its own clock came to its deadline, or it crashed. A
writer that becomes a reader has two turns. `lifehold.testing.history` judges them, which knows
nothing of the simulator: the same checker that judges what real processes wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..history import Turn, judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..history import Finding
    from .people import Holder
    from .scenario import Scenario
    from .world import World


def ns(seconds: float) -> int:
    """In the unit of a history."""
    return round(seconds * 1e9)


class Note:
    """One turn under way."""

    __slots__ = ("asked", "entered", "left", "slot", "stored", "token", "what", "who")

    def __init__(self, holder: Holder, now: float) -> None:
        self.who, self.what = f"{holder.node.name} by grant {holder.serial}", holder.what
        self.asked, self.entered = ns(holder.asked_at), ns(now)
        self.token, self.slot = holder.tenure.grant.token, holder.slot
        self.left: int | None = None
        self.stored: int | None = None

    def turn(self) -> Turn:
        return Turn(
            self.who,
            self.what,
            self.asked,
            self.entered,
            self.left,
            self.token,
            self.slot,
            self.stored,
        )


class Chronicle:
    """The notes of all nodes, by the name of the lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._notes: dict[str, list[Note]] = {}
        self._open: dict[int, Note] = {}
        self._last: dict[int, Note] = {}

    def begins(self, holder: Holder) -> None:
        """From now on it believes."""
        note = Note(holder, self.world.now)
        self._open[holder.serial] = self._last[holder.serial] = note
        self._notes.setdefault(holder.name, []).append(note)

    def ends(self, holder: Holder) -> None:
        """It believes no more, by now or since its deadline came."""
        note = self._open.pop(holder.serial, None)
        if note is not None:
            note.left = max(note.entered, ns(self._until(holder)))

    def _until(self, holder: Holder) -> float:
        node, now = holder.node, self.world.now
        late = node.now() - holder.tenure.deadline
        return now - late / node.rate if late > 0 and not node.stops else now

    def stored(self, holder: Holder) -> None:
        """The data that compares tokens took a write of it, however late."""
        note = self._last.get(holder.serial)
        if note is not None:
            note.stored = ns(self.world.now)

    def turns(self) -> dict[str, tuple[Turn, ...]]:
        """All of them; who holds still does so up to now."""
        for note in self._open.values():
            note.left = ns(self.world.now)
        self._open.clear()
        return {name: tuple(note.turn() for note in notes) for name, notes in self._notes.items()}


def findings(
    history: Mapping[str, tuple[Turn, ...]], plan: Scenario
) -> Iterator[tuple[str, Finding]]:
    """What may not have been, by name."""
    permits = plan.permits if plan.shape == "semaphore" else None
    for name, turns in history.items():
        for found in judge(turns, permits):
            yield name, found
