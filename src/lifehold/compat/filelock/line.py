"""How a waiter for an SQLite lock stands in the kernel's queue instead of asking again and again.

SQLite locks bytes from 1 GiB on: PENDING, RESERVED, and 510 bytes SHARED. A reader has SHARED
locked for reading; a writer has all three for writing. A waiter takes the same locks in the same
order by fcntl(2), owned by an open file of its own, and so is woken by the release of whoever is
in its way. With them it is in front of everybody; then SQLite takes them. Before all of them comes
a byte that SQLite does not know of, TURN, which it keeps until SQLite has the lock.

Read      TURN, PENDING, SHARED for reading. SQLite takes its own beside these: no gap.
Write     TURN, RESERVED, then PENDING, which keeps new readers out, then SHARED, once the readers
          left. All but TURN are let go of for SQLite to take them. Who waits stays behind TURN;
          who comes just then may be faster, and is waited for again.

How it could fail, and what keeps it:
- Two waiters wait for each other: everybody takes them in this order, and SQLite never waits for
  the kernel, it gives back what it has and tries again.
- The file is replaced meanwhile: the path is looked at at the end, and it begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runtime import fork
from . import sheet as sheets
from .sheet import LENGTH, PENDING, READ, RESERVED, SHARED, WAIT, WRITE, Sheet, words

if TYPE_CHECKING:
    from typing import Any

    from ...core.acquire import Ask
    from ...local.handles import Descriptors

possible = sheets.ranges


class Range(int):
    """What `Runtime.block` is to stand in the queue for."""

    call = WAIT
    words: bytes

    @classmethod
    def of(cls, kind: int, start: int, length: int) -> Range:
        made = cls(0)
        made.words = words(kind, start, length)
        return made


TURN = PENDING - 1
READER = (
    Range.of(READ, TURN, 1),
    Range.of(READ, PENDING, 1),
    Range.of(READ, SHARED, LENGTH),
)
WRITER = (
    Range.of(WRITE, TURN, 1),
    Range.of(WRITE, RESERVED, 1),
    Range.of(WRITE, PENDING, 1),
    Range.of(WRITE, SHARED, LENGTH),
)


class Line:
    """The queue of one database and one side."""

    def __init__(self, path: str, runtime: Any, table: Descriptors, write: bool) -> None:
        self.path, self.runtime, self.table = path, runtime, table
        self._steps = WRITER if write else READER

    async def front(self, ask: Ask, until: float) -> Sheet | None:
        """Stand in line until nobody is before us; None when `until` comes first.

        What was reached is kept in `ask.slot` until then, and for another call.
        """
        while True:
            sheet: Any = ask.slot
            if sheet is None or sheet.generation != fork.here():
                sheet = ask.slot = sheets.opened(self.table, self.path)
            while sheet.taken < len(self._steps):
                step = self._steps[sheet.taken]
                if not sheet.lock(step.words) and not await self.runtime.block(
                    ask, sheet, step, until
                ):
                    return None
                sheet.taken += 1
            if sheet.leads_to():
                return sheet  # type: ignore[no-any-return]
            ask.slot = None
            sheet.leave()
            sheet.close()
