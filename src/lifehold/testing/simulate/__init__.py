"""The shipped lease engine under a virtual clock: nodes, a store, a network, and what goes wrong.

    from lifehold.testing.simulate import Scenario, simulate

    outcome = simulate(Scenario(ttl=10, nodes=5, pause=12, pause_every=300), seed=1)
    assert outcome.lost and outcome.data["plain late"] and not outcome.counts.get("GUARDED LATE")

Promise: `StoreLock`, `Waiter`, `core.acquire` and `core.renew` are those of the library; the store
decides by `store/rules.py`. Time, chance, network and machines are the simulator's, and come from
one seed: the same seed twice is equal to the byte. It is a search by chance and no proof.
"""

from .outcome import SHIPPED, Outcome, Subject
from .run import SimulationRun, simulate
from .scenario import Fault, Scenario
from .verdict import shrunk

__all__ = [
    "SHIPPED",
    "Fault",
    "Outcome",
    "Scenario",
    "SimulationRun",
    "Subject",
    "shrunk",
    "simulate",
]
