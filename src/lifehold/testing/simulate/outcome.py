"""What is under test, and what came of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.value import value
from .data import Data
from .party import Party
from .vault import Vault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..history import Turn
    from .judge import Violation
    from .scenario import Fault, Scenario


@value
class Subject:
    """What is under test: the shipped engine, or one with a part that is known to be bad."""

    name: str = "shipped"
    party: type[Party] = Party
    vault: type[Vault] = Vault
    data: type[Data] = Data
    adapt: Callable[[Scenario], Scenario] = lambda plan: plan


SHIPPED = Subject()


@value
class Outcome:
    """What came of a run.

    `counts`: violations by kind; `found`: some of each in words; `digest`: of the whole log;
    `pauses`: those that met a holder, `lost`: of these, those that lost it its lease; `losses`:
    turns that ended with a lost lease, for whatever reason; `crashes`: of holders; `recoveries`:
    seconds from the crash of a holder to the next grant of who waited; `waits`: seconds, of all
    grants; `commands`: at the store; `wakes`: waiters that were called; `data`: see data.py;
    `network`: messages lost, late, twice; `history`: the turns of each name, as
    `lifehold.testing.history` judges them; `wall`: seconds that the run took.
    """

    scenario: Scenario
    seed: int
    subject: str
    digest: str
    events: int
    grants: int
    counts: Mapping[str, int]
    found: tuple[Violation, ...]
    faults: tuple[Fault, ...]
    pauses: int
    lost: int
    losses: int
    crashes: int
    recoveries: tuple[float, ...]
    waits: tuple[float, ...]
    turns: Mapping[str, int]
    commands: Mapping[str, int]
    wakes: int
    data: Mapping[str, int]
    network: Mapping[str, int]
    history: Mapping[str, tuple[Turn, ...]]
    lines: tuple[str, ...]
    wall: float
