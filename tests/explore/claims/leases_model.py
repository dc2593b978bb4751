"""The modelled machine with leases that run out, and with peers of liblockfile's kind.

Time is one clock for all, which passes in steps of half a ttl, at any moment, `steps` times. A
holder whose deadline has come has stopped (L8): it is no holder any more, but its system calls may
still come, as late as they like. A pause of `SETTLE` ends only while no foreign breaker is between
its look and its unlink: that is what is assumed of them, and all that is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from explore.claims.oracle import Oracle
from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant
from lifehold.local.files import LOCK_EX, LOCK_NB, LOCK_UN
from lifehold.local.ground import MountInfo
from lifehold.local.handles import Descriptors
from lifehold.runtime.blocking import finish
from lifehold.testing.clients import PATH, nobody
from lifehold.testing.model import Model, NetworkModel, Outcomes
from lifehold.testing.remembered import Remembering
from lifehold.testing.seam import ModelRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.testing.actor import Actor, Program
    from lifehold.testing.world import ClaimedHold, World

TTL, MARGIN, STEP = 1.0, 0.1, 0.5
TERMS = Terms(TTL, TTL / 3, MARGIN)
NEAR, FAR = MountInfo("ext4", ""), MountInfo("nfs4", "")
TIME, UNTIL, UNDER_WAY = "time", "until", "under way"


class Leases(Model):
    """Adds a clock of leases, settling, and whole files in one step to a model."""

    def __init__(self, *, steps: int = 0, **options: Any) -> None:
        super().__init__(times=True, **options)
        self.steps = steps

    def events(self, world: World) -> Iterator[tuple[str, World]]:
        yield from super().events(world)
        now = world.notes.get(TIME, 0.0)
        assert isinstance(now, float)
        if now < self.steps * STEP and self._matters(world):
            after = world.copy()
            after.notes[TIME] = now + STEP
            over = [c for c in after.holders if self._until(after, c.client) <= now + STEP]
            after.holders -= frozenset(over)
            yield f"half a ttl passes: it is {now + STEP:g}", after

    def _matters(self, world: World) -> bool:
        """Whether anybody is left who could see it."""
        return any(client not in world.gone for client, _ in world.opened) or bool(world.holders)

    def _until(self, world: World, client: int) -> float:
        found = world.notes.get((UNTIL, client), float("inf"))
        assert isinstance(found, float)
        return found

    def do_now(self, world: World, me: int) -> float:
        now = world.notes.get(TIME, 0.0)
        assert isinstance(now, float)
        return now

    def do_until(self, world: World, me: int, deadline: float) -> bool:
        """Note the deadline of a grant. Whether it has not come yet."""
        world.notes[UNTIL, me] = deadline
        return self.do_now(world, me) < deadline

    def do_leave(self, world: World, me: int, what: str) -> None:
        super().do_leave(world, me, what)
        world.notes.pop((UNTIL, me), None)

    def enter(self, world: World, claim: ClaimedHold, token: int | None) -> list[str]:
        if self.do_now(world, claim.client) >= self._until(world, claim.client):
            return self.late(world, claim, token)  # its first look at the clock tells it
        return super().enter(world, claim, token)

    # ---- temporary files: unlisted, with numbers of each client's own, so that states are few

    def do_listdir(self, world: World, me: int, path: str) -> tuple[str, ...]:
        names = super().do_listdir(world, me, path)
        return tuple(name for name in names if not name.startswith(ASIDE))

    def do_open(self, world: World, me: int, path: str, flags: int, mode: int = 0o777) -> int:
        fd = super().do_open(world, me, path, flags, mode)
        if flags & os.O_EXCL and ASIDE in path:
            opened = world.opened[me, fd]
            ino = next(number for number in range(me * 100, 1 << 20) if number not in world.nodes)
            world.nodes[ino] = world.nodes.pop(opened.ino)
            world.names[path], world.opened[me, fd] = ino, opened._replace(ino=ino)
        return fd

    # ---- settling, and those for whom it is done

    def do_pause(self, world: World, me: int, seconds: float) -> Outcomes | None:
        busy = [key for key in world.notes if isinstance(key, tuple) and key[0] == UNDER_WAY]
        return Outcomes() if any(key[1] not in world.gone for key in busy) else None

    def do_under_way(self, world: World, me: int, begins: bool) -> None:
        """A foreign breaker begins to look, or has done what came of it."""
        world.notes.pop((UNDER_WAY, me), None)
        if begins:
            world.notes[UNDER_WAY, me] = True

    def do_create(self, world: World, me: int, path: str, text: bytes) -> bool:
        if world.at(path) is None:
            world.put(path, text)
            return True
        return False

    def do_read(self, world: World, me: int, path: str) -> bytes | None:
        ino = world.at(path)
        return None if ino is None else world.nodes[ino].data

    def do_same(self, world: World, me: int, one: str, other: str) -> bool:
        """Whether two names lead to one file: two lstat(2), of which one is of a private name."""
        return world.at(one) is not None and world.at(one) == world.at(other)


class NetworkLeases(Leases, Remembering):
    """The same over NFS."""

    ASKS = NetworkModel.ASKS | {"read"}


class LeaseRuntime(ModelRuntime):
    """A client's runtime whose clock is the world's."""

    def now(self) -> float:
        return float(self._seat.step("now"))


def lease_client(
    kind: Callable[..., Any],
    *,
    rounds: int = 1,
    tries: int = 0,
    place: MountInfo = NEAR,
    leased: bool = False,
    witness: bool = True,
    renews: bool = False,
    server: bool = False,
    **options: Any,
) -> Program:
    """A program that acquires a kind whose record is the lock, works, and releases.

    `tries`: how often it asks before it goes on, for ever when 0; `witness=False`: death is told by
    the oracle of `Model` instead of a kernel lock; `renews`: it renews once while it works;
    `server`: replies of the file system are not believed, whatever proves a death at `place`.
    """

    def program(actor: Actor) -> None:
        terms = {"terms": TERMS} if leased else {}
        runtime = LeaseRuntime(actor) if leased else actor.runtime
        table = Descriptors(actor.files)
        lock = kind(PATH, runtime, table=table, place=place, **terms, **options)
        _prepare(lock, actor, witness)
        lock.near = lock.near and not server
        for _ in range(rounds):
            grant = _acquired(lock, actor, tries)
            if grant is None:
                continue
            held = grant.deadline is None or actor.step("until", grant.deadline)
            actor.enter(grant.token)
            if renews and held:
                grant = _renewed(lock, grant, actor)
            actor.leave()
            lock.drop(grant)

    return program


def _prepare(lock: Any, actor: Actor, witness: bool) -> None:
    """Nothing of the real machine is looked at."""
    lock.inspect = nobody
    lock._line = lambda: b"%d\n" % actor.me
    if not witness:
        lock._bear_witness = never_witness
    shipped = lock.evidence
    lock.evidence = Oracle(shipped.kind, actor, shipped.grace, shipped.foreign)


def _acquired(lock: Any, actor: Actor, tries: int) -> Grant | None:
    left = tries
    while True:
        answer = lock.attempt()
        if isinstance(answer, Grant):
            return answer
        answer = None  # its hint is for waiters
        if tries:
            left -= 1
            if left == 0:
                return None
        actor.step("sleep", 0.0)


def _renewed(lock: Any, grant: Grant, actor: Actor) -> Grant:
    actor.leave()
    answer = finish(lock.renew(grant))
    if not isinstance(answer, Grant):
        return grant
    if actor.step("until", answer.deadline):
        actor.enter()
    return answer


def never_witness(stake: Any) -> bool:
    """In place of a kernel lock on the record."""
    return False


def liblockfile(*, rounds: int = 1, path: str = PATH) -> Program:
    """A peer as it is: link and compare; stale is whose process is gone; then unlink by name."""

    def program(actor: Actor) -> None:
        aside, mine = f"/.lk{actor.me}", b"%d\n" % actor.me
        for _ in range(rounds):
            actor.step("create", aside, mine)
            while True:
                try:
                    actor.files.link(aside, path)
                except OSError:
                    pass
                if actor.step("same", aside, path):
                    break
                actor.step("under_way", True)
                text = actor.step("read", path)
                if text is not None:
                    pid = text.partition(b"\n")[0]
                    if actor.alive(int(pid or b"0")) == "dead":
                        unlinked(actor, path)
                actor.step("under_way", False)
            actor.enter()
            unlinked(actor, aside)
            actor.leave()
            unlinked(actor, path)

    return program


def unlinked(actor: Actor, path: str) -> None:
    try:
        actor.files.unlink(path)
    except FileNotFoundError:
        pass


FIRST_WRITE = b'"renewals":%20d,"state":%12s' % (0, b'"held"')
ASIDE, PRIVATE = ".lifehold-", "/.lk"


def quiet(call: tuple[Any, ...]) -> bool:
    """Steps of generation that no other client can see, and that see nothing of them.

    On a temporary file of one's own, on what never changes of an inode, on a clock that stands.
    """
    op, *arguments = call
    if op in ("sleep", "fstat", "fsync", "clock_ns"):
        return True
    if op in ("open", "mkdir", "rmdir", "unlink", "lstat", "chmod"):
        return ASIDE in arguments[0]
    if op == "flock":
        return bool(arguments[1] == LOCK_EX | LOCK_NB)  # of a record that has no number yet
    return op == "pwrite" and FIRST_WRITE in arguments[1]


def unseen(world: World, me: int, call: tuple[Any, ...]) -> bool:
    """To close what one only looked at; to end a judge's shared try, which disturbs nobody."""
    op, *arguments = call
    if op == "close":
        opened = world.opened.get((me, arguments[0]))
        return opened is None or not opened.lock
    return bool(op == "flock" and arguments[1] == LOCK_UN)


def unnamed(world: World, me: int, call: tuple[Any, ...]) -> bool:
    """What is done to a file of one's own that has no name but a private one, and no other reader.

    Not its making and its end: these give out numbers of inodes.
    """
    op, fd, *_ = (*call, None)
    if op not in ("pwrite", "flock", "guard"):
        return False
    mine = world.opened.get((me, fd))
    if mine is None:
        return False
    named = any(i == mine.ino and not n.startswith(PRIVATE) for n, i in world.names.items())
    opened = any(at != (me, fd) and each.ino == mine.ino for at, each in world.opened.items())
    return not named and not opened
