"""Colours of words in an answer: where a terminal wants them, and nowhere else.

Rule: a colour adds to a word and never says what no word says. NO_COLOR (https://no-color.org)
takes all colours, FORCE_COLOR asks for them in files and pipes too; both are set when they are not
empty, and NO_COLOR wins. A terminal that calls itself dumb gets none.
"""

from __future__ import annotations

import os

BOLD, DIM, RED, GREEN, YELLOW, END = (f"\x1b[{code}m" for code in ("1", "2", "31", "32", "33", "0"))
# What the words of the columns below, and of the heads of answers, look like.
WORDS = {
    "held": GREEN,
    "free": DIM,
    "suspect": YELLOW,
    "stale": RED,
    "safe": GREEN,
    "good": GREEN,
    "unproven": YELLOW,
    "warning": YELLOW,
    "unsafe": RED,
    "bad": RED,
    "skip": YELLOW,
    "timeout": YELLOW,
    "kept": YELLOW,
    "loss": RED,
    "takeover": RED,
    "removed": GREEN,
    "would remove": YELLOW,
}
COLUMNS = ("STATE", "HERE", "FOUND", "EVENT")


def wanted(fd: int = 1) -> bool:
    """Whether words on this descriptor are to be coloured."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown") and os.isatty(fd)


def painted(word: str) -> str:
    """A word of an answer on stdout in its colour, if it has one that is wanted."""
    return styled(word, WORDS.get(word, "")) if wanted() else word


def styled(text: str, style: str) -> str:
    """`text` in a style; "" leaves it plain."""
    return f"{style}{text}{END}" if style else text


def plain(text: str) -> str:
    """`text` without the colours: as wide as it looks."""
    first, *rest = text.split("\x1b[")
    return first + "".join(each.partition("m")[2] for each in rest)
