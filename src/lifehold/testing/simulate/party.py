"""What runs on a node: the program that uses a lock as the pages say, again and again.

Think, acquire, show the token to the data and read, work, look at the lease in half of the turns,
write, release. A reader reads at the beginning and at the end of its turn; a writer may go on as a
reader. It drives the shipped `core.acquire.acquire`, `StoreLock`, and `core.renew.keep`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.acquire import Ask, acquire
from ...core.deadline import NEVER
from ...core.errors import StoreUnavailable
from ...core.grant import Grant, Held, Lost
from ...core.owner import Owner
from ...core.renew import RenewalSchedule, keep
from ...store.engine import StoreLock
from ..history import READ, WRITE
from .node import NodeRuntime
from .people import SimulatedHolder
from .shapes import READWRITE, SEMAPHORE, SIDES
from .wire import NodeSite
from .world import PendingEvent, ProcessGone, TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from .node import Node
    from .outcome import Data, ReadVersions, SimulatedStore
    from .run import SimulationJudge
    from .scenario import Scenario
    from .wire import NetworkLink, NodeWakeups
    from .world import SimulatedTask, SimulatedWorld

PAUSE = 1.0  # seconds after an error, on the average
ROUNDS = 3  # writes in a turn, at most


class WatchedStoreLock(StoreLock):
    """The engine as it is; that a renewal has come is noted, after it was believed."""

    judge: SimulationJudge

    async def renew(self, grant: Grant) -> Any:
        answer = await super().renew(grant)
        self.judge.world.after(0.0, lambda: self.judge.renewed(self.name, grant.nonce))
        return answer


class NodeProgram:
    """One node's process, from its start to its crash."""

    lock_class: type[WatchedStoreLock] = WatchedStoreLock
    tenure_class: type[RenewalSchedule] = RenewalSchedule
    site_class: type[NodeSite] = NodeSite

    def __init__(
        self,
        world: SimulatedWorld,
        node: Node,
        link: NetworkLink,
        wakeups: NodeWakeups,
        store: SimulatedStore,
        data: Data,
        judge: SimulationJudge,
        plan: Scenario,
    ) -> None:
        self.world, self.node, self.link, self.plan = world, node, link, plan
        self.data, self.judge = data, judge
        wakeups.clear()
        owner = Owner(pid=1, host=node.name)
        self.site = self.site_class(node, store, link, wakeups, owner)
        self.runtime: Any = NodeRuntime(node)
        self.waiting: SimulatedTask | None = None
        self.locks = [self._sides(name) for name in self.names()]

    def names(self) -> list[str]:
        """Of the locks that it uses."""
        return [f"name-{number}" for number in range(self.plan.names)]

    def _sides(self, name: str) -> tuple[WatchedStoreLock, ...]:
        """The lock, or the side of writers and that of readers."""
        if self.plan.shape == READWRITE:
            return self._lock(name, **SIDES[WRITE]), self._lock(name, **SIDES[READ])
        if self.plan.shape == SEMAPHORE:
            return (self._lock(name, capacity=self.plan.permits),)
        return (self._lock(name),)

    def _lock(self, name: str, **shape: Any) -> WatchedStoreLock:
        lock = self.lock_class(self.site, name, self.runtime, self.plan.terms, **shape)
        lock.judge = self.judge
        return lock

    def _chosen(self) -> WatchedStoreLock:
        """What it uses this time."""
        sides = self.node.chance.choice(self.locks)
        reads = len(sides) > 1 and self.node.chance.random() >= self.plan.writers
        return sides[reads]

    async def work(self) -> None:
        """Until its process ends."""
        chance, plan = self.node.chance, self.plan
        while True:
            await self.runtime.sleep(chance.expovariate(1 / plan.think) if plan.think else 0.0)
            lock = self._chosen()
            asked_at = self.world.now
            self.waiting = self.node.spawn(self._acquired(lock), awaited=True)
            got = await self.waiting.done
            self.waiting = None
            if isinstance(got, Grant):
                await self._turn(lock, got, asked_at)
            else:
                await self.runtime.sleep(chance.expovariate(1 / PAUSE))

    async def _acquired(self, lock: WatchedStoreLock) -> Grant | Held | None:
        plan = self.plan
        until = NEVER if plan.patience is None else self.runtime.now() + plan.patience
        try:
            got = await acquire(lock, self.runtime, Ask(lock.name, until))
        except StoreUnavailable:
            self.world.log(f"{self.node.name} finds no store")
            return None
        except TaskCancelled:
            self.world.log(f"{self.node.name} is cancelled")
            return None
        return got if isinstance(got, Grant) else None

    async def _turn(self, lock: WatchedStoreLock, grant: Grant, asked_at: float) -> None:
        """Hold it, work, let it go."""
        serial = self.judge.serial(grant.mark, grant.token)
        tenure = self.tenure_class(grant, lock.terms, lambda _: None)
        holder = SimulatedHolder(self.node, lock, tenure, serial, asked_at)
        self.world.log(f"{self.node.name} holds {lock.name} by grant {serial}")
        self.judge.entered(holder)
        self.node.spawn(keep(lock, self.runtime, tenure))
        await (self._looks(holder) if holder.what == READ else self._works(holder))
        self.judge.leaves(holder)
        tenure.over = True  # as a lease does that is released: no more renewals
        ending = lock.release(tenure.grant)
        holder.over = True
        await ending
        self.world.log(f"{self.node.name} let go of grant {serial}")

    async def _works(self, holder: SimulatedHolder) -> None:
        """Change what is locked, some times."""
        for _ in range(self.node.chance.randint(1, ROUNDS)):
            if not await self._change(holder):
                return
        if self.plan.shape == READWRITE and self.node.chance.random() < self.plan.downgrade:
            await self._reads_on(holder)

    async def _reads_on(self, holder: SimulatedHolder) -> None:
        """A writer becomes a reader. Without an answer too: others may read by now."""
        if holder.believes():
            self.judge.reads_on(holder, READ)
            if not isinstance(await self._read_on(holder), Lost):
                await self._looks(holder)

    async def _read_on(self, holder: SimulatedHolder) -> object:
        found = await holder.lock.lighten(holder.tenure.grant)
        self.world.log(f"{self.node.name} reads on: {type(found).__name__}")
        return found

    async def _looks(self, holder: SimulatedHolder) -> None:
        """Read, work, read again: it must be the same as long as it holds."""
        token, name = holder.tenure.grant.token, holder.fence
        seen: ReadVersions | None = await self._far(lambda: self.data.peek(name, token))
        await self.runtime.sleep(self.node.chance.expovariate(1 / self.plan.hold))

        def again() -> bool:
            sight = self.data.peek(name, token)
            if seen is not None and holder.believes():
                self.data.torn(name, seen, sight, holder.serial)
            return True

        if holder.believes():
            await self._far(again)

    async def _change(self, holder: SimulatedHolder) -> bool:
        """Read, work, write. False: there was no answer, or the lease is lost."""
        chance, plan, name = self.node.chance, self.plan, holder.fence
        token, serial = holder.tenure.grant.token, holder.serial
        seen: ReadVersions | None = await self._far(lambda: self.data.read(name, token, serial))
        if seen is None:
            return False
        await self.runtime.sleep(chance.expovariate(1 / plan.hold))
        asked = chance.random() < 0.5
        if asked:
            self.judge.look(holder.name)
            if not holder.believes():
                return False
            await self.runtime.sleep(plan.gap)
        sight = seen

        def write() -> bool:
            if self.data.write(name, token, serial, sight, asked):
                self.judge.chronicle.stored(holder)
            return True

        return bool(await self._far(write)) and not holder.tenure.over

    async def _far(self, act: Callable[[], object]) -> Any:
        """One request to the data. None: no answer came in time.

        Links to the data are not cut with those to the store: a holder that the store has given up
        can write, which is the worst case.
        """
        node, link, life, answer = self.node, self.link, self.node.life, PendingEvent()
        if not life.alive:
            raise ProcessGone

        def back(value: Any) -> None:
            if node.life is life:
                node.run(lambda: answer.set(value))

        def arrived() -> None:
            value = act()
            if not link.loses(0, "replies lost"):
                self.world.after(link.delay(), lambda: back(value))

        if not link.loses(0, "requests lost"):
            self.world.after(link.delay(), arrived)
        strike = node.alarm(node.now() + self.plan.timeout, answer.set)
        try:
            return await answer
        finally:
            strike()
