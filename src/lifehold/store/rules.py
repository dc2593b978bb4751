"""The rules of a store, as plain code over one name: the reference that every backend equals.

Memory and SQLite run this very code inside their step; PostgreSQL has it in SQL, SQLite so the case
in which nobody else wants a name, and both are compared with it. Nothing here reads a clock or
sleeps: `now` is the store's clock in seconds, `clock` names that clock (another one's instants
cannot be compared), `utc_us` stamps tokens and records.

Failures it is built against: an answer that is lost (asking again with one's nonce finds the same
grant), a waiter that dies in line or after it was called (its place dies by itself, and whoever
asks next goes past it), a holder that dies (its lease runs out inside the step that looks), a
holder that comes back late (its nonce is gone), a clock that is set back (who asks next writes
every end anew that lies further ahead than it can: from there on a dead one blocks for its ttl).
"""

from __future__ import annotations

from ..core.backend import Given, Refused, Request, State, StoreHolder, keeps
from ..core.errors import CorruptRecord
from ..core.fence import LARGEST
from ..core.owner import Owner, owner_of
from ..core.value import as_dict
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from typing import Any

    from ..core.backend import Order, Renewal
else:
    json = fork.later("json", globals())

CLAIM = 1.0  # seconds that who was called has, before others go past
FRESH, PART = 6.0, 4  # who is let in unasked asked so many seconds ago, or its ttl / 4, at most
SHOWN = 8  # holders that a refusal names


class HolderRow:
    """A holder. `ends_at`: instant of the clock called `clock`."""

    __slots__ = (
        "acquired_at",
        "clock",
        "delay",
        "ends_at",
        "nonce",
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
        nonce: str,
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
        self.nonce, self.token, self.weight, self.slot = nonce, token, weight, slot
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
        return f"{self.nonce}:{self.renewals}"

    def left(self, now: float, clock: str) -> float | None:
        """Seconds until others may come in, None by a clock that cannot be compared."""
        return self.ends_at + self.delay - now if self.clock == clock else None

    def shown(self, now: float, clock: str) -> StoreHolder:
        left = self.left(now, clock)
        return StoreHolder(
            self.nonce,
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


class QueueEntry:
    """One in line. `called_at`: when it was woken, None before that.

    `asked`: what it has asked for, at `asked_at`, where it may be let in without asking again.
    """

    __slots__ = ("asked", "asked_at", "called_at", "clock", "dies_at", "nonce", "wakeup", "weight")

    def __init__(
        self,
        nonce: str,
        weight: int,
        dies_at: float,
        clock: str,
        wakeup: str,
        called_at: float | None = None,
    ) -> None:
        self.nonce, self.weight, self.dies_at, self.clock = nonce, weight, dies_at, clock
        self.wakeup, self.called_at = wakeup, called_at
        self.asked: Request | None = None
        self.asked_at = 0.0

    def ask(self, asked: Request, now: float) -> None:
        """Where it may be let in, and what for."""
        handy = asked.handoff_id and asked.fair and asked.weight == self.weight
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


class LockState:
    """What is kept of one name. The token stays when the holders go (L4)."""

    __slots__ = (
        "calls",
        "capacity",
        "clock",
        "handed",
        "holders",
        "kept",
        "name",
        "now",
        "queue",
        "token",
        "utc_us",
    )

    def __init__(self, name: str, token: int | None = None, capacity: int = 1) -> None:
        self.name, self.token, self.capacity = name, token, capacity
        self.holders: list[HolderRow] = []
        self.queue: list[QueueEntry] = []
        self.kept: tuple[int, str] | None = None
        self.calls: list[str] = []  # the wakeups that a step wants rung, for whoever carries it out
        self.handed: list[tuple[Request, Given]] = []  # whom a step has let in, unasked
        self.now, self.clock, self.utc_us = 0.0, "", 0

    def at(self, now: float, clock: str, utc_us: int) -> LockState:
        """The instant of the next step."""
        self.now, self.clock, self.utc_us = now, clock, utc_us
        self.calls, self.handed = [], []
        return self

    # ---- the steps

    def acquire(self, asked: Request) -> Given | Refused:
        over = self._sweep(asked)
        self._set_back(asked)
        mine = self._holder(asked.nonce)
        if mine is not None:  # L6  an answer was lost: the same grant, from now on
            mine.ends_at, mine.clock = self.now + mine.ttl, self.clock
            mine.renewals += 1
            return Given(mine.token, mine.slot, mine.acquired_at, self.now)
        if not self.holders:
            self.capacity = asked.capacity
        if self.capacity != asked.capacity:
            return self._refused(asked, 0, capacity=self.capacity)
        ahead = self._ahead(asked.nonce)
        if asked.weight > self._free():
            return self._refused(asked, ahead)
        if asked.fair and any(map(self._present, self.queue[:ahead])):
            self._call()  # there is room: who is first comes now, or is dead and is passed
            return self._refused(asked, ahead)
        holder = self._let_in(asked)
        self._leave(asked.nonce)
        self._call()
        return Given(holder.token, holder.slot, holder.acquired_at, self.now, over)

    def renew(self, asked: Renewal) -> bool:
        holder = self._holder(asked.nonce)
        if holder is None or (holder.clock == self.clock and holder.ends_at <= self.now):
            return False
        holder.ttl, holder.ends_at, holder.clock = asked.ttl, self.now + asked.ttl, self.clock
        holder.renewals += 1
        if asked.weight is not None and asked.weight < holder.weight:
            holder.weight, holder.shared = asked.weight, True
            self._call()
        return True

    def release(self, nonce: str) -> bool:
        """L5  By the nonce alone."""
        holder = self._holder(nonce)
        if holder is not None:
            self.holders.remove(holder)
        else:
            self._leave(nonce)
        self._call()
        return holder is not None

    def order(self, order: Order) -> State:
        before = self.state()
        if order.spares(before):
            return before
        if order.verb == "keep":
            self.kept = (order.least, order.text) if keeps(before, order.least) else self.kept
            return before
        if order.verb == "forget":
            self.kept = None
            return before
        if order.verb == "break":
            self.holders.clear()
        self.token = max(self._next(), order.least)
        self._call()
        return before

    def state(self) -> State:
        holders = tuple(
            holder.shown(self.now, self.clock) for holder in self.holders if self._in(holder)
        )
        queue = tuple(entry.nonce for entry in self.queue if not entry.dead(self.now, self.clock))
        return State(self.name, self.token, self.capacity, holders, queue, self.kept)

    def idle(self, before_us: int) -> bool:
        """Whether it can be forgotten: nobody is here, and its next token is above the last one."""
        waits = any(not entry.dead(self.now, self.clock) for entry in self.queue)
        busy = any(map(self._in, self.holders)) or waits or self.kept
        return not busy and (self.token is None or self.token < min(before_us, self.utc_us))

    # ---- as text, for a store that keeps one item for each name

    def text(self) -> str:
        """All that is kept, in JSON; `read` makes the same state of it.

        The instants are those of the clock that the steps were told, and of no other.
        """
        told: dict[str, object] = {"token": self.token, "capacity": self.capacity}
        told |= {"kept": self.kept, "holders": self.holders, "queue": self.queue}
        return json.dumps(told, default=_members)

    @classmethod
    def read(cls, name: str, text: str | bytes) -> LockState:
        """The state of that name by its text. Raises CorruptRecord for what is none.

        L12  What a newer version wrote besides is not for us.
        """
        try:
            told = json.loads(text)
            state = cls(name, _known(told, "token", TOKEN), _known(told, "capacity", ONE_OR_MORE))
            if told["kept"] is not None:
                state.kept = _known(told["kept"], 0, TOKEN), _known(told["kept"], 1, WORD)
            state.holders = [_holder(each) for each in _known(told, "holders", LIST)]
            state.queue = [_entry(each) for each in _known(told, "queue", LIST)]
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise CorruptRecord(
                f"what the store keeps of {name!r} is no state of a lock ({error}), so nobody can "
                "tell who holds it. Once every holder is gone, remove that item",
                name=name,
            ) from error
        return state

    # ---- what they are made of

    def _in(self, holder: HolderRow) -> bool:
        left = holder.left(self.now, self.clock)
        return left is None or left > 0

    def _sweep(self, asked: Request) -> StoreHolder | None:
        """L2  Forget whose lease has run out, and whose place is dead. The last one forgotten."""
        over = None
        for holder in self.holders.copy():
            if holder.nonce != asked.nonce and (
                holder.version == asked.gone or not self._in(holder)
            ):
                self.holders.remove(holder)
                over = holder.shown(self.now, self.clock)
        self.queue = [
            entry
            for entry in self.queue
            if entry.nonce == asked.nonce or not entry.dead(self.now, self.clock)
        ]
        return over

    def _set_back(self, asked: Request) -> None:
        """L2  By a clock that was set back an end may lie further ahead than a ttl: no more.

        That is never before the end that its holder counts on: it began its ttl before this step.
        """
        for holder in self.holders:
            if holder.clock == self.clock and holder.ends_at > self.now + holder.ttl:
                holder.ends_at = self.now + holder.ttl
        for entry in self.queue:
            if entry.nonce == asked.nonce:
                break
            if entry.clock == self.clock:
                entry.set_back(self.now, asked.patience)

    def _holder(self, nonce: str) -> HolderRow | None:
        for holder in self.holders:
            if holder.nonce == nonce:
                return holder
        return None

    def _free(self) -> int:
        return self.capacity - sum(holder.weight for holder in self.holders)

    def _ahead(self, nonce: str) -> int:
        for at, entry in enumerate(self.queue):
            if entry.nonce == nonce:
                return at
        return len(self.queue)

    def _next(self) -> int:
        """L4  Above every earlier one, and not behind the clock."""
        return min(LARGEST, max((self.token or 0) + 1, self.utc_us))

    def _let_in(self, asked: Request) -> HolderRow:
        if not asked.shared:
            self.token = self._next()
        used = {holder.slot for holder in self.holders}
        slot = next(number for number in range(len(used) + 1) if number not in used)
        holder = HolderRow(
            asked.nonce,
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
        self.holders.append(holder)
        return holder

    def _refused(self, asked: Request, ahead: int, capacity: int | None = None) -> Refused:
        if asked.wait and capacity is None:
            self._stand(asked)
        ends = [left for holder in self.holders if (left := holder.left(self.now, self.clock))]
        holders = tuple(holder.shown(self.now, self.clock) for holder in self.holders[:SHOWN])
        if ahead == 0:
            look_in = min(ends, default=None)
        else:
            look_in = self._claim_ends_in(asked.nonce) if ahead == 1 else None
        return Refused(holders, ahead, look_in, capacity)

    def _claim_ends_in(self, nonce: str) -> float | None:
        """For who is behind the first: when that one, being called, has not come."""
        first = self.queue[0] if self.queue else None
        if first is None or first.nonce == nonce or first.called_at is None:
            return None
        return first.called_at + CLAIM - self.now

    def _stand(self, asked: Request) -> None:
        dies_at = self.now + asked.patience
        for entry in self.queue:
            if entry.nonce == asked.nonce:
                entry.dies_at, entry.wakeup, entry.called_at = dies_at, asked.wakeup, None
                entry.clock = self.clock
                break
        else:
            entry = QueueEntry(asked.nonce, asked.weight, dies_at, self.clock, asked.wakeup)
            self.queue.append(entry)
        entry.ask(asked, self.now)

    def _leave(self, nonce: str) -> None:
        self.queue = [entry for entry in self.queue if entry.nonce != nonce]

    def _call(self) -> None:
        """Let in or wake the first that lives, if there is room; of each one per step: no herd."""
        for entry in self.queue.copy():
            if entry.dead(self.now, self.clock) or not self._present(entry):
                continue
            free = self._free() if self.holders else None  # None: whoever comes sets the capacity
            if entry.called_at is not None or (free is not None and entry.weight > free):
                return
            if not self.handed and (asked := self._may_be_handed(entry)):
                self.queue.remove(entry)
                self.capacity = asked.capacity
                holder = self._let_in(asked)
                given = Given(holder.token, holder.slot, holder.acquired_at, self.now)
                self.handed.append((asked, given))
                continue
            entry.called_at = self.now
            self.calls.append(entry.wakeup)
            return

    def _may_be_handed(self, entry: QueueEntry) -> Request | None:
        """What it asked for. Not where it may be dead: that would cost the others its whole ttl."""
        asked = entry.asked
        if asked is None or (self.holders and asked.capacity != self.capacity):
            return None
        return asked if self.now - entry.asked_at <= min(FRESH, asked.ttl / PART) else None

    def _present(self, entry: QueueEntry) -> bool:
        return entry.asked is None or self.hears(entry.wakeup)

    def hears(self, wakeup: str) -> bool:
        """Whether somebody listens for it now, as far as the store can see."""
        return True


def no_state(name: str, error: Exception) -> CorruptRecord:
    """L13  What is kept of a name is none of ours, and costs that name alone."""
    return CorruptRecord(
        f"what the store keeps of {name!r} is no state of a lock ({error}), so nobody can tell who "
        f"holds it. Once every holder is gone, store.break_({name!r}, WHY) removes it, as "
        "`lifehold clear` does when told the word that it shows",
        name=name,
    )


# What a member may be: its types, and the least and the greatest number.
Allowed = tuple[tuple[type, ...], float, float]
FAREST = 2.0**62  # seconds, of any clock
WORD: Allowed = (str,), 0, 0
OPTIONAL_WORD: Allowed = (str, type(None)), 0, 0
YES: Allowed = (bool,), 0, 1
LIST: Allowed = (list,), 0, 0
TOKEN: Allowed = (int, type(None)), 0, LARGEST
NUMBER: Allowed = (int,), 0, LARGEST
ONE_OR_MORE: Allowed = (int,), 1, LARGEST
SECONDS: Allowed = (float, int), 0, FAREST
INSTANT: Allowed = (float, int), -FAREST, FAREST
HOLDER = {
    "nonce": WORD,
    "token": TOKEN,
    "weight": ONE_OR_MORE,
    "slot": NUMBER,
    "shared": YES,
    "ttl": SECONDS,
    "delay": SECONDS,
    "ends_at": INSTANT,
    "clock": WORD,
    "acquired_at": INSTANT,
    "renewals": NUMBER,
}
ENTRY = {
    "nonce": WORD,
    "weight": ONE_OR_MORE,
    "dies_at": INSTANT,
    "clock": WORD,
    "wakeup": WORD,
}
ASKED = {
    "name": WORD,
    "nonce": WORD,
    "ttl": SECONDS,
    "capacity": ONE_OR_MORE,
    "weight": ONE_OR_MORE,
    "shared": YES,
    "delay": SECONDS,
    "wait": YES,
    "fair": YES,
    "patience": SECONDS,
    "wakeup": WORD,
    "gone": OPTIONAL_WORD,
    "handoff_id": WORD,
}


def _members(row: HolderRow | QueueEntry) -> dict[str, object]:
    """What JSON has of a row: a record in it is its fields, not a list."""
    return {name: _fields(getattr(row, name)) for name in row.__slots__}


def _fields(item: object) -> object:
    if isinstance(item, (Owner, Request)):
        return {name: _fields(each) for name, each in as_dict(item).items()}
    return item


def _known(told: Any, what: str | int, allowed: Allowed) -> Any:
    """A member, if it is allowed. Raises ValueError, TypeError or LookupError."""
    return fitting(what, told[what], allowed)


def fitting(what: str | int, found: Any, allowed: Allowed) -> Any:
    """What was found, if it is allowed. Raises ValueError."""
    types, least, most = allowed
    if type(found) not in types:
        raise ValueError(f"{what} is {found!r:.80}")
    if isinstance(found, (int, float)) and not least <= found <= most:  # NaN is not either
        raise ValueError(f"{what} is {found!r:.80}")
    return found


def _holder(told: dict[str, object]) -> HolderRow:
    known = {what: _known(told, what, allowed) for what, allowed in HOLDER.items()}
    return HolderRow(**known, owner=owner_of(lambda: told["owner"]))


def _entry(told: Any) -> QueueEntry:
    entry = QueueEntry(**{what: _known(told, what, allowed) for what, allowed in ENTRY.items()})
    if told["called_at"] is not None:
        entry.called_at = _known(told, "called_at", INSTANT)
    entry.asked_at = _known(told, "asked_at", INSTANT)
    asked = told["asked"]
    owner = None if asked is None else owner_of(lambda: asked["owner"])
    if owner is not None:
        known = {what: _known(asked, what, allowed) for what, allowed in ASKED.items()}
        entry.asked = Request(**known, owner=owner)
    return entry
