"""What the acquisitions of one soft reader/writer lock know, and what they think of the others.

L2  A member is put out only when it is proven dead, or silent for too long on our clock.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from ...core.deadline import NEVER
from ...core.liveness import DEAD
from ...local.ground import is_far
from ...local.paper import Paper
from . import pollers, whose
from .folder import SOME, Folder, NotAFolder
from .private import is_token
from .rwhead import TEMPORARY
from .rwlog import Log
from .rwrooms import Rooms, Visitor, refuse_older

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.deadline import Terms
    from .room import Room
    from .snapshot import State

WITNESS = "witness=flock\n"
LOCK_SH, LOCK_NB = 1, 4


class Shelf:
    """What all acquisitions of one object know together."""

    def __init__(self, lock_file: str, path: str, runtime: Any, table: Any, terms: Terms) -> None:
        above, name = os.path.split(path)
        self.path, self.runtime, self.table, self.terms = path, runtime, table, terms
        self.words: Any = whose  # who we are, and who lives
        self.near = not is_far(path)
        self.log = Log(lock_file, self.near)
        self.root = Folder(above, f"{name}.rw")
        self.where = f"{self.root.path}/gen/"  # what is to be watched
        self.seen: dict[str, tuple[bytes | None, float]] = {}  # records, and since when the same
        self.ready, self.sweep_at = False, 0.0
        self.poll = 0.25

    def prepare(self) -> None:
        """The folders are there, and nobody has an older layout. Raises NotAFolder, OSError."""
        refuse_older(self.log.lock_file, self.path)
        if not self.ready:
            for part in ("gen", "holders"):
                Folder(self.root.above, *self.root.parts, part).make(0o700)
            self.ready = True

    def opened(self) -> Rooms:
        """The log and the holders, opened anew. Raises FileNotFoundError, NotAFolder, OSError."""
        return Rooms(self)

    def idle(self) -> Rooms | None:
        """Those that the last acquisition has left behind."""
        return self.table.idle.pop(self.where, None)  # type: ignore[no-any-return]

    def keep(self, rooms: Rooms) -> None:
        """For the next acquisition: nobody uses them."""
        if len(self.table.idle) < SOME:
            self.table.keep(self.where, rooms)
        else:
            rooms.close()

    def unchanged_until(self, key: str, content: bytes | None, asked: float) -> float:
        """When the record will have been the same for long enough, if it stays so."""
        before = self.seen.get(key)
        if before is None or before[0] != content:
            before = self.seen[key] = content, asked
        return before[1] + max(self.terms.ttl, lease_of(content))


class Member(Paper):
    """Our record among the holders. `tenure`: of the grant."""

    __slots__ = ("tenure", "trouble")

    def __init__(self, table: Any, call: Any) -> None:
        self.tenure: Any = None
        self.trouble: Any = None
        super().__init__(table, call)


class Waiters(pollers.Met):
    """A soft reader/writer lock that another program holds now and then, and waits for."""

    windows = pollers.MEMBERS

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf.path)
        self._shelf = shelf

    def asked(self) -> Callable[[], bool]:
        """What tells whether one that waits now has come in, or nobody waits."""
        first = self._waiting()
        return lambda: not first or not first <= self._waiting()

    def _waiting(self) -> set[str]:
        """The tokens of other programs that have a record and are not in."""
        try:
            with self._shelf.opened() as rooms:
                members = self._shelf.log.latest(rooms.gen).members
                names = [name for name in rooms.holders.names() if is_token(name)]
                found = {name: rooms.holders.read(name) for name in names if name not in members}
        except (OSError, NotAFolder):
            return set()
        named = {name: named_by(content or b"") for name, content in found.items()}
        return {name for name, each in named.items() if each is not None and not each.witness}


class Others(Visitor):
    """The looks of an acquisition at the other members."""

    shelf: Shelf
    runtime: Any
    token: str
    due: float = NEVER
    _pid: int | None = None

    def _gone(self, holders: Room, token: str) -> bool:
        """Whether a member is proven dead, or has been silent for long enough (L2)."""
        asked = self.runtime.now()
        content = holders.read(token)
        until = self.shelf.unchanged_until(token, content, asked)
        if asked >= until:
            return True
        self.due = min(self.due, until)
        return bool(content and self.shelf.near and self._dead(holders, token, content))

    def _dead(self, holders: Room, token: str, content: bytes) -> bool:
        named = named_by(content)
        if named is None:
            return False
        if not named.witness:
            pollers.met(self.shelf.path, lambda: Waiters(self.shelf))
        witness = self._witnessed(holders, token) if named.witness else None
        if named.host == self.shelf.words.host_name():
            self._pid = named.pid
        if named.witness and witness is None:
            return False
        return bool(self.shelf.words.verdict(named, witness, True).state == DEAD)

    @staticmethod
    def _witnessed(holders: Room, token: str) -> bool | None:
        """Whether somebody locks its record; None when that cannot be told."""
        files = holders.files
        try:
            file = holders.open(token, os.O_RDONLY)
        except OSError:
            return None
        try:
            files.flock(file, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            files.close(file)
        return False

    def _sweep(self, gen: Room, holders: Room, latest: State) -> None:
        """Now and then: what crashes have left, once it has not changed for as long as a member."""
        now = self.runtime.now()
        if now < self.shelf.sweep_at:
            return
        self.shelf.sweep_at = now + self.shelf.terms.ttl / 2
        kept = set(latest.members)
        for room in (holders, gen):
            for name in room.names():
                ours = name == self.token or name in latest.members
                left = name.startswith(TEMPORARY)
                if is_token(name) and not ours if room is holders else left:
                    kept.add(name)
                    if now >= self.shelf.unchanged_until(name, room.read(name), now):
                        room.unlink(name)
        self.shelf.seen = {key: told for key, told in self.shelf.seen.items() if key in kept}


def named_by(content: bytes) -> whose.Named | None:
    """Whom a holder's record names."""
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        return None
    keys = {key: value for key, _, value in (line.partition("=") for line in lines)}
    pid, host = keys.get("pid", ""), keys.get("host", "")
    if not (pid.isdigit() and len(pid) < 11 and 0 < int(pid) < 1 << 31 and host):
        return None
    return whose.Named(int(pid), host, None, content.endswith(b"\n" + WITNESS.encode()))


def lease_of(content: bytes | None) -> float:
    """For how long a member wants to be waited for; 0.0 when it does not say."""
    for line in (content or b"").split(b"\n"):
        if line.startswith(b"lease="):
            try:
                found = float(line[6:])
            except ValueError:
                return 0.0
            right = math.isfinite(found) and found > 0 and repr(found).encode() == line[6:]
            return found if right else 0.0
    return 0.0
