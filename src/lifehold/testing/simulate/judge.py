"""Who watches a run from outside, by true time, and what may not have been.

Promise: nothing is asked of the lock but its own `check`. At every instant at which somebody comes
to believe that it holds (a grant, a renewal, a wake-up, a look of the program) all who believe so
are counted, each by its own clock.

    MUTEX         two believe at once
    RISEN         a lease that its holder had seen as lost counts as held again
    TOKEN         a token that is not above all that were given out before, lost history included
    ORDER         somebody was overtaken in line who was well all the time
    STUCK         the lock is free, somebody in line is well, and for long nothing happens
    PLAIN LATE, PLAIN LOST       a late write landed, an update was lost: without a guard
    GUARDED LATE, GUARDED LOST   the same at the data that compares tokens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.value import value
from ...store.turn import PATIENCE

if TYPE_CHECKING:
    from ...core.renew import Tenure
    from ...core.storage import Given, Refused, Request
    from ...store.engine import StoreLock
    from .node import Node
    from .vault import Vault
    from .wire import Bells
    from .world import World

MUTEX, RISEN, TOKEN, ORDER, STUCK = "MUTEX", "RISEN", "TOKEN", "ORDER", "STUCK"
GUARDED = ("GUARDED LATE", "GUARDED LOST")
PLAIN = ("PLAIN LATE", "PLAIN LOST")
EVERY = 5.0  # seconds between two looks at locks that are free
LONG = 2 * PATIENCE  # seconds after which every dead place is forgotten, and somebody has looked
JUST_AFTER = 1e-5  # seconds
FEW = 20  # violations of a kind that are kept in words


@value
class Violation:
    """What may not have been, when, and who was in it."""

    kind: str
    at: float
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.kind} {self.name}: {self.text}"


class Holder:
    """One grant in the hands of a node's program."""

    __slots__ = ("asked_at", "life", "lock", "name", "node", "over", "serial", "tenure", "was_lost")

    def __init__(
        self, node: Node, lock: StoreLock, tenure: Tenure, serial: int, asked_at: float
    ) -> None:
        self.node, self.life, self.lock, self.tenure = node, node.life, lock, tenure
        self.name, self.serial, self.asked_at = lock.name, serial, asked_at
        self.was_lost = self.over = False

    def believes(self) -> bool:
        """As `lease.check()` would answer now, by the node's own clock."""
        tenure = self.tenure
        if self.over or not self.life.alive or tenure.over:
            return False
        return self.lock.check(tenure.grant) is None


class Place:
    """Who waits in line, and what had gone wrong when it came."""

    __slots__ = ("bells", "mark", "node_troubles", "since", "store_troubles")

    def __init__(self, mark: str, bells: Bells, store_troubles: int, since: float) -> None:
        self.mark, self.bells, self.since = mark, bells, since
        self.node_troubles, self.store_troubles = bells.node.troubles, store_troubles

    def well(self, store_troubles: int) -> bool:
        """It waits still, and nothing has gone wrong since it came, nor was wrong then."""
        node = self.bells.node
        return (
            self.bells.waits(self.mark)
            and node.troubles == self.node_troubles
            and not (node.pauses or node.cuts_in or node.cuts_out)
            and self.store_troubles == store_troubles
        )


class Judge:
    """`bells`: of all nodes, by name."""

    def __init__(self, world: World, vault: Vault, bells: dict[str, Bells], *, fair: bool) -> None:
        self.world, self.vault, self.fair, self._bells = world, vault, fair, bells
        self.found: list[Violation] = []
        self.counts: dict[str, int] = {}
        self.serials: dict[tuple[str, int | None], int] = {}
        self.grants = self.lost = self.store_troubles = 0
        self.recoveries: list[float] = []
        self.waits: list[float] = []
        self.turns: dict[str, int] = {}
        self.holders: dict[str, list[Holder]] = {}
        self._top: dict[str, int] = {}
        self._lines: dict[str, dict[str, Place]] = {}
        self._crashes: dict[str, float] = {}
        self._pairs: set[tuple[int, ...]] = set()
        self._free: dict[str, float] = {}  # since when nobody is in
        world.after(EVERY, self._looks_again)
        vault.granted, vault.stood, vault.left = self._granted, self._stood, self._left

    def wrong(self, kind: str, name: str, text: str) -> None:
        """One violation more."""
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        self.world.log(f"!! {kind} {name} {text}")
        if count <= FEW:
            self.found.append(Violation(kind, self.world.now, name, text))

    # ---- at the store

    def _granted(self, asked: Request, given: Given) -> None:
        key = (asked.mark, given.token)
        if key in self.serials:
            return  # asked again: the same grant
        self.grants += 1
        self.serials[key] = self.grants
        self.world.log(f"grant {self.grants} of {asked.name} to {asked.mark}")
        top = self._top.get(asked.name, 0)
        if given.token is not None:
            if given.token <= top:
                self.wrong(TOKEN, asked.name, f"{given.token} after {top}")
            self._top[asked.name] = max(top, given.token)
        line = self._lines.setdefault(asked.name, {})
        for mark, place in line.items():
            if mark == asked.mark:
                break
            if self.fair and place.well(self.store_troubles):
                self.wrong(ORDER, asked.name, f"{asked.mark} came before {mark}")
        line.pop(asked.mark, None)

    def _stood(self, asked: Request, _: Refused) -> None:
        if asked.wait:
            line = self._lines.setdefault(asked.name, {})
            bells = self._bells[asked.bell.partition(":")[0]]
            if asked.mark not in line:
                line[asked.mark] = Place(
                    asked.mark, bells, self.store_troubles, self.world.now
                )  # fmt: skip

    def _left(self, name: str, mark: str) -> None:
        self._lines.get(name, {}).pop(mark, None)

    def failed_over(self) -> None:
        """The line is now what the standby knows of it, and nobody of those in it is well."""
        for name, book in self.vault.books.items():
            line = self._lines[name] = {}
            for place in book.line:
                bells = self._bells[place.bell.partition(":")[0]]
                line[place.mark] = Place(place.mark, bells, self.store_troubles, self.world.now)
        self.store_troubles += 1

    def _looks_again(self) -> None:
        """Now and then: whether a lock is free though somebody waits for it."""
        now = self.world.now
        self.world.after(EVERY, self._looks_again)
        for name, line in self._lines.items():
            if not line or self.vault.down or not self.vault.free(name):
                self._free.pop(name, None)
                continue
            since = self._free.setdefault(name, now)
            waits = [place for place in line.values() if place.well(self.store_troubles)]
            if now - since >= LONG and any(now - place.since >= LONG for place in waits):
                self.wrong(STUCK, name, f"free since {since:.0f} s, and {len(waits)} wait")
                self._free[name] = now

    # ---- at the holders

    def serial(self, mark: str, token: int | None) -> int:
        """The number of a grant, in the order in which the store gave them."""
        return self.serials[mark, token]

    def entered(self, holder: Holder) -> None:
        """Somebody has a grant in hand."""
        name, now = holder.name, self.world.now
        others = self.holders.setdefault(name, [])
        others[:] = [other for other in others if not other.over and other.life.alive]
        others.append(holder)
        self.turns[holder.node.name] = self.turns.get(holder.node.name, 0) + 1
        self.waits.append(now - holder.asked_at)
        crashed = self._crashes.pop(name, None)
        if crashed is not None and holder.asked_at <= crashed:
            self.recoveries.append(now - crashed)
        self.look(name)
        self.awaits(holder)

    def renewed(self, name: str, nonce: str) -> None:
        """An answer to a renewal has come, and was believed or not."""
        self.look(name)
        for holder in self.holders.get(name, ()):
            if holder.tenure.grant.nonce == nonce and not holder.over:
                self.awaits(holder)

    def awaits(self, holder: Holder) -> None:
        """Look again right after its present deadline, be it paused or not: RISEN needs that."""
        node = holder.node
        left = max(0.0, holder.tenure.deadline - node.now()) / node.rate
        self.world.after(left + JUST_AFTER, lambda: self.look(holder.name))

    def leaves(self, holder: Holder) -> None:
        """Its program has done its work, or has seen that the lease is lost."""
        self.look(holder.name)
        self.lost += not holder.believes()

    def look(self, name: str) -> None:
        """Who believes to hold it, now."""
        believers = []
        for holder in self.holders.get(name, ()):
            if holder.believes():
                believers.append(holder)
                if holder.was_lost:
                    self.wrong(RISEN, name, f"grant {holder.serial} of {holder.node.name}")
                    holder.was_lost = False  # told once
            else:
                holder.was_lost = True
        pair = tuple(each.serial for each in believers)
        if len(pair) > 1 and pair not in self._pairs:  # each pair once
            self._pairs.add(pair)
            who = ", ".join(f"{each.node.name} by grant {each.serial}" for each in believers)
            self.wrong(MUTEX, name, who)

    def look_at(self, node: Node) -> None:
        """At all that a node holds."""
        for holder in self.held_by(node):
            self.look(holder.name)

    def held_by(self, node: Node) -> list[Holder]:
        """What it has in hand, lost or not."""
        return [
            holder
            for held in self.holders.values()
            for holder in held
            if holder.node is node and not holder.over and holder.life.alive
        ]

    def crashed(self, node: Node) -> None:
        """Before its process ends."""
        for holder in self.held_by(node):
            if holder.believes():
                self._crashes[holder.name] = self.world.now
