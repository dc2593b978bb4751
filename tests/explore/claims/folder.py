"""What is claimed of kind `folder`: by itself, and beside lockfolder as it is.

The peer posts a bid in two steps, so that others find it empty; when it dies between them, its own
colleagues are stuck until one of ours comes by.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from explore.claims.leases_model import ASIDE, NEAR, Leases, unlinked
from lifehold.core.grant import Grant, Held
from lifehold.core.owner import LifeVerdict, Owner
from lifehold.local.files import LOCK_EX, LOCK_NB, LOCK_UN, READ_WRITE
from lifehold.local.folder import FolderLock
from lifehold.local.record import HELD, WAITING, RecordTemplate, WrittenRecord
from lifehold.testing.clients import PATH, lock_client
from lifehold.testing.explore import STUCK, Client, Exploration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.local.folder import FoundBid
    from lifehold.testing.actor import Actor, Program
    from lifehold.testing.world import World


class InLine(FolderLock):
    """It stands in line at once, as who has patience does after a first try."""

    def attempt(self) -> Grant | Held:
        return Held("", self.key)


class Tries(FolderLock):
    """It has no patience, and looks once more at a ticket that is being chosen."""

    looks = 1


def folder_claims() -> Iterator[Claim]:
    """All of them."""
    waits, tries, twice = folder(), folder(Tries, wait=0.0), folder(rounds=2)
    for start in (empty, dead_holder, dead_waiter):
        word = start.__name__
        later = start is not empty
        yield _claim(f"2 clients, {word}", waits, waits, start=start)
        yield _claim(
            f"2 clients, {word}, 2 crashes", waits, waits, start=start, crashes=2, soak=True
        )
        yield _claim(f"2 clients, 2 rounds, {word}", twice, twice, start=start, soak=True)
        yield _claim(
            f"2 clients, one without patience, {word}", waits, tries, start=start, soak=later
        )
        yield _claim(f"3 clients, {word}", waits, waits, waits, start=start, soak=True)
    yield _claim("2 clients, clock back", twice, waits, soak=True, world=Leases(clock="back"))
    yield _claim("3 clients without patience", tries, tries, tries, soak=True)
    yield from mixed_claims()


def mixed_claims() -> Iterator[Claim]:
    """Beside lockfolder. Its own processes exclude each other too."""
    ours, peer = folder(), lockfolder()
    stuck = frozenset({STUCK})
    yield _claim("1 client, lockfolder", ours, peer, may=stuck)
    yield _claim("1 client without patience, lockfolder", folder(Tries, wait=0.0), peer, may=stuck)
    yield _claim("1 client, lockfolder, empty bid", ours, peer, start=empty_bid, may=stuck)
    yield _claim("2 clients, lockfolder", ours, ours, peer, may=stuck, soak=True)
    yield _claim("1 client, 2 of lockfolder", ours, peer, peer, may=stuck, soak=True)


def folder(kind: Any = InLine, **options: Any) -> Client:
    """A client."""
    return Client(_played(kind, {"wait": None, "place": NEAR, **options}))


def _played(kind: Any, options: dict[str, Any]) -> Program:
    def program(actor: Actor) -> set[int]:
        class Played(kind):  # type: ignore[misc]
            def foreign(self, seen: FoundBid, fd: int) -> LifeVerdict:
                if seen.pid is None:
                    return LifeVerdict("unknown", "")
                return LifeVerdict(actor.alive(seen.pid), "the oracle")

        return lock_client(Played, **options)(actor) or set()

    return program


def lockfolder(*, rounds: int = 1) -> Client:
    """The original: check, bid, check; it withdraws when it sees another."""
    return Client(_original(rounds), party="lockfolder")


def _original(rounds: int) -> Program:
    def program(actor: Actor) -> None:
        files, done = actor.files, 0
        name = f"{PATH}/{actor.me:08d}-0000-4000-8000-000000000000.json"
        while done < rounds:
            if not _is_free(actor, name):
                actor.step("sleep", 0.0)
                continue
            fd = files.open(name, READ_WRITE | os.O_CREAT | os.O_TRUNC, 0o644)
            files.pwrite(fd, b'{"PID": %d, "CREATED": 1}' % actor.me, 0)
            files.close(fd)
            if _is_free(actor, name):
                actor.enter()
                actor.leave()
                done += 1
            unlinked(actor, name)

    return program


def _is_free(actor: Actor, mine: str) -> bool:
    """No bid of a living process but our own. What raises in the original is read again here."""
    names = actor.files.listdir(PATH)
    for each in names:
        name = f"{PATH}/{each}"
        if not each.endswith(".json") or name == mine:
            continue
        try:
            fd = actor.files.open(name, READ_WRITE)
        except FileNotFoundError:
            continue
        text = actor.files.pread(fd, 2048, 0)
        actor.files.close(fd)
        pid = pid_in(text)
        if pid is None or actor.alive(pid) != "dead":
            return False
        unlinked(actor, name)
    return True


def pid_in(text: bytes) -> int | None:
    """The process that a bid names."""
    digits = text.partition(b'"PID":')[2].partition(b",")[0].strip()
    return int(digits) if digits else None


def _claim(
    name: str,
    *actors: Client,
    crashes: int = 1,
    may: frozenset[str] = frozenset(),
    soak: bool = False,
    world: Leases | None = None,
    start: Callable[[World], None] | None = None,
) -> Claim:
    words = f"folder: {name}"

    def game() -> Exploration:
        return Exploration(
            *actors,
            crashes=crashes,
            model=world or Leases(),
            name=words,
            start=start or empty,
            quiet=quiet,
            unseen=unseen,
        )

    return Claim(words, game, may, soak)


# ---- as others left it ---------------------------------------------------------------------------


def empty(world: World) -> None:
    """The folder is there."""
    world.put(PATH, b"", stat.S_IFDIR, 0o755)


def _left(world: World, state: str, ticket: int) -> None:
    empty(world)
    ino = world.put(f"{PATH}/00000000-0000-4000-8000-000000000000.json")
    words = RecordTemplate("folder", Owner(pid=0), None, NEAR, witness=True)
    sheet = WrittenRecord(words, ino, ticket, world.clock // 1000, mark="0" * 32)
    world.nodes[ino] = world.nodes[ino]._replace(data=sheet.now(state))


def dead_holder(world: World) -> None:
    """Who held it is gone."""
    _left(world, HELD, 7)


def dead_waiter(world: World) -> None:
    """Who was just choosing a ticket is gone."""
    _left(world, WAITING, 0)


def empty_bid(world: World) -> None:
    """A process of lockfolder died between the two steps of a bid."""
    empty(world)
    world.put(f"{PATH}/00000000-0000-4000-8000-000000000000.json")


def quiet(call: tuple[Any, ...]) -> bool:
    """Steps on a bid that has only its temporary name, on a clock, on what never changes."""
    op, *arguments = call
    if op in ("sleep", "fstat", "fsync", "clock_ns"):
        return True
    if op in ("open", "unlink"):
        return ASIDE in arguments[0]
    if op == "flock":
        return bool(arguments[1] == LOCK_EX | LOCK_NB)
    return op == "pwrite" and b'"token":%20d' % 0 in arguments[1]


def unseen(world: World, me: int, call: tuple[Any, ...]) -> bool:
    """To close what one only looked at; to end a judge's shared try, which disturbs nobody."""
    op, *arguments = call
    if op == "close":
        opened = world.opened.get((me, arguments[0]))
        return opened is None or not (opened.lock or opened.access)
    return bool(op == "flock" and arguments[1] == LOCK_UN)
