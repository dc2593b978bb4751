"""The store: the rules that are shipped (store/rules.py), under a clock of its own, on one server.

Promise: each request is one step at one instant, as in a transaction; the clock runs at its own
rate and may be set; a failover loses the last writes (an asynchronous standby), the connections and
the bells, and the standby's clock may be off. What an operator would have to know is counted.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from ...core.backend import Given
from ...store.rules import LockState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.backend import Order, Refused, Renewal, Request, State
    from .world import World

EPOCH = 1_700_000_000.0  # seconds of UTC at the beginning of every run


class Vault:
    """`ring(bell)`: a call on its way to a waiter, `hand(asked, given)`: a grant on its way.

    `granted`, `stood`, `left`, `lightened`: who watches.
    """

    book = LockState

    def __init__(self, world: World, rate: float = 1.0) -> None:
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
        for bell in book.calls:
            if bell:
                self.ring(bell)

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
