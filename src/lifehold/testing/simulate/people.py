"""Who holds a lock, as its program knows it, and who stands in line for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.rules import CLAIM
from ..history import READ, SLOT
from .shapes import slot_of, what_of

SLOW = 0.8 * CLAIM  # seconds: the store's clock may run fast

if TYPE_CHECKING:
    from ...core.renew import RenewalSchedule
    from ...store.engine import StoreLock
    from .node import Node
    from .wire import NodeWakeups


class SimulatedHolder:
    """One grant in the hands of a node's program."""

    __slots__ = (
        "asked_at",
        "fence",
        "life",
        "lock",
        "name",
        "node",
        "over",
        "serial",
        "slot",
        "tenure",
        "was_lost",
        "what",
    )

    def __init__(
        self, node: Node, lock: StoreLock, tenure: RenewalSchedule, serial: int, asked_at: float
    ) -> None:
        self.node, self.life, self.lock, self.tenure = node, node.life, lock, tenure
        self.name, self.serial, self.asked_at = lock.name, serial, asked_at
        self.was_lost = self.over = False
        self.what, self.slot = what_of(lock), slot_of(lock, tenure.grant)
        self.fence = self.name if self.slot is None else f"{self.name}#{self.slot}"

    def __str__(self) -> str:
        as_what = {READ: " reading", SLOT: f" in slot {self.slot}"}.get(self.what, "")
        return f"{self.node.name} by grant {self.serial}{as_what}"

    def believes(self) -> bool:
        """As `lease.check()` would answer now, by the node's own clock."""
        tenure = self.tenure
        if self.over or not self.life.alive or tenure.over:
            return False
        return self.lock.check(tenure.grant) is None


class SimulatedWaiter:
    """Who waits in line, and what had gone wrong when it came.

    `called_at`: by the store, if it has not asked again since.
    """

    __slots__ = (
        "called_at",
        "node_troubles",
        "nonce",
        "since",
        "store_troubles",
        "wakeups",
        "weight",
    )

    def __init__(
        self, nonce: str, weight: int, wakeups: NodeWakeups, store_troubles: int, since: float
    ) -> None:
        self.nonce, self.weight, self.wakeups, self.since = nonce, weight, wakeups, since
        self.node_troubles, self.store_troubles = wakeups.node.troubles, store_troubles
        self.called_at: float | None = None

    def slow(self, now: float) -> bool:
        """It was called, and its way was so long that others may go past."""
        return self.called_at is not None and now - self.called_at > SLOW

    def well(self, store_troubles: int) -> bool:
        """It waits still, and nothing has gone wrong since it came, nor was wrong then."""
        node = self.wakeups.node
        return (
            self.wakeups.waits(self.nonce)
            and node.troubles == self.node_troubles
            and not (node.pauses or node.cuts_in or node.cuts_out)
            and self.store_troubles == store_troubles
        )
