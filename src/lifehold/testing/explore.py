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

`python -m lifehold.testing.explore` proves what this library ships; `--soak` the larger
configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.value import value
from ..runtime import clock
from .locals import RUNS, Effects, Locals, Program, repeatable
from .model import FOREIGN, MIXED, MUTEX, OURS, TOKEN, Model, NetworkModel
from .report import Played, Report, called, shown
from .search import CRASHED, LEAK, NEWCOMER, STUCK, WEDGED, Search, State, alone, successors
from .seat import Call, Seat
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "FOREIGN",
    "LEAK",
    "MIXED",
    "MUTEX",
    "OURS",
    "STUCK",
    "TOKEN",
    "WEDGED",
    "Client",
    "Exploration",
    "Model",
    "NetworkModel",
    "Played",
    "Report",
    "Seat",
    "World",
    "explore",
]


@value
class Client:
    """One party. `program(seat)` is run again and again: it must depend on its seat alone.

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
        seats = [*clients, self.newcomer] if isinstance(self.newcomer, Client) else list(clients)
        with repeatable():
            self.locals = [
                Locals(client.program, me, client.party, client.nonces, merge=merge)
                for me, client in enumerate(seats, 1)
            ]
        self.first = self.number(first)

    # ---- what may happen next ------------------------------------------------------------------

    def number(self, world: World) -> int:
        """The number of a world; equal worlds have one."""
        number = self._numbers.setdefault(world.key(), len(self.worlds))
        if number == len(self.worlds):
            self.worlds.append(world)
        return number

    def runs(self, seat: int, local: int) -> bool:
        """Whether a client still has steps to make."""
        return local != CRASHED and self.locals[seat].states[local].status == RUNS

    def is_end(self, state: State) -> bool:
        """Whether all have ended."""
        return not any(self.runs(seat, local) for seat, local in enumerate(state[1]))

    def moves(self, world: int, seat: int, local: int) -> tuple[Move, ...]:
        """Every way in which the next step of a client may turn out; none: it is blocked."""
        found = self._moves.get((world, seat, local))
        if found is None:
            move = Move(world, local, ())
            found = self._moves[world, seat, local] = tuple(self._step(move, seat))
        return found

    def _step(self, before: Move, seat: int) -> Iterator[Move]:
        call = self.locals[seat].states[before.local].call
        for answer, world in self.model.outcomes(self.worlds[before.world], seat + 1, call):
            local, effects = self.locals[seat].next(before.local, answer)
            steps = (*before.steps, (call, answer))
            move = self._arrive(world, seat, local, effects, steps, before.wrong)
            state = self.locals[seat].states[local]
            goes_on = state.status == RUNS and MUTEX not in move.wrong
            if goes_on and self._is_quiet(move.world, seat, state.call):
                yield from self._step(move, seat)
            else:
                yield move

    def _is_quiet(self, world: int, seat: int, call: Call) -> bool:
        if self.quiet(call):
            return True
        return self.unseen is not None and self.unseen(self.worlds[world], seat + 1, call)

    def _arrive(
        self,
        world: World,
        seat: int,
        local: int,
        effects: Effects,
        steps: tuple[tuple[Call, Any], ...],
        wrong: tuple[str, ...],
    ) -> Move:
        """Note what a client entered and whether it is done."""
        state, faults, error = self.locals[seat].states[local], [*wrong], ""
        if effects or state.status != RUNS:
            world = world.copy()
        for claim, token in effects:
            faults += self.model.enter(world, claim, token)
        if state.status != RUNS:
            error = state.error or world.left_by(seat + 1, state.keeps)
            faults += [LEAK] if error else []
            world.end(seat + 1)
        return Move(self.number(world), local, steps, tuple(faults), error)

    def events(self, world: int) -> tuple[tuple[str, int], ...]:
        """What may happen by itself in a world."""
        found = self._events.get(world)
        if found is None:
            happens = self.model.events(self.worlds[world])
            found = self._events[world] = tuple((text, self.number(w)) for text, w in happens)
        return found

    def ended(self, world: int, seat: int) -> int:
        """The world after a client's sudden death."""
        found = self._ended.get((world, seat))
        if found is None:
            after = self.worlds[world].copy()
            after.end(seat + 1)
            found = self._ended[world, seat] = self.number(after)
        return found

    # ---- in words ------------------------------------------------------------------------------

    def words(self, seat: int, move: Move) -> str:
        """A step in one line; the quiet ones that go with it in brackets."""
        call, answer = move.steps[0]
        text = shown(seat + 1, call, answer)
        if more := [shown(seat + 1, *step).partition(" ")[2] for step in move.steps[1:]]:
            text += f"  [{'; '.join(more)}]"
        return f"{text}  ({move.error})" if move.error else text

    def crash_words(self, seat: int, local: int) -> str:
        """The death of a client in one line."""
        return f"P{seat + 1} CRASH before {called(self.locals[seat].states[local].call)}"

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

    def replay(self, schedule: Iterable[str]) -> Played:
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
                    return Played(frozenset(wrong), number, tuple(ways))
                state, faults = ways[line.strip()]
                wrong |= set(faults)
        return Played(frozenset(wrong))


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


if __name__ == "__main__":
    import runpy

    runpy.run_module("lifehold.testing.proofs", run_name="__main__")
