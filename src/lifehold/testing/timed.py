"""Time in the model: a clock that all clients read, and that may go on between any two steps.

Promise: whatever a client does between a look at the clock and the step that follows, any number
of ticks may pass there, as in a process that was stopped. A holder whose deadline has come believes
no more (L8), though its system calls may still come.
Time goes on as long as somebody waits for it or holds until some instant, and `free` ticks besides,
so that the states stay finite. All clocks run alike: what they may differ by is the margin's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.deadline import NEVER
from .filesystem import Ways
from .model import Model, NetworkModel
from .seat import Lookout, ModelRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.acquire import Ask
    from .world import Claim, World


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
        if not isinstance(ask.place, Lookout):
            ask.place = Lookout(self._seat, (path, pid))
            self._seat.step("look_out", path, pid)
        else:
            self._seat.step("wait_for", until)
            self._seat.step("changed_until", until)


class Timed(Model):
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

    def do_sleep_until(self, world: World, me: int, until: float) -> Ways | None:
        return self._until(world, me, until)

    def do_changed_until(self, world: World, me: int, until: float) -> Ways | None:
        path, pid, rung = world.watches[me]
        if rung:
            world.watches[me] = (path, pid, False)
            world.notes.pop(("waits", me), None)
            return None
        return self._until(world, me, until)

    def _until(self, world: World, me: int, until: float) -> Ways | None:
        """Blocked until then."""
        if time_of(world) < until:
            return Ways()
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

    def enter(self, world: World, claim: Claim, token: int | None) -> list[str]:
        """A claim whose time is over already is none, but its token is out."""
        if claim.until <= time_of(world):
            return self.late(world, claim, token)
        return super().enter(world, claim, token)


class TimedNetwork(Timed, NetworkModel):
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
