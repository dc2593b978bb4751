"""The renewal of a lease: one beat, and the loop over beats.

Promise: a lease counts as renewed only when the clock, read *after* the renewal, is still before
the *old* deadline; once that has passed it is lost, whatever the storage says, and stays lost.
Rule that keeps it: the holder's deadline lies a margin before anybody else may take over, and who
takes over looks at the record last (L8). A renewal that lands after that look therefore lands after
the old deadline, and does not count. Without the second look at the clock two would hold
(facts of the explorer: a late write, believed by its writer).
Written once over `Mechanism.renew` and a `Runtime`: the heartbeat thread, a virtual clock and the
explorer play the same code.
"""

from __future__ import annotations

from . import events
from .deadline import NEVER
from .grant import Grant, Lost, Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .deadline import Terms
    from .ports import Keeping, Mechanism, Runtime

RETRIES = 4  # tries in one heartbeat, while the storage gives no answer


class RenewalSchedule:
    """One leased grant, from its acquisition to its end.

    `grant`: as last renewed, with its deadline; `over`: released or lost; `reason`: why it is lost;
    `lose(reason)` is called by whoever notices.
    """

    __slots__ = ("grant", "lose", "over", "reason", "renewals", "suspended", "terms")

    def __init__(self, grant: Grant, terms: Terms, lose: Callable[[str], object]) -> None:
        assert grant.deadline is not None
        self.grant, self.terms, self.lose = grant, terms, lose
        self.over = self.suspended = False
        self.reason: str | None = None
        self.renewals = 0

    @property
    def deadline(self) -> float:
        """The instant at which the holder must stop."""
        return self.grant.deadline or 0.0

    def is_over(self) -> bool:
        """`over`, asked anew: another thread may have released it meanwhile."""
        return self.over

    def late(self, now: float) -> bool:
        """Whether the deadline has come. It is lost then; no storage is asked."""
        if now < self.deadline:
            return False
        self.end(f"its ttl of {self.terms.ttl:g} s has passed without a renewal")
        return True

    def end(self, reason: str) -> None:
        """Lost. What was told first stays."""
        if self.reason is None:
            self.reason = reason
        self.over = True
        self.lose(self.reason)


async def beat(mechanism: Keeping, runtime: Runtime, tenure: RenewalSchedule) -> float:
    """Renew once. The instant of the next beat, NEVER when there is none to come."""
    grant, began = tenure.grant, runtime.now()
    if tenure.over or tenure.late(began):
        return NEVER
    answer: Grant | Lost | Unknown
    try:
        answer = await mechanism.renew(grant)
    except Exception as error:  # noqa: BLE001 - the storage failed: our deadline has not come
        answer = Unknown(grant.nonce, error)
    return concluded(tenure, answer, began, runtime.now())


def concluded(
    tenure: RenewalSchedule, answer: Grant | Lost | Unknown, began: float, now: float
) -> float:
    """What a renewal that was sent at `began` means at `now`. The instant of the next beat."""
    grant = tenure.grant
    if tenure.is_over() or tenure.late(now):  # L8  by the old deadline: others counted from it
        return NEVER
    if isinstance(answer, Grant):
        tenure.grant, tenure.suspended = answer, False
        tenure.renewals += 1
        if events.listeners:
            events.tell(events.Renewed(grant.name, grant.nonce, tenure.deadline - now))
        return began + tenure.terms.heartbeat
    if isinstance(answer, Lost):
        if answer.gone:
            tenure.end(answer.reason)
        tenure.over = True
        return NEVER
    if not tenure.suspended:
        tenure.suspended = True
        events.tell(events.Suspended(grant.name, grant.nonce, tenure.deadline - now))
    return now + tenure.terms.heartbeat / RETRIES


async def keep(mechanism: Mechanism, runtime: Runtime, tenure: RenewalSchedule) -> None:
    """Renew until it is over, in a task or thread of its own, or on a virtual clock."""
    at = runtime.now() + tenure.terms.heartbeat
    while at < NEVER:
        await runtime.sleep(max(0.0, min(at, tenure.deadline) - runtime.now()))
        at = await beat(mechanism, runtime, tenure)
