"""The tables of a store in SQLite as an operator makes them, and whether leases can be kept there.

Promise: `check` makes no file and leaves nothing behind: what it writes is rolled back.
"""

from __future__ import annotations

import os

from ...core.backend import NoReply, Unreachable
from ...core.errors import InvalidArgument
from ...core.mask import printable
from ...runtime import clock, fork
from ...runtime.blocking import finish
from ..upkeep import BAD, GOOD, NOTE, Checked, Migrated, StoreFinding
from . import database
from . import schema as sql
from .backend import file_of, site

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from sqlite3 import Connection
    from typing import Any
else:
    sqlite3 = fork.later("sqlite3", globals())


class _Undo(Exception):
    """The trial is over, and is to be as if it had not been."""


def script(role: str = "") -> str:
    """The tables as SQL. lifehold makes them by itself."""
    _no_roles(role)
    tables = "\n\n".join(f"{text};" for text in sql.TABLES)
    first = sql.FIRST.replace("?", str(sql.VERSION))
    return f"PRAGMA journal_mode = WAL;\n\nBEGIN IMMEDIATE;\n\n{tables}\n\n{first};\n\nCOMMIT;\n"


def migrate(url: str, role: str = "") -> Migrated:
    """Make the file and its tables. Raises as a lock in it does."""
    _no_roles(role)
    made = site(database.settled(url))
    before = _version(file_of(made).path)
    (after,) = file_of(made).step(lambda db: db.execute(sql.META).fetchone()[:1])
    return Migrated(made.url, before, after)


def _no_roles(role: str) -> None:
    if role:
        raise InvalidArgument("--grant is for roles of a server: a file has an owner and a mode")


def _version(path: str) -> int:
    """Of the tables that are there, 0 for none, and where that cannot be read."""
    if not os.path.exists(path):
        return 0
    try:
        db = sqlite3.connect(f"file:{database.quoted(path)}?mode=ro", uri=True, timeout=5)
        try:
            row = db.execute(sql.META).fetchone()
        finally:
            db.close()
    except sqlite3.Error:
        return 0
    return int(row[0]) if row else 0


def check(url: str) -> Checked:
    """What this user finds. Raises InvalidArgument, and what a lock in it would raise."""
    made = site(database.settled(url))
    file = file_of(made)
    sentences: tuple[str, ...] = ()
    if not os.path.exists(file.path):
        kind = database.refuse_far(file.path)
        note = f"'{printable(file.path)}' is not there yet; whoever takes a lock first makes it"
        there = StoreFinding("file", NOTE, f"{note} ({kind or 'unknown file system'})")
        return Checked(made.url, 0, sql.VERSION, (there,))
    found, version = _tried(file), _version(file.path)
    if found.verdict == GOOD:
        sentences = finish(made.backend.ground())
    return Checked(made.url, version, sql.VERSION, (found,), sentences)


def _tried(file: Any) -> StoreFinding:
    began = clock.now()

    def trial(db: Connection) -> None:
        db.execute(sql.NAME, ("lifehold store check", 1, 1))
        raise _Undo

    try:
        file.step(trial)
    except _Undo:
        took = (clock.now() - began) * 1000
        return StoreFinding("writing", GOOD, f"a step took {took:.1f} ms, and was rolled back")
    except (Unreachable, NoReply) as error:
        return StoreFinding("writing", BAD, str(error))
    raise AssertionError("a step that fails was carried out")
