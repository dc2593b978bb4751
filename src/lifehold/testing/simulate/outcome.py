"""What is under test (a store, the data that it protects), and what came of a run."""

from __future__ import annotations

from copy import copy
from typing import Any

from ...core.backend import Given
from ...core.errors import StaleToken
from ...core.fence import admit
from ...core.value import value
from ...store.rules import LockState
from .party import NodeProgram

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...core.backend import Order, Refused, Renewal, Request, State
    from ..history import Turn
    from .run import SimulatedViolation
    from .scenario import Fault, Scenario
    from .world import SimulatedWorld


# ------------------------------------------------------------------------------------------------
# What the lock protects: one row per name, written with and without a guard, in the same run.
#
# Promise: every write that arrives is judged twice. The plain row takes it, whoever sends it. The
# guarded row compares the token first, by the shipped rule (core/fence.py: `admit`), and remembers
# the token of whoever *reads* as well, so that a late write is refused before its successor wrote.
# A write is *late* when it lands after a later holder has read or written; it *loses* an update
# when the row is another than the one it was worked out from. A read is *torn* when the row is
# another at its end than at its beginning, and the reader held the lock all the while.


@value
class ReadVersions:
    """What a holder read: the versions of both rows, None where the guard refused it."""

    plain: int
    guarded: int | None


class Row:
    """One row: its version, and the latest grant that has been here."""

    __slots__ = ("fence", "touched", "version")

    def __init__(self) -> None:
        self.version = self.touched = self.fence = 0


class Data:
    """`late(guarded, lost)`: told of each write that should not have landed, and how."""

    advances = True  # who reads shows its token first

    def __init__(self, found: Callable[[str, str, str], None]) -> None:
        self._found = found
        self._rows: dict[tuple[str, bool], Row] = {}
        self.counts = {
            "writes": 0,
            "plain late": 0,
            "plain lost": 0,
            "guarded late": 0,
            "guarded lost": 0,
            "refused": 0,
            "refused in vain": 0,
            "late unasked": 0,
            "late asked": 0,
            "reads": 0,
            "plain torn": 0,
            "guarded torn": 0,
        }

    def _row(self, name: str, guarded: bool) -> Row:
        row = self._rows.get((name, guarded))
        if row is None:
            row = self._rows[name, guarded] = Row()
        return row

    def read(self, name: str, token: int | None, serial: int) -> ReadVersions:
        """By the holder of grant number `serial`."""
        plain, guarded = self._row(name, False), self._row(name, True)
        plain.touched = max(plain.touched, serial)
        if self.advances:
            try:
                guarded.fence = admit(name, token, guarded.fence)
            except StaleToken:
                return ReadVersions(plain.version, None)
        guarded.touched = max(guarded.touched, serial)
        return ReadVersions(plain.version, guarded.version)

    def peek(self, name: str, token: int | None) -> ReadVersions:
        """By a reader, who changes nothing. Its token is that of the last writer before it."""
        self.counts["reads"] += 1
        row = self._row(name, True)
        try:
            fence = admit(name, token, row.fence)
        except StaleToken:
            return ReadVersions(self._row(name, False).version, None)
        row.fence = fence if self.advances else row.fence
        return ReadVersions(self._row(name, False).version, row.version)

    def torn(self, name: str, seen: ReadVersions, now: ReadVersions, serial: int) -> None:
        """A reader that held the lock all the time has looked twice. `serial`: of its grant."""
        for which in ("plain", "guarded"):
            before, after = getattr(seen, which), getattr(now, which)
            if before is not None and after is not None and before != after:
                self.counts[f"{which} torn"] += 1
                self._found(f"{which} torn".upper(), name, f"read by grant {serial}")

    def write(
        self, name: str, token: int | None, serial: int, seen: ReadVersions, asked: bool
    ) -> bool:
        """What was worked out from `seen` arrives. `asked`: the lease was looked at just before.

        Whether the guarded row took it.
        """
        self.counts["writes"] += 1
        plain = self._row(name, False)
        if self._land(name, plain, serial, seen.plain, "plain"):
            self.counts["late asked" if asked else "late unasked"] += 1
        row = self._row(name, True)
        try:
            row.fence = admit(name, token, row.fence)
        except StaleToken:
            self.counts["refused"] += 1
            if row.touched <= serial:  # no later holder has been here
                self.counts["refused in vain"] += 1
            return False
        if seen.guarded is None:
            self.counts["refused"] += 1  # its read was refused, and there was nothing to write
            return False
        self._land(name, row, serial, seen.guarded, "guarded")
        return True

    def _land(self, name: str, row: Row, serial: int, seen: int, which: str) -> bool:
        late, lost = row.touched > serial, row.version != seen
        row.version += 1
        row.touched = max(row.touched, serial)
        for wrong, kind in ((late, "late"), (lost, "lost")):
            if wrong:
                self.counts[f"{which} {kind}"] += 1
                self._found(f"{which} {kind}".upper(), name, f"grant {serial}")
        return late


# ------------------------------------------------------------------------------------------------
# The store: the rules that are shipped (store/rules.py), under a clock of its own, on one server.
#
# Promise: each request is one step at one instant, as in a transaction; the clock runs at its own
# rate and may be set; a failover loses the last writes (an asynchronous standby), the connections
# and the wake-ups, and the standby's clock may be off. What an operator would have to know is
# counted.


EPOCH = 1_700_000_000.0  # seconds of UTC at the beginning of every run


class SimulatedStore:
    """`ring(address)`: a call on its way to a waiter, `hand(asked, given)`: a grant on its way.

    `granted`, `stood`, `left`, `lightened`: who watches.
    """

    book = LockState

    def __init__(self, world: SimulatedWorld, rate: float = 1.0) -> None:
        self.world, self.rate, self.offset = world, rate, 0.0
        self.down = False
        self.books: dict[str, LockState] = {}
        self.commands: dict[str, int] = {"acquire": 0, "renew": 0, "release": 0, "look": 0}
        self.ring: Callable[[str], None] = _unwatched
        self.hand: Callable[[Request, Given], None] = _unwatched
        self.granted: Callable[[Request, Given], None] = _unwatched
        self.stood: Callable[[Request, Refused], None] = _unwatched
        self.left: Callable[[str, str], None] = _unwatched
        self.lightened: Callable[[Renewal], None] = _unwatched
        self._copy: dict[str, LockState] | None = None

    # ---- its clock

    def now(self) -> float:
        """By which leases run out: UTC, as of a database server."""
        return EPOCH + self.offset + self.rate * self.world.now

    def _at(self, name: str, sent: float) -> LockState:
        """The book of a name, at this instant. `sent`: the client's clock, for the credulous."""
        book = self.books.get(name)
        if book is None:
            book = self.books[name] = self.book(name)
        now = self.now()
        return book.at(now, "", int(now * 1e6))

    def has(self, name: str, nonce: str) -> bool:
        """Whether a grant is in force here. For who watches: nobody's request."""
        book = self.books.get(name)
        return book is not None and any(
            holder.nonce == nonce and holder.ends_at > self.now() for holder in book.holders
        )

    # ---- the steps

    def serve(self, op: str, args: tuple[Any, ...], sent: float) -> Any:
        """Carry out one request."""
        self.commands[op] = self.commands.get(op, 0) + 1
        if op == "acquire":
            return self._acquire(args[0], sent)
        if op == "renew":
            return self._renew(args[0], sent)
        if op == "release":
            return self._release(args[0], args[1], sent)
        if op == "order":
            return self._order(args[0], sent)
        return self._look(args[0], sent)

    def _acquire(self, request: Request, sent: float) -> Given | Refused:
        book = self._at(request.name, sent)
        answer = book.acquire(request)
        if isinstance(answer, Given):
            self.granted(request, answer)
        else:
            self.stood(request, answer)
        self._call(book)
        return answer

    def _renew(self, many: tuple[Renewal, ...], sent: float) -> tuple[float, tuple[bool, ...]]:
        kept = []
        for one in many:
            book = self._at(one.name, sent)
            kept.append(book.renew(one))
            if one.weight is not None and kept[-1]:
                self.lightened(one)
            self._call(book)
        return self.now(), tuple(kept)

    def _release(self, name: str, nonce: str, sent: float) -> bool:
        book = self._at(name, sent)
        was_in = book.release(nonce)
        self.left(name, nonce)
        self._call(book)
        return was_in

    def _look(self, names: tuple[str, ...], sent: float) -> tuple[State, ...]:
        return tuple(self._at(name, sent).state() for name in names if name in self.books)

    def _order(self, order: Order, sent: float) -> State:
        book = self._at(order.name, sent)
        before = book.order(order)
        self._call(book)
        return before

    def _call(self, book: LockState) -> None:
        for asked, given in book.handed:
            self.granted(asked, given)
            self.hand(asked, given)
        for address in book.calls:
            if address:
                self.ring(address)

    # ---- what happens to it

    def step_clock(self, seconds: float) -> None:
        self.offset += seconds

    def copy_stops(self) -> None:
        """From here on the standby gets no more writes."""
        self._copy = {name: _copied(book) for name, book in self.books.items()}

    def fail_over(self, offset: float) -> None:
        """The standby takes over, with what it has, and by its own clock."""
        if self._copy is not None:
            self.books, self._copy = self._copy, None
        self.offset = offset
        self.down = False


def _copied(book: LockState) -> LockState:
    made = copy(book)
    made.holders = [copy(holder) for holder in book.holders]
    made.queue = [copy(place) for place in book.queue]
    return made


def _unwatched(*_: object) -> None:
    """Nobody watches."""


@value
class Subject:
    """What is under test: the shipped engine, or one with a part that is known to be bad."""

    name: str = "shipped"
    party: type[NodeProgram] = NodeProgram
    store: type[SimulatedStore] = SimulatedStore
    data: type[Data] = Data
    adapt: Callable[[Scenario], Scenario] = lambda plan: plan


SHIPPED = Subject()


@value
class Outcome:
    """What came of a run.

    `counts`: violations by kind; `found`: some of each in words; `digest`: of the whole log;
    `pauses`: those that met a holder, `lost`: of these, those that lost it its lease; `losses`:
    turns that ended with a lost lease, for whatever reason; `crashes`: of holders; `recoveries`:
    seconds from the crash of a holder to the next grant of who waited; `waits`: seconds, of all
    grants; `commands`: at the store; `wakes`: waiters that were called; `data`: see outcome.py;
    `network`: messages lost, late, twice; `history`: the turns of each name, as
    `lifehold.testing.history` judges them; `wall`: seconds that the run took.
    """

    scenario: Scenario
    seed: int
    subject: str
    digest: str
    events: int
    grants: int
    counts: Mapping[str, int]
    found: tuple[SimulatedViolation, ...]
    faults: tuple[Fault, ...]
    pauses: int
    lost: int
    losses: int
    crashes: int
    recoveries: tuple[float, ...]
    waits: tuple[float, ...]
    turns: Mapping[str, int]
    commands: Mapping[str, int]
    wakes: int
    data: Mapping[str, int]
    network: Mapping[str, int]
    history: Mapping[str, tuple[Turn, ...]]
    lines: tuple[str, ...]
    wall: float
