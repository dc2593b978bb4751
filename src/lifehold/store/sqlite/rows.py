"""A name's lock, read from its rows and written back where a step has changed it.

Rule: the rules are those of store/rules.py, run inside SQLite's transaction. This file knows which
row belongs to which holder and place, and which of a long line a step can concern, nothing else.
"""

from __future__ import annotations

from ...core.fence import LARGEST
from ...core.owner import Owner, owner_of
from ...core.value import as_dict
from ...runtime import fork
from ..rules import CLAIM, HolderRow, LockState, QueueEntry
from . import schema as sql

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from sqlite3 import Connection
    from typing import Any
else:
    json = fork.later("json", globals())

FEW = 16  # a line so long is read as a whole
_encoded: dict[Owner, str] = {}
_last: tuple[Owner | None, str] = (None, "")  # who asked last asks next: looked at by identity


class _OtherEntry(QueueEntry):
    """One in line whom the step does not concern."""

    __slots__ = ()

    def dead(self, now: float, clock: str) -> bool:
        return False


SOMEBODY = _OtherEntry("", 1, 0.0, "", "")


class StepMoment:
    """When, and for whom, a lock is opened.

    `nonce`: of who asks; `sweeps`: the step forgets the dead in line; `whole`: the line is shown.
    """

    __slots__ = ("clock", "nonce", "now", "sweeps", "whole")

    def __init__(
        self, now: float, clock: str, nonce: str = "", *, sweeps: bool = False, whole: bool = False
    ) -> None:
        self.now, self.clock, self.nonce, self.sweeps, self.whole = now, clock, nonce, sweeps, whole


class StoredHolder(HolderRow):
    """A holder whose owner is read only when somebody is shown it."""

    __slots__ = ("text",)

    @property
    def owner(self) -> Owner | None:
        return decoded(self.text)

    @owner.setter
    def owner(self, text: Any) -> None:
        self.text: str = text


class FiledLock:
    """A lock, and its rows as they were.

    Of a long line only those are read whom a step can concern: the first two that live, the asker
    `nonce` and the one before it; the others stand as `SOMEBODY`, who is never looked at.
    """

    __slots__ = ("holders", "lock", "queue", "there")

    def __init__(self, name: str, token: int | None, capacity: int | None) -> None:
        self.there = None if capacity is None else (token, capacity)
        self.lock = LockState(name, token, capacity or 1)
        self.holders: dict[HolderRow, tuple[int, tuple[Any, ...]]] = {}
        self.queue: dict[QueueEntry, tuple[int, tuple[object, ...]]] = {}

    def read_holders(self, db: Connection) -> None:
        """Who is in."""
        for row in db.execute(sql.CHAIRS, (self.lock.name,)):
            holder = _let_in(row)
            self.holders[holder] = row[0], _kept(holder)
            self.lock.holders.append(holder)

    def read_queue(self, db: Connection, moment: StepMoment) -> None:
        """Who waits."""
        for row in _queue(db, self.lock.name, moment):
            if row is None:
                self.lock.queue.append(SOMEBODY)
                continue
            entry = QueueEntry(*row[1:])
            self.queue[entry] = row[0], row[3:]
            self.lock.queue.append(entry)

    def save(self, db: Connection) -> None:
        """Write what has changed."""
        lock, name = self.lock, self.lock.name
        if self.holders or lock.holders:
            self._save_holders(db)
        if self.queue or lock.queue:
            self._save_queue(db)
        now = lock.token, lock.capacity
        if now != self.there and (
            self.there or lock.token is not None or lock.holders or lock.queue
        ):
            db.execute(sql.NAME, (name, *now))

    def _save_holders(self, db: Connection) -> None:
        lock, name = self.lock, self.lock.name
        stay = set(lock.holders)
        for holder, (number, _) in self.holders.items():
            if holder not in stay:
                db.execute(sql.RISE, (name, number))
        last = max((number for number, _ in self.holders.values()), default=0)
        for holder in lock.holders:
            old = self.holders.get(holder)
            if old is None:
                last += 1
                db.execute(
                    sql.SIT,
                    (
                        name,
                        last,
                        holder.nonce,
                        holder.token,
                        holder.weight,
                        holder.slot,
                        holder.shared,
                        holder.ttl,
                        holder.delay,
                        holder.ends_at,
                        holder.clock,
                        holder.acquired_at,
                        holder.renewals,
                        encoded(holder.owner),
                    ),
                )
            elif old[1] != (kept := _kept(holder)):
                db.execute(sql.KEEP, (*kept, name, old[0]))

    def _save_queue(self, db: Connection) -> None:
        lock, name = self.lock, self.lock.name
        stay = set(lock.queue)
        for entry, (spot, _) in self.queue.items():
            if entry not in stay:
                db.execute(sql.LEAVE, (name, spot))
        last = max((spot for spot, _ in self.queue.values()), default=0)
        for entry in lock.queue:
            if entry is SOMEBODY:
                continue
            now = entry.dies_at, entry.clock, entry.wakeup, entry.called_at
            old = self.queue.get(entry)
            if old is None:
                last += 1
                db.execute(sql.STAND, (name, last, entry.nonce, entry.weight, *now))
            elif old[1] != now:
                db.execute(sql.STAY, (*now, name, old[0]))


def page(db: Connection, names: list[Any], moment: StepMoment) -> list[LockState]:
    """The locks of many names that follow each other, to be shown: read in three questions."""
    if not names:
        return []
    locks = {name: LockState(name, token, capacity) for name, token, capacity in names}
    between = names[0][0], names[-1][0]
    for name, *row in db.execute(sql.SITTING, between):
        if name in locks:
            locks[name].holders.append(_let_in(row))
    for name, *row in db.execute(sql.STANDING, between):
        if name in locks:
            locks[name].queue.append(QueueEntry(*row[1:]))
    return [lock.at(moment.now, moment.clock, 0) for lock in locks.values()]


def _let_in(row: Any) -> StoredHolder:
    make: Any = StoredHolder
    return make(*row[1:5], bool(row[5]), *row[6:])  # type: ignore[no-any-return]


def _queue(db: Connection, name: str, moment: StepMoment) -> list[Any]:
    """The rows of the line in order; None for each that is of no interest."""
    if moment.whole:
        return db.execute(sql.LINE, (name,)).fetchall()
    rows: list[Any] = db.execute(sql.FEW, (name, FEW + 1)).fetchall()
    if len(rows) <= FEW:
        return rows
    living = moment.clock, moment.now, moment.now - CLAIM
    if moment.sweeps:
        db.execute(sql.SWEEP, (name, moment.nonce, *living))  # as the step itself would
    front = db.execute(sql.FRONT, (name, *living)).fetchall()
    mine = db.execute(sql.MINE, (name, moment.nonce)).fetchall()
    end = mine[0][0] if mine else LARGEST
    before = db.execute(sql.BEFORE, (name, end)).fetchall()
    seen = {row[0]: row for row in (*front, *before, *mine)}
    rows = [seen[spot] for spot in sorted(seen)]
    if not moment.sweeps:
        return rows  # nobody counts them
    (ahead,) = db.execute(sql.AHEAD, (name, end)).fetchone()
    hidden = ahead - sum(spot < end for spot in seen)
    at = next((at for at, row in enumerate(rows) if before and row[0] == before[0][0]), 0)
    return [*rows[:at], *[None] * hidden, *rows[at:]]


def _kept(holder: HolderRow) -> tuple[object, ...]:
    """What a renewal may change."""
    return (
        holder.weight,
        holder.shared,
        holder.ttl,
        holder.ends_at,
        holder.clock,
        holder.renewals,
    )


def encoded(owner: Owner | None) -> str:
    """A holder's record as text."""
    global _last
    last, text = _last
    if last is owner:
        return text
    if owner is None:
        return ""
    text = _encoded.get(owner, "")
    if not text:
        if len(_encoded) >= 64:
            _encoded.clear()
        text = _encoded[owner] = json.dumps(as_dict(owner), separators=(",", ":"))
    _last = owner, text
    return text


def decoded(text: str) -> Owner | None:
    """Whose record it is; None for none, or one that we cannot read."""
    if not text:
        return None
    return owner_of(lambda: json.loads(text))
