"""`lifehold ls`: the locks of the default folders, of those that are named, or of the machine."""

from __future__ import annotations

import os

from ..core import explain
from ..core.errors import LifeholdError
from ..core.mask import printable
from ..core.value import replace
from ..local import lock_names
from ..ops import inventory
from ..ops import who as ops
from ..ops.answer import FREE, STALE
from ..ops.changes import APPEARED, CHANGED, Changes, between, pace
from ..ops.foreign import several
from ..runtime import clock
from . import exits, render, target
from .locks import doubles_text
from .options import LS, WHO, Usage, arguments
from .render import columns_of, progress, put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..ops.answer import LockAnswer
    from ..ops.changes import Change
    from ..ops.foreign import ForeignFiles

LS_SCHEMA = "lifehold.ls/1"


def ls(words: list[str]) -> int:
    """The exit code of `lifehold ls WORDS`."""
    given, folders = arguments(LS, words)
    if given["names"] and given["json"]:
        raise Usage("--names and --json are two forms of the answer: choose one")
    if given["host"] and (folders or given["deep"]):
        raise Usage("--host looks everywhere: leave out DIR and -R")
    if given["watch"] and given["names"]:
        raise Usage("--watch shows more than names: leave out --names")
    if given["names"] and not (folders or given["held"] or given["host"]):
        return _names()
    if given["watch"]:
        return watch(given, folders)
    with progress() as tell:
        found = look(given, folders, tell)
    for text in found.missing:
        say(text)
    if given["json"]:
        unseen = found.unseen if given["host"] or found.unseen else None
        put(render.as_json(LS_SCHEMA, found.answers, clock.utc_now(), unseen))
    elif given["names"]:
        _put_lines([answer.name for answer in found.answers])
    elif found.answers:
        put(render.as_table(found.answers, clock.utc_now(), last=True))
    elif found.code == exits.DONE:
        say(nothing(given, folders))
    if not given["json"]:
        for text in found.unseen:
            say(f"not seen: {text}")
    return found.code


def _names() -> int:
    """The plain names alone, without a look at who holds them: quick enough for a shell's Tab."""
    from ..local import lock_names

    files = inventory.names_in(lock_names.candidates()[0])
    names = [file.removesuffix(lock_names.SUFFIX) for file in files]
    _put_lines(sorted(name for name in names if name.isprintable() and name[:1] not in ("", "-")))
    return exits.DONE


def _put_lines(names: list[str]) -> None:
    if names:
        put("\n".join(map(printable, names)))


# ------------------------------------------------------------------------------------------------
# One look of `lifehold ls`: the locks asked for, in order, and what could not be seen.


class LookedAt:
    """One look. `code`: what the command ends with; `unseen`: in words; `looked`: in which folders.

    `missing`: what could not be listed, one text each.
    """

    def __init__(self) -> None:
        self.answers: list[LockAnswer] = []
        self.code = exits.DONE
        self.unseen: list[str] = []
        self.looked: list[str] = []
        self.missing: list[str] = []


def look(
    given: dict[str, Any], folders: list[str], tell: Callable[[int], None] | None = None
) -> LookedAt:
    """What was asked for, in order. An error of one folder does not hide the others.

    A folder below that could not be read may be any lock: it is one of the list, but where only
    some are asked for, it is named as not seen.
    """
    found = LookedAt()
    if given["host"]:
        view = inventory.of_host(tell)
        found.answers, found.unseen, found.looked = view.answers, view.unseen, view.looked
    elif not folders:
        found.answers = inventory.of_names()
    for folder in folders:
        try:
            found.answers += inventory.of_folder(folder, deep=given["deep"], tell=tell)
        except LifeholdError as error:
            found.missing.append(error.text)
            found.code = max(found.code, exits.code_of(error))
    if given["held"] or given["stale"] or given["names"] or given["older"] is not None:
        unread = [answer.path for answer in found.answers if inventory.is_unread(answer)]
        found.unseen = found.unseen + inventory.unread_folders(unread)
        found.answers = [each for each in found.answers if not inventory.is_unread(each)]
    found.answers = _chosen(found.answers, given)
    found.answers.sort(key=lambda answer: (inventory.ORDER[answer.state], answer.name))
    return found


def nothing(given: dict[str, Any], folders: list[str]) -> str:
    """What is said where there is none."""
    what = "are stale" if given["stale"] else "are held" if given["held"] else ""
    if folders or given["host"]:
        return f"no locks {what} there".replace("  ", " ")
    what = what.removeprefix("are ")
    return f"no {what} locks with a plain name; all of this machine: lifehold ls --host".replace(
        "  ", " "
    )


def _chosen(answers: list[LockAnswer], given: dict[str, Any]) -> list[LockAnswer]:
    """Those that were asked for."""
    older = given["older"]
    if given["held"] or given["stale"] or older is not None:
        answers = [answer for answer in answers if answer.state != FREE]
    if given["stale"]:
        answers = [answer for answer in answers if answer.state == STALE]
    if older is not None:
        before = clock.utc_now() - older
        answers = [answer for answer in answers if _since(answer) <= before]
    return answers


def _since(answer: LockAnswer) -> float:
    """Since when it is held; where that is not known, the begin of the process that holds it."""
    holder = answer.holder
    since = None if holder is None else holder.began if holder.since is None else holder.since
    return clock.utc_now() if since is None else since


# ------------------------------------------------------------------------------------------------
# `lifehold ls --watch`: on a terminal the list is drawn anew, elsewhere each change is a line.
#
# Promise: what changes in a folder or in the kernel's table of locks is shown at once or half a
# second later, what no event tells within EVERY, at the pace of ops/changes.py. Ctrl-C ends it.


CHANGE_SCHEMA = "lifehold.change/1"
EVERY = 2.0  # seconds between two looks that nothing has called for
HOME, BELOW = "\x1b[H\x1b[2J", "\x1b[J"


def watch(given: dict[str, Any], folders: list[str]) -> int:
    """Until Ctrl-C; a folder that cannot be listed at the beginning ends it with its code."""
    redraws = os.isatty(1) and not given["json"]
    changes = Changes()
    before: list[LockAnswer] = []
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
    folders: list[str], looked: list[str] | None = None, answers: list[LockAnswer] | None = None
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


def _draw(found: LookedAt, given: dict[str, Any], folders: list[str]) -> None:
    """The list, as much of it as fits."""
    now = clock.utc_now()
    lines = [f"{len(found.answers)} locks, {explain.utc(now)}; Ctrl-C ends"]
    body = (
        render.as_table(found.answers, now, last=True)
        if found.answers
        else (nothing(given, folders))
    )
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
        {
            "schema": CHANGE_SCHEMA,
            "at": clock.utc_now(),
            "change": change.what,
            "lock": render.one(change.answer),
        }
    )


# ------------------------------------------------------------------------------------------------
# `lifehold who`: one lock in words, several as a table, any number as JSON.


WHO_SCHEMA = "lifehold.who/1"
CODES = {
    ops.HELD: exits.DONE,
    ops.FREE: exits.FREE,
    ops.SUSPECT: exits.SUSPECT,
    ops.STALE: exits.SUSPECT,
}
# Of several: what a script must not overlook comes first. "Busy" before "free": is any of them in
# use?
WEIGHT: dict[int, int] = {exits.FREE: 0, exits.DONE: 1, exits.SUSPECT: 2}


def who(words: list[str]) -> int:
    """The exit code of `lifehold who WORDS`."""
    given, names = arguments(WHO, words)
    for name in names:
        target.tell_of_users(name)
    said: list[tuple[ops.LockAnswer | None, int]]
    paths = [_path(name) for name in names]
    if len(names) == 1:
        said = [_asked(names[0], None)]
        if said[0][0] is not None:
            target.tell_like(names[0], paths[0])
    else:  # one look for all of them
        said = several(paths, lambda number, files: _asked(names[number], files))
    answers = [answer for answer, _ in said if answer is not None]
    codes = [code for _, code in said]
    now = clock.utc_now()
    if given["json"]:
        put(render.as_json(WHO_SCHEMA, answers, now))
    elif len(names) == 1 and answers:
        put(render.in_words(answers[0], now), fold=True)
    elif answers:
        put(render.as_table(answers, now))
    return max(codes, key=_weight)


def _weight(code: int) -> int:
    return WEIGHT.get(code, code)


def _asked(name: str, files: ForeignFiles | None) -> tuple[ops.LockAnswer | None, int]:
    """The answer for one name, if there is one, and its exit code."""
    try:
        address = lock_names.address(name)
        answer = ops.who(name, address.path, plain="/" not in name, files=files)
        if not answer.exists and address.doubles:
            answer = ops.who(name, address.doubles[0], plain=True)
        return _of_folder(name, answer), CODES[answer.state]
    except LifeholdError as error:
        name = lock_names.shown(name)
        shown = f"'{printable(name)}'", f"'{printable(os.path.abspath(name))}'"
        named = error.text.startswith(shown)  # it begins with what it is about
        say(error.text if named else f"{shown[0]}: {error.text}")
        return None, exits.code_of(error)


def _of_folder(name: str, answer: ops.LockAnswer) -> ops.LockAnswer:
    """The answer, where a folder stands that is free and no lock of ours.

    It is one for a tool that locks folders by flock(2), so it is free; who asks may as well mean
    the locks in it. Without anything in it, it may be the lock that mkdir(1) makes.
    """
    known = answer.kind != "flock" or answer.last is not None
    if answer.state != FREE or known or not os.path.isdir(answer.path):
        return answer
    try:
        empty = not os.listdir(answer.path)
    except OSError:
        return answer
    if empty:
        return replace(answer, note=answer.note or ops.EMPTY)
    shown, where = printable(lock_names.shown(name)), explain.quote(answer.path)
    say(f"'{shown}' is a folder: as a lock it is free; the locks in it:  lifehold ls {where}")
    return answer


def _path(name: str) -> str:
    """Where it leads; what is no name is refused where it is asked for."""
    try:
        address = lock_names.address(name)
    except LifeholdError:
        return name
    if address.doubles:
        say(doubles_text(name, address))
    return address.path
