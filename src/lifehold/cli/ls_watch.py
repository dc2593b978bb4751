"""`lifehold ls --watch`: on a terminal the list is drawn anew, elsewhere each change is a line.

Promise: what changes in a folder or in the kernel's table of locks is shown at once or half a
second later, what no event tells within EVERY, at the pace of ops/changes.py. Ctrl-C ends it.
"""

from __future__ import annotations

import os

from ..core import explain
from ..core.mask import printable
from ..local import lock_names
from ..ops.changes import APPEARED, CHANGED, Changes, between, pace
from ..runtime import clock
from . import show
from .ls_look import look, nothing
from .render import columns_of, put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..ops.answer import Answer
    from ..ops.changes import Change
    from .ls_look import Found

SCHEMA = "lifehold.change/1"
EVERY = 2.0  # seconds between two looks that nothing has called for
HOME, BELOW = "\x1b[H\x1b[2J", "\x1b[J"


def watch(given: dict[str, Any], folders: list[str]) -> int:
    """Until Ctrl-C; a folder that cannot be listed at the beginning ends it with its code."""
    redraws = os.isatty(1) and not given["json"]
    changes = Changes()
    before: list[Answer] = []
    told: list[str] = []
    try:
        changes.follow(watched(folders))
        while True:
            began = clock.now()
            found = look(given, folders)
            if found.code and not told:
                say("\n".join(found.missing))
                return found.code
            if redraws:
                _draw(found, given, folders)
            else:
                for change in between(before, found.answers):
                    put(_as_json(change) if given["json"] else _as_line(change))
            missing = [*found.missing, *(f"not seen: {each}" for each in found.unseen)]
            for text in missing:
                if text not in told and not redraws:
                    say(text)
            told, before = [*missing, ""], found.answers
            changes.follow(watched(folders, found.looked, found.answers))
            due = pace(began, EVERY)
            changed, _ = changes.wait(due.latest - clock.now(), deaf=in_stores(folders))
            if changed and (left := due.soonest - clock.now()) > 0:
                clock.pause(left)
    finally:
        changes.close()


def watched(
    folders: list[str], looked: list[str] | None = None, answers: list[Answer] | None = None
) -> list[str]:
    """The folders in which something may happen: those asked for, and those of the locks."""
    asked = [os.path.abspath(each) for each in folders if not lock_names.is_store(each)]
    asked = asked or ([] if folders else looked or lock_names.candidates())
    files = [
        each.path for each in answers or () if each.path and not lock_names.is_store(each.path)
    ]
    lie_in = [os.path.dirname(path) for path in files]
    return list(dict.fromkeys([*asked, *lie_in]))


def in_stores(folders: list[str]) -> bool:
    """Whether no event of this machine tells anything about them."""
    return bool(folders) and all(map(lock_names.is_store, folders))


def _draw(found: Found, given: dict[str, Any], folders: list[str]) -> None:
    """The list, as much of it as fits."""
    now = clock.utc_now()
    lines = [f"{len(found.answers)} locks, {explain.utc(now)}; Ctrl-C ends"]
    body = show.as_table(found.answers, now, last=True) if found.answers else (
        nothing(given, folders))  # fmt: skip
    notes = [*found.missing, *(f"not seen: {each}" for each in found.unseen)]
    rows, (wide, high) = body.split("\n"), columns_of(1)
    room = max(2, high - 2 - len(notes))
    if len(rows) > room:
        rows = [*rows[: room - 1], f"... and {len(rows) - room + 1} more"]
    lines += [*rows, *notes]
    from .width import cut

    put(HOME + "\n".join(cut(line, wide) for line in lines) + BELOW)


def _as_line(change: Change) -> str:
    """One line for people: when, what, and whose."""
    answer = change.answer
    holder = answer.holder or answer.last
    by = f"  {'by' if answer.holder else 'last by'} {explain.by(holder)}" if holder else ""
    queue = f"  {explain.others(len(answer.waiting))}" if answer.waiting else ""
    state = answer.state if change.what in (APPEARED, CHANGED) else change.what
    return f"{explain.utc(clock.utc_now())}  {state:<7}  {printable(answer.name)}{by}{queue}"


def _as_json(change: Change) -> str:
    """The same as one line of JSON."""
    import json

    return json.dumps(
        {"schema": SCHEMA, "at": clock.utc_now(), "change": change.what,
         "lock": show.one(change.answer)}
    )  # fmt: skip
