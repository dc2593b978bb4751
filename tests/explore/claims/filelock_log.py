"""What is claimed of filelock's reader/writer log, as ours.

Played: the shipped `Participant` and `GenerationLog`, in a folder of the model, with the witness of
each record; the log is cut after few snapshots, so that a committer may sleep until its number is
free again. Reading a record is one step: each has its content before it has its name. HEAD, which
is a copy, is left out where there are too many states with it.
"""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from lifehold.compat.filelock.record_folder import PinnedSnapshot
from lifehold.compat.filelock.soft_rw_log import GenerationLog, LogState, numbered, spelled
from lifehold.compat.filelock.soft_rw_member import MemberState, Participant
from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant
from lifehold.core.owner import ALIVE, DEAD, LifeVerdict
from lifehold.local.files import LOCK_EX, LOCK_NB, NAMELESS
from lifehold.local.handles import Descriptors
from lifehold.testing.explore import Client, Exploration, Model
from lifehold.testing.model import Outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifehold.compat.filelock import pidfile
    from lifehold.testing.actor import Actor, Call, Program
    from lifehold.testing.world import World

LOCK = "/lock.rw"
GEN, HOLDERS, EPOCH = f"{LOCK}/gen", f"{LOCK}/holders", b"e" * 32 + b"\n"
SNAPSHOT = b"filelock-rw/1\ngeneration="
TERMS = Terms(90.0, 30.0, 9.0)


class Rooms(Model):
    """A machine on which a record is looked at in one step."""

    def do_content(self, world: World, me: int, path: str) -> Outcomes:
        """Of a file: None when there is none."""
        ino = world.at(path)
        return Outcomes([(None if ino is None else world.nodes[ino].data, world)])


class Room:
    """As `lifehold.compat.filelock.record_folder.OpenFolder`, of the model."""

    def __init__(self, at: str, actor: Actor, table: Descriptors) -> None:
        self.at, self.actor, self.files, self.table = at, actor, actor.files, table
        self.pin: Any = None
        self.head: Any = None

    def open(self, name: str, flags: int) -> Any:
        return self.files.open(f"{self.at}/{name}", flags)

    def kept(self, name: str, flags: int = os.O_RDONLY) -> PinnedSnapshot:
        return PinnedSnapshot(self.table, lambda: self.open(name, flags), 0)

    def nameless(self) -> PinnedSnapshot:
        return PinnedSnapshot(self.table, lambda: self.files.open(self.at, os.O_RDWR | NAMELESS), 0)

    def named(self, fd: int, name: str) -> bool:
        self.files.link_fd(fd, f"{self.at}/{name}")
        return True

    def read(self, name: str) -> Any:
        return self.actor.step("content", f"{self.at}/{name}")

    def key_at(self, name: str) -> Any:
        try:
            found = self.files.lstat(f"{self.at}/{name}")
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def unlink(self, name: str) -> None:
        try:
            self.files.unlink(f"{self.at}/{name}")
        except FileNotFoundError:
            return

    def names(self) -> Any:
        return self.files.listdir(self.at)


class Played(MemberState):
    """What the acquisitions of one client know together."""

    def __init__(self, actor: Actor, log: type[GenerationLog], cut: int) -> None:
        self.path, self.runtime, self.terms = LOCK, actor.runtime, TERMS
        self.table, self.words = Descriptors(actor.files), words(actor)
        self.log = log(LOCK, near=True)
        self.log.sync, self.log.keep, self.log.cut = nothing, cut, cut
        self.log.batch = 1
        self.seen, self.near, self.ready, self.sweep_at = {}, True, True, 1.0
        self.gen, self.holders = (Room(at, actor, self.table) for at in (GEN, HOLDERS))

    def prepare(self) -> None:
        return

    def opened(self) -> Any:
        return self

    idle = opened

    def keep(self, rooms: Any) -> None:
        return

    def lead_here(self) -> bool:
        return True

    def close(self) -> None:
        return

    def leave(self) -> None:
        """The program ends: nothing is kept for another acquisition."""
        for each in (self.gen.pin and self.gen.pin[1], self.gen.head):
            if each is not None:
                each.close()


def nothing(fd: int, device: int | None = None) -> None:
    """No power is lost here."""


def words(actor: Actor) -> Any:
    """Who we are, and who lives: by the witness alone."""

    def verdict(named: pidfile.PidFileOwner, witness: bool | None, one_kernel: bool) -> LifeVerdict:
        return LifeVerdict(DEAD if witness is False else ALIVE, "")

    return SimpleNamespace(
        record=lambda witness: f"{actor.me}\nhost\n".encode(),
        verdict=verdict,
        host_name=lambda: "host",
    )


class Headless(GenerationLog):
    """The shipped log without its copy of one of the newest."""

    def _move_head(self, room: Any, generation: int, content: bytes) -> None:
        return


class Replaces(Headless):
    """Known to be wrong: a snapshot may take the place of another of its number."""

    def _published(self, room: Any, name: str, content: bytes, ours: list[Any]) -> bool:
        room.unlink(name)
        return super()._published(room, name, content, ours)


class Forgets(Headless):
    """Known to be wrong: it does not look whether the log was cut between its look and its link."""

    def _commit_near(self, room: Any, before: LogState, state: LogState, content: bytes) -> bool:
        return self._published(room, numbered(state.generation), content, [])


def side(
    *, writes: bool, rounds: int = 1, log: type[GenerationLog] = Headless, cut: int = 9
) -> Program:
    """A program that reads or writes `rounds` times, and does not wait."""

    def program(actor: Actor) -> set[int]:
        results = Played(actor, log, cut)
        for _ in range(rounds):
            ours = Participant(results, "write" if writes else "read")
            answer = ours.attempt()
            if isinstance(answer, Grant):
                actor.enter(answer.token if writes else None, shared=not writes)
                actor.leave()
                ours.drop(answer)
            else:
                ours.leave()
        results.leave()
        return set()

    return program


KNOWN_BAD = {"replaces": (Replaces, 9), "forgets": (Forgets, 1)}


def quiet(call: Call, constant: tuple[str, ...] = ("/epoch", "/HEAD")) -> bool:
    """What no other client sees, and what sees nothing of them. `constant`: never written."""
    rest: list[Any]
    op, first, *rest = (*call, None)
    if op == "flock":
        return bool(rest[0] == LOCK_EX | LOCK_NB)  # the witness of a record of one's own
    if op == "open":
        return bool(rest[0] & NAMELESS == NAMELESS)
    if op == "pwrite":
        return bool(rest[0].startswith(SNAPSHOT))  # into a file that has no name yet
    return op == "clock_ns" or (op == "content" and str(first).endswith(constant))


def quiet_with_head(call: Call) -> bool:
    """The same where HEAD is written."""
    return quiet(call, ("/epoch",))


def begun(world: World) -> None:
    """A log that has been in use, and nobody in it."""
    for path in (LOCK, GEN, HOLDERS):
        world.put(path, kind=stat.S_IFDIR, mode=0o700)
    content = spelled(LogState(1, None, frozenset()))
    world.put(f"{GEN}/{1:020d}", content)
    world.put(f"{GEN}/epoch", EPOCH)
    world.put(f"{GEN}/HEAD", EPOCH + content)


def game(name: str, *programs: Program, crashes: int = 1, **more: Any) -> Exploration:
    """A configuration."""
    actors = [Client(program) for program in programs]
    options: dict[str, Any] = {"quiet": quiet, "model": Rooms(), "start": begun} | more
    return Exploration(*actors, crashes=crashes, name=name, **options)


def _claim(name: str, *programs: Program, soak: bool = False, **more: Any) -> Claim:
    name = f"filelock's reader/writer log: {name}"
    return Claim(name, lambda: game(name, *programs, **more), frozenset(), soak)


def filelock_claims() -> Iterator[Claim]:
    """All of them."""
    read, write = side(writes=False), side(writes=True)
    again, headed = side(writes=True, rounds=2, cut=1), side(writes=True, log=GenerationLog)
    yield _claim("2 writers", write, write)
    yield _claim("a writer and a reader", write, read, soak=True)
    yield _claim("2 writers, with HEAD", headed, headed, quiet=quiet_with_head, soak=True)
    yield _claim("2 writers, one of 2 rounds, cut at once", again, write, crashes=0, soak=True)
    yield _claim("2 writers, 2 rounds, cut at once", again, again, soak=True)
    yield _claim("3 writers", write, write, write, soak=True)
    yield _claim("2 writers and a reader", write, write, read, soak=True)
    yield _claim("a writer and 2 readers", write, read, read, soak=True)
