"""What a command's row is made of: its options, its operands, its words for people."""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.value import value
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core import address
    from ..store import site
else:
    address = fork.later("lifehold.core.address", globals())
    site = fork.later("lifehold.store.site", globals())

SECONDS_OF = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DIGITS = frozenset("0123456789.")


class Usage(InvalidArgument):
    """The command line cannot be understood."""

    code = "usage"


class HelpAsked(Exception):
    """Not an error: the text to be shown on stdout."""


@value
class Option:
    """One option: what it is called, what it means.

    `flags`: short and long; `takes`: the word for its value in the help, "" for a switch; `read`:
    text to value, which raises ValueError with what the value may be; `store`: what a switch means;
    `many`: it may be given again, and its value is the list of all.
    """

    name: str
    flags: tuple[str, ...]
    help: str
    takes: str = ""
    read: Callable[[str], object] = str
    store: Any = True
    default: Any = None
    many: bool = False


@value
class Command:
    """`operands`: name of each, and how many as argparse counts."""

    name: str
    usage: str
    summary: str
    examples: str
    options: tuple[Option, ...]
    operands: tuple[tuple[str, str | None], ...] = ()
    notes: str = ""


def with_values(command: Command) -> dict[str, bool]:
    """Each flag, and whether a value stands behind it."""
    return {flag: bool(option.takes) for option in command.options for flag in option.flags}


def end_of_options(words: list[str], at: int, takes: dict[str, bool]) -> int:
    """Where the options that begin at `at` end: at the first word that is none, or at a `--`."""
    while at < len(words) and words[at][:1] == "-" and words[at] not in ("-", "--"):
        word = words[at]
        at += 1
        if word.startswith("--"):
            at += takes.get(word, False)
            continue
        for index, letter in enumerate(word[1:], 2):
            if takes.get(f"-{letter}", False):
                at += index == len(word)  # else its value is the rest of the word
                break
    return min(at, len(words))


def is_nameless(words: list[str], command: Command) -> bool:
    """Whether a `--` stands before the first word that is no option, and none directly behind it.

    `run -- nice make` was meant to have a NAME before the `--`; `run -- NAME -- CMD` has it behind.
    """
    first = end_of_options(words, 0, with_values(command))
    return words[first : first + 1] == ["--"] and words[first + 2 : first + 3] != ["--"]


def duration(text: str) -> float:
    """Seconds from `90`, `0.5`, `30s`, `5m`, `1h`, `2d`."""
    number, unit = (text[:-1], SECONDS_OF[text[-1]]) if text[-1:] in SECONDS_OF else (text, 1.0)
    if not set(number) <= DIGITS or number.strip(".") == "" or number.count(".") > 1:
        raise ValueError(f"a length of time is seconds or 30s, 5m, 1h, 2d, not {text!r}")
    return float(number) * unit


def status(text: str) -> int:
    """An exit code."""
    if not (text.isascii() and text.isdigit() and int(text) <= 255):
        raise ValueError(f"an exit code is a number from 0 to 255, not {text!r}")
    return int(text)


STORE = Option(
    "store",
    ("--store",),
    "NAME is a lock in this store: sqlite:////PATH.db,\n"
    "postgresql://HOST/DATABASE, redis://HOST/0; or\nwithout it URL#NAME",
    "URL",
)


def in_store(url: str, name: str) -> str:
    """The URL of a lock in a store. Raises Usage."""
    if "://" not in url or "#" in url:
        shown = address.shown_torn(url)
        raise Usage(f"--store takes the URL of a store, such as sqlite:////PATH.db, not {shown!r}")
    if "://" in name:
        raise Usage(f"with --store the lock is named by its NAME alone, not {name!r}")
    return site.address(url, name)
