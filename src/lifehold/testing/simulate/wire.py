"""The network between a node and the store, and the backend that the library talks to over it.

Promise: a request, and each reply, takes a time of its own; either may be lost, so that the client
cannot know whether it was carried out (L6); a request may arrive twice, and the second time long
after its client has gone on. A cut link loses everything, in one direction or in both. Calls of the
store to its waiters are lost with the link, and not repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.backend import NoReply, Traits, Unreachable
from ...core.deadline import Backoff
from ...store.site import ClockDrift, Site
from ...store.waiter import AGAIN, Waiter
from .world import PendingEvent, ProcessGone

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ...core.backend import Given, Order, Refused, Renewal, Request, State
    from ...core.owner import Owner
    from ...store.engine import GrantInHand
    from .node import Node
    from .outcome import SimulatedStore
    from .scenario import Scenario


class NetworkLink:
    """What the network does to one node's messages. `counts`: what was lost or came twice."""

    def __init__(self, node: Node, scenario: Scenario) -> None:
        self.node, self.scenario = node, scenario
        self.chance = node.world.chance(f"link {node.name}")
        self.counts = {"requests lost": 0, "replies lost": 0, "twice": 0, "late": 0}

    def delay(self) -> float:
        """Seconds on the way: half the usual round trip, and now and then very long."""
        plan = self.scenario
        if plan.spike and self.chance.random() < plan.spike:
            self.counts["late"] += 1
            self.node.troubles += 1
            return self.chance.uniform(0.0, plan.spike_length)
        return plan.latency / 4 + self.chance.expovariate(4 / plan.latency)

    def loses(self, cut: int, what: str) -> bool:
        if cut or (self.scenario.loss and self.chance.random() < self.scenario.loss):
            self.counts[what] += 1
            self.node.troubles += 1
            return True
        return False

    def twice(self) -> bool:
        return bool(self.scenario.twice) and self.chance.random() < self.scenario.twice


class RemoteBackend:
    """The Backend (core/backend.py) as a node sees it."""

    traits = Traits()

    def __init__(self, node: Node, store: SimulatedStore, link: NetworkLink) -> None:
        self.node, self.store, self.link = node, store, link

    async def acquire(self, request: Request) -> Given | Refused:
        answer: Given | Refused = await self._ask("acquire", request)
        return answer

    async def renew(self, many: Sequence[Renewal]) -> tuple[float | None, tuple[bool, ...]]:
        answer: tuple[float | None, tuple[bool, ...]] = await self._ask("renew", tuple(many))
        return answer

    async def release(self, name: str, nonce: str) -> bool:
        answer: bool = await self._ask("release", name, nonce)
        return answer

    async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
        answer: tuple[State, ...] = await self._ask("look", tuple(names or ()))
        return answer

    async def order(self, order: Order) -> State | None:
        answer: State | None = await self._ask("order", order)
        return answer

    async def ground(self) -> tuple[str, ...]:
        return ("simulated: its clock, its standby and its network are those of the scenario",)

    async def _ask(self, op: str, *args: object) -> Any:
        """One round trip. Raises NoReply when no answer comes in time, Unreachable."""
        node, link, sent = self.node, self.link, self.node.now()
        if not node.life.alive:
            raise ProcessGone
        life, answer = node.life, PendingEvent()

        def arrived() -> None:
            if self.store.down:
                error = Unreachable("connection refused")
                node.world.after(link.delay(), lambda: back(None, error))
                return
            value = self.store.serve(op, args, sent)
            if not link.loses(node.cuts_in, "replies lost"):
                node.world.after(link.delay(), lambda: back(value, None))

        def again() -> None:
            if not self.store.down:
                self.store.serve(op, args, sent)

        def back(value: object, error: Exception | None) -> None:
            if node.life is life:
                node.run(lambda: answer.set(value, error))

        if not link.loses(node.cuts_out, "requests lost"):
            node.world.after(link.delay(), arrived)
            if link.twice():
                link.counts["twice"] += 1
                node.world.after(link.chance.uniform(0.0, link.scenario.twice_within), again)
        strike = node.alarm(
            sent + link.scenario.timeout, lambda: answer.set(None, NoReply("no answer in time"))
        )
        try:
            return await answer
        finally:
            strike()


class NodeWakeups:
    """The Rings of a node: the store's calls come over its link."""

    def __init__(self, node: Node, link: NetworkLink, wakeups: dict[str, NodeWakeups]) -> None:
        self.node, self.link = node, link
        self._wakeups: dict[str, Callable[..., object]] = {}
        self._disowned: dict[str, Callable[[], object]] = {}
        self.hands = link.scenario.hands
        self.rung = 0
        wakeups[node.name] = self

    def listen(self, nonce: str, ring: Callable[..., object]) -> str:
        self._wakeups[nonce] = ring
        return f"{self.node.name}:{nonce}"

    def disown(self, nonce: str, undo: Callable[[], object]) -> None:
        self._wakeups.pop(nonce, None)
        self._disowned[nonce] = undo

    def forget(self, nonce: str) -> None:
        self._wakeups.pop(nonce, None)

    def waits(self, nonce: str) -> bool:
        """Whether somebody of this node sleeps for it, and has not given up."""
        return nonce in self._wakeups

    def clear(self) -> None:
        """Its process has died."""
        self._wakeups.clear()
        self._disowned.clear()

    def call(self, nonce: str, *handed: object) -> None:
        """The store calls for this waiter, or has let it in."""
        if self.link.loses(self.node.cuts_in, "replies lost"):
            return

        def came() -> None:
            ring = self._wakeups.get(nonce)
            if ring is not None:
                self.rung += 1
                ring(*handed)
            elif handed and nonce in self._disowned:
                self._disowned.pop(nonce)()

        self.node.world.after(self.link.delay(), lambda: self.node.run(came))


class NodeSite(Site):
    """The store as one process of a node knows it: the same, but that its client can be awaited."""

    def __init__(
        self,
        node: Node,
        store: SimulatedStore,
        link: NetworkLink,
        wakeups: NodeWakeups,
        owner: Owner,
    ) -> None:
        # Not Site.__init__: what is asked of a real process at its fork and exit is not for a model
        self.url, self.wakeups, self.drift, self.reached = (
            "simulated://",
            wakeups,
            ClockDrift(),
            False,
        )
        self.backend = remote = RemoteBackend(node, store, link)
        self.traits = remote.traits
        self.swift = lambda _: remote
        self.joint: Any = None  # its leases are renewed by `keep`, one by one
        self.node, self.life, self.store, self._owner = node, node.life, store, owner
        self._held: list[GrantInHand] = []
        self.again = Backoff(AGAIN.first, AGAIN.longest, random=node.chance.random)

    def waiter(self) -> Waiter:
        return Waiter(f"{self.node.chance.getrandbits(64):016x}", self.again)

    def owner(self, label: str) -> Owner:
        return self._owner

    def hand_out(self, in_hand: GrantInHand) -> GrantInHand:
        self._held = [one for one in self._held if not one.spent]
        self._held.append(in_hand)
        return in_hand

    def bury(self) -> None:
        """Its process is dead: nothing is given back."""
        for claim in self._held:
            claim.spent = True

    def post(
        self, make: Callable[[RemoteBackend], Coroutine[object, None, object]], *, here: bool
    ) -> None:
        if self.life.alive:
            self.node.spawn(self._posted(make))

    def undo(self, name: str, nonce: str, ttl: float) -> None:
        self.post(lambda backend: backend.release(name, nonce), here=False)

    async def _posted(self, make: Callable[[Any], Coroutine[object, None, object]]) -> None:
        try:
            await make(self.backend)
        except (Unreachable, NoReply):
            return  # whatever it was to undo ends by itself

    def state(self, name: str) -> State | None:
        """A look for people: at once, and counted; nothing when the store is not to be reached."""
        if self.node.cuts_out or self.node.cuts_in or self.store.down:
            return None
        states = self.store.serve("look", ((name,),), self.node.now())
        return states[0] if states else None
