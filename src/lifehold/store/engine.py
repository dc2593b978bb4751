"""The lease engine: the mechanism of one name in a store.

Promise: a lease is ours from the answer of the store to our own deadline, which lies before the
instant at which the store would let anyone else in; each exclusive grant has a token that grows; a
request whose answer was lost is found again and kept, or undone. One round trip to acquire, one to
release.

L2  The store's clock decides whose lease is over; without one, a watch in waiter.py.
L6  The nonce goes with the request. No answer: asked again with the same nonce. Still none: undone,
    and if that cannot be confirmed either, the outcome is Unknown and said to be so.
L8  The deadline counts from before the request was sent, by a clock that counts suspend.
L9  Renewal is not the caller's: the heartbeat thread renews all leases of a store together, over
    the blocking client (site.py). A forked child holds none of them.
"""

from __future__ import annotations

from ..core import events
from ..core.backend import (
    AT_ONCE,
    SOON,
    WHOLE,
    Given,
    NoReply,
    Renewal,
    Request,
    Unable,
    Unreachable,
)
from ..core.deadline import NEVER
from ..core.errors import StoreUnavailable
from ..core.grant import Grant, Held, Holder, Lost, Unknown
from ..core.value import replace
from ..runtime import fork
from ..runtime.blocking import BLOCKING, finish
from .site import crowded, within
from .waiter import PATIENCE, Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ..core.acquire import Ask
    from ..core.backend import Backend, Refused
    from ..core.deadline import Terms
    from ..core.ports import Runtime
    from ..runtime.renewal import BatchRenewal
    from .site import Site


# ------------------------------------------------------------------------------------------------
# A writer that becomes a reader, by growing lighter at the store.
#
# Promise: in one step, so no other writer comes in between; the grant, its token and its nonce
# stay.
# L6  A lost answer is asked for again: the step changes nothing the second time. Still none:
#     readers may be in already, so from here on it is a reader's, whatever the store has. That is
#     Unknown.


READER = 1  # the weight of one


async def lightened(lock: StoreLock, grant: Grant, send: Any) -> Grant | Lost | Unknown:
    """What the store made of it. `send`: how a request gets there."""
    doubt: Exception | None = None
    for _ in range(2):
        sent_at = lock.now()  # L8
        asked = (Renewal(lock.name, grant.mark, lock.terms.ttl, READER),)
        try:
            _, (held,) = await send(lambda backend, asked=asked: backend.renew(asked))
            if isinstance(held, Exception):
                raise held
        except (Unreachable, NoReply) as error:
            doubt = error
            continue
        if held:
            return replace(grant, deadline=lock.terms_of(grant).deadline(sent_at))
        grant.handle.clear()
        return Lost("the store had let it go", gone=True)
    assert doubt is not None
    return Unknown(grant.nonce, doubt)


WHILE = 0.5  # of a heartbeat, in which a renewal is answered, or is asked again
FRESH = 1.0  # seconds for which a refusal says enough of who holds it
AWAY = "as far as is known: the store does not answer ({})"
KEPT = "let go of just now, and kept for one who has waited longer"


FAILURES = (Unreachable, NoReply)


FORKED = "it belongs to the parent process"


TOKENLESS = "no writer has been here yet"


class StoreLock:
    """The mechanism (core/ports.py) of one name. Made once per lock object."""

    kind = "store"
    option: str | None = ""
    remote = True  # an event loop awaits it, and never calls it
    # ---- getting in

    def __init__(
        self,
        site: Site,
        name: str,
        runtime: Runtime,
        terms: Terms,
        *,
        label: str = "",
        capacity: int = 1,
        weight: int = 1,
        shared: bool = False,
        fair: bool = True,
        delay: float = 0.0,
    ) -> None:
        self.site, self.name, self.runtime, self.terms = site, name, runtime, terms
        self.label, self.capacity, self.weight, self.shared = label, capacity, weight, shared
        self.fair, self.delay = fair, delay
        self.exclusive, self.slotted = weight == capacity, weight == 1 < capacity < WHOLE
        self.permits = capacity
        if capacity > 1 or shared:
            self.option = None  # no `lifehold run` takes it
        self.path = site.address(name)
        self.now = runtime.now
        self._seen: tuple[Refused, float] | None = None
        self._away: Exception | None = None  # why the last request had no answer

    def attempt(self) -> Grant | Held | Unknown:
        """One try, by the calling thread."""
        waiter, take = self.site.waiter(), self.site.take_free
        if take is not None:
            try:
                sent_at = self.now()  # L8
                given = take(self._request(waiter))
                if given is not None and waiter.ours:
                    return self._grant(waiter, given, sent_at)
            except FAILURES as error:  # asked in full, by the same nonce, which says more
                waiter.doubt = isinstance(error, NoReply)
            except BaseException:  # L6
                finish(self._abandon(waiter))
                raise
            if not waiter.ours:
                return Held(key=self.path)  # L9  forked meanwhile: it was our parent who asked
        return finish(self._first(waiter))

    async def try_acquire(self, ask: Ask) -> Grant | Held | Unknown:
        return await self._first(self.site.waiter())

    async def _first(self, waiter: Waiter) -> Grant | Held | Unknown:
        error: Exception
        began = self.now()
        until = began + self.site.limit
        try:
            return await self._ask(waiter, wait=False)
        except NoReply as lost:
            waiter.doubt, error = True, lost
        except Unreachable as unreached:
            error = unreached
        if waiter.doubt and waiter.ours:  # else whatever became of it is our parent's
            if self.now() >= until:
                waiter = self._undo_behind(waiter)
            else:
                try:  # L6  the same nonce finds the same grant
                    return await self._ask(waiter, wait=False, until=until)
                except FAILURES as again:
                    if await self._undone(waiter, again, until) is not None:
                        waiter = self._undo_behind(waiter)
                    else:  # L5  a late copy of that release must not find a grant
                        waiter = self.site.waiter()
        # L10  More likely a wrong URL than a store that comes back; or people have to mend it, and
        # a caller without a limit would wait in vain.
        if not self.site.reached or isinstance(error, Unable):
            raise self.site.unavailable(error, self.name, waiter.doubted) from error
        waiter.failed(self.now())
        return self._silent(error, waiter, began)

    def _silent(self, error: Exception, waiter: Waiter, sent_at: float = 0.0) -> Held:
        """No answer for now, and nothing held: whoever has patience asks again."""
        self._away, why = error, f"{self.site.url} does not answer: {error}"
        return Held(why, self.path, waiter, error, sent_at, waiter.doubted)

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        """Stand in line, sleep until called or until it is time to look, ask once."""
        waiter = ask.slot
        if not isinstance(waiter, Waiter) or not waiter.ours:
            ask.place, waiter = None, self.site.waiter()
        if not waiter.stands:
            ask.slot, ask.place, waiter.stands = waiter, waiter, True
            waiter.leave_now = lambda: self._left(waiter, ask)
        else:
            try:
                await self.runtime.rung(ask, waiter, min(until, waiter.look_at))
            except BaseException:  # L6
                await self._abandon(waiter)
                raise
            patient = waiter.doubt or waiter.came is not None or self.now() < ask.deadline
            if ask.cancelled or not patient or not waiter.ours:
                return await self._too_late(waiter, ask.deadline)
        try:
            found = await self._ask(waiter, wait=True, ask=ask)
            over = isinstance(found, Held) and self.now() >= ask.deadline
            return await self._too_late(waiter, ask.deadline) if over else found
        except FAILURES as error:
            waiter.doubt = waiter.doubt or isinstance(error, NoReply)
            waiter.failed(self.now())
            if self.now() < ask.deadline or not waiter.ours:
                return self._silent(error, waiter)
            until = min(ask.deadline, self.now()) + self.site.limit
            if waiter.doubt and (unknown := await self._undone(waiter, error, until)) is not None:
                return unknown
            raise self.site.unavailable(error, self.name, waiter.doubted) from error

    async def _ask(
        self, waiter: Waiter, *, wait: bool, ask: Ask | None = None, until: float = NEVER
    ) -> Grant | Held:
        """One request, and what its answer means; none where the store has let us in unasked."""
        handoff_id = waiter.next_handoff_id() if wait and self.site.hands else ""
        sent_at = self.now()  # L8
        answer: Given | Refused
        came = waiter.handed(self.terms, sent_at)
        try:
            if came is not None:
                answer, sent_at = came, waiter.since
            else:
                wakeup = self.site.listen(waiter) if wait else ""
                request = self._request(waiter, wait, wakeup, waiter.gone(sent_at), handoff_id)
                sent_at = self.now()
                answer = await self._send(
                    lambda backend: within(backend, until).acquire(request),
                    lambda _: self._unwanted(waiter),
                )
            waiter.doubt, self.site.reached, self._away = False, True, None
            if not waiter.ours:
                return Held(key=self.path)  # L9  forked meanwhile: it was our parent who asked
            if isinstance(answer, Given):
                if ask is not None:
                    ask.place, waiter.stands = None, False
                    self.site.wakeups.forget(waiter.nonce)
                return self._grant(waiter, answer, sent_at)
        except FAILURES:
            raise
        except BaseException:  # L6  cancelled, or interrupted: nobody is left to take what came
            await self._abandon(waiter)
            raise
        if answer.capacity is not None:
            raise crowded(self.path, self.capacity, answer.capacity)
        waiter.refused(answer, self.now(), watch=not self.site.traits.ends_leases)
        waiter.stood(handoff_id, sent_at)
        self._seen = answer, self.now()
        return Held(key=self.path, hint=waiter)

    def _request(
        self,
        waiter: Waiter,
        wait: bool = False,
        wakeup: str = "",
        gone: str | None = None,
        handoff_id: str = "",
    ) -> Request:
        return Request(
            self.name,
            waiter.nonce,
            self.terms.ttl,
            self.site.owner(self.label),
            self.capacity,
            self.weight,
            self.shared,
            self.delay,
            wait,
            self.fair,
            PATIENCE,
            wakeup,
            gone,
            handoff_id,
        )

    def _grant(self, waiter: Waiter, answer: Given, sent_at: float) -> Grant:
        nonce, site = waiter.nonce, self.site
        site.reached, self._away = True, None
        terms = self.terms.at_most(answer.ttl)
        in_hand = site.hand_out(GrantInHand(self, nonce, waiter.generation, terms))
        if answer.over is not None and events.listeners:
            over = site.holder(answer.over, self.name)
            events.tell(events.TakenOver(self.path, f"{nonce}-{answer.token}", over, over.evidence))
        return Grant(
            self.path,
            nonce,
            answer.token,
            TOKENLESS if answer.token is None else None,
            int(answer.acquired_at * 1e9),
            self.key(answer.slot),
            [in_hand],
            terms.deadline(sent_at),
        )

    # ---- holding it

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        return (await self.renew_many([(self, grant)]))[0]

    @staticmethod
    async def renew_many(many: list[tuple[StoreLock, Grant]]) -> list[Grant | Lost | Unknown]:
        """Prolong leases of one store in one round trip. By the heartbeat thread.

        A connection may be silent while the store answers on any other, as behind a router that
        forgot it. So it is left while there is time for one more.
        """
        first = many[0][0]
        asked = [Renewal(each.name, grant.mark, each.terms.ttl) for each, grant in many]
        sent_at = first.now()  # L8
        until = sent_at + WHILE * min(each.terms_of(grant).heartbeat for each, grant in many)
        try:
            there, kept = await first.site.beside(
                lambda backend: within(backend, until).renew(asked)
            )
        except FAILURES as error:
            return [Unknown(grant.nonce, error) for _, grant in many]
        first.site.drift.note(there, sent_at, first.now())
        gone = Lost(f"{first.site.url} has let it go: its ttl had passed, or it was broken", True)
        answers: list[Grant | Lost | Unknown] = []
        for (each, grant), held in zip(many, kept, strict=True):
            if isinstance(held, Exception):  # L6  of this lease alone nothing is known
                answers.append(Unknown(grant.nonce, held))
            else:
                deadline = each.terms_of(grant).deadline(sent_at)
                answers.append(replace(grant, deadline=deadline) if held else gone)
        return answers

    def terms_of(self, grant: Grant) -> Terms:
        """L8  Under which it is held: the store may have given a shorter ttl than was asked for."""
        return next((in_hand.terms for in_hand in grant.handle), self.terms)

    def check(self, grant: Grant) -> Lost | None:
        """No I/O: what is not noticed here is caught by the deadline, and by the token."""
        for in_hand in grant.handle:
            if in_hand.generation != fork.here():
                return Lost(FORKED)
            if in_hand.spent:
                return Lost("given back: its program ends", gone=True)
            if grant.deadline is not None and grant.deadline <= self.now():
                return Lost("its ttl has passed", gone=True)
            return None
        return Lost("released already")

    def downgrade(self, grant: Grant) -> Grant | Lost | Unknown:
        """A writer becomes a reader in one step. By a thread that may block."""
        return finish(lightened(self, grant, self.site.beside))

    async def lighten(self, grant: Grant) -> Grant | Lost | Unknown:
        """The same, awaited."""
        return await lightened(self, grant, self._send)

    # --------------------------------------------------------------------------------------------
    # How a grant ends: by who holds it, once, with an answer or a doubt.
    #
    # L5  The claim is spent first, so of all who would end a grant one does; the store knows the
    # grant by its nonce. L6  A lost answer is asked for again: a second "not here" then means done.
    # What was not reached has done nothing, so behind that it means that the grant was lost.
    #
    # The part of `StoreLock` (engine.py) that lets go.

    def drop(self, grant: Grant) -> Lost | Unknown | None:
        """Let it go, by the calling thread."""
        leave, doubt = self.site.leave_free, None
        try:
            if (not_ours := self._spend(grant)) is not None:
                return not_ours
            try:
                if leave is not None and leave(self.name, grant.mark):
                    return None
            except FAILURES as error:  # asked in full
                doubt = error
            return finish(self._let_go(grant, self.site.beside, doubt))
        except BaseException:
            self._interrupted(grant)
            raise

    async def release(self, grant: Grant) -> Lost | Unknown | None:
        """The same, awaited."""
        try:
            return self._spend(grant) or await self._let_go(grant, self._send)
        except BaseException:
            self._interrupted(grant)
            raise

    def _spend(self, grant: Grant) -> Lost | None:
        for in_hand in grant.handle:
            if in_hand.generation != fork.here():
                return Lost(FORKED)
        try:
            grant.handle.pop().spent = True
        except IndexError:
            return Lost("released already")
        return None

    def _interrupted(self, grant: Grant) -> None:
        """L6  In the middle of a release: the claim may be spent, and nobody else would."""
        if not grant.handle:
            self.site.give_back(self.name, grant.mark, self.terms.ttl, here=False)

    def _leaves(
        self, grant: Grant, until: float
    ) -> Callable[[Backend], Coroutine[object, None, Any]]:
        return lambda backend: within(backend, until).release(self.name, grant.mark)

    async def _let_go(
        self,
        grant: Grant,
        send: Callable[..., Coroutine[object, None, object]],
        doubt: Exception | None = None,
    ) -> Lost | Unknown | None:
        until, over = self.now() + self.site.limit, NEVER
        done = isinstance(doubt, NoReply)  # perhaps, by an earlier request
        for _ in range(2):
            try:
                was_in = await send(self._leaves(grant, over))
            except FAILURES as error:
                doubt, over = error, until
                done = done or isinstance(error, NoReply)
                if self.now() >= until:
                    break
                continue
            if was_in or done:
                return None
            return Lost("others may have been in: the store had let it go", gone=True)
        assert doubt is not None
        self.site.undo(self.name, grant.mark, self.terms.ttl)
        return Unknown(grant.nonce, doubt)

    async def _send(
        self,
        make: Callable[[Backend], Coroutine[object, None, Any]],
        undo: Callable[[object], None] = lambda _: None,
    ) -> Any:
        """One round trip: awaited where the client can be, else by a thread that may block.

        Who is cancelled goes at once, and what comes late is undone; only a store in this very
        machine, which answers soon, is waited for.
        """
        swift = self.site.swift(self.runtime)
        if swift is not None:
            return await make(swift)
        backend = self.site.backend
        reach = self.site.traits.reach
        if reach == AT_ONCE:
            return await make(backend)
        errand = self.runtime.in_thread(lambda: finish(make(backend)), undo)
        if reach == SOON:
            return await self.runtime.shield(errand)
        return await errand

    def _disown(self, waiter: Waiter) -> None:
        """Nobody waits here any more. What the store gives all the same is given back."""
        if not waiter.ours:
            self.site.wakeups.forget(waiter.nonce)
            return
        self.site.disown(waiter.nonce, lambda: self._give_back(waiter, here=False))

    def _give_back(self, waiter: Waiter, *, here: bool) -> None:
        """Until the store has confirmed it (L6). `here`: this thread may block."""
        self.site.give_back(self.name, waiter.nonce, self.terms.ttl, here=here)

    def _unwanted(self, waiter: Waiter) -> None:
        """The answer came for a caller who has gone: no grant, and no place in line, is left."""
        self._give_back(waiter, here=True)

    async def _abandon(self, waiter: Waiter) -> None:
        """L6  Let go of whatever the nonce has. A far store is not waited for."""
        waiter.stands = False
        self._disown(waiter)
        if self.site.near and waiter.ours:
            await self.runtime.shield(self._withdrawn(waiter))
        elif waiter.ours:
            self._give_back(waiter, here=False)

    async def _withdrawn(self, waiter: Waiter) -> None:
        """One step for whoever is cancelled meanwhile."""
        try:
            await self._send(lambda b: b.release(self.name, waiter.nonce))
        except FAILURES:
            self.site.undo(self.name, waiter.nonce, self.terms.ttl)

    async def _undone(self, waiter: Waiter, error: Exception, until: float) -> Unknown | None:
        """L6  Nobody can say whether it is ours: let it be nobody's, or say that too is unknown.

        The caller waits for that until an instant; then it goes on behind.
        """
        try:
            if self.now() >= until:
                raise error
            await self._send(
                lambda backend: within(backend, until).release(self.name, waiter.nonce)
            )
        except FAILURES:
            self.site.undo(self.name, waiter.nonce, self.terms.ttl)
            return Unknown(waiter.nonce, error)
        except BaseException:  # cancelled, or interrupted, perhaps before it was sent
            self._give_back(waiter, here=False)
            raise
        waiter.doubt = False
        return None

    def _left(self, waiter: Waiter, ask: Ask) -> None:
        """The place in line is given up. The caller does not wait for the store to note it."""
        self._disown(waiter)
        if waiter.doubt:  # L6  the last request had no answer: `_refusal` tells its nonce
            ask.doubted = waiter.nonce
            self.site.undo(self.name, waiter.nonce, self.terms.ttl)
        else:
            self._give_back(waiter, here=self.runtime is BLOCKING)

    def _undo_behind(self, waiter: Waiter) -> Waiter:
        """L6  The time is up: what the nonce may have is given back behind the caller.

        It goes on with a new turn, which knows of the old one.
        """
        self.site.undo(self.name, waiter.nonce, self.terms.ttl)
        fresh = self.site.waiter()
        fresh.doubted = waiter.nonce
        return fresh

    async def _too_late(self, waiter: Waiter, deadline: float) -> Held | Unknown:
        """The patience is over: the place in line is given up before that is said."""
        waiter.stands = False
        self._disown(waiter)
        try:
            if waiter.ours:
                until = min(deadline, self.now()) + self.site.limit
                await self._send(
                    lambda backend: within(backend, until).release(self.name, waiter.nonce)
                )
        except FAILURES as error:
            self.site.undo(self.name, waiter.nonce, self.terms.ttl)
            if waiter.doubt or waiter.came is not None:
                return Unknown(waiter.nonce, error)
            # else it is a place in line alone, and dies by itself
        except BaseException:  # L6  as in _undone: the store may have let it in just now
            self._give_back(waiter, here=False)
            raise
        return Held(key=self.path)

    def unavailable(self, cause: BaseException, nonce: str) -> StoreUnavailable:
        """The error for a caller whose question had no answer."""
        return self.site.unavailable(cause, self.name, nonce)

    @property
    def joint(self) -> BatchRenewal:
        """What renews it, together with all other leases of the store."""
        return self.site.joint

    def far(self) -> bool:
        """Its calls may take their time, as on another machine."""
        return True

    def key(self, slot: int) -> str:
        """What is locked: of a semaphore, one slot of it, which no name of a lock can be."""
        return f"{self.path}\n{slot}" if self.slotted else self.path

    @property
    def slots(self) -> list[StorePermit]:
        """Of a semaphore."""
        return [StorePermit(self.key(number)) for number in range(self.permits)]

    def slot_of(self, grant: Grant) -> int:
        """Which slot of a semaphore a grant has."""
        return int(str(grant.key).rpartition("\n")[2])

    def inspect(self, *, held: bool = False) -> Holder | None:
        if held:
            return self._in_the_way()
        state = self.site.state(self.name)
        return self.site.holder(state.holders[0], self.name) if state and state.holders else None

    def _in_the_way(self) -> Holder | None:
        """Whom somebody waits for who has just been refused, or got no answer."""
        if self._away is not None:
            return Holder(evidence=AWAY.format(self._away), lock=self.path)
        seen = self._just_seen()
        if seen is None:
            try:
                return self.inspect()
            except StoreUnavailable as error:
                return Holder(evidence=AWAY.format(error), lock=self.path)
        if not seen.holders:
            return Holder(evidence=KEPT, lock=self.path)
        return self.site.holder(seen.holders[0], self.name)

    def waiters(self) -> int | None:
        """How many wait: before us, if we do and have just been refused."""
        if self._away is not None:
            return None
        seen = self._just_seen()
        if seen is not None:
            return seen.ahead
        state = self.site.state(self.name)
        return 0 if state is None else len(state.waiters)

    def _just_seen(self) -> Refused | None:
        """The last refusal, where it is so new that asking again would tell no more."""
        if self._seen is not None and self.now() - self._seen[1] < FRESH:
            return self._seen[0]
        return None

    def taken(self) -> bool:
        state = self.site.state(self.name)
        if state is None:
            return False
        return sum(holder.weight for holder in state.holders) + self.weight > state.capacity

    def break_(self, reason: str, whom: Holder | None = None) -> Holder | None:
        """Take the lock from its holders, who are told at their next renewal; who that was.

        `whom`: the grant that is meant; None when it is in no more.
        """
        return self.site.break_(self.name, reason, whom)


# ------------------------------------------------------------------------------------------------
# The part of a grant whose owner holds the lease: whoever takes it ends the grant (L5).


class GrantInHand:
    """One grant of a store, in hand until it is spent. `lock`: its mechanism.

    L6  A grant that nobody has in hand any more is given back: by `close`, or when the claim is
    garbage. What does not reach the store then runs out by itself.
    """

    __slots__ = ("__weakref__", "_lock", "_nonce", "generation", "spent", "terms")

    def __init__(self, lock: Any, nonce: str, generation: int, terms: Terms) -> None:
        """`generation`: of the process that asked for it (runtime/fork.py); `terms`: as given."""
        self._lock, self._nonce, self.terms = lock, nonce, terms
        self.generation, self.spent = generation, False

    def close(self, until: float = NEVER) -> None:
        """Give it back now, by this thread, which waits for an answer until that instant."""
        self._give_back(True, until)

    def _give_back(self, here: bool, until: float = NEVER) -> None:
        if not self.spent and self.generation == fork.here():
            self.spent = True
            self._let_go(here, until)

    def _let_go(self, here: bool, until: float) -> None:
        name, nonce = self._lock.name, self._nonce
        self._lock.site.post(lambda backend: within(backend, until).release(name, nonce), here=here)

    def __del__(self) -> None:
        if not getattr(self, "spent", True):  # not there when its making was interrupted
            self._give_back(False)


class StorePermit:
    """One permit of a semaphore, by its name."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path
