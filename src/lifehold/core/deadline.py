"""The only arithmetic on time.

Instants are seconds of the runtime's monotonic clock, which counts suspend.

L8  A lease holder's own deadline lies a margin before the instant at which anyone else may take
    over, and it is counted from the moment of *sending* the request: a slow reply shortens our
    lease, never theirs.
"""

from __future__ import annotations

from .errors import InvalidArgument

NEVER = float("inf")
LONGEST = 100 * 365 * 86400.0  # seconds; what is longer is a mistake of units


def deadline_of(wait: float | None, now: float) -> float:
    """The instant at which a caller's patience ends; NEVER for None, `now` for 0."""
    return NEVER if wait is None else now + wait


def lease_deadline(sent_at: float, ttl: float, margin: float) -> float:
    """The instant at which the holder must stop, for a request sent at `sent_at` (L8)."""
    return sent_at + ttl - margin


def default_margin(ttl: float) -> float:
    """Seconds by which a holder stops before its lease runs out."""
    return max(ttl / 10, 0.25)


def seconds(what: str, given: object, *, zero: bool = True) -> float | None:
    """`given` as seconds, None for None.

    Raises InvalidArgument for anything that is not a length of time.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InvalidArgument(
            f"{what} must be a number of seconds or None, not {type(given).__name__} {given!r}"
        )
    if not 0 <= given <= LONGEST or (given == 0 and not zero):  # also catches NaN and infinity
        least = "0 or more" if zero else "more than 0"
        raise InvalidArgument(f"{what} must be {least} and finite, in seconds, not {given!r}")
    return float(given)
