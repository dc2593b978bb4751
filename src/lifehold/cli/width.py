"""How many columns of a terminal a text takes: wide characters two, combining ones none.

Promise: for printable text, as core/mask.printable leaves it. Terminals differ on the newest emoji;
one column of the line is left free for that.
"""

from __future__ import annotations


def columns(text: str) -> int:
    """The columns that `text` takes."""
    return len(text) if text.isascii() else sum(map(column, text))


def column(char: str) -> int:
    """The columns of one character."""
    from unicodedata import category, east_asian_width

    if category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


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
