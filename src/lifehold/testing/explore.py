"""Every interleaving of a few clients, with a crash before each step, played against shipped code.

    report = explore(Client(lock_client(KernelLock)), Client(lock_client(KernelLock)), crashes=1)
    assert report.exhaustive and not report.violations, report

Promise: when the report says exhaustive, every reachable state of this configuration was looked
at, and each kind of violation comes with a shortest schedule (breadth first). It is bounded by
its configuration: so many clients, rounds and crashes, the model's file system. It is no proof
for more of them.
Kinds: MUTEX, two believe to hold; TOKEN, not greater than all before; LEAK, an error that got
out, or a lock or descriptor kept by one who says it is done; STUCK, from here the living can no
longer all finish; WEDGED, all are done or dead and a newcomer cannot acquire.
Rule: clients meet in `World` alone, so what a client's next step does in a world is worked out
once and found again in every state that has the two; a state is a few numbers.

In the checkout `python -m lifehold.testing.explore` plays what is claimed of the locks that are
shipped (tests/explore/claims); `--soak` the larger configurations too.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import InvalidArgument
from ..core.value import value
from ..runtime import clock
from .actor import RUNS, STOP, Actor, Call, Effects, LocalStates, Program, repeatable
from .model import FOREIGN, MIXED, MUTEX, OURS, TOKEN, Model, NetworkModel
from .report import PlayedSchedule, Report, Violation, called, shown
from .world import World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "FOREIGN",
    "LEAK",
    "MIXED",
    "MUTEX",
    "OURS",
    "STUCK",
    "TOKEN",
    "WEDGED",
    "Actor",
    "Client",
    "Exploration",
    "Model",
    "NetworkModel",
    "PlayedSchedule",
    "Report",
    "World",
    "explore",
]


@value
class Client:
    """One party. `program(actor)` is run again and again: it must depend on its actor alone.

    It returns the descriptors that it keeps on purpose. `party`: "ours", or any other word for a
    modelled peer, whose own defects are reported under names of their own. `crashes`: whether it
    may. `nonces`: "fresh" or "same" random bytes each time; the same make fewer states, where
    nothing is decided by them.
    """

    program: Program
    party: str = OURS
    crashes: bool = True
    nonces: str = "fresh"


@value
class Move:
    """A step of a client: its `steps` (call, answer), what comes of it, what is wrong."""

    world: int
    local: int
    steps: tuple[tuple[Call, Any], ...]
    wrong: tuple[str, ...] = ()
    error: str = ""


class Exploration:
    """One configuration, ready to be run or to play one schedule.

    `start(world)` puts files into an empty world; `newcomer`: who must be able to acquire at the
    end, the first client's program unless given, False for nobody; `quiet(call)`: a step that no
    other client can see, and that sees nothing of them, needs no turn of its own, nor does one that
    is `unseen(world, client, call)`; `merge=False`:
    two local states are never taken for one, so nothing rests on their comparison (and three
    clients are too many).
    """

    def __init__(
        self,
        *clients: Client,
        crashes: int = 1,
        model: Model | None = None,
        start: Callable[[World], object] | None = None,
        newcomer: Client | None | bool = None,
        quiet: Callable[[Call], bool] | None = None,
        merge: bool = True,
        name: str = "",
        unseen: Callable[[World, int, Call], bool] | None = None,
    ) -> None:
        if not clients or not all(isinstance(each, Client) for each in clients):
            raise InvalidArgument(f"an exploration is of Clients, one or more, not of {clients!r}")
        self.name, self.clients, self.crashes, self.model = name, clients, crashes, model or Model()
        self.quiet: Callable[[Call], bool] = quiet or never
        self.unseen = unseen
        first = World()
        if start is not None:
            start(first)
        self.worlds: list[World] = []
        self._numbers: dict[Any, int] = {}
        self._moves: dict[tuple[int, int, int], tuple[Move, ...]] = {}
        self._events: dict[int, tuple[tuple[str, int], ...]] = {}
        self._ended: dict[tuple[int, int], int] = {}
        self.newcomer = clients[0] if newcomer is None else newcomer
        actors = [*clients, self.newcomer] if isinstance(self.newcomer, Client) else list(clients)
        with repeatable():
            self.locals = [
                LocalStates(client.program, me, client.party, client.nonces, merge=merge)
                for me, client in enumerate(actors, 1)
            ]
        self.first = self.number(first)

    # ---- what may happen next ------------------------------------------------------------------

    def number(self, world: World) -> int:
        """The number of a world; equal worlds have one."""
        number = self._numbers.setdefault(world.key(), len(self.worlds))
        if number == len(self.worlds):
            self.worlds.append(world)
        return number

    def runs(self, actor: int, local: int) -> bool:
        """Whether a client still has steps to make."""
        return local != CRASHED and self.locals[actor].states[local].status == RUNS

    def is_end(self, state: State) -> bool:
        """Whether all have ended."""
        return not any(self.runs(actor, local) for actor, local in enumerate(state[1]))

    def moves(self, world: int, actor: int, local: int) -> tuple[Move, ...]:
        """Every way in which the next step of a client may turn out; none: it is blocked."""
        found = self._moves.get((world, actor, local))
        if found is None:
            move = Move(world, local, ())
            found = self._moves[world, actor, local] = tuple(self._step(move, actor))
        return found

    def _step(self, before: Move, actor: int) -> Iterator[Move]:
        call = self.locals[actor].states[before.local].call
        for answer, world in self.model.outcomes(self.worlds[before.world], actor + 1, call):
            alone_from_here = Alone(self.model, world, actor + 1)
            local, effects = self.locals[actor].next(before.local, answer, alone_from_here)
            steps = (*before.steps, (call, answer))
            move = self._arrive(world, actor, local, effects, steps, before.wrong)
            state = self.locals[actor].states[local]
            goes_on = state.status == RUNS and MUTEX not in move.wrong
            if goes_on and self._is_quiet(move.world, actor, state.call):
                yield from self._step(move, actor)
            else:
                yield move

    def _is_quiet(self, world: int, actor: int, call: Call) -> bool:
        if self.quiet(call):
            return True
        return self.unseen is not None and self.unseen(self.worlds[world], actor + 1, call)

    def _arrive(
        self,
        world: World,
        actor: int,
        local: int,
        effects: Effects,
        steps: tuple[tuple[Call, Any], ...],
        wrong: tuple[str, ...],
    ) -> Move:
        """Note what a client entered and whether it is done."""
        state, faults, error = self.locals[actor].states[local], [*wrong], ""
        if effects or state.status != RUNS:
            world = world.copy()
        for claim, token in effects:
            faults += self.model.enter(world, claim, token)
        if state.status != RUNS:
            error = state.error or world.left_by(actor + 1, state.keeps)
            faults += [LEAK] if error else []
            world.end(actor + 1)
        return Move(self.number(world), local, steps, tuple(faults), error)

    def events(self, world: int) -> tuple[tuple[str, int], ...]:
        """What may happen by itself in a world."""
        found = self._events.get(world)
        if found is None:
            happens = self.model.events(self.worlds[world])
            found = self._events[world] = tuple((text, self.number(w)) for text, w in happens)
        return found

    def ended(self, world: int, actor: int) -> int:
        """The world after a client's sudden death."""
        found = self._ended.get((world, actor))
        if found is None:
            after = self.worlds[world].copy()
            after.end(actor + 1)
            found = self._ended[world, actor] = self.number(after)
        return found

    # ---- in words ------------------------------------------------------------------------------

    def words(self, actor: int, move: Move) -> str:
        """A step in one line; the quiet ones that go with it in brackets."""
        call, answer = move.steps[0]
        text = shown(actor + 1, call, answer)
        if more := [shown(actor + 1, *step).partition(" ")[2] for step in move.steps[1:]]:
            text += f"  [{'; '.join(more)}]"
        return f"{text}  ({move.error})" if move.error else text

    def crash_words(self, actor: int, local: int) -> str:
        """The death of a client in one line."""
        return f"P{actor + 1} CRASH before {called(self.locals[actor].states[local].call)}"

    # ---- to be used ----------------------------------------------------------------------------

    def run(
        self,
        *,
        seconds: float = 60.0,
        states: int = 5_000_000,
        stop_at: frozenset[str] | set[str] = frozenset(),
    ) -> Report:
        """Look at every state, until the limits or a kind of violation in `stop_at` ends it."""
        began = clock.now()
        with repeatable():
            search = Search(self, until=began + seconds, most=states, stop_at=stop_at)
            search.all_states()
            return Report(
                self.name,
                len(self.clients),
                self.crashes,
                len(search.states),
                search.transitions,
                sum(each.runs for each in self.locals),
                clock.now() - began,
                search.cut,
                search.violations,
                search.left,
            )

    def replay(self, schedule: Iterable[str]) -> PlayedSchedule:
        """Play the lines of a schedule, as far as each of them can still happen.

        That somebody is STUCK is no single step, so it is seen by `run` alone.
        """
        wrong: set[str] = set()
        with repeatable():
            starts = (each.start for each in self.locals[: len(self.clients)])
            state: State = (self.first, tuple(starts), self.crashes)
            for number, line in enumerate(schedule):
                if line.strip().startswith(NEWCOMER) and self.is_end(state):
                    wrong |= set(alone(self, state[0]))
                    continue
                ways = {words(): (after, bad) for words, after, bad in successors(self, state)}
                if line.strip() not in ways:
                    return PlayedSchedule(frozenset(wrong), number, tuple(ways))
                state, faults = ways[line.strip()]
                wrong |= set(faults)
        return PlayedSchedule(frozenset(wrong))


class Alone:
    """A client that goes on from a world while nobody else moves: the first answer of each call.

    All of it is asked for in time, as the others may indeed stand still so long. So one run of a
    program finds what would take a run for each step.
    """

    def __init__(self, model: Model, world: World, me: int) -> None:
        self.model, self.world, self.me = model, world, me

    def __call__(self, call: Call, effects: Effects) -> Any:
        """The answer of the next call, or STOP: it is blocked, or the search does not go on."""
        if effects:
            self.world = self.world.copy()
        for claim, token in effects:
            if MUTEX in self.model.enter(self.world, claim, token):
                return STOP
        ways = self.model.outcomes(self.world, self.me, call)
        if not ways:
            return STOP
        answer, self.world = ways[0]
        return answer


def explore(
    *clients: Client,
    seconds: float = 60.0,
    states: int = 5_000_000,
    stop_at: frozenset[str] | set[str] = frozenset(),
    **configuration: Any,
) -> Report:
    """`Exploration(*clients, **configuration).run(...)`."""
    return Exploration(*clients, **configuration).run(
        seconds=seconds, states=states, stop_at=stop_at
    )


def never(_: Call) -> bool:
    """No step is quiet."""
    return False


def main() -> int:
    """Play the claims of the checkout that this file is of. An installed copy has none."""
    tests = Path(__file__).parents[3] / "tests"
    if not (tests / "explore" / "claims").is_dir():
        print("the claims of the shipped locks are in lifehold's repository: tests/explore/claims")
        return 2
    sys.path.insert(0, str(tests))
    return int(importlib.import_module("explore.claims").main())


if __name__ == "__main__":
    raise SystemExit(main())


# ------------------------------------------------------------------------------------------------
# Breadth first through all states of an exploration; what is wrong, and the shortest way to it.
#
# A state is (world, one local state per client, crashes left), all numbers. After a MUTEX of ours a
# state is not gone on from: whatever comes later has that cause. STUCK is looked for at the end,
# backwards from the states in which everybody has ended.


LEAK, STUCK, WEDGED = "LEAK", "STUCK", "WEDGED"
CRASHED = -1  # in place of a local state
NEWCOMER = (
    "now a newcomer, all alone"  # the last line of a schedule that ends well for all but the next
)
LOOK_AT_CLOCK = 4096  # states between two looks

State = tuple[int, tuple[int, ...], int]
Words = Callable[[], str]


class Search:
    """One run over an exploration. `states` by number; `cut`: what stopped it, "" for nothing."""

    def __init__(
        self, game: Exploration, *, until: float, most: int, stop_at: frozenset[str] | set[str]
    ) -> None:
        self.game, self.until, self.most, self.stop_at = game, until, most, stop_at
        first = (
            game.first,
            tuple(each.start for each in game.locals[: len(game.clients)]),
            game.crashes,
        )
        self.states: list[State] = [first]
        self.numbers: dict[State, int] = {first: 0}
        self.before = array("q", [-1])
        self.edges_from, self.edges_to = array("q"), array("q")
        self.ends: list[int] = []
        self.transitions = 0
        self.cut = ""
        self.violations: dict[str, Violation] = {}
        self.left: dict[tuple[str, ...], int] = {}
        self._solo: dict[int, list[str]] = {}

    def all_states(self) -> None:
        """Look at every state that can be reached."""
        at = 0
        while at < len(self.states):
            if at % LOOK_AT_CLOCK == 0 and clock.now() > self.until:
                self.cut = "time"
            elif len(self.states) > self.most:
                self.cut = "states"
            elif self.stop_at & set(self.violations):
                self.cut = "violation found"
            if self.cut:
                return
            self._look(at)
            at += 1
        self._find_stuck()

    def _look(self, at: int) -> None:
        """The successors of a state, as the function below has them; words only when needed."""
        state = world, locals_, crashes = self.states[at]
        game, add, is_end = self.game, self._add, True
        for actor, local in enumerate(locals_):
            if not game.runs(actor, local):
                continue
            is_end = False
            front, back = locals_[:actor], locals_[actor + 1 :]
            for move in game.moves(world, actor, local):
                if move.wrong:
                    self._found(at, move.wrong, partial(game.words, actor, move))
                if MUTEX in move.wrong:
                    self.transitions += 1
                    self.ends.append(at)  # what stops here is not stuck
                else:
                    add(at, (move.world, (*front, move.local, *back), crashes))
            if crashes and game.clients[actor].crashes:
                add(at, (game.ended(world, actor), (*front, CRASHED, *back), crashes - 1))
        for _, changed in game.events(world):
            add(at, (changed, locals_, crashes))
        if is_end:
            self.ends.append(at)
            self._look_at_end(at, state[0])

    def _found(self, at: int, wrong: tuple[str, ...], words: Words) -> None:
        for kind in wrong:
            self._report(kind, at, words())

    def _add(self, before: int, state: State) -> None:
        self.transitions += 1
        number = self.numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self.before.append(before)
        self.edges_from.append(before)
        self.edges_to.append(number)

    # ---- at the end ----------------------------------------------------------------------------

    def _look_at_end(self, at: int, world: int) -> None:
        names = tuple(name for name in sorted(self.game.worlds[world].names) if name != "/")
        self.left[names] = self.left.get(names, 0) + 1
        if self.game.newcomer and world not in self._solo:
            self._solo[world] = alone(self.game, world)
        for kind in self._solo.get(world, ()):
            self._report(kind, at, f"{NEWCOMER}: {kind}")

    def _find_stuck(self) -> None:
        """States from which no way leads to an end."""
        back: list[list[int]] = [[] for _ in self.states]
        for number in range(len(self.edges_to)):
            back[self.edges_to[number]].append(self.edges_from[number])
        good = bytearray(len(self.states))
        todo = list(self.ends)
        for number in todo:
            good[number] = 1
        while todo:
            for number in back[todo.pop()]:
                if not good[number]:
                    good[number] = 1
                    todo.append(number)
        stuck = [number for number, fine in enumerate(good) if not fine]
        if stuck:
            self._report(STUCK, stuck[0], "from here on not all can finish", len(stuck))

    # ---- how it came to that -------------------------------------------------------------------

    def _report(self, kind: str, at: int, last: str, count: int = 1) -> None:
        known = self.violations.get(kind)
        schedule = known.schedule if known else (*self.schedule(at), last)
        self.violations[kind] = Violation(kind, count + (known.count if known else 0), schedule)

    def schedule(self, at: int) -> list[str]:
        """The steps to a state, in words."""
        way = [at]
        while self.before[way[-1]] >= 0:
            way.append(self.before[way[-1]])
        way.reverse()
        return [
            next(
                words()
                for words, state, _ in successors(self.game, self.states[a])
                if state == self.states[b]
            )
            for a, b in itertools.pairwise(way)
        ]


def successors(game: Exploration, state: State) -> Iterator[tuple[Words, State, tuple[str, ...]]]:
    """All that may happen next: (in words, the state after it, what is wrong)."""
    world, locals_, crashes = state
    for actor, local in enumerate(locals_):
        if not game.runs(actor, local):
            continue
        front, back = locals_[:actor], locals_[actor + 1 :]
        for move in game.moves(world, actor, local):
            after = (move.world, (*front, move.local, *back), crashes)
            yield partial(game.words, actor, move), after, move.wrong
        if crashes and game.clients[actor].crashes:
            after = (game.ended(world, actor), (*front, CRASHED, *back), crashes - 1)
            yield partial(game.crash_words, actor, local), after, ()
    for text, changed in game.events(world):
        yield partial(str, text), (changed, locals_, crashes), ()


def alone(game: Exploration, world: int) -> list[str]:
    """What is wrong for a newcomer alone in a world: no way to acquire, or one that goes wrong."""
    actor, wrong, entered = len(game.clients), set[str](), False
    todo, seen = [(world, game.locals[actor].start)], set[tuple[int, int]]()
    while todo:
        here = todo.pop()
        if here in seen or not game.runs(actor, here[1]):
            continue
        seen.add(here)
        for move in game.moves(here[0], actor, here[1]):
            todo.append((move.world, move.local))
            entered = entered or any(c.client == actor + 1 for c in game.worlds[move.world].holders)
            wrong |= set(move.wrong)
        todo += [(after, here[1]) for _, after in game.events(here[0])]
    return sorted(wrong) + ([] if entered else [WEDGED])
