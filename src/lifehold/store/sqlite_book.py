"""A name's book, read from its rows and written back where a step has changed it.

Rule: the rules are those of store/ledger.py, run inside SQLite's transaction. This file knows which
row belongs to which chair and place, and nothing else.
"""

from __future__ import annotations

from ..core.owner import Owner
from ..core.value import as_dict
from ..runtime import fork
from . import sqlite_schema as sql
from .ledger import Book, Chair, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_encoded: dict[Owner, str] = {}


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
    """A book, and its rows as they were."""

    __slots__ = ("book", "chairs", "line", "there")

    def __init__(self, db: Any, name: str, token: int | None, capacity: int | None) -> None:
        self.there = None if capacity is None else (token, capacity)
        self.book = book = Book(name, token, capacity or 1)
        self.chairs: dict[Chair, tuple[int, tuple[Any, ...]]] = {}
        self.line: dict[Place, tuple[int, tuple[Any, ...]]] = {}
        for row in db.execute(sql.CHAIRS, (name,)):
            chair = _seated(row)
            self.chairs[chair] = row[0], _kept(chair)
            book.chairs.append(chair)
        for row in db.execute(sql.LINE, (name,)):
            place = Place(*row[1:])
            self.line[place] = row[0], row[3:]
            book.line.append(place)

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
                db.execute(sql.SIT, (
                    name, last, chair.mark, chair.token, chair.weight, chair.slot, chair.shared,
                    chair.ttl, chair.delay, chair.ends_at, chair.clock, chair.acquired_at,
                    chair.renewals, encoded(chair.owner),
                ))  # fmt: skip
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
            now = place.dies_at, place.clock, place.bell, place.called_at
            old = self.line.get(place)
            if old is None:
                last += 1
                db.execute(sql.STAND, (name, last, place.mark, place.weight, *now))
            elif old[1] != now:
                db.execute(sql.STAY, (*now, name, old[0]))


def _seated(row: Any) -> Seated:
    make: Any = Seated
    return make(*row[1:5], bool(row[5]), *row[6:])  # type: ignore[no-any-return]


def _kept(chair: Chair) -> tuple[Any, ...]:
    """What a renewal may change."""
    return (
        chair.weight, chair.shared, chair.ttl, chair.ends_at, chair.clock, chair.renewals,
    )  # fmt: skip


def encoded(owner: Owner | None) -> str:
    """A holder's record as text."""
    if owner is None:
        return ""
    text = _encoded.get(owner)
    if text is None:
        json: Any = fork.lazily("json")
        if len(_encoded) >= 64:
            _encoded.clear()
        text = _encoded[owner] = json.dumps(as_dict(owner), separators=(",", ":"))
    return text


def decoded(text: str) -> Owner | None:
    """Whose record it is; None for none, or one that we cannot read."""
    if not text:
        return None
    json: Any = fork.lazily("json")
    try:
        found = json.loads(text)
        return Owner(**{key: found[key] for key in Owner.__match_args__ if key in found})
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
