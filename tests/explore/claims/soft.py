"""What is claimed of the soft kind.

Played: the shipped `SoftLock`, with its witness; without any, by a judge who may be late or
unsure; with a lease, whose holder may be paused at any step; over NFS, where answers may be lies.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from explore.claims.filelock_model import Swapping, original
from explore.claims.leases_model import Leases, liblockfile
from explore.claims.oracle import Oracle
from lifehold.core.acquire import Ask
from lifehold.core.deadline import NEVER, Terms
from lifehold.core.grant import Grant, Held
from lifehold.core.owner import Owner
from lifehold.core.renew import RenewalSchedule, beat
from lifehold.local.files import LOCK_EX, LOCK_NB, NAMELESS
from lifehold.local.ground import MountInfo
from lifehold.local.handles import Descriptors
from lifehold.local.record import RecordTemplate, is_temporary
from lifehold.local.soft import KIND, SoftLock
from lifehold.runtime.blocking import finish
from lifehold.testing.clients import PATH, nobody
from lifehold.testing.explore import MIXED, Client, Exploration, Model
from lifehold.testing.remembered import TimedModel, TimedRemembering, TimedRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.actor import Actor, Call, Program
    from lifehold.testing.model import Outcomes
    from lifehold.testing.world import World

LOCAL, NFS = MountInfo("ext4", "0:1"), MountInfo("nfs4", "0:2")
TERMS = Terms(ttl=2.0, heartbeat=0.5, margin=1.0)  # in ticks of the model's time
# A holder that can renew in a later tick than that of its grant: it holds two ticks, then longer.
LONGER = Terms(ttl=2.0, heartbeat=0.5, margin=0.5)
UNNOTED = b'"token":%20d' % 0


class Ticking(Swapping):
    """Time stands still but for who waits for it to go on."""

    def do_pause(self, world: World, me: int, seconds: float) -> None:
        world.clock += int(seconds * 1e9)


class NoFlock(Model):
    """A file system of one kernel that knows no flock(2)."""

    def do_flock(self, world: World, me: int, fd: int, operation: int) -> Outcomes:
        raise OSError(errno.ENOLCK, "no flock here")


def soft_client(
    *, rounds: int = 1, wait: float | None = 0.0, terms: Terms | None = None,
    place: MountInfo = LOCAL, grace: float = 2.0, renew: int = 0, looks: int = 0,
    make: Callable[..., Any] = SoftLock,
) -> Program:  # fmt: skip
    """A program that acquires, works, renews `renew` times and releases, `rounds` times.

    `looks`: how often it comes back when time alone may have changed the answer.
    """

    def program(actor: Actor) -> set[int]:
        if terms is not None:
            actor.runtime = TimedRuntime(actor)
        table = Descriptors(actor.files)
        lock = make(
            PATH, actor.runtime, table=table, label=f"P{actor.me}", terms=terms, place=place,
            evidence=Oracle(KIND, actor, grace), owner=Owner(actor.me),
        )  # fmt: skip
        lock.inspect, lock._guards, lock.safety = nobody, True, NEVER
        lock._user = no_number
        for _ in range(rounds):
            answer = lock.attempt()
            if isinstance(answer, Held) and wait is None:
                answer = patiently(lock)
            for _ in range(looks):
                if isinstance(answer, Held) and answer.hint is not None:
                    answer = come_back(actor, lock, answer.hint.due)
            if isinstance(answer, Grant):
                hold(actor, lock, answer)
        return set()

    def hold(actor: Actor, lock: Any, grant: Grant) -> None:
        actor.enter(grant.token, until=NEVER if grant.deadline is None else grant.deadline)
        if renew and terms is not None:
            tenure = RenewalSchedule(grant, terms, _told)
            for _ in range(renew):
                finish(beat(lock, actor.runtime, tenure))
                if not tenure.over:
                    actor.enter(None, until=tenure.deadline)
        actor.leave()
        lock.drop(grant)

    return program


def patiently(lock: Any) -> Any:
    """The wait of the kind itself; that of core/acquire.py is played for the kernel lock."""
    ask = Ask(PATH)
    answer: Any = Held()
    while isinstance(answer, Held):
        answer = finish(lock.wait(ask, NEVER))
    ask.leave()
    return answer


def come_back(actor: Actor, lock: Any, due: float) -> Any:
    if due >= NEVER:
        return Held()
    actor.step("wait_for", due)
    actor.step("sleep_until", due)
    return lock.attempt()


def no_number() -> int:
    """The user of all clients."""
    return 0


def _told(reason: str) -> None:
    """Who is told of a loss stops: the model has stopped it at its deadline."""


# ---- start states ------------------------------------------------------------------------------


def dead(terms: Terms | None = None, place: MountInfo = LOCAL, *, witness: bool = True) -> Any:
    """A record whose writer died, and its counter."""

    def left_by_the_dead(world: World) -> None:
        ino = world.put(PATH)
        ttl = None if terms is None else terms.ttl
        text = RecordTemplate(KIND, Owner(0), ttl, place, witness=witness)
        token = world.clock // 1000 + 5_000_000
        data = text.numbered(ino, "d" * 32, token, world.clock // 1000)
        world.nodes[ino] = world.nodes[ino]._replace(data=data)
        world.put(f"{PATH}.token", b'{"lifehold":1,"kind":"token","token":%20d}\n' % token)
        world.token["lock"] = token

    return left_by_the_dead


def content(data: bytes) -> Any:
    """Whatever is there, of nobody."""

    def left(world: World) -> None:
        world.put(PATH, data)

    return left


# ---- configurations ----------------------------------------------------------------------------


def _claim(
    name: str,
    *programs: Program | Client,
    crashes: int = 1,
    model: Callable[[], Model] = Model,
    soak: bool = False,
    may: frozenset[str] = frozenset(),
    patient: Program | None = None,
    **more: Any,
) -> Claim:
    """`patient`: who must be able to acquire at the end; a single look shows no lease run out."""
    name = f"soft: {name}"
    if patient is not None:
        more["newcomer"] = Client(patient, nonces="same")

    def game() -> Exploration:
        actors = [
            each if isinstance(each, Client) else Client(each, nonces="same") for each in programs
        ]
        hidden = {"quiet": quiet, **more}
        return Exploration(*actors, crashes=crashes, model=model(), name=name, **hidden)

    return Claim(name, game, may, soak)


def quiet(call: Call) -> bool:
    """What nobody else can see: numbers of files, and a record that has no name of a lock yet."""
    rest: list[Any]
    op, first, *rest = (*call, None)
    if op in ("fstat", "clock_ns", "fchmod", "anew"):
        return True
    if op == "flock":
        return bool(rest[0] == LOCK_EX | LOCK_NB)  # the witness of a record of one's own
    if op == "pwrite":
        return UNNOTED in rest[0]
    if op == "open" and rest[0] & NAMELESS == NAMELESS:
        return True
    return op in ("open", "unlink") and is_temporary(first.rpartition("/")[2])


def soft_claims() -> Iterator[Claim]:
    """All of them."""
    yield from witnessed()
    yield from judged()
    yield from leased()
    yield from over_nfs()
    yield from beside_peers()


def witnessed() -> Iterator[Claim]:
    """The kernel knows who lives."""
    one, two, waits = soft_client(), soft_client(rounds=2), soft_client(wait=None)
    for start, word in ((None, "no record"), (dead(), "a dead record")):
        yield _claim(f"2 clients, 2 rounds, {word}", two, two, start=start, soak=True)
        yield _claim(f"2 clients, {word}", one, one, start=start, crashes=2)
        yield _claim(f"3 clients, {word}", one, one, one, start=start, soak=True)
        yield _claim(f"2 clients waiting, {word}", waits, waits, start=start, soak=start is None)
    yield _claim(
        "3 clients, a dead record, 2 crashes", one, one, one, start=dead(), crashes=2, soak=True
    )
    for word, data in (("half a record", b'{"lifehold":1,"ki'), ("an empty file", b"")):
        yield _claim(f"2 clients, {word}", one, one, start=content(data), newcomer=False)
    yield _claim("3 clients, 2 rounds", two, two, two, start=dead(), soak=True)
    yield _claim("3 clients waiting", waits, waits, waits, start=dead(), crashes=2, soak=True)


def judged() -> Iterator[Claim]:
    """No witness: process numbers, in the eyes of a judge who is right, late or unsure."""
    one, two = soft_client(), soft_client(rounds=2)
    for oracle in ("right", "late", "unsure"):

        def model(oracle: str = oracle) -> Model:
            return NoFlock(oracle=oracle)

        start = dead(witness=False)
        yield _claim(f"2 clients, judge {oracle}", one, one, model=model, start=start, crashes=2)
        yield _claim(
            f"2 clients, judge {oracle}, 2 rounds", two, two, model=model, start=start, soak=True
        )
        yield _claim(
            f"3 clients, judge {oracle}",
            one,
            one,
            one,
            model=model,
            start=start,
            crashes=2,
            soak=True,
        )


def leased() -> Iterator[Claim]:
    """A lease beside the witness: a holder that is paused beyond its ttl is replaced."""
    tries = soft_client(terms=TERMS)
    waits, renews = soft_client(terms=TERMS, wait=None), soft_client(terms=TERMS, renew=1)
    timed: dict[str, Any] = {"model": _timed, "patient": waits}
    yield _claim("lease, one holds, one waits", tries, waits, crashes=0, **timed, soak=True)
    yield _claim("lease, one renews, one waits", renews, waits, crashes=0, **timed, soak=True)
    yield _claim("lease, one dies, one waits", tries, waits, crashes=1, **timed, soak=True)
    yield _claim("lease, 2 clients waiting", waits, waits, **timed, crashes=2, soak=True)
    longer = soft_client(terms=LONGER, renew=1), soft_client(terms=LONGER, looks=2)
    alone: dict[str, Any] = {"model": _timed, "newcomer": False, "crashes": 0}
    yield _claim("lease, one renews, one comes back", *longer, **alone)
    # Fresh nonces: a record of the second round must not look like that of the first.
    twice = soft_client(terms=LONGER, rounds=2), soft_client(terms=LONGER, looks=1)
    fresh = [Client(program) for program in twice]
    yield _claim("lease, one holds twice, one comes back", *fresh, **alone, soak=True)
    start = dead(TERMS)
    yield _claim("lease, 2 clients, a dead record", waits, waits, **timed, start=start, soak=True)
    yield _claim("lease, 3 clients", tries, waits, waits, crashes=0, **timed, soak=True)


def over_nfs() -> Iterator[Claim]:
    """A lease alone, and a file server whose answers get lost and whose clients remember."""
    options: dict[str, Any] = {"terms": TERMS, "place": NFS}
    tries, waits = soft_client(**options), soft_client(wait=None, **options)
    renews = soft_client(renew=1, **options)
    start = dead(TERMS, NFS, witness=False)
    network: dict[str, Any] = {"model": _network, "patient": waits}
    yield _claim("NFS, 2 clients", tries, tries, **network)
    yield _claim("NFS, one holds, one waits", tries, waits, crashes=0, **network, soak=True)
    yield _claim("NFS, one renews, one waits", renews, waits, crashes=0, **network, soak=True)
    yield _claim("NFS, 2 clients waiting", waits, waits, **network, soak=True)
    yield _claim("NFS, 2 clients, a dead record", waits, waits, **network, start=start, soak=True)
    yield _claim("NFS, 3 clients", tries, waits, waits, crashes=0, **network, soak=True)


def beside_peers() -> Iterator[Claim]:
    """After a dead holder of another tool, of which more come: none of them is ever robbed.

    What liblockfile itself unlinks by name while it sleeps, nobody can keep: FOREIGN, MIXED.
    """
    one = soft_client()
    seen: dict[str, Any] = {"crashes": 0, "newcomer": False, "quiet": seen_by_peers}
    filelock: dict[str, Any] = {"start": dead_of(b"9\nhost\n"), "model": Ticking, **seen}
    yield _claim("after filelock's, 1 client and filelock", one, original(), **filelock)
    yield _claim(
        "after filelock's, 2 clients and filelock", one, one, original(), **filelock, soak=True
    )
    yield _claim(
        "after filelock's, 1 client and 2 of filelock",
        one,
        original(),
        original(),
        **filelock,
        soak=True,
    )
    peer = Client(liblockfile(), party="liblockfile")
    link: dict[str, Any] = {"start": dead_of(b"9\n"), "model": Leases, **seen}
    yield _claim("after liblockfile's, 1 client and liblockfile", one, peer, **link)
    yield _claim(
        "after liblockfile's, 2 clients and liblockfile",
        one,
        one,
        peer,
        **link,
        soak=True,
        may=frozenset({MIXED}),
    )


def dead_of(data: bytes) -> Any:
    """A file of another tool's process 9, which is gone."""

    def left(world: World) -> None:
        world.put(PATH, data)
        world.gone |= {9}

    return left


def seen_by_peers(call: Call) -> bool:
    """As `quiet`, where a record is also written into a file that others look at."""
    return call[0] not in ("pwrite", "flock") and quiet(call)


def _timed() -> Model:
    return TimedModel(free=1)


def _network() -> Model:
    return TimedRemembering(free=1)
