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
from ...runtime import fork
from . import folder, whose
from .claims import is_token, unlinked
from .folder import Folder
from .rwlog import TEMPORARY, Log
from .snapshot import State, content_of

if TYPE_CHECKING:
    from ...core.deadline import Terms

WITNESS = "witness=flock\n"
LOCK_SH, LOCK_NB = 1, 4


class Shelf:
    """What all acquisitions of one object know together."""

    def __init__(self, lock_file: str, path: str, runtime: Any, table: Any, terms: Terms) -> None:
        above, name = os.path.split(path)
        self.path, self.runtime, self.table, self.terms = path, runtime, table, terms
        self.log = Log(lock_file, path)
        self.holders = Folder(above, f"{name}.rw", "holders")
        self.seen: dict[str, tuple[bytes | None, float]] = {}  # records, and since when the same
        self.near = not is_far(path)
        self.ready, self.sweep_at = False, 0.0
        self.poll = 0.25

    def prepare(self) -> None:
        """The folders are there. Raises NotAFolder, OSError."""
        if not self.ready:
            self.log.gen.make(0o700)
            self.holders.make(0o700)
            self.ready = True

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


class Others:
    """The looks of an acquisition at the other members."""

    shelf: Shelf
    runtime: Any
    token: str
    due: float = NEVER
    _pid: int | None = None

    def _gone(self, fd: int, token: str) -> bool:
        """Whether a member is proven dead, or has been silent for long enough (L2)."""
        asked = self.runtime.now()
        content = content_of(fd, token)
        until = self.shelf.unchanged_until(token, content, asked)
        if asked >= until:
            return True
        self.due = min(self.due, until)
        return bool(content and self.shelf.near and self._dead(fd, token, content))

    def _dead(self, fd: int, token: str, content: bytes) -> bool:
        named = named_by(content)
        if named is None:
            return False
        witness = self._witnessed(fd, token) if named.witness else None
        if named.host == whose.host_name():
            self._pid = named.pid
        if named.witness and witness is None:
            return False
        return whose.verdict(named, witness, True).state == DEAD

    @staticmethod
    def _witnessed(fd: int, token: str) -> bool | None:
        """Whether somebody locks its record; None when that cannot be told."""
        try:
            file = os.open(token, os.O_RDONLY | folder.FLAGS, dir_fd=fd)
        except OSError:
            return None
        calls: Any = fork.lazily("fcntl")
        try:
            calls.flock(file, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(file)
        return False

    def _sweep(self, gen: int, holders: int, latest: State) -> None:
        """Now and then: what crashes have left, once it has not changed for as long as a member."""
        now = self.runtime.now()
        if now < self.shelf.sweep_at:
            return
        self.shelf.sweep_at = now + self.shelf.terms.ttl / 2
        kept = set(latest.members)
        for fd, names in ((holders, os.listdir(holders)), (gen, os.listdir(gen))):
            for name in names:
                ours = name == self.token or name in latest.members
                left = is_token(name) and not ours if fd == holders else name.startswith(TEMPORARY)
                if left:
                    kept.add(name)
                    if now >= self.shelf.unchanged_until(name, content_of(fd, name), now):
                        unlinked(fd, name)
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
