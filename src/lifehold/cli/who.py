"""`lifehold who`: one lock in words, several as a table, any number as JSON."""

from __future__ import annotations

import os

from ..core.errors import LifeholdError
from ..core.mask import printable
from ..local import places
from ..ops import who as ops
from ..ops.foreign import Files
from ..runtime import clock
from . import exits, show
from .options import WHO, arguments
from .render import put, say
from .run import doubles_text

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
    answers: list[ops.Answer] = []
    codes = []
    files = Files(places.address(name).path for name in names if _is_name(name))
    for name in names:
        try:
            address = places.address(name)
            if address.doubles:
                say(doubles_text(name, address))
            answers.append(ops.who(name, address.path, plain="/" not in name, files=files))
            codes.append(CODES[answers[-1].state])
        except LifeholdError as error:
            shown = f"'{printable(name)}'", f"'{printable(os.path.abspath(name))}'"
            named = error.text.startswith(shown)  # it begins with what it is about
            say(error.text if named else f"{shown[0]}: {error.text}")
            codes.append(exits.code_of(error))
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


def _is_name(name: str) -> bool:
    """Whether it can lead anywhere; what cannot is refused where it is looked at."""
    try:
        places.address(name)
    except LifeholdError:
        return False
    return True
