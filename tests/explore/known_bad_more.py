"""More protocols that are known to fail: flock and unlink, generations, bids in a folder."""

from __future__ import annotations

from explore.known_bad import ATTEMPTS, FLAGS, Program, dead, did, inode, work
from lifehold.local.files import LOCK_EX, LOCK_NB
from lifehold.testing.explore import Actor


def flock_file(*, unlink: bool, check: bool) -> Program:
    """flock on the lock file itself. `unlink` at release; `check` the path after the flock."""

    def program(actor: Actor) -> None:
        files = actor.files
        for _ in ATTEMPTS:
            fd = files.open("/L", FLAGS, 0o644)
            mine = files.fstat(fd).st_ino
            if did(files.flock, fd, LOCK_EX | LOCK_NB) and (
                not check or inode(actor, "/L") == mine
            ):
                work(actor)
                if unlink:
                    did(files.unlink, "/L")
                files.close(fd)
                return
            files.close(fd)

    return program


def generations(*, release: str) -> Program:
    """The highest G<n> is the lock, n the token; `release`: "unlink", or "replace" by a sign."""

    def program(actor: Actor) -> None:
        files, me = actor.files, str(actor.me)
        for _ in ATTEMPTS:
            numbers = [int(name[1:]) for name in files.listdir("/") if name[0] == "G"]
            highest = max(numbers, default=0)
            if highest:
                owner = files.read(f"/G{highest}")
                if owner is None or (owner != "released" and not dead(actor, owner)):
                    continue
            name = f"/G{highest + 1}"
            if not did(files.create, name, me):
                continue
            work(actor, highest + 1)
            if release == "unlink":
                files.unlink(name)
            else:
                files.create(f"/r{me}", "released")
                files.rename(f"/r{me}", name)
            return

    return program


def bids(*, stale_rule: bool, split: bool = False) -> Program:
    """lockfolder: look for bids, post one, look again. `split`: posted empty, then written."""

    def program(actor: Actor) -> None:
        files, mine = actor.files, f"b{actor.me}"
        for _ in ATTEMPTS:
            if others(actor, mine, stale_rule):
                continue
            files.create(f"/{mine}", "" if split else str(actor.me))
            if split:
                files.write(f"/{mine}", str(actor.me))
            if others(actor, mine, stale_rule):
                files.unlink(f"/{mine}")
                continue
            work(actor)
            files.unlink(f"/{mine}")
            return

    return program


def others(actor: Actor, mine: str, stale_rule: bool) -> bool:
    """Whether another bid stands in the way. An empty one may be about to be written."""
    found = False
    for name in actor.files.listdir("/"):
        if name == mine or name[0] != "b":
            continue
        owner = actor.files.read(f"/{name}")
        if stale_rule and dead(actor, owner):
            did(actor.files.unlink, f"/{name}")
        elif owner is not None:
            found = True
    return found
