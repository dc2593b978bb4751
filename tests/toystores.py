"""Two stores as engines without SQL are: what the contract says of them is shown on these.

`Table` is a service of items with compare-and-set (DynamoDB): two round trips to a question, no
clock, nobody is called. `Session` ends leases by itself and tells no end (etcd, ZooKeeper): its
ttl is negotiated, a watched version proves nothing, a question takes few renewals, and one of its
shards may be away.
"""

from __future__ import annotations

import os
import threading

from lifehold.core.backend import FAR, Given, NoReply, Refused, Traits
from lifehold.core.value import replace
from lifehold.store.memory import Memory
from lifehold.store.rules import LockState
from lifehold.store.site import Site


class Table:
    """Items with versions, as the service keeps them."""

    def __init__(self):
        self.items, self.mutex, self.asked = {}, threading.Lock(), 0

    def get(self, name):
        self.asked += 1
        with self.mutex:
            return self.items.get(name, (0, None))

    def put(self, name, version, item):
        """Whether nobody else has changed it meanwhile."""
        self.asked += 1
        with self.mutex:
            if self.items.get(name, (0, None))[0] != version:
                return False
            self.items[name] = version + 1, item
            return True


class Silent:
    """No event reaches a waiter."""

    def listen(self, nonce, wake):
        return ""

    def forget(self, nonce):
        pass


class TableStore:
    """The rules of the reference, on an item of a table."""

    traits = Traits(
        FAR,
        round_trips=2,
        lacks={
            "clock": "the service tells no time",
            "queue": "a place in line dies by a clock, and there is none",
            "calls": "the service calls nobody",
            "audit": "the table has no place for it",
        },
    )

    def __init__(self, table=None):
        self.table = table or Table()

    def _step(self, name, work):
        while True:
            version, text = self.table.get(name)
            state = LockState(name) if text is None else LockState.read(name, text)
            state.at(0.0, os.urandom(4).hex(), 0)  # no instant can be compared with another
            answer = work(state)
            if self.table.put(name, version, state.text()):
                return answer

    async def acquire(self, request):
        return self._step(request.name, lambda state: state.acquire(request))

    async def renew(self, many):
        return None, tuple(self._step(one.name, lambda s, one=one: s.renew(one)) for one in many)

    async def release(self, name, nonce):
        return self._step(name, lambda state: state.release(nonce))

    async def look(self, names, prefix=""):
        found = names if names is not None else sorted(self.table.items)
        texts = {name: self.table.get(name)[1] for name in found if name.startswith(prefix)}
        states = [LockState.read(name, text) for name, text in texts.items() if text is not None]
        return tuple(state.at(0.0, "now", 0).state() for state in states)

    async def order(self, order):
        known = order.name in self.table.items
        before = self._step(order.name, lambda state: state.order(order))
        return before if known else None

    async def ground(self):
        return ("a toy: a table of items with compare-and-set",)


class SessionStore(Memory):
    """Memory whose leases end by themselves. `longest`: seconds of ttl that it gives at most."""

    traits = Traits(
        FAR,
        chunk=2,
        ends_leases=True,
        lacks={"lock_delay": "a lease that is over is gone at once", "audit": "nobody notes it"},
    )
    longest = 40.0
    away = ""  # the name whose shard gives no answer

    async def acquire(self, request):
        ttl = min(request.ttl, self.longest)
        answer = await super().acquire(replace(request, gone=None, ttl=ttl))
        if isinstance(answer, Given):
            return replace(answer, ttl=ttl, now=None)
        holders = tuple(map(self._shown, answer.holders))
        return Refused(holders, answer.ahead, None, answer.capacity)

    async def renew(self, many):
        assert len(many) <= self.traits.chunk
        shorter = [replace(one, ttl=min(one.ttl, self.longest)) for one in many]
        _, kept = await super().renew(shorter)
        lost = NoReply("its shard is away")
        return None, tuple(
            lost if one.name == self.away else was for one, was in zip(many, kept, strict=True)
        )

    async def look(self, names, prefix=""):
        found = await super().look(names, prefix)
        return tuple(replace(s, holders=tuple(map(self._shown, s.holders))) for s in found)

    @staticmethod
    def _shown(holder):
        """No end is told, and a keepalive changes no version."""
        return replace(holder, ends_in=None, version=holder.nonce)


def table(url="toy-table://", **_):
    return Site(url, TableStore(), Silent())


def session(url="toy-session://", **_):
    backend = SessionStore()
    return Site(url, backend, backend)
