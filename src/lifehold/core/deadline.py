"""The arithmetic on time: what a lease is held under, and the pauses between two looks.

Instants are seconds of the runtime's monotonic clock, which counts suspend.

L8  A lease holder's own deadline lies a margin before the instant at which anyone else may take
    over, and it is counted from the moment of *sending* the request: a slow reply shortens our
    lease, never theirs.
"""

from __future__ import annotations

from .errors import InvalidArgument, UnknownArgument
from .value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Never

NEVER = float("inf")
LONGEST = 100 * 365 * 86400.0  # seconds; what is longer is a mistake of units


def lease_deadline(sent_at: float, ttl: float, margin: float) -> float:
    """The instant at which the holder must stop, for a request sent at `sent_at` (L8)."""
    return sent_at + ttl - margin


def default_margin(ttl: float) -> float:
    """Seconds by which a holder stops before its lease runs out."""
    return max(ttl / 10, 0.25)


@value
class Terms:
    """What a lease is held under, all in seconds.

    `ttl`: after which others may take it from a silent holder; `heartbeat`: between two renewals;
    `margin`: by which the holder stops before its ttl is over.
    """

    ttl: float
    heartbeat: float
    margin: float

    def deadline(self, sent_at: float) -> float:
        """The instant at which the holder must stop, for a request sent at `sent_at` (L8)."""
        return lease_deadline(sent_at, self.ttl, self.margin)

    def at_most(self, ttl: float | None) -> Terms:
        """The same for a store that gave a shorter ttl: its heartbeat and margin shrink with it.

        L8  The deadline never counts on more than both sides have agreed to.
        """
        if ttl is None or ttl >= self.ttl:
            return self
        part = ttl / self.ttl
        return Terms(ttl, self.heartbeat * part, self.margin * part)


def terms(ttl: object, heartbeat: object = None, margin: object = None) -> Terms | None:
    """The terms of a lease, None without a ttl.

    Raises InvalidArgument for what cannot be kept.
    """
    length = seconds("ttl", ttl, zero=False)
    beat = seconds("heartbeat", heartbeat, zero=False)
    spare = seconds("margin", margin, zero=False)
    if length is None:
        if beat is not None or spare is not None:
            raise InvalidArgument("heartbeat= and margin= are those of a lease: give ttl= as well")
        return None
    beat = length / 3 if beat is None else beat
    spare = default_margin(length) if spare is None else spare
    if length < 3 * beat * (1 - 1e-9):
        raise InvalidArgument(
            f"ttl={length:g} is less than 3 heartbeats of {beat:g} s: a single late renewal would "
            f"lose the lease. Give ttl={3 * beat:g} or more, or heartbeat={length / 3:g} or less"
        )
    if spare >= length:
        raise InvalidArgument(
            f"a margin of {spare:g} s leaves nothing of ttl={length:g}: the holder would have to "
            f"stop before it began. Give ttl={spare * 10:g} or more, or margin={length / 10:g}"
        )
    if length - spare <= beat:
        raise InvalidArgument(
            f"ttl={length:g} less its margin of {spare:g} s is over before the first heartbeat "
            f"after {beat:g} s. Give a longer ttl, for example {max(1.0, spare * 10):g}"
        )
    return Terms(length, beat, spare)


def seconds(what: str, given: Any, *, zero: bool = True) -> float | None:
    """`given` as seconds, None for None.

    Raises InvalidArgument for anything that is not a length of time.
    """
    if given is None or given is TRY:
        return given
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InvalidArgument(
            f"{what} must be a number of seconds or None, not {type(given).__name__} {given!r}"
            f"{_instead(what, given)}"
        )
    if not 0 <= given <= LONGEST or (given == 0 and not zero):  # also catches NaN and infinity
        raise _no_length(what, given, zero)
    return float(given)


def _no_length(what: str, given: float, zero: bool) -> InvalidArgument:
    """The error for a number that is no length of time, or one that nobody means."""
    try:
        shown = repr(given)
    except ValueError:  # an int of more digits than Python writes
        shown = "a number of thousands of digits"
    shown = shown if len(shown) <= 40 else f"{shown[:20]}... of {len(shown)} digits"
    if given > 0 and given != NEVER:
        return InvalidArgument(
            f"{what} must be at most 100 years, {LONGEST:.0f} seconds, not {shown}: seconds are "
            f"meant{'; wait=None waits until the lock is ours' if what == 'wait' else ''}"
        )
    least = "0 or more" if zero else "more than 0"
    more = ": wait=None waits until the lock is ours" if what == "wait" else ""
    return InvalidArgument(f"{what} must be {least} and finite, in seconds, not {shown}{more}")


def _instead(what: str, given: object) -> str:
    if hasattr(given, "total_seconds"):
        return f": give {what}=that.total_seconds()"
    if what == "wait" and isinstance(given, bool):
        how = "None waits until the lock is ours" if given else "0 is one try"
        return f": wait={how}"
    if isinstance(given, str):
        try:
            return f": give {what}={float(given):g}" if 0 <= float(given) <= LONGEST else ""
        except ValueError:
            pass
    return ""


class OneTry(float):
    """`wait=0` of who needs no words for a refusal, as `try_acquire` does."""


TRY: OneTry = OneTry(0.0)


# ------------------------------------------------------------------------------------------------
# When one looks again, and when people are told.
#
# How the pause between two looks at a file grows: runtime/watch_table.py and change_wait.py.

# Seconds between two looks where neither an event nor the end of a lease will help: somebody is in
# the middle of a step, or goes by another rule than we do.
RETRY = 0.25
# Seconds of waiting until people are told so, and between two such notices at most: each gap is
# twice the one before. 2, 6, 14, 30, 62, 122 ...: of `Lock`, stores, `flock`, redis-py's locks.
FIRST_NOTICE, LONGEST_GAP = 2.0, 60.0


def next_gap(gap: float) -> float:
    """Seconds from one notice to the next, after a gap of so many: of whoever waits."""
    return max(gap, min(gap * 2, LONGEST_GAP))


class Backoff:
    """Growing, jittered pauses: how long to pause between two tries.

    `first` seconds, times `growth` each time, at most `longest`.

    Each pause is drawn from [1 - jitter, 1] of its length, so that many waiters do not come back
    together. `random` gives numbers in [0, 1) and can be replaced in tests.
    """

    __slots__ = ("first", "growth", "jitter", "longest", "random")

    def __init__(
        self,
        first: float = 0.002,
        longest: float = 0.25,
        *more: Never,
        growth: float = 2.0,
        jitter: float = 0.5,
        random: Callable[[], float] | None = None,
        **unknown: Never,
    ) -> None:
        if unknown or more:
            raise _strange_pauses(more, unknown)
        _length("first", first)
        _length("longest", longest)
        if not 0 < first <= longest <= LONGEST:
            raise InvalidArgument(
                f"Backoff needs 0 < first <= longest, in seconds, not {first!r}, {longest!r}"
            )
        if not 1 <= _length("growth", growth) < NEVER:
            raise InvalidArgument(f"growth must be 1 or more and finite, not {growth!r}")
        if not 0 <= _length("jitter", jitter) <= 1:
            raise InvalidArgument(f"jitter must lie in 0 ... 1, not {jitter!r}")
        if random is not None and not callable(random):
            raise InvalidArgument(
                f"random must be a function that gives numbers in [0, 1), not {random!r}: hand on "
                "random.random, not random.random()"
            )
        self.first, self.longest, self.growth, self.jitter = first, longest, growth, jitter
        self.random = random

    def pauses(self) -> Iterator[float]:
        """The pauses of one wait, in seconds, without end."""
        random = self.random or _system_random()
        pause = self.first
        while True:
            drawn = random()
            if not 0 <= _length("what random() gives", drawn) <= 1:
                raise InvalidArgument(f"random must give numbers in [0, 1), not {drawn!r}")
            yield pause * (1 - self.jitter * drawn)
            pause = min(pause * self.growth, self.longest)

    if not TYPE_CHECKING:

        def __iter__(self) -> Never:
            raise UnknownArgument(
                "a Backoff is not iterated itself: use .pauses(), one for each wait"
            )

        __next__ = __iter__

    def __repr__(self) -> str:
        return f"Backoff({self.first}, {self.longest}, growth={self.growth}, jitter={self.jitter})"


# What other libraries call it.
_ALIKE = {
    **dict.fromkeys("base initial start delay min minimum min_delay base_delay".split(), "first"),
    **dict.fromkeys("cap max maximum max_delay max_value limit".split(), "longest"),
    **dict.fromkeys("factor multiplier exponent exp_base rate".split(), "growth"),
    **dict.fromkeys("rng rand".split(), "random"),
}


def _strange_pauses(more: tuple[object, ...], unknown: dict[str, Never]) -> UnknownArgument:
    from .nearest import strange  # a call went wrong

    if unknown:
        known = "first", "longest", "growth", "jitter", "random"
        return strange("Backoff()", unknown, known, _ALIKE)
    given = ", ".join(map(repr, more))
    return UnknownArgument(
        f"Backoff() takes first, longest by position, and not {given}: name it, growth={more[0]!r}"
    )


def _length(what: str, given: object) -> float:
    """`given`, if it is a number. Raises InvalidArgument."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InvalidArgument(f"{what} must be a number, not {type(given).__name__} {given!r}")
    return given


def _system_random() -> Callable[[], float]:
    """Not `random.random`: those draws are the program's, which may have given them a seed."""
    from random import SystemRandom  # on demand: its import takes some milliseconds

    return SystemRandom().random
