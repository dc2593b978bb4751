"""Known-bad rules: a simulator that does not find them proves nothing.

Each is the shipped engine with one part changed, the scenario in which it goes wrong, and the kind
of violation that must be found within some seeds, while the shipped one shows none of that kind in
the same scenario and the same seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.deadline import NEVER
from ...core.grant import Grant
from ...core.renew import Tenure
from ...core.value import replace
from ...store.rules import LockState
from ...store.waiter import Waiter
from ..history import TOKEN
from .data import Data
from .judge import ORDER, RISEN, STUCK
from .mutant import Mutant
from .mutants_handed import HANDED
from .mutants_shapes import SHAPED
from .outcome import SHIPPED, Subject
from .party import Party, Watched
from .scenario import Scenario
from .shapes import MUTEX
from .vault import Vault
from .wire import NodeSite

if TYPE_CHECKING:
    from ...core.acquire import Ask
    from ...core.backend import Given, Refused
    from ...core.grant import Held, Lost, Unknown


# ---- `lock_expiry < :now`: who asks brings the time along, and clocks of clients are compared


class ClientsClock(Vault):
    """A conditional write whose `:now` comes from the client, as the rule is often written down."""

    def _at(self, name: str, sent: float) -> LockState:
        return super()._at(name, sent).at(sent, "", int(self.now() * 1e6))


# ---- a deadline that counts from the reply


class FromReply(Watched):
    """The holder's time begins when the answer is there, and not when the request was sent."""

    def _grant(self, waiter: Waiter, answer: Given, sent_at: float) -> Grant:
        return super()._grant(waiter, answer, self.now())

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        answer: Any = await super().renew(grant)
        if isinstance(answer, Grant):
            return replace(answer, deadline=self.terms.deadline(self.now()))
        return answer  # type: ignore[no-any-return]


class FromReplyParty(Party):
    lock_class = FromReply


# ---- no margin


def without_margin(plan: Scenario) -> Scenario:
    """As good as none: the holder believes for its whole ttl, by its own clock."""
    return replace(plan, margin=1e-6)


# ---- a renewal that is believed after the old deadline


class Credulous(Tenure):
    """What is lost by its deadline is held again when the store says so."""

    def late(self, now: float) -> bool:
        return False


class CredulousParty(Party):
    tenure_class = Credulous


class OneLook(Tenure):
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


class OneLookParty(Party):
    tenure_class = OneLook


# ---- a token that a failover sets back


class BareCounter(LockState):
    """The last token and one, without the clock: the standby does not know the last ones."""

    def _next(self) -> int:
        return (self.token or 0) + 1


class BareCounterVault(Vault):
    book = BareCounter


# ---- a release that does not say whose


class AnyonesBook(LockState):
    """Release deletes the key, whoever holds it."""

    def release(self, nonce: str) -> bool:
        if not any(place.nonce == nonce for place in self.queue):
            self.holders.clear()
        return super().release(nonce)


class AnyonesVault(Vault):
    book = AnyonesBook


# ---- a line that nobody keeps


class CrowdBook(LockState):
    """Whoever comes first when it is free has it."""

    def _ahead(self, nonce: str) -> int:
        return 0


class CrowdVault(Vault):
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


class ListenersLock(Watched):
    """Nor does it look when a notice is due."""

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        return await super().wait(ask, ask.deadline)


class ListenersParty(Party):
    site_class = ListenersSite
    lock_class = ListenersLock


# ---- a guard that learns of a successor only by its write


class LateGuard(Data):
    advances = False


# ---- a mark that is used again after it was given up


class ReusingLock(Watched):
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


class ReusingParty(Party):
    site_class = ReusingSite
    lock_class = ReusingLock


BUSY = Scenario(ttl=10.0, nodes=4, hours=0.1, think=2.0, hold=2.0)

MUTANTS = (
    Mutant(
        Subject("lock_expiry < :now by clients' clocks", vault=ClientsClock),
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
        Subject("token set back by a failover", vault=BareCounterVault),
        (TOKEN,),
        replace(BUSY, failover_every=120.0, behind=5.0),
    ),
    Mutant(
        Subject("release without nonce", vault=AnyonesVault),
        (MUTEX,),
        replace(BUSY, pause=12.0, pause_every=100.0),
    ),
    Mutant(
        Subject("no line", vault=CrowdVault),
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
    *SHAPED,
    *HANDED,
)

__all__ = ["MUTANTS", "SHIPPED", "Mutant"]
