"""What is claimed of the kernel's reader/writer lock and of semaphores.

Played: the shipped classes without their line, which only orders and has a game of its own
(tests/explore/test_fair.py): so whoever asks may pass, which is more than the shipped line allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from lifehold.core.errors import InvalidArgument
from lifehold.core.grant import Grant
from lifehold.local.files import LOCK_EX, LOCK_NB, LOCK_SH
from lifehold.local.handles import Descriptors
from lifehold.local.kernel_readwrite import KernelReadWrite
from lifehold.local.kernel_semaphore import KernelSemaphore
from lifehold.testing.clients import PATH, nobody
from lifehold.testing.explore import Client, Exploration, Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.actor import Actor
    from lifehold.testing.world import World


class Pausing(Model):
    """A moment's pause is a step like others."""

    def do_pause(self, world: World, me: int, seconds: float) -> None:
        """Nothing happens by time alone."""


class Unlined(KernelReadWrite):
    """One side of it; whoever asks asks the kernel at once."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.files, self._lined = self.table.files, None
        self._operation = LOCK_EX if self.exclusive else LOCK_SH
        self._now_or_never = self._operation | LOCK_NB


class Unqueued(KernelSemaphore):
    """A semaphore; whoever asks tries the slots at once."""

    def _somebody_waits(self, gate: Any) -> bool:
        return False


class CountsNobody(Unqueued):
    """Known to be wrong: it does not look what N is after it has a slot."""

    def _agreed(self, grant: Grant, gate: Any, *, ours: bool = False) -> Grant:
        return grant


def side(*, writes: bool, rounds: int = 1, downgrades: bool = False) -> Client:
    """A client that reads or writes `rounds` times; a writer may end as a reader."""

    def program(actor: Actor) -> set[int]:
        table = Descriptors(actor.files)
        lock: Any = Unlined(PATH, actor.runtime, table=table, exclusive=writes)
        lock.inspect, lock.waiters = nobody, nobody
        for _ in range(rounds):
            answer = lock.attempt()
            if not isinstance(answer, Grant):
                continue
            actor.enter(answer.token if writes else None, shared=not writes)
            actor.leave()
            if downgrades:
                actor.enter(None, shared=True)  # from here on no writer may come in
                lock.downgrade(answer)
                actor.leave()
            lock.drop(answer)
        return {slot.fd for slot in table.idle.values()}

    return Client(program)


def taker(permits: int = 2, *, rounds: int = 1, kind: Any = Unqueued) -> Client:
    """A client that takes a slot. Of one permit it claims all slots: nobody may be beside it."""

    def program(actor: Actor) -> set[int]:
        table = Descriptors(actor.files)
        gate: Any = kind(PATH, actor.runtime, permits, table=table)
        for _ in range(rounds):
            try:
                answer = gate.attempt()
            except InvalidArgument:
                continue  # another number counts, and is told
            if not isinstance(answer, Grant):
                continue
            slots = [f"slot {gate.slot_of(answer)}"] if permits > 1 else ["slot 0", "slot 1"]
            actor.enter(answer.token, what=slots[0])
            for slot in slots[1:]:
                actor.enter(None, what=slot)
            for slot in slots:
                actor.leave(slot)
            gate.drop(answer)
        return {slot.fd for slot in table.idle.values()}

    return Client(program)


def game(name: str, *actors: Client, crashes: int = 1, **more: Any) -> Exploration:
    """A configuration, where nothing is there."""
    return Exploration(*actors, crashes=crashes, model=Pausing(clock="still"), name=name, **more)


def _claim(name: str, *actors: Client, soak: bool = False, **more: Any) -> Claim:
    made: Callable[[], Exploration] = lambda: game(name, *actors, **more)  # noqa: E731
    return Claim(name, made, frozenset(), soak)


def shapes_claims() -> Iterator[Claim]:
    """All of them."""
    write, read = side(writes=True), side(writes=False)
    turns = side(writes=True, downgrades=True)
    word = "kernel reader/writer"
    yield _claim(f"{word}: a writer and 2 readers, 2 crashes", write, read, read, crashes=2)
    yield _claim(f"{word}: a writer that ends as a reader, a writer, a reader", turns, write, read)
    twice = side(writes=False, rounds=2)
    yield _claim(f"{word}: a writer and a reader, who comes again", write, twice)
    yield _claim("semaphore: 2 permits, 2 clients, 2 crashes", taker(), taker(), crashes=2)
    yield _claim("semaphore: 2 permits, 3 clients", taker(), taker(), taker(), soak=True)
    yield _claim("semaphore: one says 1 permit, one says 2", taker(1), taker(2))
    yield _claim("semaphore: one says 1 permit, two say 2", taker(1), taker(), taker(), soak=True)
