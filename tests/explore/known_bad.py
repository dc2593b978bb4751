"""Protocols that are known to fail, and their good relatives: what the explorer must tell apart.

Each is a factory of client programs over the files seam, with two attempts to acquire. Whoever
read the lock file and found its owner dead may take over; the evidence is always right, which is
the best case. `files.create` (O_CREAT|O_EXCL with its content) and `files.read` (open, read,
close) are one step each: coarser steps hide bugs and never make one, so what is found here is
there in finer steps too.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from lifehold.local.files import LOCK_EX, LOCK_NB, READ_WRITE
from lifehold.testing.explore import Actor, Model, NetworkModel, World

ATTEMPTS = range(2)
FLAGS = READ_WRITE | 0o100  # O_CREAT
Program = Callable[[Actor], None]


class Whole:
    """Two calls more for a model: whole files in one step."""

    def do_create(self, world: World, me: int, path: str, text: str) -> None:
        if world.at(path) is not None:
            raise OSError(errno.EEXIST, path)
        world.put(path, text.encode())

    def do_write(self, world: World, me: int, path: str, text: str) -> None:
        """Through a descriptor of its own that is open all the time: the name may be gone."""
        if path in world.names:
            self._store(world, world.names[path], text.encode())

    def do_read(self, world: World, me: int, path: str) -> str | None:
        ino = world.at(path)
        return None if ino is None else world.nodes[ino].data.decode()


class Local(Whole, Model):
    """Whole files on one machine."""


class Network(Whole, NetworkModel):
    """Whole files over NFS. A read opens the file, so the server is asked."""

    CHANGES = NetworkModel.CHANGES | {"create", "write"}
    ASKS = NetworkModel.ASKS | {"read"}


def stale(world: World) -> None:
    """A lock file, bid and generation that a process left which died long ago."""
    for name in ("/L", "/b0", "/G1"):
        world.put(name, b"0")
    world.token["lock"] = 1


def did(call: Callable[..., object], *arguments: object) -> bool:
    """Whether a call succeeded, as far as its reply tells."""
    try:
        call(*arguments)
    except OSError:
        return False
    return True


def dead(actor: Actor, owner: str | None) -> bool:
    return bool(owner) and actor.alive(int(owner)) == "dead"


def work(actor: Actor, token: int | None = None) -> None:
    actor.enter(token)
    actor.leave()


def inode(actor: Actor, path: str) -> int | None:
    try:
        return actor.files.lstat(path).st_ino
    except FileNotFoundError:
        return None


# ---- decide by owner, remove by path -----------------------------------------------------------


def check_then_remove(*, split: bool = False) -> Program:
    """Read the pid, remove a dead one's file, create. `split`: empty at first: that is damage."""

    def program(actor: Actor) -> None:
        files, me = actor.files, str(actor.me)
        for _ in ATTEMPTS:
            owner = files.read("/L")
            if dead(actor, owner) or (split and owner == ""):
                did(files.unlink, "/L")
            elif owner is not None:
                continue
            if not did(files.create, "/L", "" if split else me):
                continue
            if split:
                files.write("/L", me)
            work(actor)
            did(files.unlink, "/L")
            return

    return program


def rename_then_verify(*, roll_back: bool = False) -> Program:
    """A dead one's file is renamed aside, then looked at: was it the one we judged?"""

    def program(actor: Actor) -> None:
        files, me = actor.files, str(actor.me)
        for _ in ATTEMPTS:
            if did(files.create, "/L", me):
                work(actor)
                if files.read("/L") == me:
                    did(files.unlink, "/L")
                return
            owner, aside = files.read("/L"), f"/aside{me}"
            if not dead(actor, owner) or not did(files.rename, "/L", aside):
                continue
            if files.read(aside) == owner:
                did(files.unlink, aside)
            elif roll_back:
                did(files.link, aside, "/L")
                did(files.unlink, aside)

    return program


def link_then_stat() -> Program:
    """liblockfile: a temporary is linked, stat tells who won; a dead one's file is unlinked."""

    def program(actor: Actor) -> None:
        files, temporary = actor.files, f"/t{actor.me}"
        files.create(temporary, str(actor.me))
        for _ in ATTEMPTS:
            did(files.link, temporary, "/L")
            there = inode(actor, "/L")
            ours = inode(actor, temporary)
            if there is not None and there == ours:
                did(files.unlink, temporary)
                work(actor)
                did(files.unlink, "/L")
                return
            if dead(actor, files.read("/L")):
                did(files.unlink, "/L")
        did(files.unlink, temporary)

    return program


def rename_over_then_verify() -> Program:
    """A dead one's file is replaced by ours, then read again: is it still ours?"""

    def program(actor: Actor) -> None:
        files, me = actor.files, str(actor.me)
        for _ in ATTEMPTS:
            if not did(files.create, "/L", me):
                if not dead(actor, files.read("/L")):
                    continue
                did(files.create, f"/t{me}", me)
                did(files.rename, f"/t{me}", "/L")
                if files.read("/L") != me:
                    continue
            work(actor)
            did(files.unlink, "/L")
            return

    return program


# ---- breakers that take turns ------------------------------------------------------------------


def break_under(
    turn: Callable[[Actor, str], Callable[[], object] | None], again: str = "read"
) -> Program:
    """A dead one's file is unlinked in turn. `again`: the look inside: "read", "lstat" or ""."""

    def program(actor: Actor) -> None:
        files = actor.files
        for _ in ATTEMPTS:
            if did(files.create, "/L", str(actor.me)):
                work(actor)
                did(files.unlink, "/L")
                return
            judged = inode(actor, "/L") if again == "lstat" else None
            owner = files.read("/L")
            if not dead(actor, owner):
                continue
            over = turn(actor, owner)
            if over is None:
                continue
            same = not again
            if again == "lstat":
                same = inode(actor, "/L") == judged
            elif again == "read":
                same = files.read("/L") == owner
            if same:
                did(files.unlink, "/L")
            over()

    return program


def by_flock(actor: Actor, _: str) -> Callable[[], object] | None:
    """The turn is a flock on a file that is never removed."""
    fd = actor.files.open("/A", FLAGS, 0o644)
    if did(actor.files.flock, fd, LOCK_EX | LOCK_NB):
        return lambda: actor.files.close(fd)
    actor.files.close(fd)
    return None


def by_file(actor: Actor, _: str) -> Callable[[], object] | None:
    """The turn is another lock file."""
    if did(actor.files.create, "/A", str(actor.me)):
        return lambda: did(actor.files.unlink, "/A")
    return None


def by_claim(actor: Actor, owner: str) -> Callable[[], object] | None:
    """One claim per dead owner, kept for ever."""
    return (lambda: None) if did(actor.files.create, f"/C{owner}", str(actor.me)) else None


def by_claim_cleaned(actor: Actor, owner: str) -> Callable[[], object] | None:
    """One claim per dead owner, removed afterwards."""
    if did(actor.files.create, f"/C{owner}", str(actor.me)):
        return lambda: did(actor.files.unlink, f"/C{owner}")
    return None
