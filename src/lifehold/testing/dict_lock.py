"""A lock in a dict.

The reference of what a mechanism is, in the fewest lines, and a lease with a ttl.

Promise: exclusive or shared among the threads and tasks of one process; tokens that grow; with
`terms` a grant that ends by itself, prolonged by `renew`. It has neither a queue nor an event: it
waits by `Backoff`. Its answers can be made to fail: the outcome is then Unknown (L6). Rule: every
step happens under the mutex of the dict and looks at the nonce (L5); a ticket that is garbage takes
itself out. Nothing survives the process, and a forked child starts with an empty dict.

    from lifehold.testing.dict_lock import MemoryLocks

    registry.offer("memory", MemoryLocks().lock)
    Lock("any name", kind="memory")
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from ..core.deadline import Backoff
from ..core.fence import next_token
from ..core.grant import Grant, Held, Holder, Lost, Unknown
from ..core.value import replace
from ..runtime import clock, fork, process

if TYPE_CHECKING:
    from ..core.acquire import Ask
    from ..core.deadline import Terms
    from ..core.owner import Owner
    from ..core.ports import Runtime


class MemoryEntry:
    """What is known of one name. The token stays when the holders go (L4)."""

    def __init__(self) -> None:
        self.token = 0
        self.exclusive = False
        self.holders: dict[str, tuple[float, Owner, float]] = {}  # nonce: ends at, who, UTC seconds

    def look(self, now: float) -> None:
        """Forget whose time is over (L2: by the one clock that everybody here shares)."""
        for nonce in [n for n, (ends_at, _, _) in self.holders.items() if ends_at <= now]:
            del self.holders[nonce]


class MemoryLocks:
    """All locks of one kind. `broken`.

    An exception for the next request, whose outcome stays unknown.
    """

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.mutex = threading.RLock()  # reentrant: a ticket may be collected at any instant
        self.places: dict[str, MemoryEntry] = {}
        fork.in_child(self._forget)

    def _forget(self) -> None:
        self.mutex = threading.RLock()
        self.places = {}

    def lock(self, path: str, runtime: Runtime, **options: Any) -> MemoryLock:
        """The mechanism of one name: what the registry calls."""
        return MemoryLock(self, path, runtime, **options)

    lock.leased = True  # type: ignore[attr-defined]  # it takes `terms`

    def place(self, path: str) -> MemoryEntry:
        return self.places.setdefault(path, MemoryEntry())

    def lose(self, path: str) -> None:
        """Take a lock from whoever holds it."""
        with self.mutex:
            self.place(path).holders.clear()


class _Ticket:
    """The part of a grant whose owner holds the lock."""

    def __init__(self, locks: MemoryLocks, path: str, nonce: str) -> None:
        self.locks, self.path, self.nonce = locks, path, nonce
        self.generation = fork.generation

    def give_back(self) -> bool:
        """Whether it was still there."""
        with self.locks.mutex:
            return self.locks.place(self.path).holders.pop(self.nonce, None) is not None

    def __del__(self) -> None:
        if self.generation == fork.generation:
            self.give_back()


class MemoryLock:
    """The mechanism (core/ports.py)."""

    def __init__(
        self,
        locks: MemoryLocks,
        path: str,
        runtime: Runtime,
        *,
        exclusive: bool = True,
        label: str = "",
        terms: Terms | None = None,
        backoff: Backoff | None = None,
        **_: Any,
    ) -> None:
        self.locks, self.path, self.runtime = locks, path, runtime
        self.exclusive, self.label, self.terms = exclusive, label, terms
        self.backoff = backoff or Backoff()

    def attempt(self) -> Grant | Held | Unknown:
        nonce = os.urandom(12).hex()  # L6  chosen before the request
        with self.locks.mutex:
            sent_at, place = self.runtime.now(), self.locks.place(self.path)
            place.look(sent_at)
            if place.holders and (self.exclusive or place.exclusive):
                return Held(key=self.path)
            place.exclusive = self.exclusive
            stamp = clock.utc_ns()
            if self.exclusive:
                place.token = next_token(place.token, 0, stamp // 1000)
            owner = process.here(self.label)
            ends_at = float("inf") if self.terms is None else sent_at + self.terms.ttl
            place.holders[nonce] = ends_at, owner, stamp / 1e9
            ticket, token = _Ticket(self.locks, self.path, nonce), place.token or None
        broken, self.locks.broken = self.locks.broken, None
        if broken is not None:
            ticket.generation = -1  # the answer is lost on its way back, so nobody lets go
            return Unknown(nonce, broken)
        why = None if token else "no exclusive holder has been here yet"
        # L8  A margin before the instant at which it is forgotten here.
        deadline = self.terms.deadline(sent_at) if self.terms else None
        return Grant(self.path, nonce, token, why, stamp, self.path, [ticket], deadline)

    async def try_acquire(self, ask: Ask) -> Grant | Held | Unknown:
        return self.attempt()

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        """One pause and one try."""
        if ask.slot is None:
            ask.slot = self.backoff.pauses()
        pause = min(next(ask.slot), until - self.runtime.now())
        if pause > 0:
            await self.runtime.sleep(pause)
        return self.attempt()

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        with self.locks.mutex:
            lost = self.check(grant)
            if lost is not None:
                return lost
            if self.terms is None:
                return grant
            now, holders = self.runtime.now(), self.locks.place(self.path).holders
            holders[grant.mark] = now + self.terms.ttl, *holders[grant.mark][1:]
        return replace(grant, deadline=self.terms.deadline(now))

    def check(self, grant: Grant) -> Lost | None:
        for ticket in grant.handle:
            if ticket.generation != fork.generation:
                return Lost("it belongs to the parent process")
            if grant.deadline is not None and grant.deadline <= self.runtime.now():
                return Lost("its ttl has passed", gone=True)
            if grant.mark not in self.locks.place(self.path).holders:
                return Lost("it was taken away", gone=True)
            return None
        return Lost("released already")

    def drop(self, grant: Grant) -> Lost | None:
        for ticket in grant.handle:
            if ticket.generation != fork.generation:
                return Lost("it belongs to the parent process")
        try:
            ticket = grant.handle.pop()
        except IndexError:
            return Lost("released already")
        return None if ticket.give_back() else Lost("it was taken away", gone=True)

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def taken(self) -> bool:
        return self.inspect() is not None

    def inspect(self, *, held: bool = False) -> Holder | None:
        with self.locks.mutex:
            place = self.locks.place(self.path)
            place.look(self.runtime.now())
            for mark, (_, owner, since) in place.holders.items():
                evidence, lock = "it is in this very process", f"{self.path} (in memory)"
                token, nonce = place.token or None, f"{mark}-{place.token}"
                return Holder(owner, since, "alive", evidence, token, nonce, lock)
        return None
