"""Leases that are renewed together: a thousand to a round trip.

Promise: a renewal takes along every lease of its store whose own beat is not far off; those that
went together fall due together from then on. So a process that holds ten thousand leases sends some
ten requests per heartbeat, not ten thousand.
"""

from __future__ import annotations

from ..core.events import report
from ..core.grant import Unknown
from ..core.renew import concluded
from . import clock, heartbeat, native
from .blocking import finish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tenure import Kept

CHUNK = 1000  # leases to a round trip, at most
NEAR = 0.5  # of a heartbeat, that a beat is brought forward at most


class Joint:
    """The renewals of one store. `apart`: in a thread of their own, since the store may hang."""

    __slots__ = ("_all", "_due", "_mutex", "_works", "apart")

    def __init__(self, *, apart: bool) -> None:
        self.apart = apart
        self._mutex = native.allocate_lock()
        self._all: dict[Kept, Any] = {}
        self._due: list[tuple[Any, Kept]] = []
        self._works = False

    def enter(self, mechanism: Any, kept: Kept) -> None:
        """A lease that is to be kept."""
        self._all[kept] = mechanism

    def leave(self, kept: Kept) -> None:
        """It is kept no more."""
        self._all.pop(kept, None)

    def add(self, mechanism: Any, kept: Kept) -> None:
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
            together = [(lock, kept) for kept, lock in due.items()]
            for at in range(0, len(together), CHUNK):
                self._renew(together[at : at + CHUNK])

    def _join(self, due: dict[Kept, Any]) -> None:
        """Take those along whose beat is not far off."""
        now = clock.now()
        for kept, lock in self._all.copy().items():
            if kept.over:
                self.leave(kept)
            elif kept not in due and kept.joins(now + kept.terms.heartbeat * NEAR):
                due[kept] = lock

    def _renew(self, chunk: list[tuple[Any, Kept]]) -> None:
        began = clock.now()
        chunk = [(lock, kept) for lock, kept in chunk if not kept.over and not kept.late(began)]
        if not chunk:
            return
        asked = [(lock, kept.grant) for lock, kept in chunk]
        try:
            answers = finish(chunk[0][0].renew_many(asked))
        except Exception as error:  # noqa: BLE001 - the store failed: no deadline has come
            answers = [Unknown(grant.nonce, error) for _, grant in asked]
        now = clock.now()
        for (_, kept), answer in zip(chunk, answers, strict=True):
            try:
                kept.again(concluded(kept, answer, began, now))
            except Exception as error:  # noqa: BLE001 - no thread to be had: the others go on
                report(error)
