"""What is claimed of `lifehold.fence.FencedFile`.

Played: the shipped pair of files under the shipped kernel lock, by writers with different tokens of
which one may crash before any step, and by readers without a lock. The inode of a replaced file is
given to the next one at once, all data has one size, and the clock stands still, so that nothing
but the order of the steps tells one content from another. A client that sees a claim broken raises,
which the explorer reports as LEAK:
- a write that was accepted is what the file holds, under its token;
- no write is accepted under a token older than one that was admitted, also by who then crashed;
- a reader sees whole data, the token of that very data, and never an older one than before.
"""

from __future__ import annotations

import stat
from itertools import count
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from lifehold.core.acquire import Ask, acquire
from lifehold.core.deadline import NEVER
from lifehold.core.errors import StaleToken
from lifehold.core.grant import Grant, Held
from lifehold.local.handles import Descriptors
from lifehold.local.kernel import KernelLock
from lifehold.recipes.fence.file import SUFFIX, FencedPair
from lifehold.runtime.blocking import finish
from lifehold.testing.clients import nobody
from lifehold.testing.explore import Client, Exploration, Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.actor import Actor, Call, Program
    from lifehold.testing.world import World

FOLDER = "/d"
DATA = f"{FOLDER}/data"
LOCK = f"{DATA}{SUFFIX}.lock"


class Guarded(Model):
    """A machine that remembers the newest token that anybody was told to be admitted."""

    def __init__(self) -> None:
        super().__init__(times=True)

    def do_admitted(self, world: World, me: int, token: int) -> bool:
        """Whether no newer one was admitted before."""
        newest: Any = world.notes.get("newest", 0)
        world.notes["newest"] = max(newest, token)
        return bool(token >= newest)


class Pair(FencedPair):
    """Names of copies that are the same in every game; those of two writers are never one."""

    chance: Any = None


def writer(token: int, *, advances: bool, writes: bool = True) -> Program:
    """Takes the lock of the file for each step, as `FencedFile` does."""

    def program(actor: Actor) -> set[int]:
        table = Descriptors(actor.files)
        lock: Any = KernelLock(LOCK, actor.runtime, table=table)
        lock.inspect, lock.waiters = nobody, nobody
        pair = Pair(actor.files, DATA, False, None)
        numbers = count()
        pair.chance = lambda length: bytes([token, next(numbers)]).rjust(length, b"\0")
        if advances:
            step(actor, lock, lambda: pair.advance(token, lambda: None))
        if writes:
            step(actor, lock, lambda: written(pair))
        return {slot.fd for slot in table.idle.values()}

    def written(pair: FencedPair) -> None:
        pair.put(b"%d" % token, token, lambda: None)
        found = pair.read()
        if (found.data, found.token, found.fence) != (b"%d" % token, token, token):
            raise AssertionError(f"{token} wrote, and there is {found}")

    def step(actor: Actor, lock: Any, work: Callable[[], None]) -> None:
        answer: Any = lock.attempt()
        if isinstance(answer, Held):
            answer = finish(acquire(lock, actor.runtime, Ask(LOCK, NEVER), answer))
        if not isinstance(answer, Grant):
            raise AssertionError(f"no lock: {answer}")
        actor.enter(answer.token)
        try:
            work()
        except StaleToken as error:
            if error.fence is None or error.fence <= token:
                raise AssertionError(f"{token} was refused for {error.fence}") from error
        else:
            if not actor.step("admitted", token):
                raise AssertionError(f"{token} was admitted after a newer one")
        actor.leave()
        lock.drop(answer)

    return program


def reader(times: int) -> Program:
    """Reads without a lock."""

    def program(actor: Actor) -> None:
        pair = FencedPair(actor.files, DATA, False, None)
        seen = (0, 0)
        for _ in range(times):
            found = pair.read()
            if found.data != (None if found.token is None else b"%d" % found.token):
                raise AssertionError(f"not of one write: {found}")
            now = (found.token or 0, found.fence)
            if now[0] > now[1] or now[0] < seen[0] or now[1] < seen[1]:
                raise AssertionError(f"{found} after {seen}")
            seen = now

    return program


def quiet(call: Call) -> bool:
    """A step on an open file, which has no name yet that anybody would read; or on the folder."""
    return call[0] in ("close", "fstat", "fsync", "fchmod", "pwrite") or (
        call[0] in ("open", "lstat", "listdir") and call[1] == FOLDER
    )


def folder_there(world: World) -> None:
    """The folder of the file."""
    world.put(FOLDER, kind=stat.S_IFDIR)


def written_by_1(world: World) -> None:
    """It was written under token 1."""
    folder_there(world)
    ino, clock = world.put(DATA, b"1"), world.clock
    told = '{"lifehold":1,"kind":"fence","fence":1,"written":[1,[%d,1,%d]],"before":null}\n'
    world.put(DATA + SUFFIX, (told % (ino, clock)).encode())


def fence_claims() -> Iterator[Claim]:
    """The configurations of the pair of files."""
    yield _claim("2 writers, each advances", writer(1, advances=True), writer(2, advances=True))
    yield _claim("3 writers", *(writer(number, advances=False) for number in (1, 2, 3)), soak=True)
    only = writer(3, advances=True, writes=False)
    yield _claim(
        "2 writers and one who only advances",
        writer(1, advances=False),
        writer(2, advances=False),
        only,
        soak=True,
    )
    yield _claim(
        "2 writers and a reader",
        writer(2, advances=False),
        writer(3, advances=False),
        reader(2),
        start=written_by_1,
    )


def _claim(
    name: str,
    *programs: Program,
    start: Callable[[World], None] = folder_there,
    soak: bool = False,
) -> Claim:
    name = f"fence: {name}"

    def game() -> Exploration:
        return Exploration(
            *(Client(program, nonces="same") for program in programs),
            crashes=1,
            name=name,
            quiet=quiet,
            start=start,
            newcomer=Client(writer(9, advances=True), nonces="same"),
            model=Guarded(),
        )

    return Claim(name, game, soak=soak)
