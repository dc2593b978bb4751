"""How much faster or slower the store's clock runs than ours."""

from __future__ import annotations

LEAST = 1.0  # seconds between two measurements: a shorter stretch measures the network


class Drift:
    """Measured at each renewal. `percentage`: None until two renewals are far enough apart.

    Positive: the store's clock runs fast, so leases end early there; a margin of ttl/10 outlasts
    10 %. `lease_drift_percentage` in metrics is this number.
    """

    __slots__ = ("_began", "percentage", "steps")

    def __init__(self) -> None:
        self._began: tuple[float, float, float] | None = None
        self.percentage: float | None = None
        self.steps = 0  # how often the store's clock was seen to stand still or go backwards

    def note(self, there: float | None, sent_at: float, came_at: float) -> None:
        """One reading of the store's clock, somewhere between two instants of ours."""
        if there is None:
            return
        here, width = (sent_at + came_at) / 2, came_at - sent_at
        if self._began is None:
            self._began = there, here, width
            return
        began_there, began_here, began_width = self._began
        ours = here - began_here
        if ours < max(LEAST, 20 * (width + began_width)):
            if there < began_there:
                self.steps += 1
                self._began = there, here, width
            return
        if there < began_there:
            self.steps += 1
        else:
            self.percentage = (there - began_there - ours) / ours * 100
        self._began = there, here, width
