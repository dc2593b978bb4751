"""What is claimed of filelock's soft locks, as ours.

Played: the shipped `SoftFileMechanism`, `MarkerFileMechanism` and `LeaseFile`, with their witness
and without, among their own kind and beside filelock's (filelock_model.py): a dead holder's file is
adopted, what nobody can read is exchanged, a lease that was not touched for its whole duration is
taken from a holder who was stopped at any step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from explore.claims.filelock_model import (
    DEAD_ONE,
    GARBAGE,
    SILENT,
    STILL,
    TERMS,
    Leasing,
    Swapping,
    leased,
    left,
    marked,
    original,
    original_lease,
    plain,
    words,
)
from explore.claims.leases_model import unnamed
from lifehold.compat.filelock.lease import LeaseFile, MarkerFileMechanism
from lifehold.compat.filelock.soft import MALFORMED, SoftFileMechanism
from lifehold.core.acquire import Ask
from lifehold.core.deadline import NEVER
from lifehold.core.grant import Grant, Held
from lifehold.core.renew import RenewalSchedule, beat
from lifehold.local.files import NAMELESS
from lifehold.local.ground import MountInfo
from lifehold.local.handles import Descriptors
from lifehold.runtime.blocking import finish
from lifehold.testing.clients import PATH
from lifehold.testing.explore import Client, Exploration
from lifehold.testing.remembered import TimedRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.actor import Actor, Call, Program
    from lifehold.testing.model import Model

LOCAL = MountInfo("ext4", "0:1")


def lock_of(actor: Actor, kind: type[SoftFileMechanism], text: Callable[..., bytes]) -> Any:
    """A lock of ours in the model."""
    table = Descriptors(actor.files)
    lock = kind(PATH, actor.runtime, table, None, place=LOCAL, words=words(actor, text))
    lock.clock, lock.safety = STILL, NEVER
    return lock


def soft(
    kind: type[SoftFileMechanism] = SoftFileMechanism,
    text: Callable[..., bytes] = plain,
    *,
    rounds: int = 1,
    wait: bool = False,
) -> Program:
    """A program that takes the lock `rounds` times; without `wait` it tries once each time."""

    def program(actor: Actor) -> set[int]:
        lock = lock_of(actor, kind, text)
        for _ in range(rounds):
            answer = attempted(lock, wait)
            if isinstance(answer, Grant):
                actor.enter(None)
                actor.leave()
                lock.drop(answer)
        return set()

    return program


def lease(
    *,
    wait: bool = False,
    tries: int = 1,
    renew: int = 0,
    poll: float = NEVER,
    kind: type[LeaseFile] = LeaseFile,
) -> Program:
    """A program that takes the lease, and keeps it for some heartbeats.

    `tries`: without `wait`, how often it looks; `poll`: ticks between two looks of who waits.
    """

    def program(actor: Actor) -> set[int]:
        actor.runtime = TimedRuntime(actor)
        lock = lock_of(actor, kind, leased)
        lock.terms, lock.safety = TERMS, poll
        answer = attempted(lock, wait)
        for _ in range(tries - 1):
            if isinstance(answer, Held):
                answer = lock.attempt()
        if isinstance(answer, Grant):
            grant = lock.renewed(answer, answer.handle[0].began)
            actor.enter(None, until=grant.deadline)
            tenure = RenewalSchedule(grant, TERMS, _told)
            for _ in range(renew):
                finish(beat(lock, actor.runtime, tenure))
                if not tenure.over:
                    actor.enter(None, until=tenure.deadline)
            actor.leave()
            lock.drop(grant)
        return set()

    return program


def attempted(lock: Any, wait: bool) -> Grant | Held:
    """One try, or as many as it takes."""
    answer = lock.attempt()
    ask = Ask(PATH)
    ask.slot = answer.hint if isinstance(answer, Held) else None
    while wait and isinstance(answer, Held):
        answer = finish(lock.wait(ask, NEVER))
    ask.leave()
    return answer  # type: ignore[no-any-return]


def _told(reason: str) -> None:
    """Who is told of a loss stops: the model has stopped it at its deadline."""


class Impatient(SoftFileMechanism):
    """What nobody can read counts as old at once."""

    def _unchanged_since(self, found: Any, state: Any, now: float) -> float:
        return now - MALFORMED


class ImpatientMark(MarkerFileMechanism):
    """The same of a marker lock."""

    _unchanged_since = Impatient._unchanged_since


class Watched(LeaseFile):
    """Has seen the file of one who lives and is silent for the whole duration."""

    def _due(self, found: Any, content: bytes) -> float | None:
        due = super()._due(found, content)
        return self.runtime.now() if content == leased(SILENT) else due


# ---- known to be wrong -------------------------------------------------------------------------


class Unseen(LeaseFile):
    """Replaces whatever is there when the time has come, touched since or not."""

    def _replace(self, found: Any, content: bytes) -> Any:
        found.stamp = self.files.fstat(found.fd).st_mtime
        return super()._replace(found, content)


class Early(LeaseFile):
    """Counts a lease from when the file was touched, by the file's own time."""

    def _unchanged_since(self, found: Any, state: Any, now: float) -> float:
        return now - self.terms.ttl if state.st_mtime else now


KNOWN_BAD: dict[str, type[LeaseFile]] = {"unseen": Unseen, "early": Early}


# ---- configurations ----------------------------------------------------------------------------


def quiet(call: Call) -> bool:
    """What no other client sees, and what sees nothing of them."""
    return bool(call[0] == "clock_ns" or (call[0] == "open" and call[2] & NAMELESS == NAMELESS))


def game(
    name: str, *programs: Program | Client, model: Callable[[], Model] = Swapping, **more: Any
) -> Exploration:
    """A configuration."""
    actors = [
        each if isinstance(each, Client) else Client(each, nonces="same") for each in programs
    ]
    options: dict[str, Any] = {"quiet": quiet, "unseen": unnamed, "newcomer": False}
    return Exploration(*actors, model=model(), name=name, **options | more)


def _claim(name: str, *programs: Program | Client, soak: bool = False, **more: Any) -> Claim:
    more.setdefault("crashes", 1)
    return Claim(name, lambda: game(name, *programs, **more), frozenset(), soak)


def marks_claims() -> Iterator[Claim]:
    """All of them."""
    yield from soft_claims("soft", SoftFileMechanism, Impatient, plain)
    yield from soft_claims("marker", MarkerFileMechanism, ImpatientMark, marked)
    yield from lease_claims()


def soft_claims(
    word: str,
    kind: type[SoftFileMechanism],
    hasty: type[SoftFileMechanism],
    text: Callable[..., bytes],
) -> Iterator[Claim]:
    """Without a lease: the dead, and what nobody can read."""
    word = f"filelock's {word} lock"
    one, two, waits = soft(kind, text), soft(kind, text, rounds=2), soft(kind, text, wait=True)
    hurries, theirs = soft(hasty, text), original(text=text)
    newcomer = Client(one, nonces="same")
    yield _claim(f"{word}: 2 clients", one, one, crashes=2, newcomer=newcomer)
    yield _claim(f"{word}: 2 clients, 2 rounds", two, two, newcomer=newcomer, soak=True)
    yield _claim(f"{word}: 3 clients", one, one, one, newcomer=newcomer, soak=True)
    yield _claim(f"{word}: 2 clients waiting", waits, waits, newcomer=newcomer)
    for witness in (True, False):
        dead: dict[str, Any] = {"start": left(text(DEAD_ONE, witness)), "newcomer": newcomer}
        who = f"a dead holder {'with' if witness else 'without'} a witness"
        yield _claim(f"{word}: 2 clients, {who}", one, one, **dead)
        yield _claim(f"{word}: 3 clients, {who}", one, one, one, **dead, soak=True)
        yield _claim(f"{word}: 3 clients waiting, {who}", waits, waits, waits, **dead, soak=True)
        dead["newcomer"] = False  # who dies in an exchange leaves it to a second look
        yield _claim(f"{word}: beside filelock, {who}", one, theirs, **dead)
        yield _claim(
            f"{word}: 2 clients beside filelock, {who}", one, one, theirs, **dead, soak=True
        )
    odd: dict[str, Any] = {"start": left(GARBAGE)}
    yield _claim(f"{word}: 2 clients, an odd file", hurries, hurries, **odd)
    again = kind is not SoftFileMechanism  # the same steps with another record
    yield _claim(f"{word}: beside filelock, an odd file", hurries, theirs, **odd, soak=again)
    yield _claim(f"{word}: 3 clients, an odd file", hurries, hurries, hurries, **odd, soak=True)


def lease_claims() -> Iterator[Claim]:
    """A holder who is stopped for longer than its lease."""
    tries, twice, renews, waits = lease(), lease(tries=2), lease(renew=1), lease(wait=True)
    once, theirs = original_lease(waits=False), original_lease()
    timed: dict[str, Any] = {"model": _timed, "crashes": 0}
    alone: dict[str, Any] = timed | {"newcomer": Client(waits, nonces="same")}
    word = "filelock's lease"
    yield _claim(f"{word}: one holds, one waits", tries, waits, soak=True, **alone)
    yield _claim(f"{word}: one renews, one looks twice", renews, twice, **timed)
    yield _claim(f"{word}: ours renews, filelock waits", renews, theirs, **timed)
    yield _claim(f"{word}: filelock holds, ours looks twice", once, twice, **timed)
    yield _claim(f"{word}: one renews, one waits", renews, waits, soak=True, **alone)
    yield _claim(f"{word}: filelock holds, ours waits", once, waits, soak=True, **timed)
    yield _claim(f"{word}: one dies, one waits", tries, waits, soak=True, **alone | {"crashes": 1})
    takes = lease(kind=Watched)
    at_once: dict[str, Any] = {"model": _standing, "start": left(leased(SILENT))}
    yield _claim(f"{word}: 2 clients, a silent holder", takes, takes, **at_once)
    yield _claim(f"{word}: 3 clients, a silent holder", takes, takes, takes, **at_once, soak=True)
    peer = original(text=leased)
    yield _claim(f"{word}: beside filelock, a silent holder", takes, peer, **at_once)
    yield _claim(
        f"{word}: 2 clients beside filelock, a silent holder",
        takes,
        takes,
        peer,
        **at_once,
        soak=True,
    )
    for witness in (True, False):
        at_once["start"] = left(leased(DEAD_ONE, witness))
        who = f"a dead holder {'with' if witness else 'without'} a witness"
        yield _claim(f"{word}: 2 clients, {who}", tries, tries, **at_once)
        yield _claim(f"{word}: 3 clients, {who}", tries, tries, tries, **at_once, soak=True)


def _standing() -> Model:
    return Leasing(free=0)


def _timed() -> Model:
    return Leasing(free=2)
