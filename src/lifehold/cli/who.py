"""`lifehold who`: one lock in words, several as a table, any number as JSON."""

from __future__ import annotations

import os

from ..core.errors import LifeholdError
from ..core.mask import printable
from ..local import lock_names
from ..ops import who as ops
from ..ops.foreign import several
from ..runtime import clock
from . import exits, show, target
from .options import WHO, arguments
from .render import put, say
from .run import doubles_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ops.foreign import Files

SCHEMA = "lifehold.who/1"
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
    said: list[tuple[ops.Answer | None, int]]
    paths = [_path(name) for name in names]
    if len(names) == 1:
        said = [_asked(names[0], None)]
    else:  # one look for all of them
        said = several(paths, lambda number, files: _asked(names[number], files))
    answers = [answer for answer, _ in said if answer is not None]
    codes = [code for _, code in said]
    now = clock.utc_now()
    if given["json"]:
        put(show.as_json(SCHEMA, answers, now))
    elif len(names) == 1 and answers:
        put(show.in_words(answers[0], now), fold=True)
    elif answers:
        put(show.as_table(answers, now))
    return max(codes, key=_weight)


def _weight(code: int) -> int:
    return WEIGHT.get(code, code)


def _asked(name: str, files: Files | None) -> tuple[ops.Answer | None, int]:
    """The answer for one name, if there is one, and its exit code."""
    try:
        address = lock_names.address(name)
        answer = ops.who(name, address.path, plain="/" not in name, files=files)
        if not answer.exists and address.doubles:
            answer = ops.who(name, address.doubles[0], plain=True)
        return answer, CODES[answer.state]
    except LifeholdError as error:
        name = lock_names.shown(name)
        shown = f"'{printable(name)}'", f"'{printable(os.path.abspath(name))}'"
        named = error.text.startswith(shown)  # it begins with what it is about
        say(error.text if named else f"{shown[0]}: {error.text}")
        return None, exits.code_of(error)


def _path(name: str) -> str:
    """Where it leads; what is no name is refused where it is asked for."""
    try:
        address = lock_names.address(name)
    except LifeholdError:
        return name
    if address.doubles:
        say(doubles_text(name, address))
    return address.path
