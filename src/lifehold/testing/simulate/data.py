"""What the lock protects: one row per name, written with and without a guard, in the same run.

Promise: every write that arrives is judged twice. The plain row takes it, whoever sends it. The
guarded row compares the token first, by the shipped rule (core/fence.py: `admit`), and remembers
the token of whoever *reads* as well, so that a late write is refused before its successor wrote.
A write is *late* when it lands after a later holder has read or written; it *loses* an update when
the row is another than the one it was worked out from. A read is *torn* when the row is another at
its end than at its beginning, and the reader held the lock all the while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.errors import StaleToken
from ...core.fence import admit
from ...core.value import value

if TYPE_CHECKING:
    from collections.abc import Callable


@value
class Sight:
    """What a holder read: the versions of both rows, None where the guard refused it."""

    plain: int
    guarded: int | None


class Row:
    """One row: its version, and the latest grant that has been here."""

    __slots__ = ("fence", "touched", "version")

    def __init__(self) -> None:
        self.version = self.touched = self.fence = 0


class Data:
    """`late(guarded, lost)`: told of each write that should not have landed, and how."""

    advances = True  # who reads shows its token first

    def __init__(self, found: Callable[[str, str, str], None]) -> None:
        self._found = found
        self._rows: dict[tuple[str, bool], Row] = {}
        self.counts = {
            "writes": 0,
            "plain late": 0,
            "plain lost": 0,
            "guarded late": 0,
            "guarded lost": 0,
            "refused": 0,
            "refused in vain": 0,
            "late unasked": 0,
            "late asked": 0,
            "reads": 0,
            "plain torn": 0,
            "guarded torn": 0,
        }

    def _row(self, name: str, guarded: bool) -> Row:
        row = self._rows.get((name, guarded))
        if row is None:
            row = self._rows[name, guarded] = Row()
        return row

    def read(self, name: str, token: int | None, serial: int) -> Sight:
        """By the holder of grant number `serial`."""
        plain, guarded = self._row(name, False), self._row(name, True)
        plain.touched = max(plain.touched, serial)
        if self.advances:
            try:
                guarded.fence = admit(name, token, guarded.fence)
            except StaleToken:
                return Sight(plain.version, None)
        guarded.touched = max(guarded.touched, serial)
        return Sight(plain.version, guarded.version)

    def peek(self, name: str, token: int | None) -> Sight:
        """By a reader, who changes nothing. Its token is that of the last writer before it."""
        self.counts["reads"] += 1
        row = self._row(name, True)
        try:
            fence = admit(name, token, row.fence)
        except StaleToken:
            return Sight(self._row(name, False).version, None)
        row.fence = fence if self.advances else row.fence
        return Sight(self._row(name, False).version, row.version)

    def torn(self, name: str, seen: Sight, now: Sight, serial: int) -> None:
        """A reader that held the lock all the time has looked twice. `serial`: of its grant."""
        for which in ("plain", "guarded"):
            before, after = getattr(seen, which), getattr(now, which)
            if before is not None and after is not None and before != after:
                self.counts[f"{which} torn"] += 1
                self._found(f"{which} torn".upper(), name, f"read by grant {serial}")

    def write(self, name: str, token: int | None, serial: int, seen: Sight, asked: bool) -> bool:
        """What was worked out from `seen` arrives. `asked`: the lease was looked at just before.

        Whether the guarded row took it.
        """
        self.counts["writes"] += 1
        plain = self._row(name, False)
        if self._land(name, plain, serial, seen.plain, "plain"):
            self.counts["late asked" if asked else "late unasked"] += 1
        row = self._row(name, True)
        try:
            row.fence = admit(name, token, row.fence)
        except StaleToken:
            self.counts["refused"] += 1
            if row.touched <= serial:  # no later holder has been here
                self.counts["refused in vain"] += 1
            return False
        if seen.guarded is None:
            self.counts["refused"] += 1  # its read was refused, and there was nothing to write
            return False
        self._land(name, row, serial, seen.guarded, "guarded")
        return True

    def _land(self, name: str, row: Row, serial: int, seen: int, which: str) -> bool:
        late, lost = row.touched > serial, row.version != seen
        row.version += 1
        row.touched = max(row.touched, serial)
        for wrong, kind in ((late, "late"), (lost, "lost")):
            if wrong:
                self.counts[f"{which} {kind}"] += 1
                self._found(f"{which} {kind}".upper(), name, f"grant {serial}")
        return late
