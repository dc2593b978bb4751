"""What can be asked of a name in a store without getting in, and what an operator may order."""

from __future__ import annotations

from ..core.errors import StoreUnavailable
from ..core.grant import Holder
from ..core.storage import WHOLE
from .claim import Slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.deadline import Terms
    from ..core.grant import Grant
    from ..core.ports import Runtime
    from ..core.storage import Refused
    from .site import Site

FRESH = 1.0  # seconds for which a refusal says enough of who holds it
AWAY = "as far as is known: the store does not answer ({})"
KEPT = "let go of just now, and kept for one who has waited longer"


class Known:
    """The half of a store's lock that looks. `StoreLock` (engine.py) is the other."""

    kind = "store"
    remote = True  # an event loop awaits it, and never calls it

    def __init__(
        self, site: Site, name: str, runtime: Runtime, terms: Terms, *, label: str = "",
        capacity: int = 1, weight: int = 1, shared: bool = False, fair: bool = True,
        delay: float = 0.0,
    ) -> None:  # fmt: skip
        self.site, self.name, self.runtime, self.terms = site, name, runtime, terms
        self.label, self.capacity, self.weight, self.shared = label, capacity, weight, shared
        self.fair, self.delay = fair, delay
        self.exclusive, self.slotted = weight == capacity, weight == 1 < capacity < WHOLE
        self.permits = capacity
        self.path = site.address(name)
        self.now = runtime.now
        self._seen: tuple[Refused, float] | None = None
        self._away: Exception | None = None  # why the last request had no answer

    @property
    def joint(self) -> object:
        """What renews it, together with all other leases of the store."""
        return self.site.joint

    def far(self) -> bool:
        """Its calls may take their time, as on another machine."""
        return True

    def key(self, slot: int) -> str:
        """What is locked: of a semaphore, one slot of it, which no name of a lock can be."""
        return f"{self.path}\n{slot}" if self.slotted else self.path

    @property
    def slots(self) -> list[Slot]:
        """Of a semaphore."""
        return [Slot(self.key(number)) for number in range(self.permits)]

    def slot_of(self, grant: Grant) -> int:
        """Which slot of a semaphore a grant has."""
        return int(str(grant.key).rpartition("\n")[2])

    # ---- looking

    def inspect(self, *, held: bool = False) -> Holder | None:
        if held:
            return self._in_the_way()
        state = self.site.state(self.name)
        return self.site.holder(state.seats[0], self.name) if state and state.seats else None

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
        if not seen.seats:
            return Holder(evidence=KEPT, lock=self.path)
        return self.site.holder(seen.seats[0], self.name)

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
        return sum(seat.weight for seat in state.seats) + self.weight > state.capacity

    def break_(self, reason: str) -> Holder | None:
        """Take the lock from its holders, who are told at their next renewal; who that was."""
        return self.site.break_(self.name, reason)
