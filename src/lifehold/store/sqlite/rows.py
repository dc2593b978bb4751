"""A name's book, read from its rows and written back where a step has changed it.

Rule: the rules are those of store/rules.py, run inside SQLite's transaction. This file knows which
row belongs to which chair and place, and which of a long line a step can concern, nothing else.
"""

from __future__ import annotations

from ...core.fence import LARGEST
from ...core.owner import Owner
from ...core.value import as_dict
from ...runtime import fork
from ..rules import CLAIM, Book, Chair, Place
from . import schema as sql

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from typing import Any
else:
    json = fork.later("json", globals())

FEW = 16  # a line so long is read as a whole
_encoded: dict[Owner, str] = {}
_last: tuple[Owner | None, str] = (None, "")  # who asked last asks next: looked at by identity


class _Somebody(Place):
    """One in line whom the step does not concern."""

    __slots__ = ()

    def dead(self, now: float, clock: str) -> bool:
        return False


SOMEBODY = _Somebody("", 1, 0.0, "", "")


class Moment:
    """When, and for whom, a book is opened.

    `mark`: of who asks; `sweeps`: the step forgets the dead in line; `whole`: the line is shown.
    """

    __slots__ = ("clock", "mark", "now", "sweeps", "whole")

    def __init__(
        self, now: float, clock: str, mark: str = "", *, sweeps: bool = False, whole: bool = False
    ) -> None:
        self.now, self.clock, self.mark, self.sweeps, self.whole = now, clock, mark, sweeps, whole


class Seated(Chair):
    """A chair whose owner is read only when somebody is shown it."""

    __slots__ = ("text",)

    @property
    def owner(self) -> Owner | None:
        return decoded(self.text)

    @owner.setter
    def owner(self, text: Any) -> None:
        self.text: str = text


class Filed:
    """A book, and its rows as they were.

    Of a long line only those are read whom a step can concern: the first two that live, the asker
    `mark` and the one before it; the others stand as `SOMEBODY`, who is never looked at.
    """

    __slots__ = ("book", "chairs", "line", "there")

    def __init__(self, name: str, token: int | None, capacity: int | None) -> None:
        self.there = None if capacity is None else (token, capacity)
        self.book = Book(name, token, capacity or 1)
        self.chairs: dict[Chair, tuple[int, tuple[Any, ...]]] = {}
        self.line: dict[Place, tuple[int, tuple[Any, ...]]] = {}

    def read_chairs(self, db: Any) -> None:
        """Who is in."""
        for row in db.execute(sql.CHAIRS, (self.book.name,)):
            chair = _seated(row)
            self.chairs[chair] = row[0], _kept(chair)
            self.book.chairs.append(chair)

    def read_line(self, db: Any, moment: Moment) -> None:
        """Who waits."""
        for row in _line(db, self.book.name, moment):
            if row is None:
                self.book.line.append(SOMEBODY)
                continue
            place = Place(*row[1:])
            self.line[place] = row[0], row[3:]
            self.book.line.append(place)

    def save(self, db: Any) -> None:
        """Write what has changed."""
        book, name = self.book, self.book.name
        if self.chairs or book.chairs:
            self._save_chairs(db)
        if self.line or book.line:
            self._save_line(db)
        now = book.token, book.capacity
        if now != self.there and (self.there or book.token is not None or book.chairs or book.line):
            db.execute(sql.NAME, (name, *now))

    def _save_chairs(self, db: Any) -> None:
        book, name = self.book, self.book.name
        stay = set(book.chairs)
        for chair, (seat, _) in self.chairs.items():
            if chair not in stay:
                db.execute(sql.RISE, (name, seat))
        last = max((seat for seat, _ in self.chairs.values()), default=0)
        for chair in book.chairs:
            old = self.chairs.get(chair)
            if old is None:
                last += 1
                db.execute(
                    sql.SIT,
                    (
                        name,
                        last,
                        chair.mark,
                        chair.token,
                        chair.weight,
                        chair.slot,
                        chair.shared,
                        chair.ttl,
                        chair.delay,
                        chair.ends_at,
                        chair.clock,
                        chair.acquired_at,
                        chair.renewals,
                        encoded(chair.owner),
                    ),
                )
            elif old[1] != (kept := _kept(chair)):
                db.execute(sql.KEEP, (*kept, name, old[0]))

    def _save_line(self, db: Any) -> None:
        book, name = self.book, self.book.name
        stay = set(book.line)
        for place, (spot, _) in self.line.items():
            if place not in stay:
                db.execute(sql.LEAVE, (name, spot))
        last = max((spot for spot, _ in self.line.values()), default=0)
        for place in book.line:
            if place is SOMEBODY:
                continue
            now = place.dies_at, place.clock, place.bell, place.called_at
            old = self.line.get(place)
            if old is None:
                last += 1
                db.execute(sql.STAND, (name, last, place.mark, place.weight, *now))
            elif old[1] != now:
                db.execute(sql.STAY, (*now, name, old[0]))


def page(db: Any, names: list[Any], moment: Moment) -> list[Book]:
    """The books of many names that follow each other, to be shown: read in three questions."""
    if not names:
        return []
    books = {name: Book(name, token, capacity) for name, token, capacity in names}
    between = names[0][0], names[-1][0]
    for name, *row in db.execute(sql.SITTING, between):
        if name in books:
            books[name].chairs.append(_seated(row))
    for name, *row in db.execute(sql.STANDING, between):
        if name in books:
            books[name].line.append(Place(*row[1:]))
    return [book.at(moment.now, moment.clock, 0) for book in books.values()]


def _seated(row: Any) -> Seated:
    make: Any = Seated
    return make(*row[1:5], bool(row[5]), *row[6:])  # type: ignore[no-any-return]


def _line(db: Any, name: str, moment: Moment) -> list[Any]:
    """The rows of the line in order; None for each that is of no interest."""
    if moment.whole:
        return db.execute(sql.LINE, (name,)).fetchall()  # type: ignore[no-any-return]
    rows: list[Any] = db.execute(sql.FEW, (name, FEW + 1)).fetchall()
    if len(rows) <= FEW:
        return rows
    living = moment.clock, moment.now, moment.now - CLAIM
    if moment.sweeps:
        db.execute(sql.SWEEP, (name, moment.mark, *living))  # as the step itself would
    front = db.execute(sql.FRONT, (name, *living)).fetchall()
    mine = db.execute(sql.MINE, (name, moment.mark)).fetchall()
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


def _kept(chair: Chair) -> tuple[Any, ...]:
    """What a renewal may change."""
    return (
        chair.weight,
        chair.shared,
        chair.ttl,
        chair.ends_at,
        chair.clock,
        chair.renewals,
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
    try:
        found = json.loads(text)
        return Owner(**{key: found[key] for key in Owner.__match_args__ if key in found})
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
