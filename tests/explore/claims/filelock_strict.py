"""What is claimed of filelock's strict lock, as ours.

Played: the shipped `StrictFile` and `Claims`, in folders of the model; filelock's own doorway
beside them, and the soft lock's owner at the same path. A scan of the claims is two steps: what
comes or goes between them it may show or miss, as POSIX has it. Reading a claim is one step: each
has its content before it has its name. A dead one's claim stays, so nobody new may come in then.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from explore.claims.claim import Claim
from explore.claims.filelock_model import plain
from explore.claims.filelock_model import words as soft_words
from explore.claims.filelock_soft import LOCAL
from explore.claims.filelock_soft import soft as soft_owner
from explore.claims.strict_stage import (
    ABOVE,
    CLAIMS,
    Doors,
    FarDoors,
    Room,
    SwappingDoors,
    WholeDoors,
)
from lifehold.compat.filelock import pidfile
from lifehold.compat.filelock.errors import SoftFileLockProtocolError
from lifehold.compat.filelock.strict import StrictFile
from lifehold.compat.filelock.strict import StrictLockHandle as Doorway
from lifehold.compat.filelock.strict_claims import PRIVATE, Claims, claim_name, parts_of, published
from lifehold.core.acquire import Ask
from lifehold.core.deadline import NEVER
from lifehold.core.grant import Grant, Held
from lifehold.local.handles import Descriptors
from lifehold.runtime.blocking import finish
from lifehold.testing.clients import PATH
from lifehold.testing.explore import Client, Exploration, never

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.actor import Actor, Call, Program
    from lifehold.testing.world import World


class Played(Claims):
    """The claims in a folder of the model."""

    def __init__(self, actor: Actor, **how: bool) -> None:
        super().__init__(PATH, PATH, actor.files)
        self.actor, self.how = actor, how

    def make(self, mode: int, settle: Any) -> None:
        for path in (ABOVE, CLAIMS):
            try:
                self.files.mkdir(path, mode)
            except FileExistsError:
                pass

    @contextmanager
    def entered(self) -> Iterator[Any]:
        yield Room(CLAIMS, self.actor, **self.how)

    @contextmanager
    def above(self) -> Iterator[Any]:
        yield Room("/", self.actor, **self.how)


def words(me: int) -> Callable[[str], bytes]:
    """The record of a claim."""
    return lambda token: f"filelock-strict-v1\n{token}\n{me}\n686f7374\n\n".encode()


# ---- known to be wrong -------------------------------------------------------------------------


class Trusts(StrictFile):
    """Does not look a last time: the held claim is taken for the lock."""

    def _stands(self, ours: Doorway, token: str) -> bool:
        return True


class Tidies(StrictFile):
    """Removes its intent once its held claim is there, which a scan may miss."""

    def _stands(self, ours: Doorway, token: str) -> bool:
        self.claims.removed(ours.names.pop())
        return super()._stands(ours, token)


class Hurries(StrictFile):
    """Does not look whether it is the first before it makes its held claim."""

    def _is_first(self, intent: str) -> bool:
        return True


class Infers(StrictFile):
    """Removes a claim whose process it takes for dead: here, of whoever holds it."""

    def _look(self, ours: Any = ()) -> list[Any]:
        for claim in super()._look():
            if claim.state == "held" and claim.pid != self.files._seat.me:
                self.claims.removed(claim.name)
                self.claims.removed(claim_name("intent", claim.token))
        return super()._look()


KNOWN_BAD: dict[str, type[StrictFile]] = {
    "trusts": Trusts,
    "tidies": Tidies,
    "hurries": Hurries,
    "infers": Infers,
}


# ---- who plays ---------------------------------------------------------------------------------


def strict(
    *,
    rounds: int = 1,
    wait: bool = False,
    near: bool = True,
    kind: type[StrictFile] = StrictFile,
    **how: bool,
) -> Program:
    """A program that takes the lock `rounds` times; without `wait` it tries once each time."""

    def program(actor: Actor) -> set[int]:
        table = Descriptors(actor.files)
        lock = kind(
            PATH,
            PATH,
            actor.runtime,
            table,
            0o644,
            claims=Played(actor, **how),
            words=words(actor.me),
        )
        lock._near, lock._place, lock.safety = near, LOCAL, NEVER
        lock.verdict = soft_words(actor, plain).verdict
        for _ in range(rounds):
            answer = attempted(lock, wait)
            if isinstance(answer, Grant):
                actor.enter()
                actor.leave()
                lock.drop(answer)
        return set()

    return program


def attempted(lock: StrictFile, wait: bool) -> Grant | Held:
    """One try, or as many as it takes."""
    try:
        answer = lock.attempt()
        ask = Ask(PATH)
        while wait and isinstance(answer, Held):
            answer = finish(lock.wait(ask, NEVER))
        ask.leave()
    except SoftFileLockProtocolError:
        return Held()  # of a dead soft lock's owner at its path: told, and nothing is taken
    return answer


def original(actor: Actor) -> set[int]:
    """One try of filelock 4.2.11 at its doorway, without what only tidies up."""
    claims: Any = Room(CLAIMS, actor, calm=True)
    token = os.urandom(16).hex()
    intent, held = claim_name("intent", token), claim_name("held", token)
    names: list[str] = []
    if not seen(claims):
        names.append(intent)
        published(claims, intent, words(actor.me)(token), 0o644)
        there = seen(claims)
        if min(there, default="") == intent and not any(n.startswith("held") for n in there):
            names.insert(0, held)
            claims.linked(intent, held)
            there = seen(claims)
            tokens = [name.partition("-")[2] for name in there]
            if {intent, held} <= set(there) and min(tokens) == f"v1-{token}.claim":
                actor.enter()
                actor.leave()
    for name in names:
        claims.unlink(name)
    return set()


def seen(claims: Any) -> list[str]:
    """The claims that are there."""
    return [name for name in claims.scanned() if parts_of(name) is not None]


# ---- configurations ----------------------------------------------------------------------------


def begun(world: World) -> None:
    """A lock that has been in use, and nobody in it."""
    world.put(PATH, pidfile.STRICT)
    for path in (ABOVE, CLAIMS):
        world.put(path, kind=stat.S_IFDIR, mode=0o755)


def quiet(call: Call) -> bool:
    """What no other client sees, and what sees nothing of them.

    The folders are there and the sentinel stays as it is; a private record is nobody else's.
    """
    op, first, *_ = (*call, None)
    if op in ("clock_ns", "fstat", "mkdir", "pread", "pwrite"):
        return True
    return op in ("open", "lstat") and first == PATH


def quiet_calm(call: Call) -> bool:
    """The same where a scan is one step, its end, and nobody looks at private records."""
    op, first, *_ = (*call, None)
    if op in ("scan", "lstat", "close"):
        return True  # nobody else removes a claim
    return quiet(call) or (op in ("open", "unlink") and PRIVATE in str(first))


def game(name: str, *programs: Program | Client, crashes: int = 1, **more: Any) -> Exploration:
    """A configuration."""
    actors = [
        each if isinstance(each, Client) else Client(each, nonces="same") for each in programs
    ]
    options: dict[str, Any] = {"quiet": quiet, "model": Doors(times=True), "start": begun} | more
    if crashes:
        options.setdefault("newcomer", False)  # a dead one's claim stays
    return Exploration(*actors, crashes=crashes, name=name, **options)


def _claim(name: str, *programs: Any, soak: bool = False, **more: Any) -> Claim:
    name = f"filelock's strict lock: {name}"
    return Claim(name, lambda: game(name, *programs, **more), frozenset(), soak)


def strict_claims() -> Iterator[Claim]:
    """All of them."""
    one, two, waits = strict(), strict(rounds=2), strict(wait=True)
    aged, far = strict(aged=True), strict(near=False)
    theirs = Client(original, party="filelock", nonces="same")
    yield _claim("2 clients", one, one)
    yield _claim("2 clients, 2 rounds", two, two, crashes=0, soak=True)
    yield _claim("2 clients waiting", waits, waits, crashes=0)
    yield _claim("beside filelock", one, theirs)
    yield _claim("2 clients, private records are taken for old", aged, aged, soak=True)
    calm, patient = strict(calm=True), strict(wait=True, calm=True)
    whole: dict[str, Any] = {"model": WholeDoors(times=True), "quiet": quiet_calm, "soak": True}
    yield _claim("3 clients", calm, calm, calm, **whole)
    yield _claim("3 clients waiting", patient, patient, patient, crashes=0, **whole)
    yield _claim("2 clients beside filelock", calm, calm, theirs, **whole)
    yield _claim("2 clients, NFS", far, far, crashes=0, model=FarDoors(times=True), soak=True)
    soft = Client(soft_owner(), nonces="same")
    bare: dict[str, Any] = {"start": without_sentinel, "quiet": never, "model": SwappingDoors()}
    yield _claim("beside a soft lock's owner", one, soft, **bare, crashes=0)
    yield _claim("beside a soft lock's owner, who dies", one, soft, **bare, soak=True)


def without_sentinel(world: World) -> None:
    """The folders only: nobody has been here."""
    begun(world)
    del world.names[PATH]
    world.forget_unused()
