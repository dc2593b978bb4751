"""What runs on a node: the program that uses a lock as the pages say, again and again.

Think, acquire, show the token to the data and read, work, look at the lease in half of the turns,
write, release. It drives the shipped `core.acquire.acquire`, `StoreLock`, and `core.renew.keep`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.acquire import Ask, acquire
from ...core.deadline import NEVER
from ...core.errors import StoreUnavailable
from ...core.grant import Grant, Held
from ...core.owner import Owner
from ...core.renew import Tenure, keep
from ...store.engine import StoreLock
from .judge import Holder
from .node import NodeRuntime
from .wire import NodeSite
from .world import Cancelled, Gone, Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from .data import Data, Sight
    from .judge import Judge
    from .node import Node
    from .scenario import Scenario
    from .vault import Vault
    from .wire import Bells, Link
    from .world import Task, World

PAUSE = 1.0  # seconds after an error, on the average
ROUNDS = 3  # writes in a turn, at most


class Watched(StoreLock):
    """The engine as it is; that a renewal has come is noted, after it was believed."""

    judge: Judge

    async def renew(self, grant: Grant) -> Any:
        answer = await super().renew(grant)
        self.judge.world.after(0.0, lambda: self.judge.renewed(self.name, grant.nonce))
        return answer


class Party:
    """One node's process, from its start to its crash."""

    lock_class: type[Watched] = Watched
    tenure_class: type[Tenure] = Tenure
    site_class: type[NodeSite] = NodeSite

    def __init__(
        self, world: World, node: Node, link: Link, bells: Bells, vault: Vault, data: Data,
        judge: Judge, plan: Scenario,
    ) -> None:  # fmt: skip
        self.world, self.node, self.link, self.plan = world, node, link, plan
        self.data, self.judge = data, judge
        bells.clear()
        owner = Owner(pid=1, host=node.name)
        self.site = self.site_class(node, vault, link, bells, owner)
        self.runtime: Any = NodeRuntime(node)
        self.waiting: Task | None = None
        self.locks = [self._lock(name) for name in self.names()]

    def names(self) -> list[str]:
        """Of the locks that it uses."""
        return [f"name-{number}" for number in range(self.plan.names)]

    def _lock(self, name: str) -> Watched:
        lock = self.lock_class(self.site, name, self.runtime, self.plan.terms)
        lock.judge = self.judge
        return lock

    async def work(self) -> None:
        """Until its process ends."""
        chance, plan = self.node.chance, self.plan
        while True:
            await self.runtime.sleep(chance.expovariate(1 / plan.think) if plan.think else 0.0)
            lock = chance.choice(self.locks)
            asked_at = self.world.now
            self.waiting = self.node.spawn(self._acquired(lock), awaited=True)
            got = await self.waiting.done
            self.waiting = None
            if isinstance(got, Grant):
                await self._turn(lock, got, asked_at)
            else:
                await self.runtime.sleep(chance.expovariate(1 / PAUSE))

    async def _acquired(self, lock: Watched) -> Grant | Held | None:
        plan = self.plan
        until = NEVER if plan.patience is None else self.runtime.now() + plan.patience
        try:
            got: Any = await acquire(lock, self.runtime, Ask(lock.name, until))
        except StoreUnavailable:
            self.world.log(f"{self.node.name} finds no store")
            return None
        except Cancelled:
            self.world.log(f"{self.node.name} is cancelled")
            return None
        return got if isinstance(got, Grant) else None

    async def _turn(self, lock: Watched, grant: Grant, asked_at: float) -> None:
        """Hold it, work, let it go."""
        serial = self.judge.serial(grant.mark, grant.token)
        tenure = self.tenure_class(grant, lock.terms, lambda _: None)
        holder = Holder(self.node, lock, tenure, serial, asked_at)
        self.world.log(f"{self.node.name} holds {lock.name} by grant {serial}")
        self.judge.entered(holder)
        self.node.spawn(keep(lock, self.runtime, tenure))
        for _ in range(self.node.chance.randint(1, ROUNDS)):
            if not await self._change(holder):
                break
        self.judge.leaves(holder)
        tenure.over = True  # as a lease does that is released: no more renewals
        ending = lock.release(tenure.grant)
        holder.over = True
        await ending
        self.world.log(f"{self.node.name} let go of grant {serial}")

    async def _change(self, holder: Holder) -> bool:
        """Read, work, write. False: there was no answer, or the lease is lost."""
        chance, plan, name = self.node.chance, self.plan, holder.name
        token, serial = holder.tenure.grant.token, holder.serial
        seen: Sight | None = await self._far(lambda: self.data.read(name, token, serial))
        if seen is None:
            return False
        await self.runtime.sleep(chance.expovariate(1 / plan.hold))
        asked = chance.random() < 0.5
        if asked:
            self.judge.look(name)
            if not holder.believes():
                return False
            await self.runtime.sleep(plan.gap)
        sight = seen

        def write() -> bool:
            self.data.write(name, token, serial, sight, asked)
            return True

        return bool(await self._far(write)) and not holder.tenure.over

    async def _far(self, act: Callable[[], Any]) -> Any:
        """One request to the data. None: no answer came in time.

        Links to the data are not cut with those to the store: a holder that the store has given up
        can write, which is the worst case.
        """
        node, link, life, answer = self.node, self.link, self.node.life, Pending()
        if not life.alive:
            raise Gone

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
