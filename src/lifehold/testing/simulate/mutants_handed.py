"""Known-bad rules of a store that lets in who waits without being asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.value import replace
from ...store.waiter import Waiter
from .mutant import Mutant
from .outcome import Subject
from .party import Party
from .scenario import Scenario
from .shapes import MUTEX
from .wire import NodeSite

if TYPE_CHECKING:
    from ...core.backend import Given
    from ...core.deadline import Terms


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


class FromHearingParty(Party):
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


class AnyWordParty(Party):
    site_class = AnyWordSite


HANDING = Scenario(ttl=10.0, nodes=4, hours=0.1, think=1.0, hold=2.0, hands=True)

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

__all__ = ["HANDED"]
