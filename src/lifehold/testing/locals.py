"""The local states of one client program, found by running it again from its start.

Promise: `next(state, answer)` is where the program stands after that answer. Equal local states
are one state, so a program is run once for each transition between local states, however many
worlds there are.
Rule that keeps it: an audit. A state that was reached in several ways is gone on from in each (up
to WAYS) with every answer, and must come to the same; otherwise the key of freeze.py misses
something, and the exploration stops with `HiddenState`.
"""

from __future__ import annotations

import gc
import sys
from _thread import get_ident
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any

from ..core.owner import Owner
from ..core.value import value
from ..runtime import process
from .report import called
from .seat import Call, Pause, Seat
from .world import Claim

Program = Callable[[Seat], "set[int] | None"]
Effects = tuple[tuple[Claim, "int | None"], ...]
Way = tuple[int, Any]  # a local state, and the answer it gets
WAYS = 8
RUNS, DONE, FAILED = "runs", "done", "failed"


class HiddenState(AssertionError):
    """Two runs that looked alike went on differently: the client keeps state that was not seen."""


@value
class Local:
    """A local state: its next `call`, or how it ended: the descriptors it `keeps`, the `error`."""

    status: str
    call: Call = ()
    keeps: frozenset[int] = frozenset()
    error: str = ""


class Locals:
    """All local states of a client that were met. `merge`: whether equal ones are one."""

    def __init__(
        self, program: Program, me: int, party: str, nonces: str, *, merge: bool = True
    ) -> None:
        self.program, self.me, self.party, self.nonces, self.merge = (
            program,
            me,
            party,
            nonces,
            merge,
        )
        self.states: list[Local] = []
        self.runs = 0
        self._numbers: dict[Hashable, int] = {}
        self._ways: list[list[Way]] = []  # state -> the ways it was reached in, the first one first
        self._known: dict[Way, tuple[int, Effects]] = {}
        self._answers: list[list[Any]] = []  # state -> the answers that were tried in it
        self.start, too_early = self.next(-1, None)
        if too_early:
            raise ValueError(f"P{me} enters before its first call: no lock can be had without one")

    def next(self, state: int, answer: Any) -> tuple[int, Effects]:
        """The state after an answer, and what the client entered on the way there."""
        way = (state, answer)
        found = self._known.get(way)
        if found is not None:
            return found
        local, key, effects = self._run(self._record(way))
        number = self._numbers.setdefault(key if self.merge else way, len(self.states))
        self._known[way] = number, effects
        if number == len(self.states):
            self.states.append(local)
            self._ways.append([])
            self._answers.append([])
        if state >= 0:
            self._answers[state].append(answer)
        if self.merge:
            for other in self._ways[state][1:] if state >= 0 else ():
                self._compare(other, answer, way)
            for tried in self._answers[number] if self._ways[number] else ():
                self._compare(way, tried, (number, tried))
        if len(self._ways[number]) < WAYS:
            self._ways[number].append(way)
        return number, effects

    def _compare(self, other: Way, answer: Any, way: Way) -> None:
        """Whether the state reached by `other` goes on with `answer` as it is known to go on."""
        record = self._record(other)
        record.append((self.states[way[0]].call, answer))
        local, key, effects = self._run(record)
        number, expected = self._known[way]
        if self._numbers.get(key) != number or effects != expected:
            raise HiddenState(
                f"P{self.me}, answered {answer} by {called(record[-1][0])}, goes on with "
                f"{called(self.states[number].call)} or {called(local.call)}, and the explorer "
                "sees no difference before. Keep what it knows in local variables or attributes: "
                "an operand of an unfinished expression is out of sight"
            )

    def _record(self, way: Way) -> list[tuple[Call, Any]]:
        """The calls and answers that lead through a state to the answer given in it."""
        record: list[tuple[Call, Any]] = []
        state, answer = way
        while state >= 0:
            record.append((self.states[state].call, answer))
            state, answer = self._ways[state][0]
        return record[::-1]

    def _run(self, record: list[tuple[Call, Any]]) -> tuple[Local, Hashable, Effects]:
        """The program from its start to the first call that has no answer on record."""
        self.runs += 1
        seat = _stage.seat = Seat(self.me, self.party, record, Locals._run.__code__, self.nonces)
        local = Local(DONE)
        try:
            kept = self.program(seat)
            local = Local(DONE, keeps=frozenset(kept or ()))
        except Pause:
            pass
        except Exception as error:  # whatever the algorithm lets out is a finding
            local = Local(FAILED, error=f"{type(error).__name__}: {error}")
        effects = tuple(seat.effects)
        if seat.fault is not None:
            raise seat.fault
        if seat.paused:
            return Local(RUNS, seat.call), seat.key, effects
        seat.end()
        return local, local, effects


class _Stage:
    """Whose program is running: what the replaced functions below look at."""

    seat: Seat | None = None


_stage = _Stage()


@contextmanager
def repeatable() -> Generator[None]:
    """Meanwhile the shipped code is a function of its seat.

    The owner record and random bytes come from there. Other threads, and code outside a run, get
    the real ones.
    """
    import os

    mine, real_here, real_random = get_ident(), process.here, os.urandom
    hook, collects = sys.unraisablehook, gc.isenabled()

    def here(label: str = "") -> Owner:
        seat = _stage.seat
        return Owner(pid=seat.me, label=label) if seat is not None else real_here(label)

    def random(count: int, /) -> bytes:
        seat = _stage.seat
        return (
            seat.random(count) if seat is not None and get_ident() == mine else real_random(count)
        )

    def quiet(report: Any) -> None:
        if not issubclass(report.exc_type, Pause):  # a finalizer was the next step
            hook(report)

    _replace(real_here, here)
    os.urandom, sys.unraisablehook = random, quiet
    gc.disable()  # a finalizer runs when the last reference goes, not at some other moment
    try:
        yield
    finally:
        _stage.seat = None
        gc.collect()  # what was left in circles ends as quietly as the rest
        _replace(here, real_here)
        os.urandom, sys.unraisablehook = real_random, hook
        if collects:
            gc.enable()


def _replace(old: object, new: object) -> None:
    """Wherever a module of ours has imported `here` by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lifehold.") and getattr(module, "here", None) is old:
            module.here = new  # type: ignore[attr-defined]
