"""One lock over several servers that know nothing of one another, as Redlock has it.

A grant is that of most of them, asked one behind the other. The first of their leases ends first:
so its holder's time counts from the first request. Played beside it is the rule that is known to be
bad: the time from the last request on, as where nobody subtracts what the requests have taken.
"""

from __future__ import annotations

from typing import Any

from lifehold.core.backend import Given, Refused, Renewal, Request
from lifehold.core.grant import Grant
from lifehold.core.value import replace
from lifehold.store.rules import LockState
from lifehold.store.waiter import Waiter
from lifehold.testing.simulate.outcome import SimulatedStore
from lifehold.testing.simulate.party import NodeProgram, WatchedStoreLock
from lifehold.testing.simulate.wire import NodeSite, RemoteBackend

SERVERS, MOST = 3, 2


class Servers(SimulatedStore):
    """A book of each name at each server. One message ends or prolongs it at all of them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.apart: list[dict[str, LockState]] = [{} for _ in range(SERVERS)]

    def _of(self, at: int, name: str) -> LockState:
        now = self.now()
        return self.apart[at].setdefault(name, self.book(name)).at(now, "", int(now * 1e6))

    def _all(self, name: str) -> list[LockState]:
        return [self._of(at, name) for at in range(SERVERS)]

    def _acquire(self, request: Any, sent: float) -> Given | Refused:
        at, asked = request
        return self._of(at, asked.name).acquire(asked)

    def _renew(self, many: tuple[Renewal, ...], sent: float) -> tuple[float, tuple[bool, ...]]:
        kept = tuple(sum(book.renew(one) for book in self._all(one.name)) >= MOST for one in many)
        return self.now(), kept

    def _release(self, name: str, nonce: str, sent: float) -> bool:
        found = [book.release(nonce) for book in self._all(name)]
        self.left(name, nonce)
        return any(found)

    def has(self, name: str, nonce: str) -> bool:
        return sum(
            any(each.nonce == nonce and each.ends_at > self.now() for each in book.holders)
            for book in self._all(name)
        ) >= MOST  # fmt: skip


class OfMost(RemoteBackend):
    """Each server in turn; what less than most have given is given back. `sent`: the last time."""

    sent = 0.0

    async def acquire(self, request: Request) -> Given | Refused:
        alone = replace(request, wait=False, fair=False, wakeup="")
        got: list[Given] = []
        for at in range(SERVERS):
            self.sent = self.node.now()
            answer = await self._ask("acquire", (at, alone))
            if isinstance(answer, Given):
                got.append(answer)
        if len(got) < MOST:
            await self.release(request.name, request.nonce)
            return answer if isinstance(answer, Refused) else Refused((), 0, None)
        given = max(got, key=lambda one: one.token or 0)
        self.store.granted(request, given)
        return given


class MostSite(NodeSite):
    def __init__(self, node: Any, store: Any, link: Any, *more: Any) -> None:
        super().__init__(node, store, link, *more)
        self.backend = remote = OfMost(node, store, link)
        self.swift = lambda _: remote


class OfMostParty(NodeProgram):
    """The time of a holder counts from the first request, as the engine counts it."""

    site_class = MostSite


class FromTheLast(WatchedStoreLock):
    def _grant(self, waiter: Waiter, answer: Given, sent_at: float) -> Grant:
        return super()._grant(waiter, answer, self.site.backend.sent)  # type: ignore[attr-defined]


class FromTheLastParty(OfMostParty):
    lock_class = FromTheLast
