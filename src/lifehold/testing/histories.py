"""Random histories of a store beside the reference: each answer and each state is the same.

Promise: a seed plays the same questions each time. With a clock that can be set, leases run out in
them and answers are compared to the last digit; without one, no lease does, and what is compared
is who is in, in which slot, by the how-manieth token, who waits, and what was answered.

Rule: what the engine never asks is not asked: nobody comes back with a nonce that was released. Who
was called and does not come within CLAIM seconds is passed, by the clock of each side: a history
that lasts so long may differ by it, and is played again.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

from ..core.backend import WHOLE, Given, Order, Refused, Renewal, Request, State, traits_of
from ..core.value import replace
from ..runtime import clock, process
from ..runtime.blocking import finish
from ..store.memory import Memory
from ..store.rules import CLAIM
from .stage import ClaimBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.backend import Backend, StoreHolder

START = 1_700_000_000.0  # of a clock that is set
FOREVER = 3600.0  # seconds, in histories without a clock
TRIES = 12  # of a history without a clock, on a machine that pauses
SHAPES = [(1, 1, False), (1, 1, False), (3, 1, False), (WHOLE, 1, True), (WHOLE, WHOLE, False)]


class _Dice:
    """What is asked next, and by whom."""

    def __init__(self, seed: int, lacks: Any, timed: bool) -> None:
        self.random, self.timed, self.lacks = random.Random(seed), timed, lacks
        base = os.urandom(4).hex()
        self.names = [f"history/{base}/{end}" for end in ("a", "b", "ü#?%")]
        self.fresh = (f"{base}{number:08x}" for number in range(10**6))
        self.nonces = [next(self.fresh) for _ in range(self.random.choice([3, 7, 12]))]
        self.shapes = [
            shape
            for shape in SHAPES
            if not (shape[0] == WHOLE and "readers" in lacks)
            and not (shape[0] == 3 and "permits" in lacks)
        ]

    def question(self, tokens: list[int]) -> tuple[str, Any]:
        """A method and its argument."""
        dice, name = self.random, self.random.choice(self.names)
        nonce, verb = dice.choice(self.nonces), dice.random()
        if verb < 0.55:
            return "acquire", self._request(name, nonce)
        if verb < 0.7:
            weight = None if "readers" in self.lacks else dice.choice([None, None, 1])
            ttl = 4.0 if self.timed else FOREVER
            return "renew", Renewal(name, nonce, ttl, weight)
        if verb < 0.93:
            self.nonces[self.nonces.index(nonce)] = next(self.fresh)
            return "release", (name, nonce)
        verbs = ["break", "bump", *([] if "kept" in self.lacks else ["keep", "forget"])]
        least = dice.choice([0, 7, *tokens])
        return "order", Order(dice.choice(verbs), name, "why", "who", least, f"{verb}")

    def _request(self, name: str, nonce: str) -> Request:
        dice = self.random
        capacity, weight, shared = dice.choice(self.shapes)
        ttl = dice.choice([1.0, 5.0]) if self.timed else FOREVER
        delay = (
            dice.choice([0.0, 0.0, 2.0]) if self.timed and "lock_delay" not in self.lacks else 0.0
        )
        wait = "queue" not in self.lacks and dice.random() < 0.6
        fair, patience = dice.random() < 0.8, 3.0 if self.timed else FOREVER
        return Request(
            name, nonce, ttl, process.here(), capacity, weight, shared, delay, wait, fair, patience
        )


class _Shapes:
    """Answers of one side without instants, and with tokens by their order."""

    def __init__(self, lacks: Any) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.lacks = lacks

    def token(self, name: str, token: int | None) -> int | None:
        seen = self.tokens.setdefault(name, [])
        if token is not None and token not in seen:
            if seen and token < seen[-1]:
                raise ClaimBroken(f"L4: token {token} of {name!r} after {seen[-1]}")
            seen.append(token)
        return None if token is None else seen.index(token)

    def of(self, name: str, answer: object) -> object:
        if isinstance(answer, Given):
            return "in", self.token(name, answer.token), answer.slot
        if isinstance(answer, Refused):
            ahead = None if "queue" in self.lacks else answer.ahead
            return (
                "out",
                [self.holder(name, each) for each in answer.holders],
                ahead,
                answer.capacity,
            )
        if isinstance(answer, State):
            holders = [self.holder(name, each) for each in answer.holders]
            waiters = None if "queue" in self.lacks else answer.waiters
            return self.token(name, answer.token), answer.capacity, holders, waiters
        return answer

    def holder(self, name: str, holder: StoreHolder) -> object:
        return holder.nonce, self.token(name, holder.token), holder.weight, holder.slot


def play(
    backend: Backend, seed: int, steps: int, set_clock: Callable[[float], object] | None = None
) -> None:
    """One history. Raises ClaimBroken at the first difference."""
    for _ in range(TRIES - 1):
        began = clock.now()
        try:
            return _play(backend, seed, steps, set_clock)
        except ClaimBroken:
            if set_clock is not None or clock.now() - began < 0.9 * CLAIM:
                raise
    return _play(backend, seed, steps, set_clock)


def _play(
    backend: Backend, seed: int, steps: int, set_clock: Callable[[float], object] | None
) -> None:
    lacks = traits_of(backend).lacks
    at = [START]
    dice = _Dice(seed, lacks, set_clock is not None)
    now = clock.now if set_clock is None else lambda: at[0]
    reference = Memory(now, lambda: int(now() * 1e6))
    ours, theirs = _Shapes(lacks), _Shapes(lacks)

    def alike(question: object, name: str, expected: object, found: object) -> None:
        if set_clock is None:
            expected, found = ours.of(name, expected), theirs.of(name, found)
        if expected != found:
            raise ClaimBroken(
                f"seed {seed}: to {question}\n  it answered    {found}\n  the reference  {expected}"
            )

    for _ in range(steps):
        if set_clock is not None:
            set_clock(at[0])
        states = finish(reference.look(dice.names))
        tokens = [each.token or 0 for state in states for each in state.holders]
        method, given = dice.question(tokens if set_clock is not None else [])
        name = given[0] if method == "release" else given.name
        expected, found = _asked(reference, method, given), _asked(backend, method, given)
        alike((method, given), name, expected, found)
        alike(f"look({name!r})", name, _state(reference, name), _state(backend, name))
        if set_clock is not None:
            at[0] += dice.random.choice([0.0, 0.0, 0.3, 1.1])


def _asked(backend: Backend, method: str, given: Any) -> Any:
    if method == "acquire":
        return finish(backend.acquire(given))
    if method == "renew":
        _, kept = finish(backend.renew((given,)))
        return tuple(kept)
    if method == "release":
        return finish(backend.release(*given))
    return _plain(finish(backend.order(given)))


def _state(backend: Backend, name: str) -> State | None:
    found = finish(backend.look((name,)))
    return _plain(found[0] if found else None, kept=True)


def _plain(state: State | None, *, kept: bool = False) -> State | None:
    """A name that was only asked about is known to one store, and unknown to another."""
    if state is None or (state.token is None and not state.holders and not state.waiters):
        return None
    return state if kept else replace(state, kept=None)
