"""`lifehold ls`: the locks of the default folders, or of those that are named."""

from __future__ import annotations

import os

from ..core.errors import LifeholdError
from ..core.mask import printable
from ..ops import listing
from ..ops.who import FREE, STALE, Answer
from ..runtime import clock
from . import exits, show
from .options import LS, Usage, arguments
from .render import PREFIX, put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
            answers += listing.of_folder(folder, deep=given["deep"], tell=_progress())
        except LifeholdError as error:
            say(error.text)
            code = max(code, exits.code_of(error))
    answers = _chosen(answers, given)
    answers.sort(key=lambda answer: (listing.ORDER[answer.state], answer.name))
    if given["json"]:
        put(show.as_json(SCHEMA, answers, clock.utc_now()))
    elif given["names"]:
        _put_lines([answer.name for answer in answers])
    elif answers:
        put(show.as_table(answers, clock.utc_now(), last=True))
    elif code == exits.DONE:
        what = "are stale" if given["stale"] else "are held" if given["held"] else ""
        say(f"no locks {what} there".replace("  ", " "))
    return code


def _chosen(answers: list[Answer], given: dict[str, Any]) -> list[Answer]:
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


def _since(answer: Answer) -> float:
    """Since when it is held; where that is not known, the begin of the process that holds it."""
    holder = answer.holder
    since = None if holder is None else holder.began if holder.since is None else holder.since
    return clock.utc_now() if since is None else since


def _progress() -> Callable[[int], None] | None:
    """One line on a terminal that is written over, while many files are looked at."""
    if not os.isatty(2):
        return None

    def tell(seen: int) -> None:
        os.write(2, f"\r{PREFIX}{seen:,} files ...\x1b[K\r".encode())

    return tell


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
