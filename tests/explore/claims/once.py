"""What is claimed of `once`.

Played: the shipped results of results, first without any lock, so that every run is in danger from
every other, then under the shipped kernel lock. A result is the number of the run that made it. A
client that sees a claim broken raises, which the explorer reports as LEAK:
- after a run has begun, no result of an earlier one appears;
- who publishes finds its own result or a later one;
- under the lock, whoever does not crash ends with the same result.
And the shipped site of `build_once`, without any lock: two who build, clear away what the other
left, and put their folder in its place.
- what is there is all of one build, or nothing.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from explore.claims.soft import NoFlock
from lifehold.core.acquire import Ask, acquire
from lifehold.core.deadline import NEVER
from lifehold.core.errors import LeaseLost
from lifehold.core.grant import Grant, Held
from lifehold.local.files import CREATE, READ_WRITE
from lifehold.local.handles import Descriptors
from lifehold.local.kernel import KernelLock
from lifehold.recipes.once_build import BuildFolder
from lifehold.recipes.once_results import ResultFolder, begin
from lifehold.runtime.blocking import finish
from lifehold.testing.clients import PATH, lock_client, nobody
from lifehold.testing.explore import Client, Exploration, Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.actor import Actor, Call, Program
    from lifehold.testing.world import World

FOLDER, TARGET = "/lock.once", "/cache"


def unlocked(token: int) -> Program:
    """Runs with a token and no lock at all, as one does whose lock was lost before it began."""

    def program(actor: Actor) -> None:
        results = ResultFolder(actor.files, FOLDER)
        try:
            run = begin(results, token, lost)
        except LeaseLost:
            return
        before = results.listing().latest
        if run.latest < before < run.number:
            raise AssertionError("an earlier result appeared after a run had begun")
        try:
            run.publish(b"%d" % run.number)
        except LeaseLost:
            run.withdraw()
            return
        found = results.read()
        if found is None or found[0] < run.number:
            raise AssertionError("a result was published and is not there")

    return program


def locked() -> Program:
    """`once` under the kernel lock: arrives, waits, takes the result or runs."""

    def program(actor: Actor) -> set[int]:
        table = Descriptors(actor.files)
        lock: Any = KernelLock(PATH, actor.runtime, table=table)
        lock.inspect, lock.waiters = nobody, nobody  # for people, and nothing is decided by them
        results = ResultFolder(actor.files, FOLDER)
        answer: Any = lock.attempt()
        if isinstance(answer, Held):
            answer = finish(acquire(lock, actor.runtime, Ask(PATH, NEVER), answer))
        if isinstance(answer, Grant):
            if results.read() is None:
                one_run(actor, results, answer)
            found = results.read()
            if found is None or found[1] != b"first":
                raise AssertionError(f"the result is {found}")
            lock.drop(answer)
        return {slot.fd for slot in table.idle.values()}

    def one_run(actor: Actor, results: ResultFolder, grant: Grant) -> None:
        run = begin(results, grant.token or 0, lost)
        actor.enter(grant.token)
        actor.leave()
        run.publish(b"first" if run.latest == 0 else b"another")

    return program


def builder(nonce: str) -> Program:
    """Builds a folder of two files, with no lock at all."""

    def program(actor: Actor) -> None:
        site = BuildFolder(actor.files, TARGET, lambda path: remove(actor, path))
        site.clear(nonce)
        try:
            staging = site.begin(nonce)
        except LeaseLost:
            return
        try:
            for name in "ab":
                actor.files.close(actor.files.open(f"{staging.path}/{name}", READ_WRITE | CREATE))
            staging.publish()
        except (LeaseLost, FileNotFoundError):
            pass  # cleared away meanwhile
        staging.close()
        try:
            found = actor.files.listdir(TARGET)
        except FileNotFoundError:
            return
        if len(found) != 2:
            raise AssertionError(f"half a folder: {found}")

    return program


def remove(actor: Actor, path: str) -> None:
    """A folder and its files."""
    try:
        names = actor.files.listdir(path)
        for name in names:
            actor.files.unlink(f"{path}/{name}")
        actor.files.rmdir(path)
    except OSError:
        return  # somebody else removes it too, or has put a file in it


def lost() -> None:
    """The lock's own answer to whoever sees a higher number."""
    raise LeaseLost("another has it")


def quiet(call: Call) -> bool:
    """Steps that nobody else can see."""
    return call[0] in ("close", "fstat", "fsync", "fchmod", "pwrite") or (
        call[0] in ("open", "lstat") and call[1] == FOLDER
    )


def folder_there(world: World) -> None:
    """The folder has been made by an earlier run."""
    world.put(FOLDER, kind=stat.S_IFDIR)


def once_claims() -> Iterator[Claim]:
    """The configurations of the results."""
    later = Client(lock_client(KernelLock), nonces="same")
    one, two, three = (unlocked(number) for number in (1, 2, 3))
    yield _claim("2 runs without a lock, the folder new", one, two)
    yield _claim("3 runs without a lock", one, two, three, start=folder_there)
    yield _claim("2 under the kernel lock", locked(), locked(), start=folder_there, newcomer=later)
    three_wait = (locked(), locked(), locked())
    yield _claim("3 under the kernel lock", *three_wait, start=folder_there, newcomer=later)
    two_build = (builder("1" * 16), builder("2" * 16))
    yield _claim("2 build one folder without a lock", *two_build)
    yield _claim("2 build one folder, no flock there", *two_build, model=NoFlock)
    yield _claim("3 build one folder", *two_build, builder("3" * 16), model=NoFlock, soak=True)


def _claim(
    name: str,
    *programs: Program,
    newcomer: Client | bool = False,
    start: Callable[[World], None] | None = None,
    model: type[Model] = Model,
    soak: bool = False,
) -> Claim:
    name = f"once: {name}"

    def game() -> Exploration:
        actors = [Client(program, nonces="same") for program in programs]
        return Exploration(
            *actors,
            crashes=1,
            name=name,
            quiet=quiet,
            start=start,
            newcomer=newcomer,
            model=model(),
        )

    return Claim(name, game, soak=soak)
