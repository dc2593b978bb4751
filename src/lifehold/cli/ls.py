"""`lifehold ls`: the locks of the default folders, of those that are named, or of the machine."""

from __future__ import annotations

import os

from ..core.mask import printable
from ..ops import inventory
from ..runtime import clock
from . import exits, show
from .ls_look import look, nothing
from .options import LS, Usage, arguments
from .render import PREFIX, put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = "lifehold.ls/1"


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
        from .ls_watch import watch

        return watch(given, folders)
    found = look(given, folders, progress())
    for text in found.missing:
        say(text)
    if given["json"]:
        unseen = found.unseen if given["host"] else None
        put(show.as_json(SCHEMA, found.answers, clock.utc_now(), unseen))
    elif given["names"]:
        _put_lines([answer.name for answer in found.answers])
    elif found.answers:
        put(show.as_table(found.answers, clock.utc_now(), last=True))
    elif found.code == exits.DONE:
        say(nothing(given, folders))
    if not given["json"]:
        for text in found.unseen:
            say(f"not seen: {text}")
    return found.code


def progress() -> Callable[[int], None] | None:
    """One line on a terminal that is written over, while many files are looked at."""
    if not os.isatty(2):
        return None

    def tell(seen: int) -> None:
        os.write(2, f"\r{PREFIX}{seen:,} files ...\x1b[K\r".encode())

    return tell


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
