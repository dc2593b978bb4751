"""`lifehold ls`: the locks of the default folders, or of those that are named."""

from __future__ import annotations

from ..core.errors import LifeholdError
from ..core.mask import printable
from ..ops import listing
from ..ops.who import FREE, Answer
from ..runtime import clock
from . import exits, show
from .options import LS, Usage, arguments
from .render import put, say

SCHEMA = "lifehold.ls/1"


def ls(words: list[str]) -> int:
    """The exit code of `lifehold ls WORDS`."""
    given, folders = arguments(LS, words)
    if given["names"] and given["json"]:
        raise Usage("--names and --json are two forms of the answer: choose one")
    if given["names"] and not folders and not given["held"]:
        return _names()
    answers: list[Answer] = []
    code = exits.DONE
    if not folders:
        answers += listing.of_names()
    for folder in folders:
        try:
            answers += listing.of_folder(folder)
        except LifeholdError as error:
            say(error.text)
            code = max(code, exits.code_of(error))
    if given["held"]:
        answers = [answer for answer in answers if answer.state != FREE]
    answers.sort(key=lambda answer: (listing.ORDER[answer.state], answer.name))
    if given["json"]:
        put(show.as_json(SCHEMA, answers, clock.utc_now()))
    elif given["names"]:
        _put_lines([answer.name for answer in answers])
    elif answers:
        put(show.as_table(answers, clock.utc_now(), last=True))
    elif code == exits.DONE:
        say("no locks " + ("are held there" if given["held"] else "there"))
    return code


def _names() -> int:
    """The plain names alone, without a look at who holds them: quick enough for a shell's Tab."""
    from ..local import places

    files = listing.names_in(places.candidates()[0])
    names = [file.removesuffix(places.SUFFIX) for file in files]
    _put_lines(sorted(name for name in names if name.isprintable() and name[:1] not in ("", "-")))
    return exits.DONE


def _put_lines(names: list[str]) -> None:
    if names:
        put("\n".join(map(printable, names)))
