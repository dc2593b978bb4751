"""What an operator is told of a store: what was looked at, and what a migration did."""

from __future__ import annotations

from ..core.value import value

GOOD, NOTE, BAD = "good", "note", "bad"
UNPROVEN = "unproven"  # for doctor, where store check says NOTE: a crash may lose a lease


@value
class StoreFinding:
    """One thing that was looked at. `verdict`: GOOD; NOTE, it works and has to be known; BAD."""

    what: str
    verdict: str
    why: str


@value
class Checked:
    """A store as one role finds it. `version`: of its tables, 0 where there are none."""

    url: str
    version: int
    newest: int
    findings: tuple[StoreFinding, ...]
    sentences: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether leases can be taken there by who asked."""
        return all(each.verdict != BAD for each in self.findings)


@value
class Migrated:
    """The version of the tables before and after; 0: there were none."""

    url: str
    before: int
    after: int
