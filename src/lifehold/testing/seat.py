"""What a client program is given: the seam, a runtime, and words for what it believes to hold.

Promise: a program that reaches the world through its seat only, and is otherwise a function of
the answers it gets, can be run again from its start to any point, as often as we like.
Rule: an answer that is on record is given at once; at the first call without one the seat notes
the call and the local state and leaves the program by `Pause`. From then on the seat is dead:
every later call is part of the unwinding, happens nowhere, and raises Pause again (fstat and
close alone answer, for finalizers: the descriptor is gone).
"""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..core.acquire import look
from ..core.deadline import NEVER
from ..local.files import Files
from .filesystem import Error
from .freeze import local_state
from .world import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Sequence
    from types import CodeType

    from ..core.acquire import Ask

T = TypeVar("T")
Call = tuple[Any, ...]
LATE, CANCELLED, POLLED = "late", "cancelled", "polled"


class Pause(BaseException):
    """Unwinds a client program at the call whose answer is not known yet."""


class NotRepeatable(AssertionError):
    """A program made another call than before, with the same answers."""


class Seat:
    """One client's place in the model, for one run of its program from the start.

    `me`: its number, from 1; `files`: the seam; `runtime`: a `Runtime` in which waiting is a
    step; `effects`: what it entered since the last answer; `call`, `key`: where it stopped;
    `fault`: why it cannot be explored.
    """

    def __init__(
        self,
        me: int,
        party: str,
        record: Sequence[tuple[Call, Any]],
        until: CodeType,
        nonces: str = "fresh",
    ) -> None:
        self.me, self.party, self.nonces = me, party, nonces
        self.files, self.runtime = ModelFiles(self), ModelRuntime(self)
        self.effects: list[tuple[Claim, int | None]] = []
        self.call: Call = ()
        self.key: Hashable = None
        self.fault: Exception | None = None
        self.places: list[
            Place
        ] = []  # a thread stands there, and keeps its slot as long as it does
        self._record, self._until, self._at = record, until, 0
        self._dead = False
        self._random = 0

    # ---- for the program -----------------------------------------------------------------------

    def step(self, op: str, *arguments: Any) -> Any:
        """One call to the model's `do_OP`: its answer. Raises the OSError that it answers with."""
        call = (op, *arguments)
        if self._dead:
            self._over()
        if self._at == len(self._record):
            self._dead = True
            self.call = call
            try:
                self.key = (call, local_state(sys._getframe(1), self._until))
            except TypeError as error:
                self.fault = error
            self._over()
        made, answer = self._record[self._at]
        if made != call:
            self._dead = True
            self.fault = NotRepeatable(
                f"{made} before, {call} now: what else does the client look at?"
            )
            self._over()
        self._at += 1
        self.effects = []
        if isinstance(answer, Error):
            raise OSError(answer.errno, os.strerror(answer.errno), *_paths(arguments))
        return answer

    def enter(
        self,
        token: int | None = None,
        *,
        shared: bool = False,
        what: str = "lock",
        until: float = NEVER,
    ) -> None:
        """The client holds the lock from the answer it got last, or goes on to. No step of its own.

        `until`: its deadline, of a lease; with token=None the renewal of one.
        """
        if not self._dead:
            self.effects.append((Claim(self.me, self.party, shared, what, until), token))

    def leave(self, what: str = "lock") -> None:
        """The protected work ends here. A step: whatever comes before it happens while we hold."""
        self.step("leave", what)

    def alive(self, client: int) -> str:
        """What evidence says of a client: "alive", "dead" or "unknown"."""
        return str(self.step("alive", client))

    # ---- for the stage -------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether the program was left at a call."""
        return self._dead

    def end(self) -> None:
        """The run is over; finalizers may still call."""
        self._dead = True

    def random(self, count: int) -> bytes:
        """Bytes for os.urandom: new ones each time, unless the client has nonces="same"."""
        if self.nonces == "fresh":
            self._random += 1
        return (self.me * 1000 + self._random).to_bytes(max(count, 2))[-count:]

    def _over(self) -> NoReturn:
        raise Pause

    def __freeze__(self) -> Hashable:
        return (self.me, self._random, tuple(self.places))


def _paths(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The file names of an OSError."""
    names = [item for item in arguments if isinstance(item, str)]
    return () if not names else (names[0],) if len(names) == 1 else (names[0], None, names[1])


class ModelFiles(Files):
    """The seam of a client: each call is one step of it."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

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

    def _fstat(self, fd: int) -> Any:
        if self._seat.paused:
            raise OSError(errno.EBADF, "not open any more", fd)
        return self._seat.step("fstat", fd)

    def _makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        self._seat.step("makedirs", path, exist_ok)

    def __freeze__(self) -> Hashable:
        return ()


class Place:
    """A client's place in the kernel's queue, as runtime/flock_wait.py keeps it for a real one."""

    def __init__(self, seat: Seat, slot: Any) -> None:
        self.seat, self.slot = seat, slot

    def leave(self) -> bool:
        """Give up. True: the lock came first and is the caller's; else the slot is closed."""
        came_first = self.seat.step("give_up", self.slot.fd)
        self.seat.places.remove(self)
        if came_first:
            return True
        self.slot.close()
        return False

    def undo(self) -> None:
        """Let go of a lock that came first."""
        self.slot.close()


class Lookout:
    """A client's place at a path that may change; runtime/change_wait.py has the real one."""

    def __init__(self, seat: Seat, sought: tuple[str, int | None]) -> None:
        self.seat, self.sought = seat, sought

    def leave(self) -> bool:
        """Look no more. Never True: nothing is granted here."""
        self.seat.step("look_away")
        return False

    def undo(self) -> None:
        """Nothing is held."""

    def __freeze__(self) -> Hashable:
        return self.sought


class ModelRuntime:
    """A client's runtime: time passes only when it waits in vain.

    `notices`: how often it may be woken to be told who holds the lock, while it has no deadline.
    """

    def __init__(self, seat: Seat, notices: int = 1) -> None:
        self._seat, self._now, self._notices = seat, 0.0, notices

    def now(self) -> float:
        return self._now  # of this client's own clock

    async def sleep(self, seconds: float) -> None:
        self._seat.step("sleep", seconds)
        self._now += seconds

    async def rung(self, ask: Ask, place: Any, until: float) -> None:
        raise AssertionError("no store in a file system")

    async def block(self, ask: Ask, slot: Any, operation: int, until: float) -> bool:
        """flock(2) in a queue: two steps, and the kernel's grant is an event between them."""
        if ask.place is None:
            place = Place(self._seat, slot)
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
        if not isinstance(place, Lookout) or place.sought != sought:
            if place is not None:
                place.leave()
            ask.place = Lookout(self._seat, sought)
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

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def __freeze__(self) -> Hashable:
        return (self._now, self._notices)
