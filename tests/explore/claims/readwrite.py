"""What is claimed of the soft reader/writer lock.

Played: the shipped `SoftReadWrite`, with its witness; without any, by a judge who may be late or
unsure; over NFS with a lease, whose holder may be paused at any step. Beside it, variants that are
known to be wrong.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from explore.claims.oracle import Oracle
from explore.claims.soft import LOCAL, NFS, TERMS, NoFlock, quiet
from lifehold.core.acquire import Ask
from lifehold.core.deadline import NEVER
from lifehold.core.grant import Grant, Held
from lifehold.core.owner import Owner
from lifehold.local.handles import Descriptors
from lifehold.local.soft_readwrite import KIND, SUFFIX, SoftReadWrite
from lifehold.runtime.blocking import finish
from lifehold.testing.clients import PATH, nobody
from lifehold.testing.explore import Client, Exploration, Model
from lifehold.testing.remembered import TimedRemembering, TimedRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.core.deadline import Terms
    from lifehold.local.ground import MountInfo
    from lifehold.testing.actor import Actor, Program
    from lifehold.testing.world import World


def client(
    *,
    writes: bool,
    rounds: int = 1,
    waits: bool = False,
    terms: Terms | None = None,
    place: MountInfo = LOCAL,
    make: Callable[..., Any] = SoftReadWrite,
) -> Program:
    """A program that reads or writes `rounds` times."""

    def program(actor: Actor) -> set[int]:
        if terms is not None:
            actor.runtime = TimedRuntime(actor)
        lock = make(
            PATH,
            actor.runtime,
            exclusive=writes,
            table=Descriptors(actor.files),
            terms=terms,
            place=place,
            label=f"P{actor.me}",
            evidence=Oracle(KIND, actor, 2.0),
            owner=Owner(actor.me),
        )
        lock.inspect, lock.claim._guards, lock.safety = nobody, True, NEVER
        for _ in range(rounds):
            answer = lock.attempt()
            if waits:
                answer = patiently(lock, answer)
            if isinstance(answer, Grant):
                until = NEVER if answer.deadline is None else answer.deadline
                actor.enter(answer.token if writes else None, shared=not writes, until=until)
                actor.leave()
                lock.drop(answer)
        return set()

    def patiently(lock: Any, answer: Any) -> Any:
        ask = Ask(PATH)
        while isinstance(answer, Held):
            answer = finish(lock.wait(ask, NEVER))
        ask.leave()
        return answer

    return program


class LooksOnce(SoftReadWrite):
    """Known to be wrong: the reader does not look for a writer again after it has posted."""

    def _writer(self, *, fresh: bool = False) -> Any:
        if self.exclusive or not getattr(self, "_looked", False):
            self._looked = True
            return super()._writer(fresh=fresh)
        self._looked = False
        return None


class ListsFirst(SoftReadWrite):
    """Known to be wrong: the writer looks for readers before it claims, and not after."""

    def _write(self, at: str) -> Any:
        reader = self._reader(at)
        if reader:
            return Held("readers", self.key), reader[1]
        return self._claimed(at)


class TrustsTime(SoftReadWrite):
    """Known to be wrong: a marker that is no longer young is removed, whoever may live."""

    def _reader(self, at: str) -> None:
        for name in self.files.listdir(at):
            self.files.unlink(f"{at}/{name}")


class WatchesTheFolder(SoftReadWrite):
    """Known to be wrong: a crash closes a file that was made without a name, unheard there."""

    def _reader(self, at: str) -> Any:
        reader = super()._reader(at)
        return None if reader is None else (f"{self.folder}/", reader[1])


KNOWN_BAD = {"looks once": LooksOnce, "lists first": ListsFirst, "trusts time": TrustsTime}


def folder(world: World) -> None:
    """The folder of the markers."""
    world.put(PATH + SUFFIX, kind=stat.S_IFDIR, mode=0o700)


def unseen(world: World, me: int, call: tuple[Any, ...]) -> bool:
    """To close what one only looked at, and holds no lock of, when nobody watches for a close."""
    if call[0] != "close":
        return False
    mine = world.opened.get((me, call[1]))
    if mine is None:
        return True
    return not (mine.lock or mine.guard) and (not mine.access or not world.watches)


def game(
    name: str, *programs: Program, crashes: int = 1, model: Callable[[], Model] = Model, **more: Any
) -> Exploration:
    """A configuration, from an empty folder."""
    actors = [Client(program) for program in programs]
    return Exploration(
        *actors,
        crashes=crashes,
        model=model(),
        name=name,
        quiet=quiet,
        unseen=unseen,
        start=folder,
        **more,
    )


def _claim(name: str, *programs: Program, soak: bool = False, **more: Any) -> Claim:
    name = f"soft reader/writer: {name}"
    return Claim(name, lambda: game(name, *programs, **more), frozenset(), soak)


def readwrite_claims() -> Iterator[Claim]:
    """All of them."""
    read, write = client(writes=False), client(writes=True)
    reads, writes = client(writes=False, waits=True), client(writes=True, waits=True)
    yield _claim("a writer and a reader", write, read, crashes=2)
    yield _claim("a writer that waits and a reader", writes, read, soak=True)
    yield _claim("a writer and a reader that waits", write, reads, soak=True)
    yield _claim("a writer and a reader that wait", writes, reads, soak=True)
    yield _claim("a writer and 2 readers", write, read, read, soak=True)
    yield _claim("2 writers and a reader", write, write, read, soak=True)
    bare: dict[str, Any] = {"model": NoFlock}
    yield _claim("without a witness, a writer and a reader", write, read, soak=True, **bare)
    yield _claim("without a witness, 2 writers and a reader", write, write, read, soak=True, **bare)
    leased = [client(writes=each, terms=TERMS, place=NFS) for each in (True, False)]
    yield _claim(
        "over NFS, with leases", *leased, model=TimedRemembering, newcomer=False, soak=True
    )
