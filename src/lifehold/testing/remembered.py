"""Models beyond the plain one: with time; and a file server's client that remembers names.

The client remembers what names led to, also for open(2): as NFSv4.1 does.

Promise: an open may find what its name led to at this client's last look, as long as anybody has
that open or it has another name, or nothing where nothing was; until the client has asked for the
folder anew. What is created or linked is exact. Its own change of a name is known to it, its own
changes of other names teach it nothing.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from ..core.deadline import NEVER
from .model import ACCESS, Error, Model, NetworkModel, Outcomes
from .seam import ModelChangeWait, ModelRuntime
from .world import OpenDescription

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.acquire import Ask
    from .world import ClaimedHold, World


# ------------------------------------------------------------------------------------------------
# Time in the model: a clock that all clients read, and that may go on between any two steps.
#
# Promise: whatever a client does between a look at the clock and the step that follows, any number
# of ticks may pass there, as in a process that was stopped. A holder whose deadline has come
# believes no more (L8), though its system calls may still come. Time goes on as long as somebody
# waits for it or holds until some instant, and `free` ticks besides, so that the states stay
# finite. All clocks run alike: what they may differ by is the margin's part.


class TimedRuntime(ModelRuntime):
    """A client's runtime under a timed model: every look at the clock is a step."""

    def now(self) -> float:
        return float(self._seat.step("now"))

    async def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        self._seat.step("wait_for", until)
        self._seat.step("sleep_until", until)

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        """Two steps: to arm, and to wait for an event since then, or an instant."""
        if not isinstance(ask.place, ModelChangeWait):
            ask.place = ModelChangeWait(self._seat, (path, pid))
            self._seat.step("look_out", path, pid)
        else:
            self._seat.step("wait_for", until)
            self._seat.step("changed_until", until)


class TimedModel(Model):
    """A model with time. `free`: ticks that pass though nobody waits for them."""

    def __init__(self, *, free: int = 2, **more: Any) -> None:
        super().__init__(**more)
        self.free = free

    def do_now(self, world: World, me: int) -> int:
        return time_of(world)

    def do_wait_for(self, world: World, me: int, until: float) -> None:
        """Told before it is waited for, so that time goes on."""
        if until < NEVER:
            world.notes["waits", me] = until

    def do_sleep_until(self, world: World, me: int, until: float) -> Outcomes | None:
        return self._until(world, me, until)

    def do_changed_until(self, world: World, me: int, until: float) -> Outcomes | None:
        path, pid, rung = world.watches[me]
        if rung:
            world.watches[me] = (path, pid, False)
            world.notes.pop(("waits", me), None)
            return None
        return self._until(world, me, until)

    def _until(self, world: World, me: int, until: float) -> Outcomes | None:
        """Blocked until then."""
        if time_of(world) < until:
            return Outcomes()
        world.notes.pop(("waits", me), None)
        return None

    def events(self, world: World) -> Iterator[tuple[str, World]]:
        yield from super().events(world)
        now = time_of(world)
        waits = [at for me, at in waiting(world) if me not in world.gone]
        if now >= self.free and not any(at > now for at in waits):
            return
        after = world.copy()
        after.notes["time"] = now + 1
        after.holders = frozenset(c for c in world.holders if c.until > now + 1)
        yield f"time goes on to {now + 1}", after

    def enter(self, world: World, claim: ClaimedHold, token: int | None) -> list[str]:
        """A claim whose time is over already is none, but its token is out."""
        if claim.until <= time_of(world):
            return self.late(world, claim, token)
        return super().enter(world, claim, token)


class TimedNetwork(TimedModel, NetworkModel):
    """Time, over NFS."""


def waiting(world: World) -> Iterator[tuple[int, float]]:
    """Who waits, and until when."""
    for name, at in world.notes.items():
        if isinstance(name, tuple) and name[0] == "waits":
            yield name[1], at  # type: ignore[misc]


def time_of(world: World) -> int:
    """Ticks so far."""
    found = world.notes.get("time", 0)
    assert isinstance(found, int)
    return found


NAME = "name"  # in the cache: (client, NAME, path) -> an inode's number, or None for nothing


class Remembering(NetworkModel):
    """NFSv4.1 and later."""

    def outcomes(self, world: World, me: int, call: tuple[Any, ...]) -> Outcomes:
        """As of any file server; and an open may be answered from memory."""
        op, *given = call
        world = _without_stale(world)
        ways = super().outcomes(world, me, call)
        looks = op == "open" and not given[1] & (os.O_CREAT | os.O_TMPFILE)
        if looks:
            ways = Outcomes((answer, after.copy()) for answer, after in ways)
        for answer, after in ways:
            if op in self.CHANGES or (op == "open" and not looks):  # the plain one forgets then
                after.cache.update({k: v for k, v in world.cache.items() if k[1] == NAME})
            if op == "open":
                after.cache[me, NAME, given[0]] = after.names.get(given[0])
            self._learn(after, me, op, given, failed=isinstance(answer, Error))
        if looks and (me, NAME, given[0]) in world.cache:
            ways += self._from_memory(world, me, *given)
        return Outcomes((answer, _without_stale(after)) for answer, after in ways)

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
        return [(after.new_fd(me, OpenDescription(known, flags & ACCESS, 0)), after)]


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


class TimedRemembering(TimedModel, Remembering):
    """The same with time."""
