"""A name's lock, read from its rows and written back where a step has changed it.

Rule: the rules are those of store/rules.py, run inside SQLite's transaction. This file knows which
row belongs to which holder and place, and which of a long line a step can concern, nothing else.

L13  A column takes any type, and whoever may write a shared store can leave any row in it. What no
step of ours has written is CorruptRecord, of that name alone, before a rule is asked about it.
"""

from __future__ import annotations

from ...core.backend import State
from ...core.errors import CorruptRecord
from ...core.fence import LARGEST
from ...core.owner import Owner, owner_of
from ...core.value import as_dict
from ...runtime import fork
from ..rules import (
    CLAIM,
    ENTRY,
    HOLDER,
    INSTANT,
    NUMBER,
    ONE_OR_MORE,
    TOKEN,
    WORD,
    HolderRow,
    LockState,
    QueueEntry,
    fitting,
    no_state,
)
from . import schema as sql

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from sqlite3 import Connection
    from typing import Any
else:
    json = fork.later("json", globals())

# The columns of a row, and what each may be.
NAMED = {"token": TOKEN, "capacity": ONE_OR_MORE}
SEATED = {"seat": NUMBER, **HOLDER, "shared": ((int,), 0, 1), "owner": WORD}
STANDS = {"spot": NUMBER, **ENTRY, "called_at": ((*INSTANT[0], type(None)), *INSTANT[1:])}
LEFT = {"token": NUMBER, "text": WORD}
WORDS = ("nonce", "clock", "wakeup")  # which are ours, and short
LONGEST_WORD = 1000  # characters
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
        if capacity is not None:
            refuse_odd(name, NAMED, (token, capacity))
        self.there = None if capacity is None else (token, capacity)
        self.lock = LockState(name, token, capacity or 1)
        self.holders: dict[HolderRow, tuple[int, tuple[Any, ...]]] = {}
        self.queue: dict[QueueEntry, tuple[int, tuple[object, ...]]] = {}

    def read_holders(self, db: Connection) -> None:
        """Who is in."""
        for row in db.execute(sql.CHAIRS, (self.lock.name,)):
            holder = _let_in(self.lock.name, row)
            self.holders[holder] = row[0], _kept(holder)
            self.lock.holders.append(holder)

    def read_queue(self, db: Connection, moment: StepMoment) -> None:
        """Who waits."""
        for row in _queue(db, self.lock.name, moment):
            if row is None:
                self.lock.queue.append(SOMEBODY)
                continue
            entry = _stand(self.lock.name, row)
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


def page(db: Connection, names: list[Any], moment: StepMoment) -> list[State]:
    """The locks of many names that follow each other, to be shown: read in three questions."""
    if not names:
        return []
    locks: dict[str, LockState] = {}
    damaged: dict[str, str] = {}
    between = names[0][0], names[-1][0]
    for name, *row in names:
        try:
            locks[name] = FiledLock(name, *row).lock
        except CorruptRecord as error:
            damaged[name] = error.text
    for question, add in ((sql.SITTING, _seat), (sql.STANDING, _place)):
        for name, *row in db.execute(question, between):
            try:
                if name in locks:
                    add(locks[name], row)
            except CorruptRecord as error:
                damaged[name] = error.text
    return [
        State(name, None, 1, damage=damaged[name])
        if name in damaged
        else locks[name].at(moment.now, moment.clock, 0).state()
        for name, *_ in names
    ]


def bare(names: list[Any]) -> list[State]:
    """The same of each only name, token and capacity."""
    found = []
    for name, *row in names:
        try:
            refuse_odd(name, NAMED, row)
            found.append(State(name, *row))
        except CorruptRecord as error:
            found.append(State(name, None, 1, damage=error.text))
    return found


def _seat(lock: LockState, row: Any) -> None:
    lock.holders.append(_let_in(lock.name, row))


def _place(lock: LockState, row: Any) -> None:
    lock.queue.append(_stand(lock.name, row))


def kept_text(db: Connection, name: str) -> tuple[int, str] | None:
    """What a holder has left with a name."""
    row: tuple[int, str] | None = db.execute(sql.KEPT_TEXT, (name,)).fetchone()
    if row is not None:
        refuse_odd(name, LEFT, row)
    return row


def refuse_odd(name: str, columns: dict[str, Any], row: Any) -> None:
    """Raises CorruptRecord for a row that no step has written."""
    try:
        for (what, allowed), found in zip(columns.items(), row, strict=True):
            fitting(what, found, allowed)
            if what in WORDS and not (found.isprintable() and len(found) <= LONGEST_WORD):
                raise ValueError(f"{what} is {found!r:.80}")
    except ValueError as error:
        raise no_state(name, error) from error


def _let_in(name: str, row: Any) -> StoredHolder:
    refuse_odd(name, SEATED, row)
    make: Any = StoredHolder
    return make(*row[1:5], bool(row[5]), *row[6:])  # type: ignore[no-any-return]


def _stand(name: str, row: Any) -> QueueEntry:
    refuse_odd(name, STANDS, row)
    return QueueEntry(*row[1:])


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
