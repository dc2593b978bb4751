"""A file server's client that remembers what names led to, also for open(2): as NFSv4.1 does.

Promise: an open may find what its name led to at this client's last look, as long as anybody has
that open or it has another name, or nothing where nothing was; until the client has asked for the
folder anew. What is created or linked is exact. Its own change of a name is known to it, its own
changes of other names teach it nothing.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from .filesystem import ACCESS, Error, Ways
from .model import NetworkModel
from .timed import Timed
from .world import Opened

if TYPE_CHECKING:
    from .world import World

NAME = "name"  # in the cache: (client, NAME, path) -> an inode's number, or None for nothing


class Remembering(NetworkModel):
    """NFSv4.1 and later."""

    def outcomes(self, world: World, me: int, call: tuple[Any, ...]) -> Ways:
        """As of any file server; and an open may be answered from memory."""
        op, *given = call
        world = _without_stale(world)
        ways = super().outcomes(world, me, call)
        looks = op == "open" and not given[1] & (os.O_CREAT | os.O_TMPFILE)
        if looks:
            ways = Ways((answer, after.copy()) for answer, after in ways)
        for answer, after in ways:
            if op in self.CHANGES or (op == "open" and not looks):  # the plain one forgets then
                after.cache.update({k: v for k, v in world.cache.items() if k[1] == NAME})
            if op == "open":
                after.cache[me, NAME, given[0]] = after.names.get(given[0])
            self._learn(after, me, op, given, failed=isinstance(answer, Error))
        if looks and (me, NAME, given[0]) in world.cache:
            ways += self._from_memory(world, me, *given)
        return Ways((answer, _without_stale(after)) for answer, after in ways)

    def do_anew(self, world: World, me: int, path: str) -> None:
        """All names of the folder are looked up again from here on."""
        world.found(path)
        front = path.rstrip("/") + "/"
        for at in [at for at in world.cache if at[:2] == (me, NAME)]:
            if at[2].startswith(front) and "/" not in at[2][len(front) :]:
                del world.cache[at]

    def _learn(self, after: World, me: int, op: str, given: list[Any], *, failed: bool) -> None:
        """Its own change of a name."""
        if op in ("link", "link_fd"):  # which looks it up first; what comes of it is not kept
            after.cache.pop((me, NAME, given[1]), None)
        elif op == "unlink":
            after.cache[me, NAME, given[0]] = None
        elif op in ("rename", "rename_new") and not failed:
            after.cache[me, NAME, given[0]] = None
            after.cache[me, NAME, given[1]] = after.names.get(given[1])

    def _from_memory(
        self, world: World, me: int, path: str, flags: int, mode: int = 0
    ) -> list[tuple[Any, World]]:
        """Another answer than the truth, if there is one."""
        known = world.cache[me, NAME, path]
        if known == world.names.get(path):
            return []
        if known is None:
            return [(Error(errno.ENOENT), world.copy())]
        after = world.copy()
        return [(after.new_fd(me, Opened(known, flags & ACCESS, 0)), after)]


def _without_stale(world: World) -> World:
    """A number may be given again, a handle never is: a stale one makes the name looked up."""
    stale = [
        at
        for at, ino in world.cache.items()
        if at[1] == NAME and ino is not None and ino not in world.nodes
    ]
    if stale:
        world = world.copy()
        for at in stale:
            del world.cache[at]
    return world


class TimedRemembering(Timed, Remembering):
    """The same with time."""
