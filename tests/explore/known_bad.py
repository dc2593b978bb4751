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
from lifehold.testing.explore import Model, NetworkModel, Seat, World

ATTEMPTS = range(2)
FLAGS = READ_WRITE | 0o100  # O_CREAT
Program = Callable[[Seat], None]


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


def dead(seat: Seat, owner: str | None) -> bool:
    return bool(owner) and seat.alive(int(owner)) == "dead"


def work(seat: Seat, token: int | None = None) -> None:
    seat.enter(token)
    seat.leave()


def inode(seat: Seat, path: str) -> int | None:
    try:
        return seat.files.lstat(path).st_ino
    except FileNotFoundError:
        return None


# ---- decide by owner, remove by path -----------------------------------------------------------


def check_then_remove(*, split: bool = False) -> Program:
    """Read the pid, remove a dead one's file, create. `split`: empty at first: that is damage."""

    def program(seat: Seat) -> None:
        files, me = seat.files, str(seat.me)
        for _ in ATTEMPTS:
            owner = files.read("/L")
            if dead(seat, owner) or (split and owner == ""):
                did(files.unlink, "/L")
            elif owner is not None:
                continue
            if not did(files.create, "/L", "" if split else me):
                continue
            if split:
                files.write("/L", me)
            work(seat)
            did(files.unlink, "/L")
            return

    return program


def rename_then_verify(*, roll_back: bool = False) -> Program:
    """A dead one's file is renamed aside, then looked at: was it the one we judged?"""

    def program(seat: Seat) -> None:
        files, me = seat.files, str(seat.me)
        for _ in ATTEMPTS:
            if did(files.create, "/L", me):
                work(seat)
                if files.read("/L") == me:
                    did(files.unlink, "/L")
                return
            owner, aside = files.read("/L"), f"/aside{me}"
            if not dead(seat, owner) or not did(files.rename, "/L", aside):
                continue
            if files.read(aside) == owner:
                did(files.unlink, aside)
            elif roll_back:
                did(files.link, aside, "/L")
                did(files.unlink, aside)

    return program


def link_then_stat() -> Program:
    """liblockfile: a temporary is linked, stat tells who won; a dead one's file is unlinked."""

    def program(seat: Seat) -> None:
        files, temporary = seat.files, f"/t{seat.me}"
        files.create(temporary, str(seat.me))
        for _ in ATTEMPTS:
            did(files.link, temporary, "/L")
            there = inode(seat, "/L")
            ours = inode(seat, temporary)
            if there is not None and there == ours:
                did(files.unlink, temporary)
                work(seat)
                did(files.unlink, "/L")
                return
            if dead(seat, files.read("/L")):
                did(files.unlink, "/L")
        did(files.unlink, temporary)

    return program


def rename_over_then_verify() -> Program:
    """A dead one's file is replaced by ours, then read again: is it still ours?"""

    def program(seat: Seat) -> None:
        files, me = seat.files, str(seat.me)
        for _ in ATTEMPTS:
            if not did(files.create, "/L", me):
                if not dead(seat, files.read("/L")):
                    continue
                did(files.create, f"/t{me}", me)
                did(files.rename, f"/t{me}", "/L")
                if files.read("/L") != me:
                    continue
            work(seat)
            did(files.unlink, "/L")
            return

    return program


# ---- breakers that take turns ------------------------------------------------------------------


def break_under(
    turn: Callable[[Seat, str], Callable[[], object] | None], again: str = "read"
) -> Program:
    """A dead one's file is unlinked in turn. `again`: the look inside: "read", "lstat" or ""."""

    def program(seat: Seat) -> None:
        files = seat.files
        for _ in ATTEMPTS:
            if did(files.create, "/L", str(seat.me)):
                work(seat)
                did(files.unlink, "/L")
                return
            judged = inode(seat, "/L") if again == "lstat" else None
            owner = files.read("/L")
            if not dead(seat, owner):
                continue
            over = turn(seat, owner)
            if over is None:
                continue
            same = not again
            if again == "lstat":
                same = inode(seat, "/L") == judged
            elif again == "read":
                same = files.read("/L") == owner
            if same:
                did(files.unlink, "/L")
            over()

    return program


def by_flock(seat: Seat, _: str) -> Callable[[], object] | None:
    """The turn is a flock on a file that is never removed."""
    fd = seat.files.open("/A", FLAGS, 0o644)
    if did(seat.files.flock, fd, LOCK_EX | LOCK_NB):
        return lambda: seat.files.close(fd)
    seat.files.close(fd)
    return None


def by_file(seat: Seat, _: str) -> Callable[[], object] | None:
    """The turn is another lock file."""
    if did(seat.files.create, "/A", str(seat.me)):
        return lambda: did(seat.files.unlink, "/A")
    return None


def by_claim(seat: Seat, owner: str) -> Callable[[], object] | None:
    """One claim per dead owner, kept for ever."""
    return (lambda: None) if did(seat.files.create, f"/C{owner}", str(seat.me)) else None


def by_claim_cleaned(seat: Seat, owner: str) -> Callable[[], object] | None:
    """One claim per dead owner, removed afterwards."""
    if did(seat.files.create, f"/C{owner}", str(seat.me)):
        return lambda: did(seat.files.unlink, f"/C{owner}")
    return None
