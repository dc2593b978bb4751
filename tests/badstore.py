"""A store that loses requests and answers, and locks over it."""

from __future__ import annotations

from lifehold.aio import AsyncReadWriteLock
from lifehold.core.backend import NoReply, Unreachable
from lifehold.core.deadline import terms
from lifehold.lock import Lock, fill
from lifehold.runtime.blocking import BLOCKING, finish
from lifehold.runtime.eventloop import EVENT_LOOP
from lifehold.shapes import ReadWriteLock
from lifehold.store.engine import StoreLock
from lifehold.store.memory import Memory
from lifehold.store.site import Site
from lifehold.stores import LeaseStoreFace

METHODS = ("acquire", "renew", "release", "look", "order", "ground")


class Bad:
    """A store's backend, and what goes wrong at which request.

    {number: "lost", "unsent", or "interrupted" by Ctrl-C before it is sent}.
    """

    prompt = True

    def __init__(self, memory, wrong=None):
        self.memory, self.wrong, self.count = memory, wrong or {}, 0
        self.asked, self.given = [], []

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(name)

        async def call(*given):
            self.count += 1
            self.asked.append(name)
            self.given.append(given)
            wrong = self.wrong.get(self.count) or self.wrong.get("all")
            if wrong == "unsent":
                raise Unreachable("no route")
            if wrong == "interrupted":
                raise KeyboardInterrupt
            answer = await getattr(self.memory, name)(*given)
            if wrong == "lost":
                raise NoReply("connection reset")
            return answer

        return call


def store_of(wrong=None, memory=None):
    memory = memory or Memory()
    backend = Bad(memory, wrong)
    return Site("test://", backend, memory), backend, memory


def lock_of(site, name="x", wait=None, ttl=30.0, **shape):
    made = StoreLock(site, name, BLOCKING, terms(ttl), **shape)
    lock = object.__new__(Lock)
    fill(lock, made.path, made, wait, None, None, False)
    return lock


def state_of(memory, name="x"):
    (found,) = finish(memory.look((name,)))
    return found


class Tasks(LeaseStoreFace):
    __slots__ = ()
    _runtime = EVENT_LOOP


def sides_of(site, *, tasks=False, name="x"):
    """A reader/writer lock."""
    leases = object.__new__(Tasks if tasks else LeaseStoreFace)
    leases._site, leases.ttl, leases.label = site, None, ""
    kind = AsyncReadWriteLock if tasks else ReadWriteLock
    return leases._pair(kind, name, {}, None, None, None, False)
