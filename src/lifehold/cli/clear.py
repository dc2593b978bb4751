"""`lifehold clear`: what was removed, what was not, and why."""

from __future__ import annotations

import os

from ..core import explain
from ..core.errors import LifeholdError
from ..core.mask import printable
from ..local import identify, lock_names
from ..local.files import HOST
from ..lock import absolute
from ..ops import clear as ops
from ..ops import families, inventory
from ..ops.answer import FREE, HELD, KEPT, NOTHING, ClearOutcome
from ..ops.foreign import ForeignFiles
from ..ops.who import FolderMissing
from ..runtime import clock
from . import exits, render, target
from .colour import painted
from .options import CLEAR, Usage, arguments
from .render import progress, put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "lifehold.clear/1"
SHARED = 1.0  # seconds for which the locks of a folder share one look at all processes
OF_WORD, HEX = 8, frozenset("0123456789abcdef")  # what a WORD looks like
UNREAD = "a folder that cannot be read here: what lies in it was not looked at"


def clear(words: list[str]) -> int:
    """The exit code of `lifehold clear WORDS`."""
    given, paths = arguments(CLEAR, words)
    if given["force"] == "":
        raise Usage("WORD is empty behind --force: an unset variable?")
    if given["boot"]:
        if given["force"]:
            raise Usage("--boot clears by proof alone: leave out --force")
        paths = paths or [each for each in lock_names.candidates() if os.path.isdir(each)]
    elif not paths and given["force"]:
        raise Usage(f"{_half_of_force(given['force'])}\nusage: {CLEAR.usage}")
    elif not paths:
        raise Usage(f"name a lock or a folder\nusage: {CLEAR.usage}")
    for path in paths:
        target.tell_folder(path, refuse=given["deep"] or given["boot"])
    if given["force"] and (len(paths) != 1 or is_folder(paths[0])):
        raise Usage("--force is for one lock: name it")
    outcomes: list[ClearOutcome] = []
    code = exits.DONE
    for path in paths:
        try:
            outcomes += _of(path, given)
        except LifeholdError as error:
            say(error.text)
            code = max(code, exits.code_of(error))
    if given["json"]:
        put(as_json(outcomes))
    else:
        _tell(outcomes, given["force"])
        if not (outcomes or code):
            say("nothing is stale there")
    # With --force also what is held: it was to be removed, and stands there still.
    left = [each for each in outcomes if each.left or (given["force"] and each.action == KEPT)]
    return max(code, exits.FREE if left else exits.DONE)


def _half_of_force(only: str) -> str:
    """What stands behind --force is the WORD or the lock, and the other is missing."""
    if len(only) == OF_WORD and set(only) <= HEX:
        return f"the lock is missing behind the WORD: --force {only} PATH"
    path = explain.quote(only)
    return f'the WORD is missing: it is the one that "lifehold clear {path}" prints'


def _tell(outcomes: list[ClearOutcome], force: str | None) -> None:
    """For people."""
    there = [each for each in outcomes if each.answer.exists]
    if there:
        put("\n".join(line for each in there for line in in_words(each)))
    for each in outcomes:
        if not each.answer.exists:
            say(f"there is no '{printable(each.path)}': nothing to clear")
        elif force and not each.word and each.action in (KEPT, NOTHING):
            say(f"--force {printable(force)} changes nothing: no WORD lets this be removed")


def is_folder(path: str) -> bool:
    """Whether it is looked into: a folder that is no lock itself."""
    if not target.is_path(path) or not os.path.isdir(path) or os.path.islink(path):
        return False
    try:
        here = absolute(path)
        known = families.recognised(families.LockPath(here)) is not None
        return not known and identify.standing(HOST, here) is None
    except OSError:
        return True


def _of(path: str, given: dict[str, Any]) -> list[ClearOutcome]:
    how = {"dry_run": given["dry_run"], "earlier_boot": given["boot"]}
    if is_folder(path):
        try:
            return _of_folder(path, given, how)
        except FolderMissing:  # a lock of kind "directory": it was released meanwhile
            if os.path.lexists(path):
                raise
    return [ops.clear(lock_names.address(path).path, force=given["force"] or "", **how)]


def _of_folder(path: str, given: dict[str, Any], how: dict[str, Any]) -> list[ClearOutcome]:
    deep = given["deep"] or given["boot"]
    with progress() as tell:
        found = inventory.of_folder(path, deep=deep, left=True, tell=tell)
    asked = [answer for answer in found if answer.state not in (FREE, HELD)]
    files, until, told = None, 0.0, []
    for answer in asked:
        if files is None or clock.now() > until:
            files, until = ForeignFiles(each.path for each in asked), clock.now() + SHARED
        if inventory.is_unread(answer):
            told.append(ClearOutcome(answer.path, KEPT, UNREAD, answer))
            continue
        try:
            told.append(ops.clear(answer.path, found=True, files=files, **how))
        except LifeholdError as error:
            say(f"{printable(answer.path)}: {error.text}")
        except Exception as error:  # noqa: BLE001 - one hostile file costs itself alone
            say(f"{printable(answer.path)}: it is left alone: {printable(repr(error)[:200])}")
    return told


def in_words(outcome: ClearOutcome) -> list[str]:
    """What became of one lock, over some lines."""
    path = explain.quote(outcome.path)
    family = outcome.answer.family if outcome.answer.exists else ""
    gap = " " * (12 - len(outcome.action))
    lines = [
        f"{painted(outcome.action)}{gap}  {printable(outcome.path)}"
        + (f" ({family})" if family else "")
    ]
    lines.append(f"{'':<12}  {printable(outcome.why)}")
    if outcome.next:
        lines.append(f"{'':<12}  next:  {printable(outcome.next)}")
    holder = outcome.answer.holder
    lives = outcome.answer.state == HELD and outcome.answer.kind != "lease" and outcome.word
    if lives and holder is not None and holder.owner is not None:
        lines.append(f"{'':<12}  or end:  {explain.by(holder)}")
    if outcome.word and outcome.action == KEPT:
        label = "robs its holder, which may be at work" if lives else "all the same"
        lines.append(f"{'':<12}  {label}:  lifehold clear --force {outcome.word} {path}")
    return lines


def as_json(outcomes: list[ClearOutcome]) -> str:
    """One object."""
    import json

    now = clock.utc_now()
    answers = json.loads(render.as_json(SCHEMA, [each.answer for each in outcomes], now))["locks"]
    found = [
        {
            "path": each.path,
            "action": each.action,
            "why": each.why,
            "word": each.word,
            "next": each.next,
            "lock": answer,
        }
        for each, answer in zip(outcomes, answers, strict=True)
    ]
    return json.dumps({"schema": SCHEMA, "at": now, "outcomes": found}, indent=2)
