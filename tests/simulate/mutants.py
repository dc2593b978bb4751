"""Known-bad rules: a simulator that does not find them proves nothing.

Each is the shipped engine with one part changed, the scenario in which it goes wrong, and the kind
of violation that must be found within some seeds, while the shipped one shows none of that kind in
the same scenario and the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lifehold.core.acquire import Ask
from lifehold.core.backend import Given, Refused, Renewal, Request
from lifehold.core.deadline import NEVER, Terms
from lifehold.core.grant import Grant, Held, Lost, Unknown
from lifehold.core.renew import RenewalSchedule
from lifehold.core.value import replace, value
from lifehold.store.rules import HolderRow, LockState
from lifehold.store.waiter import Waiter
from lifehold.testing.history import GENERATION, TOKEN, WRITE
from lifehold.testing.simulate import Outcome, Scenario, Subject, simulate
from lifehold.testing.simulate.outcome import Data, SimulatedStore
from lifehold.testing.simulate.party import NodeProgram, WatchedStoreLock
from lifehold.testing.simulate.people import SimulatedHolder
from lifehold.testing.simulate.run import ORDER, RISEN, STUCK
from lifehold.testing.simulate.shapes import MUTEX, PERMITS
from lifehold.testing.simulate.wire import NodeSite
from simulate.redlock import FromTheLastParty, Servers


@value
class Mutant:
    """`kinds`: what is to be found; `plan`: where; `seeds`: within how many."""

    subject: Subject
    kinds: tuple[str, ...]
    plan: Scenario
    seeds: int = 60

    @property
    def fails_over(self) -> bool:
        """Then the shipped one may show MUTEX: a grant that the store has lost cannot be known."""
        return self.plan.failover_every > 0

    def runs(self, subject: Subject | None = None) -> Iterator[Outcome]:
        """Seed by seed."""
        for seed in range(1, self.seeds + 1):
            yield simulate(self.plan, seed, subject or self.subject)

    def found(self, outcome: Outcome) -> bool:
        return any(outcome.counts.get(kind) for kind in self.kinds)

    def first(self) -> Outcome | None:
        """The first run in which it is found."""
        return next((outcome for outcome in self.runs() if self.found(outcome)), None)


# ---- `lock_expiry < :now`: who asks brings the time along, and clocks of clients are compared


class ClientsClock(SimulatedStore):
    """A conditional write whose `:now` comes from the client, as the rule is often written down."""

    def _at(self, name: str, sent: float) -> LockState:
        return super()._at(name, sent).at(sent, "", int(self.now() * 1e6))


# ---- a deadline that counts from the reply


class FromReply(WatchedStoreLock):
    """The holder's time begins when the answer is there, and not when the request was sent."""

    def _grant(self, waiter: Waiter, answer: Given, sent_at: float) -> Grant:
        return super()._grant(waiter, answer, self.now())

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        answer: Any = await super().renew(grant)
        if isinstance(answer, Grant):
            return replace(answer, deadline=self.terms.deadline(self.now()))
        return answer  # type: ignore[no-any-return]


class FromReplyParty(NodeProgram):
    lock_class = FromReply


# ---- no margin


def without_margin(plan: Scenario) -> Scenario:
    """As good as none: the holder believes for its whole ttl, by its own clock."""
    return replace(plan, margin=1e-6)


# ---- a renewal that is believed after the old deadline


class Credulous(RenewalSchedule):
    """What is lost by its deadline is held again when the store says so."""

    def late(self, now: float) -> bool:
        return False


class CredulousParty(NodeProgram):
    tenure_class = Credulous


class OneLook(RenewalSchedule):
    """The clock is read before a renewal is sent, and not again when its answer is there."""

    __slots__ = ("_answered",)

    def is_over(self) -> bool:
        self._answered = True
        return super().is_over()

    def late(self, now: float) -> bool:
        if getattr(self, "_answered", False):
            self._answered = False
            return False
        return super().late(now)


class OneLookParty(NodeProgram):
    tenure_class = OneLook


# ---- a token that a failover sets back


class BareCounter(LockState):
    """The last token and one, without the clock: the standby does not know the last ones."""

    def _next(self) -> int:
        return (self.token or 0) + 1


class BareCounterVault(SimulatedStore):
    book = BareCounter


# ---- a release that does not say whose


class AnyonesBook(LockState):
    """Release deletes the key, whoever holds it."""

    def release(self, nonce: str) -> bool:
        if not any(place.nonce == nonce for place in self.queue):
            self.holders.clear()
        return super().release(nonce)


class AnyonesVault(SimulatedStore):
    book = AnyonesBook


# ---- a line that nobody keeps


class CrowdBook(LockState):
    """Whoever comes first when it is free has it."""

    def _ahead(self, nonce: str) -> int:
        return 0


class CrowdVault(SimulatedStore):
    book = CrowdBook


# ---- a waiter that only listens


class Listener(Waiter):
    """It is called when the lock is released, and never looks by itself."""

    def refused(self, answer: Refused, now: float, *, watch: bool = True) -> None:
        super().refused(answer, now, watch=watch)
        self.look_at = NEVER


class ListenersSite(NodeSite):
    def waiter(self) -> Waiter:
        made = super().waiter()
        return Listener(made.nonce, self.again)


class ListenersLock(WatchedStoreLock):
    """Nor does it look when a notice is due."""

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        return await super().wait(ask, ask.deadline)


class ListenersParty(NodeProgram):
    site_class = ListenersSite
    lock_class = ListenersLock


# ---- a guard that learns of a successor only by its write


class LateGuard(Data):
    advances = False


# ---- a mark that is used again after it was given up


class ReusingLock(WatchedStoreLock):
    """Its first tries had no answer, and were undone: it goes on waiting under the same mark."""

    async def _undone(self, waiter: Waiter, error: Exception, until: float) -> Unknown | None:
        unknown = await super()._undone(waiter, error, until)
        if unknown is None:
            self.site.used = waiter  # type: ignore[attr-defined]
        return unknown


class ReusingSite(NodeSite):
    used: Waiter | None = None

    def waiter(self) -> Waiter:
        used, self.used = self.used, None
        return used or super().waiter()


class ReusingParty(NodeProgram):
    site_class = ReusingSite
    lock_class = ReusingLock


def kept_by(rule: type[LockState]) -> type[SimulatedStore]:
    """A store with another rule."""
    return type(rule.__name__, (SimulatedStore,), {"book": rule})


# ---- readers and writers


class HeadCount(LockState):
    """Heads are counted, and not their weights: a reader finds room beside a writer."""

    def _free(self) -> int:
        return self.capacity - len(self.holders)


class ReadersFirst(LockState):
    """A reader is let in beside readers, whoever waits."""

    def acquire(self, asked: Request) -> Given | Refused:
        return super().acquire(replace(asked, fair=False) if asked.shared else asked)


class StaysHeavy(LockState):
    """A writer that became a reader is told so, and is counted as a writer still."""

    def renew(self, asked: Renewal) -> bool:
        return super().renew(replace(asked, weight=None))


class EarlyToken(LockState):
    """A reader carries the token of the time at which it came, and not of that at which it got in.

    A writer may have been in between.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: dict[str, int | None] = {}

    def acquire(self, asked: Request) -> Given | Refused:
        self.seen.setdefault(asked.nonce, self.token)
        return super().acquire(asked)

    def _let_in(self, asked: Request) -> HolderRow:
        holder = super()._let_in(asked)
        if asked.shared:
            holder.token = self.seen[asked.nonce]
        return holder


class StillWriting(NodeProgram):
    """A writer that got no answer to its downgrade believes that nothing has happened."""

    async def _read_on(self, holder: SimulatedHolder) -> Any:
        found = await super()._read_on(holder)
        if isinstance(found, Unknown):
            self.judge.reads_on(holder, WRITE)
            await self._change(holder)
        return found


# ---- semaphores


class OneMore(LockState):
    """Greater instead of greater or equal."""

    def _free(self) -> int:
        return super()._free() + 1


class SlotByCount(LockState):
    """The slot is how many are in: taken, when another than the last one has left."""

    def _let_in(self, asked: Request) -> HolderRow:
        holder = super()._let_in(asked)
        holder.slot = len(self.holders) - 1
        return holder


class CountsEnded(LockState):
    """Whose lease has run out is not forgotten: each crash takes a permit for ever."""

    def _in(self, holder: HolderRow) -> bool:
        return True


class Counter(LockState):
    """A number that goes up and down: a release that comes twice, or late, is another's."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.were_in: set[str] = set()

    def _let_in(self, asked: Request) -> HolderRow:
        self.were_in.add(asked.nonce)
        return super()._let_in(asked)

    def release(self, nonce: str) -> bool:
        if nonce in self.were_in and self.holders and self._holder(nonce) is None:
            del self.holders[0]
        return super().release(nonce)


READERS = Scenario(ttl=10.0, nodes=5, hours=0.1, think=1.0, hold=2.0, shape="readwrite")
SEATS = Scenario(ttl=10.0, nodes=6, hours=0.1, think=1.0, hold=2.0, shape="semaphore", permits=3)


# ---- a store that lets in who waits without being asked again


class FromHearing(Waiter):
    """Its time begins when it hears of the grant, and not with its last request."""

    def handed(self, terms: Terms, now: float) -> Given | None:
        came = self.came
        super().handed(terms, now)
        self.since = now
        return None if came is None or self.doubt or came[0] != self._handoff_id else came[1]


class FromHearingSite(NodeSite):
    def waiter(self) -> Waiter:
        made = super().waiter()
        return FromHearing(made.nonce, self.again)


class FromHearingParty(NodeProgram):
    site_class = FromHearingSite


class AnyWord(Waiter):
    """Whatever it hears is taken for the answer to its last request."""

    def handed(self, terms: Terms, now: float) -> Given | None:
        if self.came is not None:
            self.came = self._handoff_id, self.came[1]
        return super().handed(terms, now)


class AnyWordSite(NodeSite):
    def waiter(self) -> Waiter:
        made = super().waiter()
        return AnyWord(made.nonce, self.again)


class AnyWordParty(NodeProgram):
    site_class = AnyWordSite


HANDING = Scenario(ttl=10.0, nodes=4, hours=0.1, think=1.0, hold=2.0, hands=True)


SHAPED = (
    Mutant(Subject("heads counted, not weights", store=kept_by(HeadCount)), (MUTEX,), READERS),
    Mutant(
        Subject("a reader before a writer in line", store=kept_by(ReadersFirst)), (ORDER,), READERS
    ),
    Mutant(
        Subject("a lightened writer stays counted", store=kept_by(StaysHeavy)),
        (STUCK,),
        replace(READERS, hours=0.5, hold=40.0, writers=0.5, downgrade=1.0),
    ),
    Mutant(
        Subject("a reader's token from when it came", store=kept_by(EarlyToken)),
        (GENERATION,),
        READERS,
    ),
    Mutant(
        Subject("a writer after an unanswered downgrade", StillWriting),
        (MUTEX,),
        replace(READERS, hours=0.3, loss=0.2, downgrade=1.0, timeout=0.5),
    ),
    Mutant(Subject("one permit more", store=kept_by(OneMore)), (PERMITS,), SEATS),
    Mutant(Subject("a slot by count", store=kept_by(SlotByCount)), (MUTEX,), SEATS),
    Mutant(
        Subject("ended seats counted", store=kept_by(CountsEnded)),
        (STUCK,),
        replace(SEATS, crash_every=60.0),
    ),
    Mutant(
        Subject("a counter for a semaphore", store=kept_by(Counter)),
        (MUTEX, PERMITS),
        replace(SEATS, pause=12.0, pause_every=60.0),
    ),
)

HANDED = (
    Mutant(
        Subject("handed over, counted from hearing of it", FromHearingParty),
        (MUTEX,),
        replace(HANDING, pause=12.0, pause_every=60.0),
    ),
    Mutant(
        Subject("handed over long ago", AnyWordParty),
        (MUTEX,),
        replace(
            HANDING,
            hours=0.3,
            ttl=8.0,
            hold=4.0,
            pause=9.0,
            pause_every=30.0,
            spike=0.3,
            spike_length=25.0,
            timeout=1.0,
        ),
    ),
)

BUSY = Scenario(ttl=10.0, nodes=4, hours=0.1, think=2.0, hold=2.0)

REDLOCK = Mutant(
    Subject("Redlock that does not subtract its time", FromTheLastParty, store=Servers),
    (MUTEX,),
    replace(BUSY, hold=8.0, spike=0.1, spike_length=6.0, timeout=7.0, cut=20.0, cut_every=60.0),
)

MUTANTS = (
    Mutant(
        Subject("lock_expiry < :now by clients' clocks", store=ClientsClock),
        (MUTEX,),
        replace(BUSY, skew=8.0),
    ),
    Mutant(
        Subject("deadline from the reply", FromReplyParty),
        (MUTEX,),
        replace(BUSY, hold=8.0, spike=0.1, spike_length=8.0, timeout=9.0, cut=20.0, cut_every=60.0),
    ),
    Mutant(
        Subject("no margin", adapt=without_margin),
        (MUTEX,),
        replace(BUSY, hold=8.0, drift=0.05, cut=20.0, cut_every=60.0),
    ),
    Mutant(
        Subject("renewal believed after the old deadline", CredulousParty),
        (RISEN,),
        replace(BUSY, pause=8.0, pause_every=60.0),
    ),
    Mutant(
        Subject("the clock not read after a renewal", OneLookParty),
        (RISEN,),
        replace(BUSY, hold=8.0, spike=0.1, spike_length=8.0, timeout=9.0),
    ),
    Mutant(
        Subject("token set back by a failover", store=BareCounterVault),
        (TOKEN,),
        replace(BUSY, failover_every=120.0, behind=5.0),
    ),
    Mutant(
        Subject("release without nonce", store=AnyonesVault),
        (MUTEX,),
        replace(BUSY, pause=12.0, pause_every=100.0),
    ),
    Mutant(
        Subject("no line", store=CrowdVault),
        (ORDER,),
        replace(BUSY, nodes=6, think=0.2, hold=0.5),
    ),
    Mutant(
        Subject("waiters that only listen", ListenersParty),
        (STUCK,),
        replace(BUSY, crash_every=200.0),
    ),
    Mutant(
        Subject("guard without advance", data=LateGuard),
        ("GUARDED LATE", "GUARDED LOST"),
        replace(BUSY, pause=12.0, pause_every=60.0),
    ),
    Mutant(
        Subject("a mark used again", ReusingParty),
        (MUTEX,),
        replace(BUSY, hours=0.3, hold=4.0, loss=0.2, twice=0.4, timeout=0.5),
    ),
    REDLOCK,
    *SHAPED,
    *HANDED,
)
