"""One waiter's turn at a store: its nonce, its place in line, and when to look again.

Promise: a waiter is woken by the store, or looks by itself at the instant at which the lease before
it runs out; all others look rarely, so what a store is asked per hand-over does not grow with the
line. Where the one who was called does not come, those behind it look soon. Whatever ends the wait,
the place is given up, and a grant whose answer was lost with it (L6).

L8  What the store has given without being asked counts from the last request that was refused, and
    only if it is the answer to that very one, by its word: a call that was long on its way does
    not speak of today. In any doubt the store is asked, and finds the grant by its nonce.
L9  A turn is of the process that took it. A child that a signal handler forks in the middle of the
    wait has a copy: by its nonce the store would give it the lock of its parent, and at its word
    take it away again.
"""

from __future__ import annotations

import os

from ..core.deadline import Backoff
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.backend import Given, Refused
    from ..core.deadline import Terms

NEAR, FAR = 1.0, 5.0  # seconds between two looks: of the first two in line, and of all others
SPREAD = 0.1  # of FAR, more or less: who came together does not look together for ever
ROOM, CLOSE = 0.5, 8  # seconds, where there is room for one of the first CLOSE, who does not come
PATIENCE = 3 * FAR  # after which the store gives up a place that nobody has asked for again
AFTER = 0.005  # seconds behind the instant at which a lease is over, before looking
LEAST = 0.5  # of its ttl that a lease which is handed over must have left
AGAIN = Backoff(0.05, 2.0)  # seconds between two tries while the store does not answer


class Waiter:
    """What one waiter knows. Kept in `ask.slot`, and in `ask.place` while it stands in line."""

    __slots__ = (
        "_again",
        "_count",
        "_handoff_id",
        "_named",
        "_watched",
        "came",
        "doubt",
        "doubted",
        "generation",
        "leave_now",
        "look_at",
        "nonce",
        "ring",
        "rung",
        "since",
        "stands",
        "tries",
    )

    def __init__(self, nonce: str = "", again: Backoff = AGAIN) -> None:
        self.generation = fork.here()
        self.nonce = nonce or os.urandom(8).hex()  # L6  chosen before the first request
        self.look_at, self._again = 0.0, again
        self.rung = self.stands = self.doubt = False
        self.ring: Callable[[], object] = _nobody
        self.leave_now: Callable[[], object] = _nobody
        self.tries: Any = None
        self.doubted = ""  # the nonce of a turn before, of which nobody knows what it has
        self.came: tuple[str, Given] | None = None
        self._handoff_id, self._count, self.since = "", 0, 0.0
        self._watched: dict[str, float] = {}  # versions, and when each will be over unchanged
        self._named: set[str] = set()  # those of them that a request has named as over

    @property
    def ours(self) -> bool:
        """Whether this process took it."""
        return self.generation == fork.here()

    def hear(self, handoff_id: str = "", given: Given | None = None) -> None:
        """The store calls, or has let us in."""
        if given is not None:
            self.came = handoff_id, given
        self.rung = True
        self.ring()

    def next_handoff_id(self) -> str:
        """For the next request."""
        self._count += 1
        return str(self._count)

    def stood(self, handoff_id: str, sent_at: float) -> None:
        """The request with this word was refused, and we stand in line."""
        self._handoff_id, self.since = handoff_id, sent_at

    def handed(self, terms: Terms, now: float) -> Given | None:
        """What has come, where it is certain to be ours: since `since`, at the latest."""
        came, self.came = self.came, None
        if came is None or self.doubt or came[0] != self._handoff_id:
            return None
        enough = terms.deadline(self.since) - now >= LEAST * terms.ttl
        return came[1] if enough else None

    def refused(self, answer: Refused, now: float, *, watch: bool = True) -> None:
        """When to look again.

        `watch`: leases without an end are watched; False where the store ends them by itself.
        """
        self.tries = None
        pause = NEAR if answer.ahead <= 1 else FAR * self._spread()
        if 0 < answer.ahead < CLOSE and not answer.holders:
            pause = ROOM  # who is called may be dead: who looks goes past, and the next is called
        if answer.look_in is not None:
            pause = min(pause, max(0.0, answer.look_in) + AFTER)
        self.look_at = now + pause
        if watch:
            self._watch(answer, now)

    def _spread(self) -> float:
        """About 1.0: each has its own, since nonces are random."""
        return 1.0 - SPREAD + 2 * SPREAD * int(self.nonce[:2], 16) / 255

    def _watch(self, answer: Refused, now: float) -> None:
        """L2  Leases whose end the store cannot tell: watched by our own clock, unchanged.

        All of them: one that is renewed must not hide another that is dead.
        """
        self._watched = {
            holder.version: self._watched.get(holder.version, now + holder.ttl + holder.delay)
            for holder in answer.holders
            if holder.ends_in is None
        }
        self._named &= set(self._watched)
        due = [over for version, over in self._watched.items() if version not in self._named]
        if due:  # one that was named, and is in all the same, is named again after the pause
            self.look_at = min(self.look_at, min(due) + AFTER)

    def gone(self, now: float) -> str | None:
        """The version that was seen unchanged for its whole ttl."""
        over = [version for version, end in self._watched.items() if now >= end]
        for version in over:
            if version not in self._named:
                self._named.add(version)
                return version
        return over[0] if over else None

    def failed(self, now: float) -> None:
        """The store gave no answer."""
        if self.tries is None:
            self.tries = self._again.pauses()
        self.look_at = now + next(self.tries)

    # ---- as a place in a queue (core/acquire.py)

    def leave(self) -> bool:
        """Give the place up. Never True: a grant comes as the answer to a request alone."""
        if self.stands and self.ours:
            self.stands = False
            self.leave_now()
        return False

    def undo(self) -> None:
        """Nothing came that is not in a hand."""


def _nobody() -> None:
    """In place of a wakeup while nobody sleeps."""
