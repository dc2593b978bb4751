"""The machine on which strict locks are played: folders, a scan that takes time, NFS."""

from __future__ import annotations

import errno
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from explore.claims.filelock_model import Swapping
from lifehold.core.deadline import NEVER
from lifehold.testing.clients import PATH
from lifehold.testing.explore import Model, NetworkModel
from lifehold.testing.model import Outcomes

if TYPE_CHECKING:
    from lifehold.testing.actor import Actor
    from lifehold.testing.world import World

ABOVE = f"{PATH}.filelock"
CLAIMS = f"{ABOVE}/claims"


class Doors(Model):
    """A machine on which a scan takes time and a record is looked at in one step."""

    def do_content(self, world: World, me: int, path: str) -> Outcomes:
        """Of a file: None when there is none."""
        ino = world.at(path)
        return Outcomes([(None if ino is None else world.nodes[ino].data, world)])

    def do_scan(self, world: World, me: int, folder: str) -> None:
        """Begin: what is there now."""
        world.notes["scan", me] = tuple(world.inside(folder))

    def do_scanned(self, world: World, me: int, folder: str) -> Outcomes:
        """End: what has been there all the time, and any of what has come or gone meanwhile."""
        before = set(world.notes.pop(("scan", me)))  # type: ignore[call-overload]
        now = set(world.inside(folder))
        found = Outcomes()
        unsure = sorted(before ^ now)
        for some in itertools.product((False, True), repeat=len(unsure)):
            shown = {name for name, seen in zip(unsure, some, strict=True) if seen}
            found.append((tuple(sorted(before & now | shown)), world.copy()))
        return found


class WholeDoors(Doors):
    """One on which a scan takes no time, for more clients."""

    def do_scan(self, world: World, me: int, folder: str) -> None:
        return

    def do_scanned(self, world: World, me: int, folder: str) -> Any:
        return self.do_listdir(world, me, folder)


class SwappingDoors(Doors, Swapping):
    """One on which soft locks exchange names."""


class FarDoors(Doors, NetworkModel):
    """The same over NFS, where a listing may be remembered, and a lost answer is a lie."""

    def do_scanned(self, world: World, me: int, folder: str) -> Any:
        return self.do_listdir(world, me, folder)


class Room:
    """As `lifehold.compat.filelock.record_folder.OpenFolder`, of the model.

    `aged`: all is taken for old; `calm`: private records of others are not seen, nor swept.
    """

    def __init__(self, at: str, actor: Actor, *, aged: bool = False, calm: bool = False) -> None:
        self.at, self.actor, self.files = at.rstrip("/"), actor, actor.files
        self.aged, self.calm = aged, calm

    def open(self, name: str, flags: int, mode: int = 0o600) -> Any:
        return self.files.open(f"{self.at}/{name}", flags, mode)

    def write(self, fd: int, content: bytes) -> None:
        self.files.pwrite(fd, content, 0)

    def record(self, name: str, most: int) -> Any:
        found = self.actor.step("content", f"{self.at}/{name}")
        if found is None:
            raise FileNotFoundError(errno.ENOENT, name)
        return found

    def stat(self, name: str) -> Any:
        found = self.files.lstat(f"{self.at}/{name}")
        time = -NEVER if self.aged else NEVER
        return SimpleNamespace(st_mode=found.st_mode, st_nlink=found.st_nlink, st_mtime=time)

    def key_at(self, name: str) -> Any:
        try:
            found = self.files.lstat(f"{self.at}/{name}")
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def linked(self, one: str, other: str, key: Any = None) -> None:
        try:
            self.files.link(f"{self.at}/{one}", f"{self.at}/{other}")
        except FileExistsError:
            found = self.key_at(other)
            if found is None or found != (key or self.key_at(one)):
                raise

    def unlink(self, name: str) -> None:
        try:
            self.files.unlink(f"{self.at}/{name}")
        except FileNotFoundError:
            return

    def names(self) -> Any:
        return list(self.files.listdir(self.at or "/"))

    def scanned(self) -> Any:
        self.actor.step("scan", self.at)
        names = self.actor.step("scanned", self.at)
        return [name for name in names if not (self.calm and name.startswith("."))]
