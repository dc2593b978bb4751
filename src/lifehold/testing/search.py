"""Breadth first through all states of an exploration; what is wrong, and the shortest way to it.

A state is (world, one local state per client, crashes left), all numbers. After a MUTEX of ours a
state is not gone on from: whatever comes later has that cause. STUCK is looked for at the end,
backwards from the states in which everybody has ended.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..runtime import clock
from .model import MUTEX
from .report import Violation

if TYPE_CHECKING:
    from .explore import Exploration

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
        state = self.states[at]
        for words, after, wrong in successors(self.game, state):
            self.transitions += 1
            for kind in wrong:
                self._report(kind, at, words())
            self._add(at, after, goes_on=MUTEX not in wrong)
        if self.game.is_end(state):
            self.ends.append(at)
            self._look_at_end(at, state[0])

    def _add(self, before: int, state: State, goes_on: bool) -> None:
        if not goes_on:
            self.ends.append(before)  # what stops here is not stuck
            return
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
    for seat, local in enumerate(locals_):
        if not game.runs(seat, local):
            continue
        front, back = locals_[:seat], locals_[seat + 1 :]
        for move in game.moves(world, seat, local):
            after = (move.world, (*front, move.local, *back), crashes)
            yield partial(game.words, seat, move), after, move.wrong
        if crashes and game.clients[seat].crashes:
            after = (game.ended(world, seat), (*front, CRASHED, *back), crashes - 1)
            yield partial(game.crash_words, seat, local), after, ()
    for text, changed in game.events(world):
        yield partial(str, text), (changed, locals_, crashes), ()


def alone(game: Exploration, world: int) -> list[str]:
    """What is wrong for a newcomer alone in a world: no way to acquire, or one that goes wrong."""
    seat, wrong, entered = len(game.clients), set[str](), False
    todo, seen = [(world, game.locals[seat].start)], set[tuple[int, int]]()
    while todo:
        here = todo.pop()
        if here in seen or not game.runs(seat, here[1]):
            continue
        seen.add(here)
        for move in game.moves(here[0], seat, here[1]):
            todo.append((move.world, move.local))
            entered = entered or any(c.client == seat + 1 for c in game.worlds[move.world].holders)
            wrong |= set(move.wrong)
        todo += [(after, here[1]) for _, after in game.events(here[0])]
    return sorted(wrong) + ([] if entered else [WEDGED])
