"""How many columns of a terminal a text takes, and texts that fit it.

Wide characters take two, combining ones none, and our colours none.

Promise: for printable text, as core/mask.printable leaves it. Terminals differ on the newest emoji;
one column of the line is left free for that.
"""

from __future__ import annotations

import re

from . import colour

MARGIN = 9  # columns before a fact
BELOW = 6  # before what an option does, where that stands under it
BESIDE = 8  # and from where on it stands beside it
WHOLE = ("next", "lock", "agai", "CMD ", "    ")  # by their first letters


def columns(text: str) -> int:
    """The columns that `text` takes."""
    if "\x1b" in text:
        text = colour.plain(text)
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


def narrowed(text: str, room: int) -> str:
    """A help text in `room` columns.

    Paragraphs flow, and what an option does stands below it. Lines to be copied stay whole.
    """
    lines: list[str] = []
    for block in text.split("\n\n"):
        rows = block.split("\n")
        if lines:
            lines.append("")
        if all(row[:1] != " " for row in rows) and not rows[0].startswith("usage:"):
            lines += wrapped(" ".join(rows), room, 0)
            continue
        while rows:
            row = rows.pop(0)
            while rows and rows[0].startswith(" " * BESIDE):  # goes on with what an option does
                row = f"{row} {rows.pop(0).strip()}"
            left, gap, right = row.strip().partition("  ")
            if row[:2] != "  ":
                lines += wrapped(row, room, 2)
            elif columns(row) <= room or not gap:
                lines.append(row)
            else:
                lines.append(f"  {left}")
                lines += wrapped(f"{' ' * BELOW}{right.strip()}", room, BELOW)
    return "\n".join(lines)


def cut(text: str, room: int) -> str:
    """`text` in at most `room` columns, with `...` where something is missing."""
    if columns(text) <= room:
        return text
    mark = "..." if room > 10 else ""
    left = room - len(mark)
    pieces = re.split("(\x1b\\[[0-9;]*m)", text)  # the odd ones are colours, and all of them stay
    for at in range(0, len(pieces), 2):
        kept = []
        for char in pieces[at]:
            left -= column(char)
            if left < 0:
                kept.append(mark)
                mark = ""
                break
            kept.append(char)
        pieces[at] = "".join(kept)
    return "".join(pieces)


def tail(text: str, room: int) -> str:
    """The end of a text, which says most of a path: `.../app/server.pid`."""
    if columns(text) <= room:
        return text
    mark = "..." if room > 10 else ""
    kept = text
    while kept and columns(kept) > room - len(mark):
        kept = kept[1:]
    return mark + kept
