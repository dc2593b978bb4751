"""What many clients ask of a store: commands per second, for 10 to 100,000 of them.

Promise: `model` has no coroutines, only what a client does next, so 100,000 of them fit; its
pauses are those of the library (store/waiter.py, core/acquire.py). `measured` is the same question
to the shipped engine, as far as it fits; a test holds the two within a few per cent of each other.
`line`: clients per lock; 1 is a lease each, which nobody else wants. Each client is a process of
its own: leases of one process are renewed together, a thousand to a command.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...core.deadline import FIRST_NOTICE, next_gap
from ...core.value import replace, value
from ...store.waiter import FAR, NEAR
from .outcome import Subject
from .party import ROUNDS, NodeProgram
from .run import SimulationRun
from .scenario import Scenario, checked
from .world import SimulatedWorld

if TYPE_CHECKING:
    from .world import Call

LEASE_ONLY = 1e9  # seconds of a turn that does not end
BIN = 0.1  # seconds over which a peak is counted
SIZES = (10, 100, 1_000, 10_000, 100_000)


@value
class MeasuredLoad:
    """Of so many clients: commands per second, on the average and in the busiest tenth of one.

    `handovers`: grants per second.
    """

    clients: int
    line: int
    ttl: float
    heartbeat: float
    mean: float
    peak: float
    handovers: float
    seconds: float


class CommandCount:
    """Commands, after the beginning has passed."""

    def __init__(self, world: SimulatedWorld, since: float) -> None:
        self.world, self.since, self.total, self.bins = world, since, 0, dict[int, int]()

    def add(self, commands: int = 1) -> None:
        now = self.world.now
        if now >= self.since:
            self.total += commands
            place = int(now / BIN)
            self.bins[place] = self.bins.get(place, 0) + commands

    def load(self, plan: Scenario, line: int, grants: int, until: float) -> MeasuredLoad:
        length, terms = until - self.since, plan.terms
        peak = max(self.bins.values(), default=0) / BIN
        return MeasuredLoad(
            plan.nodes,
            line,
            terms.ttl,
            terms.heartbeat,
            self.total / length,
            peak,
            grants / length,
            length,
        )


class LoadClient:
    """What one client does next."""

    __slots__ = ("gap", "group", "notice_at", "number", "placed", "turn")

    def __init__(self, group: ClientGroup) -> None:
        self.group, self.turn, self.placed = group, 0, False
        self.number = 0  # of the last place in line, so that it knows how many are before it
        self.gap = self.notice_at = 0.0


class ClientGroup:
    """One lock and its clients."""

    __slots__ = ("clients", "gone", "holder", "model", "queue", "taken")

    def __init__(self, model: LoadModel, size: int) -> None:
        self.model, self.holder = model, None
        self.queue: deque[LoadClient] = deque()
        self.taken = self.gone = 0
        self.clients = [LoadClient(self) for _ in range(size)]

    holder: LoadClient | None


class LoadModel:
    """A run without coroutines."""

    def __init__(self, plan: Scenario, line: int, seed: int, since: float) -> None:
        self.plan, self.world = plan, SimulatedWorld(seed)
        self.chance = self.world.chance("clients")
        self.count = CommandCount(self.world, since)
        self.grants = 0
        self.terms = plan.terms
        self.groups = [ClientGroup(self, line) for _ in range(plan.nodes // line)]

    def play(self, until: float, spread: float) -> None:
        """Clients begin within `spread` seconds."""
        for group in self.groups:
            for client in group.clients:
                self._later(self.chance.uniform(0, spread), client, self._asks)
        self.world.run(until)

    def _later(self, seconds: float, client: LoadClient, act: object) -> Call:
        turn = client.turn

        def due() -> None:
            if client.turn == turn:  # else it was called meanwhile, or its turn has ended
                act(client)  # type: ignore[operator]

        return self.world.after(seconds, due)

    def _asks(self, client: LoadClient) -> None:
        group, now = client.group, self.world.now
        self.count.add()
        if group.holder is None and not group.queue:
            self._enters(client)
            return
        self.count.add()  # the try was in vain: now it takes a place
        client.placed = True
        client.gap, client.notice_at = FIRST_NOTICE, now + FIRST_NOTICE
        group.taken += 1
        client.number = group.taken
        group.queue.append(client)
        self._waits(client)

    def _waits(self, client: LoadClient) -> None:
        group, now = client.group, self.world.now
        pause = NEAR if client.number - group.gone - 1 <= 1 else FAR
        if client.notice_at <= now + pause:  # who tells looks too
            pause = max(0.0, client.notice_at - now)
            client.gap = next_gap(client.gap)
            client.notice_at += client.gap
        self._later(pause, client, self._looks)

    def _looks(self, client: LoadClient) -> None:
        self.count.add()
        self._waits(client)

    def _enters(self, client: LoadClient) -> None:
        """It has the lock, renews its lease, and ends some time."""
        client.turn += 1
        client.group.holder, client.placed = client, False
        if self.world.now >= self.count.since:
            self.grants += 1
        hold = self.plan.hold
        if hold < LEASE_ONLY:
            rounds = self.chance.randint(1, ROUNDS)
            hold = sum(self.chance.expovariate(1 / hold) for _ in range(rounds))
        self._later(hold, client, self._ends)
        self._later(self.terms.heartbeat, client, self._renews)

    def _renews(self, client: LoadClient) -> None:
        self.count.add()
        self._later(self.terms.heartbeat, client, self._renews)

    def _ends(self, client: LoadClient) -> None:
        group = client.group
        client.turn += 1
        self.count.add()
        group.holder = None
        think = self.plan.think
        self._later(self.chance.expovariate(1 / think) if think else 0.0, client, self._asks)
        if group.queue:
            first = group.queue.popleft()
            group.gone = first.number
            self.count.add()  # it was called, and asks
            self._enters(first)


class NeighbourProgram(NodeProgram):
    """A node that shares one lock with its neighbours alone."""

    line = 1

    def names(self) -> list[str]:
        return [f"name-{int(self.node.name[1:]) // self.line}"]


def sized(clients: int, ttl: float, heartbeat: float | None, line: int) -> Scenario:
    """`line` 1: each keeps its lease; else each holds for 2 s and thinks for 2 s."""
    hold = LEASE_ONLY if line == 1 else 2.0
    plan = Scenario(ttl=ttl, heartbeat=heartbeat, nodes=10, hold=hold, think=2.0, gap=0.0)
    return replace(checked(plan), nodes=clients)


def model(
    clients: int,
    ttl: float,
    heartbeat: float | None = None,
    *,
    line: int = 1,
    seed: int = 1,
    spread: float | None = None,
    lasts: float = 30.0,
) -> MeasuredLoad:
    """The load of so many clients, that begin within `spread` seconds (a heartbeat)."""
    plan = sized(clients, ttl, heartbeat, line)
    beat = plan.terms.heartbeat
    since = beat if line == 1 else 3 * beat
    lasts = max(lasts, 2 * beat)
    play = LoadModel(plan, line, seed, since)
    play.play(since + lasts, beat if spread is None else spread)
    return play.count.load(plan, line, play.grants, since + lasts)


def measured(
    clients: int,
    ttl: float,
    heartbeat: float | None = None,
    *,
    line: int = 1,
    seed: int = 1,
    lasts: float = 60.0,
) -> MeasuredLoad:
    """The same of the shipped engine, each client a node of its own."""
    crew = type("CrewOfLine", (NeighbourProgram,), {"line": line})
    plan = sized(clients, ttl, heartbeat, line)
    since = 3 * plan.terms.heartbeat
    until = since + max(lasts, 2 * plan.terms.heartbeat)
    run = SimulationRun(replace(plan, hours=until / 3600), seed, Subject("crew", party=crew))
    count = CommandCount(run.world, since)
    serve, granted = run.store.serve, run.store.granted
    grants = [0]

    def counted(op: str, args: tuple[object, ...], sent: float) -> object:
        count.add()
        return serve(op, args, sent)

    def noted(asked: object, given: object) -> None:
        grants[0] += run.world.now >= since
        granted(asked, given)  # type: ignore[arg-type]

    run.store.serve = counted  # type: ignore[method-assign]
    run.store.granted = noted
    run.play()
    return count.load(plan, line, grants[0], until)
