"""Growing, jittered pauses, for kinds of lock that have no kernel queue and no event to wait on."""

from __future__ import annotations

from .errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Backoff:
    """How long to pause between two tries.

    `first` seconds, times `growth` each time, at most `longest`.

    Each pause is drawn from [1 - jitter, 1] of its length, so that many waiters do not come back
    together. `random` gives numbers in [0, 1) and can be replaced in tests.
    """

    __slots__ = ("first", "growth", "jitter", "longest", "random")

    def __init__(
        self,
        first: float = 0.002,
        longest: float = 0.25,
        *,
        growth: float = 2.0,
        jitter: float = 0.5,
        random: Callable[[], float] | None = None,
    ) -> None:
        if not 0 < first <= longest:
            raise InvalidArgument(
                f"Backoff needs 0 < first <= longest, in seconds, not {first!r}, {longest!r}"
            )
        if not growth >= 1:
            raise InvalidArgument(f"growth must be 1 or more, not {growth!r}")
        if not 0 <= jitter <= 1:
            raise InvalidArgument(f"jitter must lie in 0 ... 1, not {jitter!r}")
        self.first, self.longest, self.growth, self.jitter = first, longest, growth, jitter
        self.random = random

    def pauses(self) -> Iterator[float]:
        """The pauses of one wait, in seconds, without end."""
        random = self.random or _system_random()
        pause = self.first
        while True:
            yield pause * (1 - self.jitter * random())
            pause = min(pause * self.growth, self.longest)

    def __repr__(self) -> str:
        return f"Backoff({self.first}, {self.longest}, growth={self.growth}, jitter={self.jitter})"


def _system_random() -> Callable[[], float]:
    from random import random  # on demand: its import takes some milliseconds

    return random
