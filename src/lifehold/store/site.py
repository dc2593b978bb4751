"""One store as this process knows it: its backend, its wakeups, the renewal of all leases on it.

Promise: however many leases of a store a process holds, they are renewed together, a thousand to a
round trip, by the heartbeat thread and over a blocking client of their own: a busy event loop
delays none of them (L9). One site serves all lock objects of its URL.
"""

from __future__ import annotations

from ..core import events
from ..core.backend import (
    AT_ONCE,
    CAPABILITIES,
    FAR,
    WHOLE,
    NoReply,
    Order,
    Unable,
    Unreachable,
    has_free_path,
    is_bounded,
    is_closing,
    is_handing,
    is_interruptible,
    is_judging,
    is_paged,
    is_prunable,
    traits_of,
)
from ..core.deadline import NEVER, Backoff
from ..core.errors import InvalidArgument, LifeholdError, StoreUnavailable
from ..core.grant import Bound, Holder
from ..core.mask import printable
from ..core.owner import DEAD
from ..runtime import clock, fork, heartbeat, process
from ..runtime.blocking import finish
from ..runtime.renewal import BatchRenewal
from .waiter import Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any, Protocol
    from urllib import parse

    from ..core import nearest
    from ..core.backend import Backend, Given, Request, State, StoreHolder, Traits, Wakeups
    from ..core.deadline import Terms
    from ..core.owner import LifeVerdict, Owner
    from ..core.ports import Mechanism, Runtime
    from .engine import GrantInHand

    class SessionKind(Protocol):
        """What a store has whose connections can hold locks: kind="session"."""

        def opened(self) -> object:
            """What this process holds in that way."""
            ...

        def lock(
            self, site: Site, name: object, runtime: Runtime, lease: Terms, **more: object
        ) -> Mechanism:
            """The lock of one name."""
            ...

        async def seen(
            self, backend: Backend, name: str | None, address: Callable[[str], str]
        ) -> tuple[object, ...]:
            """What is held or waited for in that way, of a name or of all."""
            ...

else:
    inspect = fork.later("inspect", globals())
    nearest = fork.later("lifehold.core.nearest", globals())
    parse = fork.later("urllib.parse", globals())

OF_ALL = ("label", "ttl")  # what each store is given besides its own options
UNDO = Backoff(0.2, 5.0)  # seconds between two tries to give back what a lost answer has left
PAGE = 1000  # names to a question
AT_EXIT = 2.0  # seconds in which the leases of a program that ends are given back, at most


class Site(Bound):
    """`url`: as shown to people, without its password.

    `backend`: over a blocking client; `wakeups`: how the store wakes waiters; `swift(runtime)`: the
    same backend over a client that the caller's event loop can await, None where there is none.
    """

    _refusal = (
        "a store cannot be pickled: its connections are of this process; hand on its URL, and "
        "connect() there"
    )

    # How a lock that nobody else wants is taken and left in plain calls, by a backend that is in
    # this very machine: `take_free(request)`, None where it has to be asked in full, and
    # `leave_free(name, nonce)`, True when that was all.
    take_free: Callable[[Request], Given | None] | None = None
    leave_free: Callable[[str, str], bool] | None = None
    traits: Traits
    limit = NEVER  # seconds for one call, in all

    def __init__(
        self,
        url: str,
        backend: Backend,
        wakeups: Wakeups,
        swift: Callable[[Runtime], Backend | None] = lambda _: None,
    ) -> None:
        self.url, self.backend, self.wakeups, self.swift = url, backend, wakeups, swift
        self.traits = traits_of(backend)
        self.limit = self.traits.limit
        self.drift = ClockDrift()
        self.reached = False  # whether it has ever answered
        self.session_locks: SessionKind | None = None  # where it has kind="session"
        self._sessions: Any = None
        self._in_hand: Any = None
        self.closes: list[Callable[[], object]] = []  # what else it has open
        self.lent: list[object] = []  # what the caller opened it over
        if has_free_path(backend):
            self.take_free, self.leave_free = backend.take_free, backend.leave_free
        self._begin()
        fork.in_child(self._begin)  # of its parent's leases a child has none (L9)

    def __deepcopy__(self, _: object) -> Site:
        return self  # of each URL there is one

    def _begin(self) -> None:
        self.joint = BatchRenewal(apart=self.traits.reach != AT_ONCE, chunk=self.traits.chunk)
        self._undoing: list[tuple[str, str, float]] = []
        self._undoes = False
        if self._in_hand is not None:
            self._in_hand.clear()

    def hand_out(self, in_hand: GrantInHand) -> GrantInHand:
        """A claim whose lease is given back at the program's end, if nobody does it before."""
        if self._in_hand is None:
            weakref = fork.lazily("weakref")
            atexit = fork.lazily("atexit")
            with fork.gate:  # of two threads one makes it, else those of the other are forgotten
                if self._in_hand is None:
                    made = weakref.WeakSet()
                    end = atexit.register(_at_exit_of(weakref.ref(self)))
                    weakref.finalize(self, atexit.unregister, end).atexit = False
                    if self._in_hand is None:  # else a signal handler has made it meanwhile
                        self._in_hand = made
        self._in_hand.add(in_hand)
        return in_hand

    def _at_exit(self) -> None:
        """A process that ends holds nothing: its leases need not run out first."""
        until = clock.now() + AT_EXIT
        for in_hand in self._all_in_hand():
            if clock.now() < until:
                in_hand.close(until)

    def _all_in_hand(self) -> list[GrantInHand]:
        while True:
            try:
                return list(self._in_hand)
            except RuntimeError:
                continue  # a daemon thread has just taken one more

    def sessions(self) -> Any:
        """What its session locks hold. Raises InvalidArgument where it has none."""
        if self.session_locks is None:
            raise InvalidArgument(
                f"kind='session' is a lock of PostgreSQL: {self.url} has none. Leave out kind= for "
                "a lease, or take a store at postgresql://"
            )
        fork.here()
        with fork.gate:  # of two threads that ask one makes them
            if self._sessions is None:
                self._sessions = self.session_locks.opened()
        return self._sessions

    async def by_session(self, backend: Backend, name: str | None) -> tuple[object, ...]:
        """What is held or waited for by kind="session": of a name, or of all. One step or two."""
        if self.session_locks is None:
            return ()
        return await self.session_locks.seen(backend, name, self.address)

    def close(self) -> None:
        """Give back what it has open and nobody uses. What is asked later opens it again."""
        if is_closing(self.backend):
            self.backend.close()
        if self._sessions is not None:
            self._sessions.close()
        for close in self.closes:
            close()

    def waiter(self) -> Waiter:
        """A waiter's turn, with a nonce of its own. A simulation has chance of its own."""
        return Waiter()

    def owner(self, label: str) -> Owner:
        """Who asks, for the record."""
        return process.here(label)

    @property
    def near(self) -> bool:
        """Whether it answers soon: it is in this very machine."""
        return self.traits.reach != FAR

    def listen(self, waiter: Waiter) -> str:
        """The wakeup to put into a request."""
        return self.wakeups.listen(waiter.nonce, waiter.hear)

    @property
    def hands(self) -> bool:
        """Whether the store can let in who waits without being asked again."""
        return is_handing(self.wakeups) and self.wakeups.hands

    def disown(self, nonce: str, undo: Callable[[], object]) -> None:
        """Nobody waits with this nonce any more; `undo` if the store lets it in all the same."""
        if is_handing(self.wakeups) and self.wakeups.hands:
            self.wakeups.disown(nonce, undo)
        else:
            self.wakeups.forget(nonce)

    async def beside(self, make: Callable[[Backend], Coroutine[object, None, object]]) -> Any:
        """One round trip by the thread that asks, whatever event loop its lock is used in."""
        return await make(self.backend)

    def post(
        self, make: Callable[[Backend], Coroutine[object, None, object]], *, here: bool
    ) -> None:
        """One round trip whose answer nobody waits for. `here`: this thread may block."""

        def send() -> None:
            try:
                finish(make(self.backend))
            except (Unreachable, NoReply, LifeholdError):
                pass  # whatever it was to undo ends by itself

        if here or not (self.joint.apart or self._busy_here()):
            send()
        else:
            heartbeat.apart(send)

    def give_back(self, name: str, nonce: str, ttl: float, *, here: bool) -> None:
        """L6  What a nonce may have, with one release; without an answer it is undone behind."""

        async def give(backend: Backend) -> None:
            try:
                await backend.release(name, nonce)
            except (Unreachable, NoReply, LifeholdError):
                self.undo(name, nonce, ttl)

        self.post(give, here=here)

    def undo(self, name: str, nonce: str, ttl: float) -> None:
        """L6  Give back what a nonce may have, behind the caller, until its ttl has passed."""
        self._undoing.append((name, nonce, clock.now() + ttl))  # first: see _undo_all
        starts = False
        try:
            with fork.gate:
                starts, self._undoes = not self._undoes, True
            if starts:
                heartbeat.apart(self._undo_behind)
        except BaseException:
            if starts:
                self._undoes = False  # else nobody would undo any more
            raise

    def _undo_behind(self) -> None:
        try:
            self._undo_all()
        except BaseException:
            self._undoes = False  # as above
            raise

    def _undo_all(self) -> None:
        tries = UNDO.pauses()
        undoing = self._undoing  # one list for good: what another thread adds is never lost
        while True:
            self._undoes = False  # before the look: who adds to it from here on starts it anew
            if not undoing:
                return
            with fork.gate:
                if self._undoes:
                    return  # it was started anew
                self._undoes = True
            for each in undoing.copy():
                try:
                    if each[2] > clock.now():
                        finish(self.backend.release(*each[:2]))
                    if each in undoing:
                        undoing.remove(each)
                    tries = UNDO.pauses()
                except (Unreachable, NoReply, LifeholdError):
                    clock.pause(next(tries))
                    break

    def _busy_here(self) -> bool:
        """Whether the garbage collector has come in the middle of a step: it cannot wait for it."""
        return is_interruptible(self.backend) and self.backend.busy_here()

    def state(self, name: str) -> State | None:
        """What the store knows of a name. Raises StoreUnavailable."""
        states = self.ask(lambda backend: backend.look((name,)))
        return states[0] if states else None

    def pages(self, prefix: str = "", *, bare: bool = False) -> Iterator[tuple[State, ...]]:
        """All that is known of the names that begin with `prefix`, in order, asked for in pages."""
        after = ""
        while some := self.ask(self.page_of(prefix, after, bare)):
            yield some
            if not is_paged(self.backend) or some[-1].name == after:  # L13  else for ever
                return
            after = some[-1].name

    @staticmethod
    def page_of(
        prefix: str, after: str, bare: bool
    ) -> Callable[[Backend], Coroutine[object, None, tuple[State, ...]]]:
        """The question for the next page; a store that knows no pages answers with all there is."""

        async def page(backend: Backend) -> tuple[State, ...]:
            if is_paged(backend):
                return await backend.page(prefix, after, PAGE, bare=bare)
            found = [each for each in await backend.look(None, prefix) if each.name > after]
            return tuple(sorted(found, key=lambda state: str(state.name)))

        return page

    def prune(self, idle: float) -> int:
        """Forget names that nobody has used for so long; how many those were."""
        after, gone = "", 0
        while True:
            upto, some = self.ask(self.prune_of(after, idle))
            gone += some
            if upto is None or upto == after:
                return int(gone)
            after = upto

    def prune_of(
        self, after: str, idle: float
    ) -> Callable[[Backend], Coroutine[object, None, tuple[str | None, int]]]:
        """The same for the next page. Raises InvalidArgument where no name is ever forgotten."""

        async def prune(backend: Backend) -> tuple[str | None, int]:
            if not is_prunable(backend):
                raise InvalidArgument(f"{self.url} cannot forget names")
            return await backend.prune(after, idle, PAGE)

        return prune

    def refuse_lacking(self, capability: str, what: str) -> None:
        """Raises InvalidArgument where this store is without it."""
        why = self.traits.lacks.get(capability)
        if why is not None:
            raise InvalidArgument(
                f"{self.url} has not what {what} needs ({CAPABILITIES[capability]}): {why}"
            )

    async def ground(self, backend: Backend) -> tuple[str, ...]:
        """What the store says of itself, and what it lacks."""
        lacks = self.traits.lacks.items()
        return (
            *await backend.ground(),
            *(f"it lacks {name} ({CAPABILITIES[name]}): {why}" for name, why in lacks),
        )

    def address(self, name: str) -> str:
        """The URL of a lock here."""
        return address(self.url, name)

    def holder(self, holder: StoreHolder, name: str) -> Holder:
        """A holder in words; on this machine's own store its process is looked at too (L2)."""
        found = self.backend.judge(holder) if is_judging(self.backend) else None
        return as_holder(holder, self.address(name), found)

    def break_(self, name: str, reason: str, whom: Holder | None = None) -> Holder | None:
        """End whoever holds a name, by order; who that was.

        `whom`: the grant that is meant; None when it is in no more.
        """
        nonce = "" if whom is None or whom.nonce is None else whom.nonce
        nonce = nonce.removesuffix(_end_of_nonce(whom.token) if whom is not None else "")
        order = Order("break", name, reason, by_whom(), nonce=nonce)
        before: State | None = self.given(order)
        if before is None or not (before.holders or before.damage):
            return None
        if before.damage:  # of another row perhaps: what names a grant that is gone has no state
            holder = Holder(evidence=before.damage, lock=self.address(name))
        elif order.spares(before):
            return None
        else:
            holder = self.holder(before.holders[0], name)
        events.tell(events.Broken(holder.lock, holder, reason))
        return holder

    def order(
        self, verb: str, name: str, reason: str, least: int = 0, text: str = ""
    ) -> State | None:
        """Have an operator's order carried out, noted with who and why."""
        return self.given(Order(verb, name, reason, by_whom(), least, text))

    def given(self, order: Order) -> State | None:
        """The same, of an order that is made already."""
        try:
            found: State | None = self.ask(lambda backend: backend.order(order))
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, NoReply):
                raise
            raise self.perhaps_done(order.verb, order.name, error.__cause__) from error.__cause__
        return found

    def perhaps_done(self, verb: str, name: str, error: NoReply) -> StoreUnavailable:
        """The error for an order without an answer.

        L6  Nobody says it again but people: it would hit whoever came since.
        """
        return StoreUnavailable(
            f"{self.url}: no answer to the order to {verb} {name!r} ({error}): it may have been "
            "carried out. Look who holds it before you give it again",
            name=name,
        )

    def ask(self, make: Callable[[Backend], Coroutine[object, None, object]]) -> Any:
        """One question, by the calling thread. Raises StoreUnavailable."""
        try:
            return finish(make(self.backend))
        except (Unreachable, NoReply) as error:
            raise self.unavailable(error) from error

    def unavailable(
        self, error: BaseException, name: str = "", nonce: str = ""
    ) -> StoreUnavailable:
        """Nothing is held, and nothing was found out."""
        of = f" for {name!r}" if name else ""
        what = "gave no answer" if isinstance(error, NoReply) else "was not reached"
        what = "cannot do it" if isinstance(error, Unable) else what
        more = ""
        if nonce:
            more = (
                ". A request may have been carried out: treat it as unknown; what it has taken is "
                "being given back"
            )
        return StoreUnavailable(
            f"{self.url} {what}{of}: {error}{more}", name=name or self.url, nonce=nonce or None
        )


class Opener:
    """What a scheme of URLs leads to: called with a URL and its options it answers their `Site`.

    `settled`: of a URL that means another store in another folder, the one that it means here;
    `upkeep`: a module with `migrate`, `script` and `check`, where there are tables to be made.
    """

    __slots__ = ("_open", "settled", "upkeep")

    def __init__(
        self,
        open: Callable[..., Site],  # noqa: A002
        *,
        settled: Callable[[str], str] = str,
        upkeep: str | None = None,
    ) -> None:
        self._open, self.settled, self.upkeep = open, settled, upkeep

    def __call__(self, url: str, **options: object) -> Site:
        try:
            return self._open(url, **options)
        except TypeError:
            parameters = inspect.signature(self._open).parameters.values()
            known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
            strange = {key: item for key, item in options.items() if key not in known}
            if not strange or any(each.kind is each.VAR_KEYWORD for each in parameters):
                raise
        scheme = url.partition("://")[0]
        raise nearest.strange(f"{printable(scheme)}://", strange, (*known, *OF_ALL))


def within(backend: Backend, until: float) -> Backend:
    """The same backend for a question whose answer is of use until that instant, if it can."""
    return backend.within(until) if until != NEVER and is_bounded(backend) else backend


def by_whom() -> str:
    """Who gives an order, for its audit."""
    me = process.here()
    return f"pid {me.pid}, user {me.user or me.uid}, host {me.host}"


# ------------------------------------------------------------------------------------------------
# How much faster or slower the store's clock runs than ours.


LEAST = 1.0  # seconds between two measurements: a shorter stretch measures the network


class ClockDrift:
    """Measured at each renewal. `percentage`: None until two renewals are far enough apart.

    Positive: the store's clock runs fast, so leases end early there; a margin of ttl/10 outlasts
    10 %. `lease_drift_percentage` in metrics is this number.
    """

    __slots__ = ("_began", "percentage", "steps")

    def __init__(self) -> None:
        self._began: tuple[float, float, float] | None = None
        self.percentage: float | None = None
        self.steps = 0  # how often the store's clock was seen to stand still or go backwards

    def note(self, there: float | None, sent_at: float, came_at: float) -> None:
        """One reading of the store's clock, somewhere between two instants of ours."""
        if there is None:
            return
        here, width = (sent_at + came_at) / 2, came_at - sent_at
        if self._began is None:
            self._began = there, here, width
            return
        began_there, began_here, began_width = self._began
        ours = here - began_here
        if ours < max(LEAST, 20 * (width + began_width)):
            if there < began_there:
                self.steps += 1
                self._began = there, here, width
            return
        if there < began_there:
            self.steps += 1
        else:
            self.percentage = (there - began_there - ours) / ours * 100
        self._began = there, here, width


# ------------------------------------------------------------------------------------------------
# What a store knows of a holder, in the words that people read.


STEP = 1.0  # seconds that a clock may be set back before that is told


def _at_exit_of(where: Callable[[], Site | None]) -> Callable[[], None]:
    """Gives back what a site has handed out, at the program's end if the site is there by then."""

    def end() -> None:
        site = where()
        if site is not None:
            site._at_exit()

    return end


def _end_of_nonce(token: int | None) -> str:
    """What makes the nonce of a grant, for people, of the one that the store knows."""
    return f"-{'-' if token is None else token}"


def as_holder(holder: StoreHolder, lock: str, found: LifeVerdict | None = None) -> Holder:
    """A holder, of whom the lease alone says that it lives: another host's process is not seen.

    `found`: what was found out about its process, where it can be.
    """
    nonce = holder.nonce + _end_of_nonce(holder.token)
    alive, evidence = "unknown", f"its lease of {holder.ttl:g} s is not over for certain"
    if holder.ends_in is not None:
        times = "once" if holder.renewals == 1 else f"{holder.renewals} times"
        if holder.ends_in > holder.ttl + holder.delay + STEP:
            evidence = (
                "the store's clock was set back since its lease was renewed, so it may be dead: "
                f"the lease ends {holder.ttl + holder.delay:g} s after somebody asks for the lock"
            )
        elif holder.ends_in > 0:
            alive = "alive"
            evidence = f"its lease has {holder.ends_in:.1f} s left, renewed {times}"
        else:
            alive, evidence = "dead", f"its lease of {holder.ttl:g} s has run out"
    if found is not None and found.state == DEAD:
        alive, evidence = DEAD, found.evidence
    return Holder(
        holder.owner,
        holder.acquired_at,
        alive,
        evidence,
        holder.token,
        nonce,
        lock,
    )


def crowded(name: str, asked: int, there: int) -> InvalidArgument:
    """Somebody holds it under another number of permits."""

    def words(capacity: int) -> str:
        if capacity == WHOLE:
            return "a reader/writer lock"
        return "a lock" if capacity == 1 else f"a semaphore of {capacity} permits"

    return InvalidArgument(
        f"{name!r} is held as {words(there)}, and was asked for as {words(asked)}: all who use a "
        "name must agree, and change it only while nobody holds it"
    )


# ------------------------------------------------------------------------------------------------
# Names of locks in a store, and the URL of one: `sqlite:////var/lib/locks.db#payments/42`.
#
# Behind the `#` stands the name itself; a `%` in it is written `%25`, and what else was
# percent-encoded is understood. So an address that is shown can be typed.


LONGEST_NAME = 512  # characters


def address(store: str, name: str) -> str:
    """The URL of a lock in a store."""
    return f"{store}#{name.replace('%', '%25')}"


def decoded(name: str) -> str:
    """The name behind the # of a URL. Raises InvalidArgument for bytes that are no text."""
    if "%" not in name:
        return name
    try:
        return parse.unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"the name {printable(name[:80])!r} is no UTF-8 once its % are decoded: write a % that "
            "belongs to the name as %25"
        ) from None


def checked(name: object) -> str:
    """A name that a store can keep. Raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a lock's name must be a str, not {type(name).__name__} {name!r}")
    if not name:
        raise InvalidArgument("a lock's name must not be empty: it follows a #, as in URL#NAME")
    if len(name) > LONGEST_NAME:
        raise InvalidArgument(
            f"a lock's name is too long: {len(name)} characters, {LONGEST_NAME} at most: "
            f"{printable(name[:40])!r}..."
        )
    if not name.isprintable():
        raise InvalidArgument(
            f"a lock's name must be printable text, which {printable(name[:80])!r} is not"
        )
    return name
