"""A known-bad rule, and where it must be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.value import value
from .run import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .outcome import Outcome, Subject
    from .scenario import Scenario


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
