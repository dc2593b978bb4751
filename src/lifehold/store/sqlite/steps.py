"""Steps on the books of a store in SQLite, at instants of the kernel's clock.

L4  A step whose token would be above the ceiling that is on the disk is undone, the ceiling raised
    and put on the disk, and the step done again: once in a minute, and once after each boot. Where
    the kernel does not say which boot this is, every step is put on the disk instead.
"""

from __future__ import annotations

import os

from ...core.fence import LARGEST
from ...core.storage import Unreachable
from ...runtime import fork, process
from . import schema as sql
from .book import Filed, Moment
from .words import refuse_newer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from .file import Database

    T = TypeVar("T")


class Short(Exception):
    """A token would be above the ceiling that is on the disk. `need`: the token."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class Steps:
    """What `Sqlite` is made of."""

    def __init__(self, file: Database, now: Callable[[], float], utc_us: Callable[[], int]) -> None:
        self.file, self._now, self._utc_us = file, now, utc_us
        self._begin()
        fork.in_child(self._begin)

    def _begin(self) -> None:
        me = process.here()
        self.boot = me.boot_id or ""
        # Where the kernel does not say which boot this is, no instant can be compared.
        name = self.boot or f"of process {me.pid} {os.urandom(8).hex()}"
        self.clock = f"{name} {me.time_ns or 0}"
        if not self.boot:
            self.file.synchronous = "full"
        self.safe = self.file.synchronous == "full"

    def _write(self, work: Callable[[Any], T], *, durable: bool = False) -> T:
        """One step; if it needs tokens that the disk does not know of, a second one before."""
        while True:
            try:
                return self.file.step(work, durable=durable)
            except Short as short:
                self._raise_ceiling(short.need)

    def _raise_ceiling(self, need: int) -> None:
        self.file.step(lambda db: self._raised(db, need), durable=True)

    def _raised(self, db: Any, need: int) -> None:
        _, boot, floor, ceiling, *_ = db.execute(sql.HEAD, ("",)).fetchone()
        if boot != self.boot or not boot:
            floor = max(floor, ceiling)
        above = max(need, floor, ceiling, self._utc_us()) + sql.AHEAD_US
        db.execute(sql.RAISE, (self.boot, floor, min(LARGEST, above)))

    def _refuse_newer(self, db: Any) -> None:
        """L12  In every step that loads no book."""
        version, least = db.execute(sql.META).fetchone()
        refuse_newer(self.file.path, version, least)

    def _load(self, db: Any, name: str, mark: str = "", **how: bool) -> tuple[Filed, int]:
        """A name's book at this instant, and the greatest token that the disk knows of."""
        now = self._now()
        row = db.execute(sql.HEAD, (name,)).fetchone()
        if row is None:
            raise Unreachable("the one row of lifehold_meta is missing: the database is damaged")
        least, boot, floor, ceiling, token, capacity, held, line = row
        refuse_newer(self.file.path, least, least)
        known = boot == self.boot and bool(boot)
        filed = Filed(name, token, capacity)
        if held:
            filed.read_chairs(db)
        if line:
            filed.read_line(db, Moment(now, self.clock, mark, **how))
        floor = floor if known else max(floor, ceiling)  # L4  what was lost was not above it
        filed.book.at(now, self.clock, max(self._utc_us(), floor + 1))
        return filed, (LARGEST if self.safe else ceiling if known else -1)

    def _save(self, db: Any, filed: Filed, ceiling: int) -> None:
        token = filed.book.token
        if token is not None and token > ceiling and token != (filed.there or (None,))[0]:
            raise Short(token)
        filed.save(db)
