"""The rules of a store, as plain code over one name: the reference that every backend equals.

Memory and SQLite run this very code inside their step; PostgreSQL has it in SQL, SQLite so the case
in which nobody else wants a name, and both are compared with it. Nothing here reads a clock or
sleeps: `now` is the store's clock in seconds, `clock` names that clock (another one's instants
cannot be compared), `utc_us` stamps tokens and records.

Failures it is built against: an answer that is lost (asking again with one's mark finds the same
grant), a waiter that dies in line or after it was called (its place dies by itself, and whoever
asks next goes past it), a holder that dies (its lease runs out inside the step that looks), a
holder that comes back late (its mark is gone), a clock that is set back (who asks next writes every
end anew that lies further ahead than it can: from there on a dead one blocks for its ttl).
"""

from __future__ import annotations

from ..core.fence import LARGEST
from ..core.storage import Given, Refused, Seat, State, keeps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.owner import Owner
    from ..core.storage import Order, Renewal, Request

CLAIM = 1.0  # seconds that who was called has, before others go past
FRESH, PART = 6.0, 4  # who is let in unasked asked so many seconds ago, or its ttl / 4, at most
SHOWN = 8  # holders that a refusal names


class Chair:
    """A holder. `ends_at`: instant of the clock called `clock`."""

    __slots__ = (
        "acquired_at",
        "clock",
        "delay",
        "ends_at",
        "mark",
        "owner",
        "renewals",
        "shared",
        "slot",
        "token",
        "ttl",
        "weight",
    )

    def __init__(
        self,
        mark: str,
        token: int | None,
        weight: int,
        slot: int,
        shared: bool,
        ttl: float,
        delay: float,
        ends_at: float,
        clock: str,
        acquired_at: float,
        renewals: int = 0,
        owner: Owner | None = None,
    ) -> None:
        self.mark, self.token, self.weight, self.slot = mark, token, weight, slot
        self.shared, self.ttl, self.delay, self.ends_at = shared, ttl, delay, ends_at
        self.clock, self.acquired_at, self.renewals, self.owner = (
            clock,
            acquired_at,
            renewals,
            owner,
        )

    @property
    def version(self) -> str:
        """Changes with each renewal."""
        return f"{self.mark}:{self.renewals}"

    def left(self, now: float, clock: str) -> float | None:
        """Seconds until others may come in, None by a clock that cannot be compared."""
        return self.ends_at + self.delay - now if self.clock == clock else None

    def seat(self, now: float, clock: str) -> Seat:
        left = self.left(now, clock)
        return Seat(
            self.mark,
            self.token,
            self.weight,
            self.slot,
            self.ttl,
            left,
            self.version,
            self.acquired_at,
            self.renewals,
            self.owner,
            self.delay,
        )


class Place:
    """One in line. `called_at`: when it was woken, None before that.

    `asked`: what it has asked for, at `asked_at`, where it may be let in without asking again.
    """

    __slots__ = ("asked", "asked_at", "bell", "called_at", "clock", "dies_at", "mark", "weight")

    def __init__(
        self,
        mark: str,
        weight: int,
        dies_at: float,
        clock: str,
        bell: str,
        called_at: float | None = None,
    ) -> None:
        self.mark, self.weight, self.dies_at, self.clock = mark, weight, dies_at, clock
        self.bell, self.called_at = bell, called_at
        self.asked: Request | None = None
        self.asked_at = 0.0

    def ask(self, asked: Request, now: float) -> None:
        """Where it may be let in, and what for."""
        handy = asked.word and asked.fair and asked.weight == self.weight
        self.asked, self.asked_at = (asked if handy else None), now

    def set_back(self, now: float, patience: float) -> None:
        """Nothing of it lies ahead of a clock that may have been set back."""
        self.dies_at = min(self.dies_at, now + patience)
        if self.called_at is not None:
            self.called_at = min(self.called_at, now)
        if self.asked_at > now:  # how long ago it has asked, nobody can tell
            self.asked, self.asked_at = None, now

    def dead(self, now: float, clock: str) -> bool:
        if self.clock != clock or self.dies_at <= now:
            return True
        return self.called_at is not None and self.called_at + CLAIM <= now


class Book:
    """What is kept of one name. The token stays when the holders go (L4)."""

    __slots__ = (
        "calls",
        "capacity",
        "chairs",
        "clock",
        "handed",
        "kept",
        "line",
        "name",
        "now",
        "token",
        "utc_us",
    )

    def __init__(self, name: str, token: int | None = None, capacity: int = 1) -> None:
        self.name, self.token, self.capacity = name, token, capacity
        self.chairs: list[Chair] = []
        self.line: list[Place] = []
        self.kept: tuple[int, str] | None = None
        self.calls: list[str] = []  # the bells that a step wants rung, for whoever carries it out
        self.handed: list[tuple[Request, Given]] = []  # whom a step has let in, unasked
        self.now, self.clock, self.utc_us = 0.0, "", 0

    def at(self, now: float, clock: str, utc_us: int) -> Book:
        """The instant of the next step."""
        self.now, self.clock, self.utc_us = now, clock, utc_us
        self.calls, self.handed = [], []
        return self

    # ---- the steps

    def acquire(self, asked: Request) -> Given | Refused:
        over = self._sweep(asked)
        self._set_back(asked)
        mine = self._chair(asked.mark)
        if mine is not None:  # L6  an answer was lost: the same grant, from now on
            mine.ends_at, mine.clock = self.now + mine.ttl, self.clock
            mine.renewals += 1
            return Given(mine.token, mine.slot, mine.acquired_at, self.now)
        if not self.chairs:
            self.capacity = asked.capacity
        if self.capacity != asked.capacity:
            return self._refused(asked, 0, capacity=self.capacity)
        ahead = self._ahead(asked.mark)
        if asked.weight > self._free():
            return self._refused(asked, ahead)
        if asked.fair and any(map(self._present, self.line[:ahead])):
            self._call()  # there is room: who is first comes now, or is dead and is passed
            return self._refused(asked, ahead)
        chair = self._seated(asked)
        self._leave(asked.mark)
        self._call()
        return Given(chair.token, chair.slot, chair.acquired_at, self.now, over)

    def renew(self, asked: Renewal) -> bool:
        chair = self._chair(asked.mark)
        if chair is None or (chair.clock == self.clock and chair.ends_at <= self.now):
            return False
        chair.ttl, chair.ends_at, chair.clock = asked.ttl, self.now + asked.ttl, self.clock
        chair.renewals += 1
        if asked.weight is not None and asked.weight < chair.weight:
            chair.weight, chair.shared = asked.weight, True
            self._call()
        return True

    def release(self, mark: str) -> bool:
        """L5  By the mark alone."""
        chair = self._chair(mark)
        if chair is not None:
            self.chairs.remove(chair)
        else:
            self._leave(mark)
        self._call()
        return chair is not None

    def order(self, order: Order) -> State:
        before = self.state()
        if order.verb == "keep":
            self.kept = (order.least, order.text) if keeps(before, order.least) else self.kept
            return before
        if order.verb == "forget":
            self.kept = None
            return before
        if order.verb == "break":
            self.chairs.clear()
        self.token = max(self._next(), order.least)
        self._call()
        return before

    def state(self) -> State:
        seats = tuple(chair.seat(self.now, self.clock) for chair in self.chairs if self._in(chair))
        line = tuple(place.mark for place in self.line if not place.dead(self.now, self.clock))
        return State(self.name, self.token, self.capacity, seats, line, self.kept)

    def idle(self, before_us: int) -> bool:
        """Whether it can be forgotten: nobody is here, and its next token is above the last one."""
        busy = any(map(self._in, self.chairs)) or self.line or self.kept
        return not busy and (self.token is None or self.token < min(before_us, self.utc_us))

    # ---- what they are made of

    def _in(self, chair: Chair) -> bool:
        left = chair.left(self.now, self.clock)
        return left is None or left > 0

    def _sweep(self, asked: Request) -> Seat | None:
        """L2  Forget whose lease has run out, and whose place is dead. The last one forgotten."""
        over = None
        for chair in self.chairs.copy():
            if chair.mark != asked.mark and (chair.version == asked.gone or not self._in(chair)):
                self.chairs.remove(chair)
                over = chair.seat(self.now, self.clock)
        self.line = [
            place
            for place in self.line
            if place.mark == asked.mark or not place.dead(self.now, self.clock)
        ]
        return over

    def _set_back(self, asked: Request) -> None:
        """L2  By a clock that was set back an end may lie further ahead than a ttl: no more.

        That is never before the end that its holder counts on: it began its ttl before this step.
        """
        for chair in self.chairs:
            if chair.clock == self.clock and chair.ends_at > self.now + chair.ttl:
                chair.ends_at = self.now + chair.ttl
        for place in self.line:
            if place.mark == asked.mark:
                break
            if place.clock == self.clock:
                place.set_back(self.now, asked.patience)

    def _chair(self, mark: str) -> Chair | None:
        for chair in self.chairs:
            if chair.mark == mark:
                return chair
        return None

    def _free(self) -> int:
        return self.capacity - sum(chair.weight for chair in self.chairs)

    def _ahead(self, mark: str) -> int:
        for at, place in enumerate(self.line):
            if place.mark == mark:
                return at
        return len(self.line)

    def _next(self) -> int:
        """L4  Above every earlier one, and not behind the clock."""
        return min(LARGEST, max((self.token or 0) + 1, self.utc_us))

    def _seated(self, asked: Request) -> Chair:
        if not asked.shared:
            self.token = self._next()
        used = {chair.slot for chair in self.chairs}
        slot = next(number for number in range(len(used) + 1) if number not in used)
        chair = Chair(
            asked.mark,
            self.token,
            asked.weight,
            slot,
            asked.shared,
            asked.ttl,
            asked.delay,
            self.now + asked.ttl,
            self.clock,
            self.utc_us / 1e6,
            0,
            asked.owner,
        )
        self.chairs.append(chair)
        return chair

    def _refused(self, asked: Request, ahead: int, capacity: int | None = None) -> Refused:
        if asked.wait and capacity is None:
            self._stand(asked)
        ends = [left for chair in self.chairs if (left := chair.left(self.now, self.clock))]
        seats = tuple(chair.seat(self.now, self.clock) for chair in self.chairs[:SHOWN])
        if ahead == 0:
            look_in = min(ends, default=None)
        else:
            look_in = self._claim_ends_in(asked.mark) if ahead == 1 else None
        return Refused(seats, ahead, look_in, capacity)

    def _claim_ends_in(self, mark: str) -> float | None:
        """For who is behind the first: when that one, being called, has not come."""
        first = self.line[0] if self.line else None
        if first is None or first.mark == mark or first.called_at is None:
            return None
        return first.called_at + CLAIM - self.now

    def _stand(self, asked: Request) -> None:
        dies_at = self.now + asked.patience
        for place in self.line:
            if place.mark == asked.mark:
                place.dies_at, place.bell, place.called_at = dies_at, asked.bell, None
                place.clock = self.clock
                break
        else:
            place = Place(asked.mark, asked.weight, dies_at, self.clock, asked.bell)
            self.line.append(place)
        place.ask(asked, self.now)

    def _leave(self, mark: str) -> None:
        self.line = [place for place in self.line if place.mark != mark]

    def _call(self) -> None:
        """Let in or wake the first that lives, if there is room; of each one per step: no herd."""
        for place in self.line.copy():
            if place.dead(self.now, self.clock) or not self._present(place):
                continue
            free = self._free() if self.chairs else None  # None: whoever comes sets the capacity
            if place.called_at is not None or (free is not None and place.weight > free):
                return
            if not self.handed and (asked := self._may_be_handed(place)):
                self.line.remove(place)
                self.capacity = asked.capacity
                chair = self._seated(asked)
                given = Given(chair.token, chair.slot, chair.acquired_at, self.now)
                self.handed.append((asked, given))
                continue
            place.called_at = self.now
            self.calls.append(place.bell)
            return

    def _may_be_handed(self, place: Place) -> Request | None:
        """What it asked for. Not where it may be dead: that would cost the others its whole ttl."""
        asked = place.asked
        if asked is None or (self.chairs and asked.capacity != self.capacity):
            return None
        return asked if self.now - place.asked_at <= min(FRESH, asked.ttl / PART) else None

    def _present(self, place: Place) -> bool:
        return place.asked is None or self.hears(place.bell)

    def hears(self, bell: str) -> bool:
        """Whether somebody listens for it now, as far as the store can see."""
        return True
