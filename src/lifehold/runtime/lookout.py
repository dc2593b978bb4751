"""Where a waiter stands who waits for a path to change: `Runtime.changed` of both faces.

Promise: no change is slept through. The first call arms and returns, so that the caller looks
once more with the watch in place; what happens from then on is remembered until it has been told,
whether somebody sleeps at that moment or looks around.
Rule that keeps it: `rung` is set before the sleeper is woken, and taken back before the caller
goes to look, never after.

The kernel may tell of an end before it is there: a close comes before the lock that goes with it,
a process ends before the child that it has forked has closed its copies. So after each event the
caller looks a few times more, at growing intervals.
"""

from __future__ import annotations

from ..core.backoff import Backoff
from . import clock, fork, wake
from .folders import FIRST, LONGEST, chance
from .sentry import nobody

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.acquire import Ask

PAUSES = Backoff(
    FIRST, LONGEST, random=chance
)  # seconds between two looks where no event reaches us
# Seconds from one look to the next after an event, and after arming: it may have come before that.
AGAIN = (0.001, 0.008, 0.064, 0.512)


class Lookout:
    """Kept in `ask.place` from one call to the next, and given up by `ask.leave()`."""

    __slots__ = (
        "_again", "_generation", "_pauses", "_sought", "_watches", "doubts", "ring", "rung",
        "unread",
    )  # fmt: skip

    def __init__(self, path: str, blind: bool, pid: int | None) -> None:
        self._sought = (path, blind, pid)
        self._generation = fork.generation
        self._watches: list[wake.Watch | wake.ProcessWatch] = []
        self._pauses = PAUSES.pauses() if blind else None
        self._again: Iterator[float] = iter(AGAIN)
        self.rung = False
        self.unread = self.doubts = False  # of who hears by himself (runtime/sentry.py)
        self.ring: Callable[[], object] = nobody  # exchanged by each sleeper for its own bell

    def arm(self) -> None:
        """From now on nothing is missed. Without a thread to be had it looks now and then."""
        path, blind, pid = self._sought
        watches = self._watches  # filled before they start: whatever comes between, they end
        if not blind:
            watches.append(wake.Watch(path, self._hear))
        if pid is not None:
            watches.append(wake.ProcessWatch(pid, self._hear))
        try:
            for watch in watches:
                watch.start()
        except RuntimeError:  # limits, or the interpreter is shutting down
            self._pauses = PAUSES.pauses()

    def _hear(self) -> None:
        self._again = iter(AGAIN)
        self.rung = True
        self.ring()

    def at(self, path: str, blind: bool, pid: int | None) -> bool:
        """Whether this one looks there, and in this process (L9)."""
        return self._sought == (path, blind, pid) and self.ours

    @property
    def ours(self) -> bool:
        """Whether it is of this process: else nothing rings it (L9)."""
        return self._generation == fork.here()

    def limit(self, until: float) -> float:
        """The instant at which the caller is to look again, event or not."""
        if self.rung:  # nobody sleeps
            return until
        pauses = self._again if self._pauses is None else self._pauses
        pause = next(pauses, None)
        return until if pause is None else min(until, clock.now() + pause)

    def only_watch(self) -> wake.Watch | None:
        """That of the path, where it is told of by events."""
        first = next(iter(self._watches), None)
        return first if isinstance(first, wake.Watch) and self._pauses is None else None

    def leave(self) -> bool:
        """Look no more. Safe to repeat. Never True: there is nothing here that could come first."""
        if self.ours:
            for watch in self._watches:
                watch.close()
        return False

    def undo(self) -> None:
        """Nothing came, so nothing is to be let go of."""


def of(ask: Ask, path: str, blind: bool, pid: int | None) -> Lookout | None:
    """The lookout of an ask; None when it was armed only now, and the caller is to look again."""
    place: Any = ask.place
    if isinstance(place, Lookout):
        if place.at(path, blind, pid):
            return place
        place.leave()
    elif place is not None:
        ask.leave()
    ask.place = lookout = Lookout(path, blind, pid)  # first, so that an exception can end it (L6)
    lookout.arm()
    return None
