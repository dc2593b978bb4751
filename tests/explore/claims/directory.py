"""What is claimed of kind `directory`: by itself, with leases, over NFS, beside locks of mkdir(2).

Where leases are played, time passes for a bounded number of steps: that somebody waits when it has
come to its end is no finding there. Nor is it, that nobody takes the folder of a maker by mkdir(2)
who died.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from explore.claims.leases_model import (
    ASIDE,
    FAR,
    FIRST_WRITE,
    NEAR,
    TTL,
    Leases,
    NetworkLeases,
    lease_client,
)
from lifehold.core.owner import Owner
from lifehold.local.directory import DirectoryLock
from lifehold.local.files import LOCK_EX, LOCK_NB, LOCK_UN
from lifehold.local.record import RecordTemplate, WrittenRecord
from lifehold.local.record_folders import FRONT, MARK
from lifehold.testing.clients import PATH
from lifehold.testing.explore import FOREIGN, MIXED, STUCK, WEDGED, Client, Exploration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifehold.testing.actor import Actor, Program
    from lifehold.testing.world import World

OUT_OF_TIME = frozenset({STUCK, WEDGED})
LEASED: dict[str, Any] = {"leased": True, "place": FAR}
THEIRS = frozenset({MIXED, FOREIGN, STUCK, WEDGED})


class Rooms(Leases):
    """Folders aside have numbers of each client's own, as the files in them: fewer states."""

    def do_mkdir(self, world: World, me: int, path: str, mode: int = 0o777) -> None:
        super().do_mkdir(world, me, path, mode)
        if ASIDE in path:
            ino = next(number for number in range(me * 100, 1 << 20) if number not in world.nodes)
            world.nodes[ino] = world.nodes.pop(world.names[path])
            world.names[path] = ino


class NetworkRooms(Rooms, NetworkLeases):
    """The same over NFS."""


def directory_claims() -> Iterator[Claim]:
    """All of them."""
    yield from own_claims()
    yield from lease_claims()
    yield from mkdir_claims()


def directory(kind: Any = DirectoryLock, **options: Any) -> Client:
    """A client."""
    return Client(lease_client(kind, **options))


def maker(*, rounds: int = 1, crashes: bool = True) -> Client:
    """A program that takes its locks by mkdir(2) and frees them by rmdir(2)."""
    return Client(_by_mkdir(rounds), party="mkdir", crashes=crashes)


def _by_mkdir(rounds: int) -> Program:
    def program(actor: Actor) -> None:
        for _ in range(rounds):
            while True:
                try:
                    actor.files.mkdir(PATH)
                    break
                except FileExistsError:
                    actor.step("sleep", 0.0)
            actor.enter()
            actor.leave()
            try:
                actor.files.rmdir(PATH)
            except OSError:
                pass  # no empty folder, or none: it was robbed

    return program


def _claim(
    name: str,
    *actors: Client,
    crashes: int = 1,
    may: frozenset[str] = frozenset(),
    soak: bool = False,
    world: Leases | None = None,
    **more: Any,
) -> Claim:
    words = f"directory: {name}"

    def game() -> Exploration:
        return Exploration(
            *actors,
            crashes=crashes,
            model=world or Rooms(),
            name=words,
            quiet=quiet,
            unseen=unseen,
            **more,
        )

    return Claim(words, game, may, soak)


def own_claims() -> Iterator[Claim]:
    """Among ourselves, without a ttl: exact with a witness, by name with the oracle's evidence."""
    one, two, sees = directory(), directory(rounds=2), directory(witness=False)
    for start in (None, dead_holder):
        word = start.__name__ if start else "nothing there"
        yield _claim(f"2 clients, {word}, 2 crashes", one, one, start=start, crashes=2)
        yield _claim(f"2 clients, 2 rounds, {word}", two, two, start=start, soak=True)
        yield _claim(f"3 clients, {word}", one, one, one, start=start, soak=True)
        yield _claim(
            f"3 clients, {word}, 2 crashes", one, one, one, start=start, crashes=2, soak=True
        )
        for oracle in ("right", "late", "unsure"):
            words = f"no witness, oracle {oracle}, {word}"
            yield _claim(
                f"2 clients, {words}",
                sees,
                sees,
                start=start,
                soak=oracle != "unsure",
                world=Rooms(oracle=oracle),
            )
        yield _claim(f"3 clients, no witness, {word}", sees, sees, sees, start=start, soak=True)
    yield _claim("2 clients, clock back", one, two, world=Rooms(clock="back"), soak=True)
    yield _claim("2 clients, left empty by ours", one, one, start=left_empty)


def lease_claims() -> Iterator[Claim]:
    """Where only the lease counts, in silence and with renewals, and over NFS."""
    silent, renews = directory(**LEASED), directory(renews=True, **LEASED)
    for start in (None, dead_leased):
        for nfs in (False, True):
            world = (NetworkRooms if nfs else Rooms)(steps=3)
            word = f"lease only, {start.__name__ if start else 'nothing there'}"
            more: dict[str, Any] = {"start": start, "may": OUT_OF_TIME, "world": world}
            words = f"{word}{', NFS' if nfs else ''}"
            yield _claim(f"2 clients, {words}", silent, silent, soak=True, **more)
            yield _claim(f"2 clients that renew, {words}", renews, silent, soak=True, **more)
            yield _claim(f"3 clients, {words}", silent, silent, silent, soak=True, **more)


def mkdir_claims() -> Iterator[Claim]:
    """Beside makers by mkdir(2). Without a ttl nobody's live folder is ever taken or removed.

    A folder that one of ours left by a crash is removed by the next of ours; a maker waits for it.
    """
    one, lives, dies = directory(), maker(crashes=False), maker()
    twice, waits = directory(rounds=2), frozenset({STUCK})
    yield _claim("1 client, mkdir, 2 rounds each", twice, maker(rounds=2), crashes=0)
    yield _claim(
        "1 client, mkdir, 2 rounds each, a crash", twice, maker(rounds=2, crashes=False), may=waits
    )
    yield _claim("2 clients, mkdir", one, one, lives, start=dead_holder, may=waits, soak=True)
    yield _claim("1 client, 2 of mkdir", one, lives, lives, start=dead_holder, may=waits)
    yield _claim("1 client, mkdir that may die", one, dies, may=OUT_OF_TIME)
    leased = directory(leased=True)
    yield _claim(
        "1 client with a ttl, mkdir",
        leased,
        lives,
        may=THEIRS,
        soak=True,
        world=Rooms(steps=3, clock="ticking"),
    )


# ---- as others left it ---------------------------------------------------------------------------


def entry(world: World, *, ttl: float | None = None, witness: bool = True) -> None:
    """A folder with the record of a process that is gone."""
    world.put(PATH, b"", stat.S_IFDIR, 0o700 | (0 if witness and ttl is None else MARK))
    mark = f"{7:032x}"
    ino = world.put(f"{PATH}/{FRONT}{mark}")
    words = RecordTemplate("directory", Owner(pid=0), ttl, NEAR, witness=witness)
    sheet = WrittenRecord(words, ino, 7, world.clock // 1000, mark=mark)
    world.nodes[ino] = world.nodes[ino]._replace(data=sheet.text)
    world.token["lock"] = 7


def dead_holder(world: World) -> None:
    """Its holder died."""
    entry(world)


def dead_leased(world: World) -> None:
    """The same with a lease and without a witness."""
    entry(world, ttl=TTL, witness=False)


def left_empty(world: World) -> None:
    """Who removed an entry by name died before it could do more."""
    world.put(PATH, b"", stat.S_IFDIR, 0o700 | MARK)


# ---- steps that need no turn of their own --------------------------------------------------------


def quiet(call: tuple[Any, ...]) -> bool:
    """Steps in a folder aside, which no other client sees; on a clock; on what never changes."""
    op, *arguments = call
    if op in ("sleep", "fstat", "fsync", "clock_ns"):
        return True
    if op in ("open", "mkdir", "rmdir", "unlink", "lstat", "chmod"):
        return ASIDE in arguments[0]
    if op == "flock":
        return bool(arguments[1] == LOCK_EX | LOCK_NB)  # of a record that is not in its place yet
    return op == "pwrite" and FIRST_WRITE in arguments[1]


def unseen(world: World, me: int, call: tuple[Any, ...]) -> bool:
    """To close what one only looked at; to end a judge's shared try, which disturbs nobody."""
    op, *arguments = call
    if op == "close":
        opened = world.opened.get((me, arguments[0]))
        return opened is None or not (opened.lock or opened.guard)
    return bool(op == "flock" and arguments[1] == LOCK_UN)
