"""filelock 4.2 as the explorer sees it: its soft locks and leases, and the machine they need.

Played beside ours: who creates the file, judges it, exchanges it for its own, looks at what it
took and gives back what it had not judged. Its lease holder believes no longer than ours would: a
touch that lands after its old end counts for nothing here, though filelock looks at no clock.
"""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lifehold.compat.filelock import owner_record, pidfile
from lifehold.core.deadline import Terms
from lifehold.core.owner import ALIVE, DEAD, LifeVerdict
from lifehold.testing.clients import PATH
from lifehold.testing.explore import Client, Model
from lifehold.testing.model import Outcomes
from lifehold.testing.remembered import TimedModel, time_of, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifehold.compat.filelock.owner_record import OwnerMode
    from lifehold.testing.actor import Actor
    from lifehold.testing.world import World

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
DEAD_ONE, SILENT, SECOND_NS = 99, 98, 1_000_000_000  # SILENT lives; all have seen enough of it
TERMS = Terms(ttl=2.0, heartbeat=0.5, margin=0.0)  # in ticks of the model's time
GARBAGE = b"garbage"


class Swapping(Model):
    """A machine that exchanges names; its clock stands still, so a write alone moves no time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(times=True, clock="still", **options)

    def do_exchange(self, world: World, me: int, one: str, other: str) -> bool:
        first, second = world.found(one), world.found(other)
        world.names[one], world.names[other] = second, first
        return True

    def do_stamp(self, world: World, me: int, where: int, when: int) -> None:
        ino = self._opened(world, me, where).ino
        world.nodes[ino] = world.nodes[ino]._replace(mtime=when)

    def do_alive(self, world: World, me: int, client: int) -> Any:
        return "dead" if client == DEAD_ONE or client in world.gone else "alive"


class Leasing(TimedModel, Swapping):
    """The same with time, which stamps the files.

    Time goes on in the steps that look at it or stamp it, by any number of ticks first: between
    other steps nobody can tell, and there are far fewer states.
    """

    TIMED = frozenset({"now", "utime", "sleep_until", "changed_until"})

    def events(self, world: World) -> Iterator[tuple[str, World]]:
        return Model.events(self, world)

    def outcomes(self, world: World, me: int, call: tuple[Any, ...]) -> Outcomes:
        if call[0] not in self.TIMED:
            return super().outcomes(world, me, call)
        ways = Outcomes()
        for later in self._later(world):
            ways += super().outcomes(later, me, call)
        return ways

    def _later(self, world: World) -> Iterator[World]:
        """Now, and each tick that may come before the call, until the last that anybody awaits."""
        yield world
        waits = [at for me, at in waiting(world) if me not in world.gone]
        for now in range(time_of(world) + 1, int(max([self.free, *waits])) + 1):
            after = world.copy()
            after.notes["time"] = now
            after.clock += (now - time_of(world)) * SECOND_NS
            after.holders = frozenset(c for c in world.holders if c.until > now)
            yield after


class Still:
    """A clock for the length of an exchange: nobody gives up there."""

    def now(self) -> float:
        return 0.0

    def pause(self, seconds: float) -> None:
        """Any step of another may come between two of ours anyway."""


STILL = Still()


# ---- records -----------------------------------------------------------------------------------


def plain(number: int, witness: bool = False) -> bytes:
    """The record of a `SoftFileLock`."""
    return f"{number}\nhost\n".encode() + (pidfile.WITNESSED if witness else b"")


def marked(number: int, witness: bool = False) -> bytes:
    """The record of a `MarkerSoftFileLock`."""
    return _by_keys(number, "exclusive", None, None, witness)


def leased(number: int, witness: bool = False) -> bytes:
    """The record of a `SoftFileLease`."""
    return _by_keys(number, "lease", f"{number:032x}", TERMS.ttl, witness)


def _by_keys(
    number: int, mode: OwnerMode, token: str | None, ttl: float | None, witness: bool
) -> bytes:
    return owner_record.spelled(owner_record.OwnerRecord(number, "host", mode, token, ttl), witness)


def words(actor: Actor, text: Callable[..., bytes]) -> Any:
    """Who we are and who lives, as the model has it."""

    def verdict(named: pidfile.PidFileOwner, witness: bool | None, one_kernel: bool) -> LifeVerdict:
        if witness:
            return LifeVerdict(ALIVE, "")
        if named.witness and witness is False:
            return LifeVerdict(DEAD, "")
        return LifeVerdict(DEAD if actor.alive(named.pid) == "dead" else ALIVE, "")

    return SimpleNamespace(
        record=lambda witness: text(actor.me, witness),
        verdict=verdict,
        host_name=lambda: "host",
        pid=lambda: actor.me,
    )


# ---- filelock's side ---------------------------------------------------------------------------


def original(rounds: int = 1, text: Callable[..., bytes] = plain) -> Client:
    """One of filelock's soft locks, which tries `rounds` times."""

    def program(actor: Actor) -> set[int]:
        for _ in range(rounds):
            fd = take(actor, text)
            if fd is not None:
                actor.enter(None)
                actor.leave()
                give(actor.files, fd)
        return set()

    return Client(program, party="filelock", nonces="same")


def original_lease(touches: int = 0, *, waits: bool = True) -> Client:
    """A lease of filelock's: waits for the one that is there to run out, holds, touches."""

    def program(actor: Actor) -> set[int]:
        seen: Any = None
        began = actor.step("now")
        fd = take(actor, leased)
        if fd is None and waits:
            seen = judged_of(actor.files)
            until = actor.step("now") + TERMS.ttl
            actor.step("wait_for", until)
            actor.step("sleep_until", until)
            began = actor.step("now")
            fd = take(actor, leased, seen)
        if fd is not None:
            until = began + TERMS.ttl
            actor.enter(None, until=until)
            for _ in range(touches):
                until = touched(actor, fd, until)
            actor.leave()
            give(actor.files, fd)
        return set()

    return Client(program, party="filelock", nonces="same")


def touched(actor: Actor, fd: int, until: float) -> float:
    """One heartbeat: when the lease ends now."""
    files, began = actor.files, actor.step("now")
    own = files.fstat(fd)
    try:
        if files.lstat(PATH).st_ino != own.st_ino:
            return until
    except OSError:
        return until
    files.utime(fd)
    if actor.step("now") >= until:
        return until
    until = began + TERMS.ttl
    actor.enter(None, until=until)
    return until


def judged_of(files: Any) -> Any:
    """What is at the path, to be compared with what is there later."""
    try:
        found = files.lstat(PATH)
    except OSError:
        return None
    return found.st_ino, found.st_mtime, found.st_ctime


def take(actor: Actor, text: Callable[..., bytes], seen: Any = None) -> int | None:
    """One try. `seen`: of a lease that has run out if it is still the same."""
    files = actor.files
    try:
        fd: int = files.open(PATH, CREATE)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        return broken(actor, text, seen)
    files.pwrite(fd, text(actor.me), 0)
    return fd


def broken(actor: Actor, text: Callable[..., bytes], seen: Any) -> int | None:
    """By an exchange, if it may be: our descriptor of what is the lock now, or None."""
    files = actor.files
    try:
        pin = files.open(PATH, os.O_RDONLY)
    except OSError:
        return None
    judged, fd, won = files.fstat(pin), None, False
    try:
        if not _stale(actor, files.pread(pin, 2000, 0), judged, seen):
            return None
        name = pidfile.aside(PATH, actor.me)
        fd = files.open(name, CREATE)
        files.pwrite(fd, text(actor.me), 0)
        if not same(files, PATH, judged):
            files.unlink(name)
            return None
        try:
            files.exchange(name, PATH)
        except OSError:
            files.unlink(name)
            return None
        if same(files, name, judged):
            files.unlink(name)
            won = True
            return int(fd)
        own = files.fstat(fd)
        mine: Any = SimpleNamespace(fd=fd, dev=own.st_dev, ino=own.st_ino)
        pidfile.give_back(files, PATH, name, mine, STILL)
        return None
    finally:
        files.close(pin)
        if fd is not None and not won:
            files.close(fd)


def _stale(actor: Actor, content: bytes, judged: Any, seen: Any) -> bool:
    named = pidfile.read(content)
    if named is None:
        return content == GARBAGE
    if named.pid == SILENT or actor.alive(named.pid) == "dead":
        return True
    return seen is not None and seen == (judged.st_ino, judged.st_mtime, judged.st_ctime)


def same(files: Any, path: str, judged: Any) -> bool:
    """Whether the path leads to what was judged, unchanged."""
    try:
        found = files.lstat(path)
    except OSError:
        return False
    return bool((found.st_ino, found.st_mtime) == (judged.st_ino, judged.st_mtime))


def give(files: Any, fd: int) -> None:
    """The release."""
    own = files.fstat(fd)
    try:
        found = files.lstat(PATH)
        if found.st_ino == own.st_ino:
            files.unlink(PATH)
        else:
            files.pwrite(fd, pidfile.RELEASED, 0)
            files.truncate(fd, len(pidfile.RELEASED))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    files.close(fd)


def left(content: bytes) -> Callable[[World], object]:
    """A start: whatever is there, of nobody who lives."""

    def start(world: World) -> None:
        world.put(PATH, content)

    return start
