"""What a store knows of a holder, in the words that people read."""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.grant import Holder
from ..core.liveness import DEAD
from ..core.storage import WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.liveness import Verdict
    from ..core.storage import Seat


STEP = 1.0  # seconds that a clock may be set back before that is told


def as_holder(seat: Seat, lock: str, found: Verdict | None = None) -> Holder:
    """A holder, of whom the lease alone says that it lives: another host's process is not seen.

    `found`: what was found out about its process, where it can be.
    """
    nonce = f"{seat.mark}-{'-' if seat.token is None else seat.token}"
    alive, evidence = "unknown", f"its lease of {seat.ttl:g} s is not over for certain"
    if seat.ends_in is not None:
        times = "once" if seat.renewals == 1 else f"{seat.renewals} times"
        if seat.ends_in > seat.ttl + seat.delay + STEP:
            evidence = (
                "the store's clock was set back since its lease was renewed, so it may be dead: "
                f"the lease ends {seat.ttl + seat.delay:g} s after somebody asks for the lock"
            )
        elif seat.ends_in > 0:
            alive = "alive"
            evidence = f"its lease has {seat.ends_in:.1f} s left, renewed {times}"
        else:
            alive, evidence = "dead", f"its lease of {seat.ttl:g} s has run out"
    if found is not None and found.state == DEAD:
        alive, evidence = DEAD, found.evidence
    return Holder(
        seat.owner, seat.acquired_at, alive, evidence, seat.token, nonce, lock,
    )  # fmt: skip


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
