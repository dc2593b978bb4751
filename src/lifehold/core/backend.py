"""What a store of leases is asked, what it may answer, and what else it may be able to do.

A store keeps, for each name, its last token, its holders and the queue of those who wait. One
primitive serves locks, reader/writer locks and semaphores: a name has a *capacity*, each holder a
*weight*, and the weights of its holders never add up to more (L1).

    lock        capacity 1        weight 1
    semaphore   capacity N        weight 1, and a slot of its own
    readers     capacity WHOLE    weight 1, `shared`: they carry the last writer's token
    writer      capacity WHOLE    weight WHOLE

`Backend` is what every store has: six methods and its `traits`. What only some can do is a Protocol
of its own below it, and what that buys stands there. The rules, which every backend keeps and
`lifehold.testing.backends` examines, with store/rules.py as the reference:

NAME: Any printable text of 512 characters at most. Names that differ in anything are two locks: in
    the last character, in case, in a space at the end, in how a letter is composed. A store that
    cannot keep a name apart refuses it by InvalidArgument.
L2  A holder is forgotten when its lease has run out by the store's own clock, inside the very step
    that looks; or, in a store without a clock, when the request names the holder's `version` that
    its client has watched unchanged for the whole of its ttl. Client clocks are never compared.
L4  A grant that is not shared gets a token above every earlier one of the name, and not behind
    the store's clock. What is kept of a name stays when its holders go, until an operator has it
    forgotten (`prune`) at a time when the clock has long passed the last token.
L5  Whoever is named by its nonce alone ends its own grant, or its own place in the line.
L6  The nonce is chosen before the request: asked again with the same nonce, the answer is the same
    grant.
FIFO: with `fair`, nobody comes before one who waits longer and whose place is alive. A place dies
    when its waiter has not asked for `patience` seconds, or was woken and did not come in time.
    Where the store sees that a waiter cannot be called, the others go past its place meanwhile.
HANDED: whoever is first in line, has given a `handoff_id` and has asked lately is let in by the
    step that makes room. Its ttl counts at the store from that step; the waiter counts its own
    deadline from its last request that was refused, which is earlier (L8).
"""

from __future__ import annotations

from .deadline import NEVER
from .value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol, TypeGuard

    from .owner import LifeVerdict, Owner

EMPTY: Mapping[str, str] = {}
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

    `name`: of the lock; `nonce`: of this grant, random; `ttl`, `delay`: seconds, the latter for
    which a lease that ran out, and was not released, still keeps others out; `owner`: the holder's
    record; `wait`: take a place in the line when it is held; `fair`: let nobody who waits be
    overtaken; `patience`: seconds after which a place is given up that nobody has asked for again;
    `wakeup`: how the store can wake this waiter, in its own words; `gone`: the version of a holder
    that was watched unchanged for its whole ttl; `handoff_id`: of this very request, which the
    store repeats where it lets the waiter in without being asked again, "" where it must not.
    """

    name: str
    nonce: str
    ttl: float
    owner: Owner
    capacity: int = 1
    weight: int = 1
    shared: bool = False
    delay: float = 0.0
    wait: bool = False
    fair: bool = True
    patience: float = 15.0
    wakeup: str = ""
    gone: str | None = None
    handoff_id: str = ""


@value
class StoreHolder:
    """One holder, as the store knows it.

    `ends_in`: seconds by the store's clock until its lease is over, None where the store has none
    that counts here; `version`: changes with each renewal; `slot`: of a semaphore;
    `acquired_at`: UTC seconds of the store, for people; `delay`: as of the request, and part of
    `ends_in`.
    """

    nonce: str
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

    `over`: whose lease had run out, and was ended by this step; `ttl`: that the store has really
    given, None for the one that was asked for. L8  The deadline counts from the smaller of both.
    """

    token: int | None
    slot: int
    acquired_at: float
    now: float | None
    over: StoreHolder | None = None
    ttl: float | None = None


@value
class Refused:
    """Somebody else is in. `holders`: the holders, at most a few; `ahead`: how many wait before us.

    `look_in`: seconds after which asking again may be of use though nobody rings; `capacity`: of
    those who are in, when it is another than was asked for.
    """

    holders: tuple[StoreHolder, ...] = ()
    ahead: int = 0
    look_in: float | None = None
    capacity: int | None = None


@value
class Renewal:
    """Prolong one lease by `ttl` seconds from now, if `nonce` still holds `name`.

    `weight`: make a holder lighter in the same step, so that a writer becomes a reader.
    """

    name: str
    nonce: str
    ttl: float
    weight: int | None = None


@value
class State:
    """All that a store knows of one name. `waiters`: the nonces in line, first come first.

    `kept`: the token and the text that a holder has left, told where the name was asked for alone.
    `damage`: why what is kept of it is no state of a lock; then no more is known of it.
    """

    name: str
    token: int | None
    capacity: int
    holders: tuple[StoreHolder, ...] = ()
    waiters: tuple[str, ...] = ()
    kept: tuple[int, str] | None = None
    damage: str = ""


@value
class Order:
    """What is done to a name by who need not hold it.

    `verb`: "break" ends its holders, and its next token is above theirs; "bump" raises its token
    to `least` at the least; both are noted with who and why. "keep" leaves `text` with the name,
    if the token `least` is of one who holds it now, in the same step; "forget" removes that text.
    `nonce`: "break" only while this grant is in; else nothing is done.
    """

    verb: str
    name: str
    reason: str
    by: str
    least: int = 0
    text: str = ""
    nonce: str = ""

    def spares(self, before: State) -> bool:
        """Whether it is the end of a grant that is in no more, so that nothing is done."""
        return bool(self.nonce) and all(each.nonce != self.nonce for each in before.holders)


def keeps(before: State, token: int) -> bool:
    """Whether an order to keep a text is carried out: as the state before it tells."""
    return any(holder.token == token for holder in before.holders)


# ------------------------------------------------------------------------------------------------
# What the engine may count on.


AT_ONCE = "at once"  # a call never waits: an event loop makes it itself, without a thread
SOON = "soon"  # the store is in this machine: a cancelled caller waits for the answer
FAR = "far"  # a network lies between: calls of an event loop go through a thread, or a swift client

# What a backend may lack, and what is refused by name where it is lacking.
CAPABILITIES = {
    "queue": "waiters come in by their order: fair=True",
    "lock_delay": "a lease that ran out keeps others out for so long",
    "readers": "reader/writer locks",
    "permits": "semaphores",
    "kept": "a text is kept with a name: results of once()",
    "audit": "who broke or bumped a lock is noted in the store",
    "calls": "a waiter is called; without that it looks now and then",
    "clock": "the store's clock says when a lease ends; without one it is watched",
}


@value
class Traits:
    """What the engine may count on. The defaults are true of the plainest backend.

    `reach`: AT_ONCE, SOON or FAR; `limit`: seconds after which a call has answered or raised;
    `chunk`: renewals to a call, at most; `ends_leases`: the store ends a lease whose ttl is over by
    itself, so a holder with `ends_in=None` is waited for and not watched; `round_trips`: of an
    acquire that nobody delays, at most; `lacks`: one of CAPABILITIES -> why, in words.
    """

    reach: str = FAR
    limit: float = NEVER
    chunk: int = 1000
    ends_leases: bool = False
    round_trips: int = 1
    lacks: Mapping[str, str] = EMPTY


PLAIN = Traits()


def traits_of(backend: object) -> Traits:
    """The traits of a backend; one that was written before there were any declares by attributes.

    `prompt`, `brief` and `limit` are read for one release more.
    """
    found = getattr(backend, "traits", None)
    if isinstance(found, Traits):
        return found
    old = AT_ONCE if getattr(backend, "prompt", False) else ""
    old = old or (SOON if getattr(backend, "brief", False) else FAR)
    return Traits(reach=old, limit=float(getattr(backend, "limit", NEVER)))


if TYPE_CHECKING:

    class Backend(Protocol):
        """One store. Each method is one question; each may raise Unreachable or NoReply.

        Written once as coroutines: over a blocking client they never suspend (store/settle.py).
        """

        @property
        def traits(self) -> Traits:
            """What the engine may count on."""
            ...

        async def acquire(self, request: Request, /) -> Given | Refused:
            """Let it in, or put it in line."""
            ...

        async def renew(self, many: Sequence[Renewal], /) -> tuple[float | None, tuple[Kept, ...]]:
            """The store's clock, and for each lease whether it is still in and was prolonged.

            For a lease of which nothing is known, though others were answered: the exception.
            """
            ...

        async def release(self, name: str, nonce: str, /) -> bool:
            """End a grant, or leave the line, and wake who comes next. Whether it was in."""
            ...

        async def look(self, names: Sequence[str] | None, prefix: str = "", /) -> tuple[State, ...]:
            """What is known of these names, or of all that begin with `prefix`. Changes nothing."""
            ...

        async def order(self, order: Order, /) -> State | None:
            """Do it, and answer how it was before; None when the name is unknown.

            Where the grant that is meant is in no more, either.
            """
            ...

        async def ground(self) -> tuple[str, ...]:
            """What this store promises and what not, in sentences."""
            ...

    Kept = bool | Unreachable | NoReply

    class FreePath(Backend, Protocol):
        """Buys: a lock that nobody else wants is taken and left in plain calls, without a step."""

        def take_free(self, request: Request, /) -> Given | None:
            """What nobody holds or waits for; None where the store has to be asked in full."""
            ...

        def leave_free(self, name: str, nonce: str, /) -> bool:
            """Whether it was held and nobody waits: then that was all."""
            ...

    class Bounded(Backend, Protocol):
        """Buys: a call that nobody waits for any more ends before its `limit`."""

        def within(self, until: float, /) -> Backend:
            """The same store, for a question whose answer is of use until that instant."""
            ...

    class Paged(Backend, Protocol):
        """Buys: a million names are listed in pieces, and no renewal waits for that."""

        async def page(
            self, prefix: str, after: str, most: int, /, *, bare: bool = False
        ) -> tuple[State, ...]:
            """The next states behind a name, in order; `bare`: only name, token and capacity."""
            ...

    class Prunable(Backend, Protocol):
        """Buys: names that nobody uses are forgotten, so a store of order numbers stays small."""

        async def prune(self, after: str, idle: float, most: int, /) -> tuple[str | None, int]:
            """Of the next `most` names forget those unused for `idle` seconds.

            The last name that was looked at, None behind the last one, and how many have gone.
            """
            ...

    class Judging(Backend, Protocol):
        """Buys: `who` says of a holder on this machine whether its process lives."""

        def judge(self, holder: StoreHolder, /) -> LifeVerdict | None:
            """What is to be seen of its process."""
            ...

    class Interruptible(Backend, Protocol):
        """Buys: a lease that is dropped in the middle of a step is given back behind it.

        For a backend that keeps a mutex of its own: the garbage collector may come in the middle of
        a step of this very thread, and cannot wait for it.
        """

        def busy_here(self) -> bool:
            """Whether this very thread is in the middle of a step."""
            ...

    class Commanded(Backend, Protocol):
        """Buys: `who` knows the lock that another library has made at a key of that name."""

        async def command(self, *words: str | bytes | float) -> Any:
            """What one command of the server answers, which changes nothing."""
            ...

    class Closing(Backend, Protocol):
        """Buys: connections and descriptors are given back before the process ends."""

        def close(self) -> None:
            """Give back what nobody uses now. The next question opens it again."""
            ...

    class Wakeups(Protocol):
        """How waiters of this process are woken by a store."""

        def listen(self, nonce: str, wake: Callable[..., object], /) -> str:
            """Wake when the store calls for `nonce`. The `wakeup` to put into the request.

            "" where no event can reach us: the waiter then looks now and then. Called as `wake()`,
            or as `wake(handoff_id, given)` where the store has let the waiter in.
            """
            ...

        def forget(self, nonce: str, /) -> None:
            """No more."""
            ...

    class Handing(Wakeups, Protocol):
        """Buys: who leaves lets the next one in by the same step, which then asks for nothing."""

        @property
        def hands(self) -> bool:
            """Whether a grant that nobody asked for reaches its waiter now."""
            ...

        def disown(self, nonce: str, undo: Callable[[], object], /) -> None:
            """Nobody waits with this nonce any more; `undo` if it is let in all the same."""
            ...


# Whether a backend has an optional part: all of its methods. There is no other way to ask.


def has_free_path(backend: Backend) -> TypeGuard[FreePath]:
    return hasattr(backend, "take_free") and hasattr(backend, "leave_free")


def is_bounded(backend: Backend) -> TypeGuard[Bounded]:
    return hasattr(backend, "within")


def is_paged(backend: Backend) -> TypeGuard[Paged]:
    return hasattr(backend, "page")


def is_prunable(backend: Backend) -> TypeGuard[Prunable]:
    return hasattr(backend, "prune")


def is_judging(backend: Backend) -> TypeGuard[Judging]:
    return hasattr(backend, "judge")


def is_interruptible(backend: Backend) -> TypeGuard[Interruptible]:
    return hasattr(backend, "busy_here")


def is_commanded(backend: Backend) -> TypeGuard[Commanded]:
    return hasattr(backend, "command")


def is_closing(backend: Backend) -> TypeGuard[Closing]:
    return hasattr(backend, "close")


def is_handing(wakeups: Wakeups) -> TypeGuard[Handing]:
    return hasattr(wakeups, "hands") and hasattr(wakeups, "disown")
