"""One run: a scenario, a seed, and what is under test; from it the outcome.

    outcome = simulate(Scenario(ttl=10, pause=12, pause_every=300), seed=7)
    assert not outcome.counts.get("GUARDED LOST")
    assert outcome.digest == simulate(Scenario(ttl=10, pause=12, pause_every=300), seed=7).digest

Promise: the same scenario, seed and faults give the same outcome, to the byte. `faults=` replaces
those that the seed makes, so a run can be played again with fewer of them (`shrunk`).
"""

from __future__ import annotations

from ...core.value import value
from ...runtime import clock
from ...store.waiter import PATIENCE
from ..history import FENCE, GENERATION, TOKEN, WRITE, Turn, judge
from .node import Node
from .outcome import SHIPPED, Outcome, Subject
from .people import SimulatedHolder, SimulatedWaiter
from .scenario import Fault, Scenario, checked, schedule
from .shapes import MUTEX, PERMITS, capacity, clash
from .wire import NetworkLink, NodeWakeups
from .world import SimulatedWorld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...core.backend import Given, Refused, Renewal, Request
    from ..history import HistoryFinding
    from .outcome import SimulatedStore
    from .party import NodeProgram

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
        self.store = subject.store(self.world, 1 + chance.uniform(-1, 1) * drift * STORE_DRIFTS)
        self.wakeups: dict[str, NodeWakeups] = {}
        self.store.ring, self.store.hand = self._ring, self._hand
        self.judge = SimulationJudge(self.world, self.store, self.wakeups, self.plan)
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
            NodeWakeups(node, link, self.wakeups)
        self.parties: list[NodeProgram] = []
        self.faults = (
            schedule(self.plan, self.world.chance("faults")) if faults is None else list(faults)
        )
        self.pauses = self.lost = self.crashes = 0

    def _ring(self, address: str) -> None:
        node, _, nonce = address.partition(":")
        self.judge.called(nonce)
        self.wakeups[node].call(nonce)

    def _hand(self, asked: Request, given: Given) -> None:
        node, _, nonce = asked.wakeup.partition(":")
        self.wakeups[node].call(nonce, asked.handoff_id, given)

    def _begin(self, number: int) -> None:
        node = self.nodes[number]
        party = self.subject.party(
            self.world,
            node,
            self.links[number],
            self.wakeups[node.name],
            self.store,
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
        return holder.believes() and self.store.has(holder.name, holder.tenure.grant.mark)

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
        self.store.step_clock(fault.size)

    def _failover(self, fault: Fault) -> None:
        """First the copy stops, then the server, then the standby is there."""
        if self.store.down:
            return
        self.store.copy_stops()

        def dies() -> None:
            self.store.down = True

        def stands() -> None:
            self.store.fail_over(self.store.offset + fault.size)
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
        asked = ", ".join(f"{count} {what}" for what, count in self.store.commands.items())
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
            dict(self.store.commands),
            sum(wakeups.rung for wakeups in self.wakeups.values()),
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


# ------------------------------------------------------------------------------------------------
# Who watches a run from outside, by true time, and what may not have been.
#
# Promise: nothing is asked of the lock but its own `check`. At every instant at which somebody
# comes to believe that it holds (a grant, a renewal, a wake-up, a look of the program) all who
# believe so are counted, each by its own clock.
#
#    > MUTEX  two believe at once that exclude each other: a writer and another, a slot twice
#    > PERMITS  more of a semaphore believe at once than it has permits
#    > RISEN  a lease that its holder had seen as lost counts as held again
#    > TOKEN  a token that is not above all that were given out before, lost history included
#    > GENERATION  a reader whose token is not that of the last writer before it
#    > FENCE  the data took a write under an older token than one that it had taken
#    > ORDER  somebody was overtaken in line who was well all the time
#    > STUCK  there is room, somebody in line is well, and for long nothing happens
#    > PLAIN LATE, PLAIN LOST, PLAIN TORN  a late write landed, an update was lost, a row
#    >     changed under its reader: without a guard
#    > GUARDED LATE, GUARDED LOST, GUARDED TORN  the same at the data that compares tokens
#
# At its end the history of the run goes to the checker of histories as well (run.py).


RISEN, ORDER, STUCK = "RISEN", "ORDER", "STUCK"
ALWAYS_WRONG = (MUTEX, PERMITS, RISEN, TOKEN, GENERATION, FENCE, ORDER, STUCK)
GUARDED = ("GUARDED LATE", "GUARDED LOST")
TORN = "GUARDED TORN"
PLAIN = ("PLAIN LATE", "PLAIN LOST", "PLAIN TORN")
EVERY = 5.0  # seconds between two looks at locks that are free
LONG = 2 * PATIENCE  # seconds after which every dead place is forgotten, and somebody has looked
JUST_AFTER = 1e-5  # seconds
FEW = 20  # violations of a kind that are kept in words


@value
class SimulatedViolation:
    """What may not have been, when, and who was in it."""

    kind: str
    at: float
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.kind} {self.name}: {self.text}"


class SimulationJudge:
    """`wakeups`: of all nodes, by name."""

    def __init__(
        self,
        world: SimulatedWorld,
        store: SimulatedStore,
        wakeups: dict[str, NodeWakeups],
        plan: Scenario,
    ) -> None:
        self.world, self.store, self.plan, self._wakeups = world, store, plan, wakeups
        self.chronicle = TurnNotes(world)
        self.found: list[SimulatedViolation] = []
        self.counts: dict[str, int] = {}
        self.serials: dict[tuple[str, int | None], int] = {}
        self.grants = self.lost = self.store_troubles = 0
        self.recoveries: list[float] = []
        self.waits: list[float] = []
        self.turns: dict[str, int] = {}
        self.holders: dict[str, list[SimulatedHolder]] = {}
        self._top: dict[str, int] = {}
        self._lines: dict[str, dict[str, SimulatedWaiter]] = {}
        self._crashes: dict[str, float] = {}
        self._pairs: set[tuple[int, ...]] = set()
        self._broken: set[str] = set()  # where too many were in: what follows from it is no news
        self._room: dict[str, float] = {}  # since when there is some, and nobody comes in
        self._weights: dict[str, dict[str, int]] = {}  # of who is in, as they should be
        world.after(EVERY, self._looks_again)
        store.granted, store.stood, store.left = self._granted, self._stood, self._left
        store.lightened = self._lightened

    def wrong(self, kind: str, name: str, text: str) -> None:
        """One violation more."""
        self._found(SimulatedViolation(kind, self.world.now, name, text))

    def _found(self, wrong: SimulatedViolation) -> None:
        count = self.counts[wrong.kind] = self.counts.get(wrong.kind, 0) + 1
        self.world.log(f"!! {wrong.kind} {wrong.name} {wrong.text}")
        if count <= FEW:
            self.found.append(wrong)
        if wrong.kind in (MUTEX, PERMITS, RISEN):
            self._broken.add(wrong.name)

    def read(self) -> dict[str, tuple[Turn, ...]]:
        """The history of the run. Its checker has read it, and what was overlooked is found."""
        turns = self.chronicle.turns()
        for name, finding in findings(turns, self.plan):
            if name not in self._broken or finding.kind == FENCE:
                at = finding.turns[-1].entered / 1e9
                self._found(SimulatedViolation(finding.kind, at, name, str(finding)))
        return turns

    # ---- at the store

    def _granted(self, asked: Request, given: Given) -> None:
        key = (asked.nonce, given.token)
        if key in self.serials:
            return  # asked again: the same grant
        self.grants += 1
        self.serials[key] = self.grants
        self.world.log(f"grant {self.grants} of {asked.name} to {asked.nonce}")
        self._room.pop(asked.name, None)
        self._weights.setdefault(asked.name, {})[asked.nonce] = asked.weight
        self._stamped(asked, given.token)
        line = self._lines.setdefault(asked.name, {})
        for nonce, place in line.items():
            if nonce == asked.nonce:
                break
            if place.well(self.store_troubles) and not place.slow(self.world.now):
                self.wrong(ORDER, asked.name, f"{asked.nonce} came before {nonce}")
        line.pop(asked.nonce, None)

    def _stamped(self, asked: Request, token: int | None) -> None:
        """The token of a grant."""
        top = self._top.get(asked.name)
        if asked.shared:
            if token != top:
                self.wrong(GENERATION, asked.name, f"a reader's is {token}, the last {top}")
        elif token is not None:
            if top is not None and token <= top:
                self.wrong(TOKEN, asked.name, f"{token} after {top}")
            self._top[asked.name] = max(top or 0, token)

    def _stood(self, asked: Request, _: Refused) -> None:
        if asked.wait:
            line = self._lines.setdefault(asked.name, {})
            wakeups = self._wakeups[asked.wakeup.partition(":")[0]]
            if asked.nonce in line and line[asked.nonce].slow(self.world.now):
                del line[asked.nonce]  # it stands behind the others now
            if asked.nonce in line:
                line[asked.nonce].called_at = None
            else:
                line[asked.nonce] = SimulatedWaiter(
                    asked.nonce, asked.weight, wakeups, self.store_troubles, self.world.now
                )

    def called(self, nonce: str) -> None:
        """The store calls for who is first."""
        for line in self._lines.values():
            if nonce in line:
                line[nonce].called_at = self.world.now

    def _left(self, name: str, nonce: str) -> None:
        self._lines.get(name, {}).pop(nonce, None)
        self._weights.get(name, {}).pop(nonce, None)

    def _lightened(self, one: Renewal) -> None:
        if one.nonce in self._weights.get(one.name, {}):
            self._weights[one.name][one.nonce] = one.weight or 0

    def room(self, name: str) -> int:
        """How much there is, whatever the store's own count says."""
        there = self._weights.setdefault(name, {})
        for nonce in [nonce for nonce in there if not self.store.has(name, nonce)]:
            del there[nonce]
        return capacity(self.plan) - sum(there.values())

    def failed_over(self) -> None:
        """The line is now what the standby knows of it, and nobody of those in it is well."""
        for name, book in self.store.books.items():
            line = self._lines[name] = {}
            self._weights[name] = {holder.nonce: holder.weight for holder in book.holders}
            for place in book.queue:
                wakeups = self._wakeups[place.wakeup.partition(":")[0]]
                line[place.nonce] = SimulatedWaiter(
                    place.nonce, place.weight, wakeups, self.store_troubles, self.world.now
                )
        self.store_troubles += 1

    def _looks_again(self) -> None:
        """Now and then: whether there is room for who is first of those that wait, and are well."""
        now = self.world.now
        self.world.after(EVERY, self._looks_again)
        for name, line in self._lines.items():
            waits = [place for place in line.values() if place.well(self.store_troubles)]
            if not waits or self.store.down or waits[0].weight > self.room(name):
                self._room.pop(name, None)
                continue
            since = self._room.setdefault(name, now)
            if now - since >= LONG and any(now - place.since >= LONG for place in waits):
                self.wrong(STUCK, name, f"room since {since:.0f} s, and {len(waits)} wait")
                self._room[name] = now

    # ---- at the holders

    def serial(self, nonce: str, token: int | None) -> int:
        """The number of a grant, in the order in which the store gave them."""
        return self.serials[nonce, token]

    def entered(self, holder: SimulatedHolder) -> None:
        """Somebody has a grant in hand."""
        name, now = holder.name, self.world.now
        others = self.holders.setdefault(name, [])
        others[:] = [other for other in others if not other.over and other.life.alive]
        others.append(holder)
        self.turns[holder.node.name] = self.turns.get(holder.node.name, 0) + 1
        self.waits.append(now - holder.asked_at)
        crashed = self._crashes.pop(name, None)
        if crashed is not None and holder.asked_at <= crashed:
            self.recoveries.append(now - crashed)
        if holder.believes():
            self.chronicle.begins(holder)
        self.look(name)
        self.awaits(holder)

    def renewed(self, name: str, nonce: str) -> None:
        """An answer to a renewal has come, and was believed or not."""
        self.look(name)
        for holder in self.holders.get(name, ()):
            if holder.tenure.grant.nonce == nonce and not holder.over:
                self.awaits(holder)

    def awaits(self, holder: SimulatedHolder) -> None:
        """Look again right after its present deadline, be it paused or not: RISEN needs that."""
        node = holder.node
        left = max(0.0, holder.tenure.deadline - node.now()) / node.rate
        self.world.after(left + JUST_AFTER, lambda: self.look(holder.name))

    def leaves(self, holder: SimulatedHolder) -> None:
        """Its program has done its work, or has seen that the lease is lost."""
        self.look(holder.name)
        self.lost += not holder.believes()
        self.chronicle.ends(holder)

    def reads_on(self, holder: SimulatedHolder, what: str) -> None:
        """A writer is a reader from now on, in the eyes of its program."""
        self.look(holder.name)
        self.chronicle.ends(holder)
        holder.what = what
        if holder.believes():
            self.chronicle.begins(holder)

    def look(self, name: str) -> None:
        """Who believes to hold it, now."""
        believers = []
        for holder in self.holders.get(name, ()):
            if holder.believes():
                believers.append(holder)
                if holder.was_lost:
                    self.wrong(RISEN, name, f"grant {holder.serial} of {holder.node.name}")
                    holder.was_lost = False  # told once
                    self.chronicle.begins(holder)
            else:
                holder.was_lost = True
                self.chronicle.ends(holder)
        wrong = clash(believers, self.plan)
        if wrong is None:
            return
        kind, together = wrong
        pair = tuple(each.serial for each in together)
        if pair not in self._pairs:  # each pair once
            self._pairs.add(pair)
            self.wrong(kind, name, ", ".join(map(str, together)))

    def look_at(self, node: Node) -> None:
        """At all that a node holds."""
        for holder in self.held_by(node):
            self.look(holder.name)

    def held_by(self, node: Node) -> list[SimulatedHolder]:
        """What it has in hand, lost or not."""
        return [
            holder
            for held in self.holders.values()
            for holder in held
            if holder.node is node and not holder.over and holder.life.alive
        ]

    def crashed(self, node: Node) -> None:
        """Before its process ends."""
        for holder in self.held_by(node):
            if holder.believes() and holder.what == WRITE:
                self._crashes[holder.name] = self.world.now
            self.chronicle.ends(holder)


def ns(seconds: float) -> int:
    """In the unit of a history."""
    return round(seconds * 1e9)


class TurnNote:
    """One turn under way."""

    __slots__ = ("asked", "entered", "left", "slot", "stored", "token", "what", "who")

    def __init__(self, holder: SimulatedHolder, now: float) -> None:
        self.who, self.what = f"{holder.node.name} by grant {holder.serial}", holder.what
        self.asked, self.entered = ns(holder.asked_at), ns(now)
        self.token, self.slot = holder.tenure.grant.token, holder.slot
        self.left: int | None = None
        self.stored: list[int] = []

    def turn(self) -> Turn:
        return Turn(
            self.who,
            self.what,
            self.asked,
            self.entered,
            self.left,
            self.token,
            self.slot,
            tuple(self.stored),
        )


class TurnNotes:
    """The notes of all nodes, by the name of the lock."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self._notes: dict[str, list[TurnNote]] = {}
        self._open: dict[int, TurnNote] = {}
        self._last: dict[int, TurnNote] = {}

    def begins(self, holder: SimulatedHolder) -> None:
        """From now on it believes."""
        note = TurnNote(holder, self.world.now)
        self._open[holder.serial] = self._last[holder.serial] = note
        self._notes.setdefault(holder.name, []).append(note)

    def ends(self, holder: SimulatedHolder) -> None:
        """It believes no more, by now or since its deadline came."""
        note = self._open.pop(holder.serial, None)
        if note is not None:
            note.left = max(note.entered, ns(self._until(holder)))

    def _until(self, holder: SimulatedHolder) -> float:
        node, now = holder.node, self.world.now
        late = node.now() - holder.tenure.deadline
        return now - late / node.rate if late > 0 and not node.stops else now

    def stored(self, holder: SimulatedHolder) -> None:
        """The data that compares tokens took a write of it, however late."""
        note = self._last.get(holder.serial)
        if note is not None:
            note.stored.append(ns(self.world.now))

    def turns(self) -> dict[str, tuple[Turn, ...]]:
        """All of them; who holds still does so up to now."""
        for note in self._open.values():
            note.left = ns(self.world.now)
        self._open.clear()
        return {name: tuple(note.turn() for note in notes) for name, notes in self._notes.items()}


def findings(
    history: Mapping[str, tuple[Turn, ...]], plan: Scenario
) -> Iterator[tuple[str, HistoryFinding]]:
    """What may not have been, by name."""
    permits = plan.permits if plan.shape == "semaphore" else None
    for name, turns in history.items():
        for found in judge(turns, permits):
            yield name, found
