"""What shipped code meets in the model: its files and its runtime, whose every call is a step.

Promise: it is used as the real ones are (local/files.py, core/ports.py); what a call does, and all
that comes of it, is for the model to say (testing/model.py).
"""

from __future__ import annotations

import errno
from functools import partial
from typing import Any, TypeVar

from ..core.acquire import look
from ..core.deadline import NEVER
from ..local.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    from ..core.acquire import Ask
    from .actor import Actor

T = TypeVar("T")
LATE, CANCELLED, POLLED = "late", "cancelled", "polled"


class ModelFiles(Files):
    """The seam of a client: each call is one step of it."""

    def __init__(self, actor: Actor) -> None:
        self._seat = actor

    def __getattribute__(self, name: str) -> Any:
        # Every name is a call to the model, also those that `Files` has and those it will have.
        if name.startswith("_") or name in ("first", "there", "again"):  # made of such calls
            return object.__getattribute__(self, name)
        if name in ("anchor", "close", "fstat", "glance", "makedirs"):
            return getattr(self, f"_{name}")
        return partial(self._seat.step, name)

    def _glance(self, path: str) -> None:
        """There is no cheaper look here."""

    def _anchor(self, folder: str, opened: list[int]) -> str:
        """Nobody moves a folder here."""
        return folder

    def _close(self, fd: int) -> None:
        if not self._seat.paused:
            self._seat.step("close", fd)

    def _fstat(self, fd: int) -> object:
        if self._seat.paused:
            raise OSError(errno.EBADF, "not open any more", fd)
        return self._seat.step("fstat", fd)

    def _makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        self._seat.step("makedirs", path, exist_ok)

    def __freeze__(self) -> Hashable:
        return ()


class ModelFlockWait:
    """A client's place in the kernel's queue, as runtime/flock_wait.py keeps it for a real one."""

    def __init__(self, actor: Actor, slot: Any) -> None:
        self.actor, self.slot = actor, slot

    def leave(self) -> bool:
        """Give up. True: the lock came first and is the caller's; else the slot is closed."""
        came_first = self.actor.step("give_up", self.slot.fd)
        self.actor.places.remove(self)
        if came_first:
            return True
        self.slot.close()
        return False

    def undo(self) -> None:
        """Let go of a lock that came first."""
        self.slot.close()


class ModelChangeWait:
    """A client's place at a path that may change; runtime/change_wait.py has the real one."""

    def __init__(self, actor: Actor, sought: tuple[str, int | None]) -> None:
        self.actor, self.sought = actor, sought

    def leave(self) -> bool:
        """Look no more. Never True: nothing is granted here."""
        self.actor.step("look_away")
        return False

    def undo(self) -> None:
        """Nothing is held."""

    def __freeze__(self) -> Hashable:
        return self.sought


class ModelRuntime:
    """A client's runtime: time passes only when it waits in vain.

    `notices`: how often it may be woken to be told who holds the lock, while it has no deadline.
    """

    def __init__(self, actor: Actor, notices: int = 1) -> None:
        self._seat, self._now, self._notices = actor, 0.0, notices

    def now(self) -> float:
        return self._now  # of this client's own clock

    async def sleep(self, seconds: float) -> None:
        self._seat.step("sleep", seconds)
        self._now += seconds

    async def rung(self, ask: Ask, place: object, until: float) -> None:
        raise AssertionError("no store in a file system")

    async def block(self, ask: Ask, slot: Any, operation: int, until: float) -> bool:
        """flock(2) in a queue: two steps, and the kernel's grant is an event between them."""
        if ask.place is None:
            place = ModelFlockWait(self._seat, slot)
            ask.place = place
            self._seat.places.append(place)
            self._seat.step("stand", slot.fd, operation)
        endings = [LATE] if until == ask.deadline or self._notices else []
        endings += [CANCELLED] if ask.cancel is not None and not ask.cancelled else []
        outcome = self._seat.step("wait", slot.fd, tuple(endings))
        if outcome == LATE:
            self._notices -= until != ask.deadline
            self._now = until
            return False
        if outcome == CANCELLED:
            assert ask.cancel is not None
            ask.cancel.cancel()
            return False
        self._seat.places = [place for place in self._seat.places if place is not ask.place]
        ask.place = None
        return True

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        """Two steps: to arm, and to wait for an event since then. `pid`: a client's number.

        `blind`: the client may also be woken without one, as a poll does.
        """
        sought = (path, pid)
        place = ask.place
        if not isinstance(place, ModelChangeWait) or place.sought != sought:
            if place is not None:
                place.leave()
            ask.place = ModelChangeWait(self._seat, sought)
            self._seat.step("look_out", path, pid)
            return
        late = until < NEVER and (until == ask.deadline or self._notices)
        endings = [LATE] if late else []
        endings += [CANCELLED] if ask.cancel is not None and not ask.cancelled else []
        endings += [POLLED] if blind else []
        outcome = self._seat.step("changed", tuple(endings))
        if outcome == LATE:
            self._notices -= until != ask.deadline
            self._now = until
        elif outcome == CANCELLED:
            assert ask.cancel is not None
            ask.cancel.cancel()

    async def look(self, mechanism: Any) -> Any:
        return await self.in_thread(lambda: look(mechanism), lambda _: None)

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        return call()

    def at(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        """Nothing happens by time alone here."""
        return lambda: None

    async def shield(self, work: Coroutine[object, None, T]) -> T:
        return await work

    def __freeze__(self) -> Hashable:
        return (self._now, self._notices)
