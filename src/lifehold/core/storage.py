"""What a store of leases is asked, and what it may answer: one round trip each.

A store keeps, for each name, its last token, its holders and the line of those who wait. One
primitive serves locks, reader/writer locks and semaphores: a name has a *capacity*, each holder a
*weight*, and the weights of its holders never add up to more (L1).

    lock        capacity 1        weight 1
    semaphore   capacity N        weight 1, and a slot of its own
    readers     capacity WHOLE    weight 1, `shared`: they carry the last writer's token
    writer      capacity WHOLE    weight WHOLE

Rules every backend keeps. The reference is store/rules.py: memory and SQLite run that very code,
and random histories compare PostgreSQL with it (tests/stores/test_postgres_rules.py):

L2  A holder is forgotten when its lease has run out by the store's own clock, inside the very step
    that looks; or, in a store without a clock, when the request names the holder's `version` that
    its client has watched unchanged for the whole of its ttl. Client clocks are never compared.
L4  A grant that is not shared gets a token above every earlier one of the name, and not behind
    the store's clock. What is kept of a name stays when its holders go, until an operator has it
    forgotten (`prune`) at a time when the clock has long passed the last token.
L5  Whoever is named by its mark alone ends its own grant, or its own place in the line.
L6  The mark is chosen before the request: asked again with the same mark, the answer is the same
    grant.
FIFO: with `fair`, nobody comes before one who waits longer and whose place is alive. A place dies
    when its waiter has not asked for `patience` seconds, or was woken and did not come in time.
    Where the store sees that a waiter cannot be called, the others go past its place meanwhile.
HANDED: whoever is first in line, has given a `word` and has asked lately is let in by the very step
    that makes room. Its ttl counts at the store from that step; the waiter counts its own deadline
    from its last request that was refused, which is earlier (L8).
"""

from __future__ import annotations

from .value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from .owner import Owner

WHOLE = 1 << 20  # the capacity of a reader/writer lock: more readers than any store can serve
MOST = 512  # permits of a semaphore


class Unreachable(Exception):
    """The store was not reached: nothing was sent, so nothing has happened."""


class Unable(Unreachable):
    """The store was reached, and cannot do it: its disk is full, it is damaged, it only reads.

    Nothing has happened, and patience alone mends nothing.
    """


class NoReply(Exception):
    """The request may have been carried out: its answer did not come (L6)."""


@value
class Request:
    """Let me in.

    `name`: of the lock; `mark`: of this grant, random; `ttl`, `delay`: seconds, the latter for
    which a lease that ran out, and was not released, still keeps others out; `owner`: the holder's
    record; `wait`: take a place in the line when it is held; `fair`: let nobody who waits be
    overtaken; `patience`: seconds after which a place is given up that nobody has asked for again;
    `bell`: how the store can wake this waiter, in its own words; `gone`: the version of a holder
    that was watched unchanged for its whole ttl; `word`: of this very request, which the store
    repeats where it lets the waiter in without being asked again, "" where it must not.
    """

    name: str
    mark: str
    ttl: float
    owner: Owner
    capacity: int = 1
    weight: int = 1
    shared: bool = False
    delay: float = 0.0
    wait: bool = False
    fair: bool = True
    patience: float = 15.0
    bell: str = ""
    gone: str | None = None
    word: str = ""


@value
class Seat:
    """One holder, as the store knows it.

    `ends_in`: seconds by the store's clock until its lease is over, None where the store has none
    that counts here; `version`: changes with each renewal; `slot`: of a semaphore;
    `acquired_at`: UTC seconds of the store, for people; `delay`: as of the request, and part of
    `ends_in`.
    """

    mark: str
    token: int | None
    weight: int
    slot: int
    ttl: float
    ends_in: float | None
    version: str
    acquired_at: float
    renewals: int
    owner: Owner | None
    delay: float = 0.0


@value
class Given:
    """You are in. `now`: seconds of the store's clock, to measure drift; None without one.

    `over`: whose lease had run out, and was ended by this step.
    """

    token: int | None
    slot: int
    acquired_at: float
    now: float | None
    over: Seat | None = None


@value
class Refused:
    """Somebody else is in. `seats`: the holders, at most a few; `ahead`: how many wait before us.

    `look_in`: seconds after which asking again may be of use though nobody rings; `capacity`: of
    those who are in, when it is another than was asked for.
    """

    seats: tuple[Seat, ...] = ()
    ahead: int = 0
    look_in: float | None = None
    capacity: int | None = None


@value
class Renewal:
    """Prolong one lease by `ttl` seconds from now, if `mark` still holds `name`.

    `weight`: make a holder lighter in the same step, so that a writer becomes a reader.
    """

    name: str
    mark: str
    ttl: float
    weight: int | None = None


@value
class State:
    """All that a store knows of one name. `waiters`: the marks in line, first come first.

    `kept`: the token and the text that a holder has left, told where the name was asked for alone.
    """

    name: str
    token: int | None
    capacity: int
    seats: tuple[Seat, ...] = ()
    waiters: tuple[str, ...] = ()
    kept: tuple[int, str] | None = None


@value
class Order:
    """What is done to a name by who need not hold it.

    `verb`: "break" ends its holders, and its next token is above theirs; "bump" raises its token
    to `least` at the least; both are noted with who and why. "keep" leaves `text` with the name,
    if the token `least` is of one who holds it now, in the same step; "forget" removes that text.
    """

    verb: str
    name: str
    reason: str
    by: str
    least: int = 0
    text: str = ""


def keeps(before: State, token: int) -> bool:
    """Whether an order to keep a text is carried out: as the state before it tells."""
    return any(seat.token == token for seat in before.seats)


if TYPE_CHECKING:

    class Backend(Protocol):
        """One store. Each method is one round trip; each may raise Unreachable or NoReply.

        Written once as coroutines: over a blocking client they never suspend (store/settle.py).
        """

        async def acquire(self, request: Request) -> Given | Refused:
            """Let it in, or put it in line."""
            ...

        async def renew(self, many: Sequence[Renewal]) -> tuple[float | None, tuple[bool, ...]]:
            """The store's clock, and for each whether it is still in and was prolonged."""
            ...

        async def release(self, name: str, mark: str) -> bool:
            """End a grant, or leave the line, and wake who comes next. Whether it was in."""
            ...

        async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
            """What is known of these names, or of all that begin with `prefix`. Changes nothing."""
            ...

        async def order(self, order: Order) -> State | None:
            """Do it, and answer how it was before; None when the name is unknown."""
            ...

        async def ground(self) -> tuple[str, ...]:
            """What this store promises and what not, in sentences."""
            ...

    class Rings(Protocol):
        """How waiters of this process are woken by a store."""

        def listen(self, mark: str, ring: Callable[..., object]) -> str:
            """Ring when the store calls for `mark`. The `bell` to put into the request.

            "" where no event can reach us: the waiter then looks now and then. `ring()`, or
            `ring(word, given)` when the store has let it in: only of rings that have `hands`, and
            `disown(mark, undo)` besides, for who does not want it any more.
            """
            ...

        def forget(self, mark: str) -> None:
            """No more."""
            ...
