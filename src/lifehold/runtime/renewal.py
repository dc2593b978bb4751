"""A leased grant kept alive by the heartbeat thread, outside of any event loop (L9).

Two appointments for each lease: its next renewal and, from the first one on, its deadline. So a
storage that does not answer cannot keep the loss from being told, and what one lease does to its
storage or its program does not delay the others: calls that may hang on a file server, and
callbacks, run in a thread of their own.
"""

from __future__ import annotations

import os

from ..core import events
from ..core.deadline import NEVER
from ..core.events import report
from ..core.grant import Unknown
from ..core.ports import is_far, is_joined, is_watched
from ..core.renew import RETRIES, RenewalSchedule, beat, concluded
from . import clock, fork, heartbeat, native, own_thread
from .blocking import BLOCKING, finish
from .loss import LostSignal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.deadline import Terms
    from ..core.grant import Grant, Lost
    from ..core.ports import Keeping, Together

AGAIN = 0.5  # seconds at most, between two questions behind callers of check()
FIRST, EACH = 0.5, 0.1  # of a heartbeat, by which the first and each other one comes earlier


class RenewedLease(RenewalSchedule):
    """A tenure and its appointments. Knows nothing of the `Lease` object, which may be dropped."""

    __slots__ = (
        "_ask_at",
        "_far",
        "_generation",
        "_joint",
        "_mechanism",
        "_name",
        "_strike_beat",
        "_strike_end",
        "beat_at",
        "lost",
        "signals",
    )

    def __init__(self, mechanism: Keeping, grant: Grant, terms: Terms, name: str) -> None:
        super().__init__(grant, terms, self._tell)
        self._mechanism, self._name = mechanism, name
        # Of whoever was granted it: a signal handler may have forked since, and we are its child.
        self._generation = next((part.generation for part in grant.handle), fork.here())
        self.lost: LostSignal | None = None
        self.signals: type[LostSignal] = LostSignal
        self._strike_beat = self._strike_end = _nothing
        self._joint: Together | None = mechanism.joint if is_joined(mechanism) else None
        self._far = self._joint is None and is_far(mechanism)
        self.beat_at = NEVER
        self._ask_at = 0.0  # before it nobody asks behind a caller

    def start(self) -> None:
        """Make the first appointment. Raises RuntimeError when there is no thread to be had."""
        if self._generation != fork.here():
            return  # L9  our parent keeps it
        began = self.deadline - (self.terms.ttl - self.terms.margin)
        self.beat_at = began + self.terms.heartbeat * (1.0 - self._earlier(FIRST, self.grant.mark))
        self._strike_beat = heartbeat.at(self.beat_at, self._beat)
        if self._joint is not None:
            self._joint.enter(self._mechanism, self)

    def _earlier(self, most: float, chance: str = "") -> float:
        """Of a beat, by which it comes before its time: never later (L8).

        Who began together would ask a store together for ever, ten thousand in the same instant.
        `chance`: random hex digits that are there already.
        """
        if self._joint is None:
            return 0.0
        return most * int(chance[-2:] or os.urandom(1).hex(), 16) / 255

    def stop(self) -> None:
        """It is released: no more renewals."""
        self.over = True
        self._strike_beat()
        self._strike_end()
        if self._joint is not None:
            self._joint.leave(self)

    def joins(self, until: float) -> bool:
        """Whether its next beat is due by then, and is taken back to go with another's renewal."""
        if self.over or self.beat_at > until:
            return False
        self._strike_beat()
        self._watch_end()
        return True

    def why_not(self) -> str | None:
        """Why the lease does not hold, None when it does. The deadline comes first, no I/O (L8)."""
        if not self.over and self._generation == fork.generation:
            self.late(clock.now())
        return self.reason

    def signal(self) -> LostSignal:
        """The one signal of the lease, made when it is first asked for."""
        fork.here()
        with fork.gate:
            if self.lost is None:
                mechanism = self._mechanism
                path, far = mechanism.watched if is_watched(mechanism) else (None, bool)
                self.lost = self.signals(self.holds, path, far)
            return self.lost

    def holds(self) -> bool:
        """Whether it holds, as far as one look can tell."""
        if (why := self.why_not()) is not None:
            self._set(why)  # whoever noticed it may not have come to that yet
            return False
        found: Lost | None = self._mechanism.check(self.grant)
        if found is not None and found.gone and not self.over:
            self.end(found.reason)
        why = self.why_not()  # L8  the look may have hung until after the deadline
        if why is not None:  # another thread may be telling it this very moment
            self._set(why)
        return found is None and why is None

    def verify(self) -> BaseException | None:
        """Renew now, by this thread. Why there was no answer, None when there was one.

        The beats go on as they were: one renewal too many disturbs nobody.
        """
        began, grant = clock.now(), self.grant
        answer: Any
        try:
            answer = finish(self._mechanism.renew(grant))
        except Exception as error:  # noqa: BLE001 - the storage failed: our deadline has not come
            answer = Unknown(grant.nonce, error)
        concluded(self, answer, began, clock.now())
        return answer.cause if isinstance(answer, Unknown) else None

    def ask(self) -> None:
        """Renew now, behind the caller, unless that is under way."""
        if clock.now() < self._ask_at or self.over or self._generation != fork.here():
            return
        self._ask_at = NEVER

        def work() -> None:
            try:
                self.verify()
            finally:
                self._ask_at = clock.now() + min(AGAIN, self.terms.heartbeat * EACH)

        heartbeat.apart(work)

    def remaining(self) -> float:
        """Seconds that we may still rely on."""
        return max(0.0, self.deadline - clock.now())

    # ---- in the heartbeat thread

    def _beat(self) -> None:
        self._watch_end()
        if self._joint is not None:
            self._joint.add(self._mechanism, self)
        elif self._far:
            heartbeat.apart(self.renew)
        else:
            self.renew()

    def _watch_end(self) -> None:
        if self._strike_end is _nothing:  # before the first renewal, which may hang
            self._strike_end = heartbeat.at(self.deadline, self._due)

    def renew(self) -> None:
        """One renewal; the next one comes whatever this one raises."""
        at = clock.now() + self.terms.heartbeat / RETRIES
        try:
            at = finish(beat(self._mechanism, BLOCKING, self))
        finally:
            self.again(at)

    def take(self, answer: Grant | Lost | Unknown, began: float) -> None:
        """What came of a renewal that was sent at `began`, just now."""
        now = clock.now()
        at = now + self.terms.heartbeat / RETRIES
        try:
            at = concluded(self, answer, began, now)
        finally:
            self.again(at)

    def again(self, at: float) -> None:
        """The next beat."""
        self._strike_beat()  # of two renewals at once one goes on
        if at < NEVER and not self.over:
            self.beat_at = at = at - self._earlier(EACH) * max(0.0, at - clock.now())
            self._strike_beat = heartbeat.at(at, self._beat)
            if self.is_over():  # released meanwhile, and its strike came too early
                self._strike_beat()

    def _due(self) -> None:
        """The deadline of some time ago: lost, unless there was a renewal since."""
        if not self.over and not self.late(clock.now()):
            self._strike_end = heartbeat.at(self.deadline, self._due)
            if self.is_over():
                self._strike_end()

    def _tell(self, reason: str) -> None:
        if own_thread.is_here():  # it has more to do, and callbacks may take their time
            heartbeat.apart(lambda: self._set(reason))
        else:
            self._set(reason)

    def _set(self, reason: str) -> None:
        lost = events.Lost(self._name, self.grant.nonce, reason)
        self.signal().set(reason, first=lambda: events.tell(lost))


def _nothing() -> None:
    """No appointment has been made."""


# ------------------------------------------------------------------------------------------------
# Leases that are renewed together: a thousand to a round trip.
#
# Promise: a renewal takes along every lease of its store whose own beat is not far off; those that
# went together fall due together from then on. So a process that holds ten thousand leases sends
# some ten requests per heartbeat, not ten thousand.


CHUNK = 1000  # leases to a round trip, at most
ALIKE = 4.0  # times the shortest heartbeat, that goes with it
NEAR = 0.5  # of a heartbeat, that a beat is brought forward at most


class BatchRenewal:
    """The renewals of one store. `apart`: in a thread of their own, since the store may hang.

    `chunk`: leases to a round trip, at most.
    """

    __slots__ = ("_all", "_due", "_mutex", "_works", "apart", "chunk")

    def __init__(self, *, apart: bool, chunk: int = CHUNK) -> None:
        self.apart, self.chunk = apart, chunk
        self._mutex = native.allocate_lock()
        self._all: dict[RenewedLease, Any] = {}
        self._due: list[tuple[Any, RenewedLease]] = []
        self._works = False

    def enter(self, mechanism: object, kept: RenewedLease) -> None:
        """A lease that is to be kept."""
        self._all[kept] = mechanism

    def leave(self, kept: RenewedLease) -> None:
        """It is kept no more."""
        self._all.pop(kept, None)

    def add(self, mechanism: object, kept: RenewedLease) -> None:
        """The beat of a lease is due. By the heartbeat thread."""
        with self._mutex:
            self._due.append((mechanism, kept))
            if self._works:
                return
            self._works = True
        if self.apart:
            heartbeat.apart(self._work)
        else:
            self._work()

    def _work(self) -> None:
        try:
            self._rounds()
        except BaseException:
            self._works = False  # else nobody would renew any more
            raise

    def _rounds(self) -> None:
        while True:
            with self._mutex:
                due = {kept: lock for lock, kept in self._due}
                self._due.clear()
                if not due:
                    self._works = False
                    return
            self._join(due)
            for together in self._alike(due):
                for at in range(0, len(together), self.chunk):
                    self._renew(together[at : at + self.chunk])

    def _alike(self, due: dict[RenewedLease, Any]) -> Iterator[list[tuple[Any, RenewedLease]]]:
        """Those with heartbeats of about one length: the shortest says how long all may wait."""
        together: list[tuple[Any, RenewedLease]] = []
        for kept in sorted(due, key=lambda kept: kept.terms.heartbeat):
            if together and kept.terms.heartbeat > ALIKE * together[0][1].terms.heartbeat:
                yield together
                together = []
            together.append((due[kept], kept))
        if together:
            yield together

    def _join(self, due: dict[RenewedLease, Any]) -> None:
        """Take those along whose beat is not far off."""
        now = clock.now()
        for kept, lock in self._all.copy().items():
            if kept.over:
                self.leave(kept)
            elif kept not in due and kept.joins(now + kept.terms.heartbeat * NEAR):
                due[kept] = lock

    def _renew(self, chunk: list[tuple[Any, RenewedLease]]) -> None:
        began = clock.now()
        chunk = [(lock, kept) for lock, kept in chunk if not kept.over and not kept.late(began)]
        if not chunk:
            return
        asked = [(lock, kept.grant) for lock, kept in chunk]
        try:
            answers = finish(chunk[0][0].renew_many(asked))
        except BaseException as error:  # noqa: BLE001 - the store failed: no deadline has come
            answers = [Unknown(grant.nonce, error) for _, grant in asked]
        for (_, kept), answer in zip(chunk, answers, strict=True):
            try:
                kept.take(answer, began)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the others go on
                report(error)
