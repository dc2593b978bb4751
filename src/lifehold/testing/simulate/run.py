"""One run: a scenario, a seed, and what is under test; from it the outcome.

    outcome = simulate(Scenario(ttl=10, pause=12, pause_every=300), seed=7)
    assert not outcome.counts.get("GUARDED LOST")
    assert outcome.digest == simulate(Scenario(ttl=10, pause=12, pause_every=300), seed=7).digest

Promise: the same scenario, seed and faults give the same outcome, to the byte. `faults=` replaces
those that the seed makes, so a run can be played again with fewer of them (`shrunk`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runtime import clock
from .judge import SimulationJudge
from .node import Node
from .outcome import SHIPPED, Outcome, Subject
from .scenario import Fault, Scenario, checked, schedule
from .wire import NetworkLink, NodeWakeups
from .world import SimulatedWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...core.backend import Given, Request
    from ..history import Turn
    from .party import NodeProgram
    from .people import SimulatedHolder

STORE_DRIFTS = 0.5  # the part of the drift that the store's clock may have


class SimulationRun:
    """One run under way."""

    def __init__(
        self,
        plan: Scenario,
        seed: int,
        subject: Subject = SHIPPED,
        faults: Sequence[Fault] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.plan, self.seed, self.subject = subject.adapt(checked(plan)), seed, subject
        self.world = SimulatedWorld(seed, keep=keep)
        chance = self.world.chance("machines")
        drift = self.plan.drift
        self.vault = subject.vault(self.world, 1 + chance.uniform(-1, 1) * drift * STORE_DRIFTS)
        self.bells: dict[str, NodeWakeups] = {}
        self.vault.ring, self.vault.hand = self._ring, self._hand
        self.judge = SimulationJudge(self.world, self.vault, self.bells, self.plan)
        self.data = subject.data(self.judge.wrong)
        self.nodes = [
            Node(
                self.world,
                f"n{number}",
                1 + chance.uniform(-1, 1) * drift,
                chance.uniform(-1, 1) * self.plan.skew,
            )
            for number in range(self.plan.nodes)
        ]
        self.links = [NetworkLink(node, self.plan) for node in self.nodes]
        for node, link in zip(self.nodes, self.links, strict=True):
            NodeWakeups(node, link, self.bells)
        self.parties: list[NodeProgram] = []
        self.faults = (
            schedule(self.plan, self.world.chance("faults")) if faults is None else list(faults)
        )
        self.pauses = self.lost = self.crashes = 0

    def _ring(self, bell: str) -> None:
        node, _, nonce = bell.partition(":")
        self.judge.called(nonce)
        self.bells[node].call(nonce)

    def _hand(self, asked: Request, given: Given) -> None:
        node, _, nonce = asked.wakeup.partition(":")
        self.bells[node].call(nonce, asked.handoff_id, given)

    def _begin(self, number: int) -> None:
        node = self.nodes[number]
        party = self.subject.party(
            self.world,
            node,
            self.links[number],
            self.bells[node.name],
            self.vault,
            self.data,
            self.judge,
            self.plan,
        )
        self.parties[number : number + 1] = [party]
        node.spawn(party.work())

    def play(self) -> Outcome:
        """To its end."""
        began = clock.now()
        for fault in self.faults:
            self.world.at(fault.at, lambda fault=fault: self._happens(fault))  # type: ignore[misc]
        for number in range(len(self.nodes)):
            self._begin(number)
        self.world.run(self.plan.seconds)
        history = self.judge.read()
        for party, node in zip(self.parties, self.nodes, strict=True):
            party.site.bury()
            node.crash()
        return self._outcome(history, clock.now() - began)

    # ---- faults

    def _happens(self, fault: Fault) -> None:
        self.world.log(f"fault: {fault}")
        if fault.node < 0:
            self.judge.store_troubles += 1
            getattr(self, f"_{fault.kind}")(fault)
        else:
            node = self.nodes[fault.node]
            node.troubles += 1
            getattr(self, f"_{fault.kind}")(fault, node)

    def _over(self, node: Node, fault: Fault, act: Callable[[], None]) -> None:
        def over() -> None:
            node.troubles += 1
            self.world.log(f"over: {fault.kind} of {node.name}")
            act()

        self.world.after(fault.length, over)

    def _pause(self, fault: Fault, node: Node) -> None:
        met = [holder for holder in self.judge.held_by(node) if holder.believes()]
        node.pause()

        def wake() -> None:
            alive = [holder for holder in met if holder.life.alive]
            self.pauses += len(alive)
            self.lost += sum(not self._has(holder) for holder in alive)
            self.judge.look_at(node)
            node.wake()

        self._over(node, fault, wake)

    def _has(self, holder: SimulatedHolder) -> bool:
        """Whether it holds the lock: it believes so, and the store does."""
        return holder.believes() and self.vault.has(holder.name, holder.tenure.grant.mark)

    def _freeze(self, fault: Fault, node: Node) -> None:
        node.stop_clock()
        self._pause(fault, node)
        self._over(node, fault, node.start_clock)

    def _crash(self, fault: Fault, node: Node) -> None:
        if not node.life.alive:
            return  # it is down already
        if self.judge.held_by(node):
            self.crashes += 1
        self.judge.crashed(node)
        self.parties[fault.node].site.bury()
        node.crash()

        def restart() -> None:
            node.restart()
            self._begin(fault.node)

        self._over(node, fault, restart)

    def _cut(self, fault: Fault, node: Node) -> None:
        node.cuts_in += 1
        node.cuts_out += 1

        def heal() -> None:
            node.cuts_in -= 1
            node.cuts_out -= 1

        self._over(node, fault, heal)

    def _cut_in(self, fault: Fault, node: Node) -> None:
        node.cuts_in += 1
        self._over(node, fault, lambda: setattr(node, "cuts_in", node.cuts_in - 1))

    def _cut_out(self, fault: Fault, node: Node) -> None:
        node.cuts_out += 1
        self._over(node, fault, lambda: setattr(node, "cuts_out", node.cuts_out - 1))

    def _cancel(self, fault: Fault, node: Node) -> None:
        waiting = self.parties[fault.node].waiting
        if node.life.alive and not node.pauses and waiting is not None:
            waiting.cancel()

    def _step(self, fault: Fault) -> None:
        self.vault.step_clock(fault.size)

    def _failover(self, fault: Fault) -> None:
        """First the copy stops, then the server, then the standby is there."""
        if self.vault.down:
            return
        self.vault.copy_stops()

        def dies() -> None:
            self.vault.down = True

        def stands() -> None:
            self.vault.fail_over(self.vault.offset + fault.size)
            self.judge.failed_over()
            self.world.log("over: failover")

        self.world.after(fault.length - self.plan.outage, dies)
        self.world.after(fault.length, stands)

    # ---- the outcome

    def _outcome(self, history: Mapping[str, tuple[Turn, ...]], wall: float) -> Outcome:
        judge, network = self.judge, dict.fromkeys(self.links[0].counts, 0)
        for link in self.links:
            for what, count in link.counts.items():
                network[what] += count
        asked = ", ".join(f"{count} {what}" for what, count in self.vault.commands.items())
        self.world.log(f"end: {judge.grants} grants; asked of the store: {asked}")
        return Outcome(
            self.plan,
            self.seed,
            self.subject.name,
            self.world.digest,
            self.world.events,
            judge.grants,
            dict(judge.counts),
            tuple(judge.found),
            tuple(self.faults),
            self.pauses,
            self.lost,
            judge.lost,
            self.crashes,
            tuple(sorted(judge.recoveries)),
            tuple(sorted(judge.waits)),
            dict(judge.turns),
            dict(self.vault.commands),
            sum(bells.rung for bells in self.bells.values()),
            dict(self.data.counts),
            network,
            history,
            tuple(self.world.lines),
            wall,
        )


def simulate(
    plan: Scenario,
    seed: int = 1,
    subject: Subject = SHIPPED,
    faults: Sequence[Fault] | None = None,
    *,
    keep: bool = False,
) -> Outcome:
    """Play one run. `keep`: all lines of its log, and not the last few hundred."""
    return SimulationRun(plan, seed, subject, faults, keep=keep).play()
