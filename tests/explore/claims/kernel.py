"""What is claimed of the kernel kind: alone, in its queue, shared, removing, beside others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from lifehold.core.owner import Owner
from lifehold.local import record
from lifehold.local.kernel import KernelLock
from lifehold.testing import clients
from lifehold.testing.explore import FOREIGN, MIXED, MUTEX, TOKEN, Client, Exploration, Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.world import World

PATH = clients.PATH


# ---- start states ------------------------------------------------------------------------------


def left_by_the_dead(world: World) -> None:
    """A lock file whose holder died, with a token far ahead of the clock."""
    token = world.clock // 1000 + 5_000_000
    ino = world.put(PATH)
    text = record.numbered(record.parts(ino, "dead", Owner(pid=0)), token, world.clock // 1000)
    world.nodes[ino] = world.nodes[ino]._replace(data=text)
    world.token["lock"] = token


def copied(world: World) -> None:
    """The same after `cp` or `mv` from elsewhere: the record names another inode."""
    left_by_the_dead(world)
    node = world.nodes[world.names[PATH]]
    world.nodes[world.names[PATH]] = node._replace(data=node.data.replace(b'"ino":2,', b'"ino":9,'))


def torn(world: World) -> None:
    """The same after a torn write: the first token cannot be read, the last can."""
    left_by_the_dead(world)
    node = world.nodes[world.names[PATH]]
    at = node.data.index(b'"token":') + len(b'"token":')
    data = node.data[:at] + b"\0" * record.WIDTH + node.data[at + record.WIDTH :]
    world.nodes[world.names[PATH]] = node._replace(data=data)


def empty_file(world: World) -> None:
    """A lock file without content, as `touch` and flock(1) make it."""
    world.put(PATH)


def foreign_data(world: World) -> None:
    """Somebody's data file."""
    world.put(PATH, b"name,amount\n")


STARTS: list[Callable[[World], None] | None] = [
    None,
    left_by_the_dead,
    copied,
    torn,
    empty_file,
    foreign_data,
]


# ---- configurations ----------------------------------------------------------------------------


def kernel(kind: Any = KernelLock, **options: Any) -> Client:
    """A client of the kernel lock."""
    return Client(clients.lock_client(kind, **options))


def peer(*, checks: bool, rounds: int = 1) -> Client:
    """A tool that unlinks under the lock."""
    return Client(clients.unlinking_tool(checks=checks, rounds=rounds), party="unlinking tool")


def kernel_claims() -> Iterator[Claim]:
    """All of them."""
    yield from trying_claims()
    yield from waiting_claims()
    yield from shared_claims()
    yield from removing_claims()
    yield from foreign_claims()


def _claim(
    name: str,
    *actors: Client,
    crashes: int = 1,
    may: str | frozenset[str] = frozenset(),
    soak: bool = False,
    clock: str = "still",
    **more: Any,
) -> Claim:
    name = f"kernel: {name}"

    def game() -> Exploration:
        return Exploration(*actors, crashes=crashes, model=Model(clock=clock), name=name, **more)

    return Claim(name, game, frozenset({may} if isinstance(may, str) else may), soak)


def trying_claims() -> Iterator[Claim]:
    """Clients that try, from every start, with every clock."""
    for start in STARTS:
        word = start.__name__ if start else "no_file"
        yield _claim(f"2 clients, 2 rounds, {word}", *[kernel(rounds=2)] * 2, start=start)
        yield _claim(f"3 clients, {word}", *[kernel()] * 3, start=start)
        yield _claim(f"3 clients, {word}, 2 crashes", *[kernel()] * 3, start=start, crashes=2)
    for clock in ("ticking", "back"):
        for start in (None, left_by_the_dead):
            word = f"clock {clock}{', left_by_the_dead' if start else ''}"
            yield _claim(
                f"2 clients, 2 rounds, {word}", *[kernel(rounds=2)] * 2, start=start, clock=clock
            )
            yield _claim(f"3 clients, {word}", *[kernel()] * 3, start=start, clock=clock, crashes=2)
    yield _claim("3 clients, 2 rounds", *[kernel(rounds=2)] * 3, crashes=2)
    yield _claim(
        "3 clients, 2 rounds, clock back", *[kernel(rounds=2)] * 3, clock="back", soak=True
    )
    yield _claim("3 clients, 3 rounds", *[kernel(rounds=3)] * 3, crashes=3, soak=True)
    yield _claim("4 clients", *[kernel()] * 4, crashes=3, soak=True)


def waiting_claims() -> Iterator[Claim]:
    """Clients that stand in the kernel's queue; a newcomer that tries."""
    waits: dict[str, dict[str, Any]] = {
        "wait for ever": {"wait": None},
        "wait 3 s, cancel": {"wait": 3.0, "cancel": True},
    }
    for word, options in waits.items():
        one, two = kernel(**options), kernel(rounds=2, **options)
        for start in (None, left_by_the_dead):
            words = f"{word}{', left_by_the_dead' if start else ''}"
            yield _claim(f"2 clients, 2 rounds, {words}", two, two, start=start)
            yield _claim(f"3 clients, {words}", one, one, one, start=start)
            yield _claim(f"3 clients, {words}, 2 crashes", one, one, one, start=start, crashes=2)
        yield _claim(f"3 clients, 2 rounds, {word}", two, two, two, soak=True)
    mixed = kernel(), kernel(wait=None), kernel(wait=3.0, cancel=True)
    yield _claim("one tries, one waits, one may give up", *mixed, crashes=2)


def shared_claims() -> Iterator[Claim]:
    """Readers and writers."""
    reads = {"exclusive": False}
    yield _claim("writer and 2 readers", kernel(), kernel(**reads), kernel(**reads), crashes=2)
    yield _claim("2 writers and reader", kernel(), kernel(), kernel(**reads), crashes=2)
    waiting = kernel(wait=None), kernel(wait=None), kernel(wait=None, **reads)
    yield _claim("2 writers and reader, wait for ever", *waiting, start=left_by_the_dead)
    twice = kernel(rounds=2), kernel(rounds=2, **reads)
    yield _claim("writer and reader, 2 rounds", *twice)
    yield _claim("no record", kernel(record=False), kernel(record=False), kernel(), crashes=2)


def removing_claims() -> Iterator[Claim]:
    """cleanup=True: a counter that went with its file is made up for by the clock.

    So the clock must not be set back between two grants, of which the first removed the file.
    """
    one, two = kernel(cleanup=True), kernel(cleanup=True, rounds=2)
    waits = kernel(cleanup=True, wait=None)
    for start in (None, left_by_the_dead):
        words = f"cleanup{', left_by_the_dead' if start else ''}"
        yield _claim(f"2 clients, 2 rounds, {words}", two, two, start=start, clock="ticking")
        yield _claim(f"3 clients, {words}", one, one, one, start=start, clock="ticking")
    yield _claim("3 clients, cleanup, 2 crashes", one, one, one, clock="ticking", crashes=2)
    yield _claim("3 clients, cleanup, clock still", one, one, one)
    yield _claim("2 clients, cleanup, clock back", one, one, clock="back", may=TOKEN)
    yield _claim(
        "3 clients, cleanup, wait for ever", waits, waits, waits, clock="ticking", soak=True
    )
    keeps = kernel(wait=None)
    yield _claim("2 clean up, one does not", one, waits, keeps, clock="ticking", crashes=2)
    yield _claim("3 clients, two with 2 rounds, cleanup", two, two, one, clock="ticking", soak=True)


def foreign_claims() -> Iterator[Claim]:
    """Beside tools that unlink under the lock, that never do, and people who do as they like."""
    ticking: dict[str, Any] = {"clock": "ticking"}
    for checks in (True, False):
        tool, word = peer(checks=checks), f"a tool that unlinks{' and checks' if checks else ''}"
        twice = peer(checks=checks, rounds=2)
        theirs = frozenset[str]() if checks else frozenset({MIXED, FOREIGN})
        yield _claim(f"2 clients, {word}", kernel(), kernel(), tool, crashes=2, **ticking)
        waits = kernel(wait=None)
        yield _claim(f"2 clients waiting, {word}", waits, waits, tool, **ticking)
        yield _claim(f"1 client, {word}, 2 rounds", kernel(rounds=2), twice, **ticking)
        name = f"1 client, 2 of {word}, 2 rounds"
        yield _claim(name, kernel(), twice, twice, may=theirs, **ticking)
        ours = kernel(rounds=2)
        yield _claim(f"2 clients, {word}, 2 rounds", ours, ours, twice, soak=True, **ticking)
    keeper = Client(clients.flocking_tool(rounds=2), party="flock(1)")
    yield _claim("2 clients, flock(1)", kernel(rounds=2), kernel(), keeper, crashes=2)
    empties = Client(clients.emptier(), party="someone", crashes=False)
    two = kernel(rounds=2, check=True)
    yield _claim("2 clients, someone empties the file", two, two, empties, **ticking)
    removes = Client(clients.remover(), party="someone", crashes=False)
    # Nothing can keep these apart, or their tokens in the order in which they entered.
    both = frozenset({MUTEX, TOKEN})
    yield _claim("2 clients, someone removes the file", two, two, removes, may=both, **ticking)
