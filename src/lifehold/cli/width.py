"""How many columns of a terminal a text takes, and texts that fit it.

Wide characters take two, combining ones none.

Promise: for printable text, as core/mask.printable leaves it. Terminals differ on the newest emoji;
one column of the line is left free for that.
"""

from __future__ import annotations

MARGIN = 9  # columns before a fact
WHOLE = ("next", "lock", "agai", "CMD ", "    ")  # by their first letters


def columns(text: str) -> int:
    """The columns that `text` takes."""
    return len(text) if text.isascii() else sum(map(column, text))


def column(char: str) -> int:
    """The columns of one character."""
    from unicodedata import category, east_asian_width

    if category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def folded(text: str, room: int, margin: int = MARGIN) -> str:
    """A text whose facts stand in lines `  by     ...`: what is too long goes on below.

    `margin`: columns before a fact. Lines to be copied (`next`, `lock`, `again`) stay whole, and so
    does a word that is longer than a line.
    """
    lines = []
    for line in text.split("\n"):
        fact = line[:2] == "  "
        if columns(line) <= room or room <= 2 * margin or (fact and line[2:6] in WHOLE):
            lines.append(line)
        else:
            lines += wrapped(line, room, margin if fact else 2)
    return "\n".join(lines)


def wrapped(line: str, room: int, margin: int) -> list[str]:
    """`line` broken at spaces, from the second line on behind `margin` columns."""
    lines, left = [], line
    while columns(left) > room:
        spaces = [at for at, char in enumerate(left) if char == " " and at > margin]
        if not spaces:
            break  # a word that is longer than the line
        end = max((at for at in spaces if columns(left[:at]) <= room), default=spaces[0])
        lines.append(left[:end])
        left = " " * margin + left[end + 1 :]
    return [*lines, left]


def cut(text: str, room: int) -> str:
    """`text` in at most `room` columns, with `...` where something is missing."""
    if columns(text) <= room:
        return text
    mark = "..." if room > 10 else ""
    left, kept = room - len(mark), []
    for char in text:
        left -= column(char)
        if left < 0:
            break
        kept.append(char)
    return "".join(kept) + mark
