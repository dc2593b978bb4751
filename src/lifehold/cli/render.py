"""Words to stderr and stdout.

stdout of `run` belongs to its CMD, so what we have to say goes to stderr, by write(2) in one piece:
lines of several processes do not mix, and a closed or full stderr never ends a run. Names and
commands of others were escaped where their text was made.
"""

from __future__ import annotations

import os
import sys

from ..core.errors import SystemRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PREFIX = "lifehold: "
LEAST = 12  # columns of a table's last cell, else it is left out


def say(text: str, prefix: str = PREFIX) -> None:
    """One message on stderr."""
    text = prefix + text
    if "\n  " in text and (room := _room(2)):
        text = _width().folded(text, room)
    left = f"{text}\n".encode("utf-8", "backslashreplace")
    try:
        while left:
            left = left[os.write(2, left) :]
    except OSError:
        return  # nobody listens; the exit code still tells


def put(text: str, *, fold: bool = False, margin: int = 9) -> None:
    """An answer on stdout. `fold`: facts in words, `margin` columns from the left, are to fit.

    Raises BrokenPipeError when the reader has gone; SystemRefused.
    """
    if sys.stdout is None:
        return
    if fold and (room := _room(1)):
        text = _width().folded(text, room, margin)
    text = text if text.endswith("\n") else text + "\n"
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError as error:  # a terminal that cannot show it: as an escape
            sys.stdout.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget_stdout()
        raise SystemRefused(
            f"the answer cannot be written to stdout: {error.strerror}", errno=error.errno
        ) from error


def forget_stdout() -> None:
    """Python would flush stdout once more at its end, and complain that this fails again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def table(rows: list[list[str]], *, whole: bool = False) -> str:
    """Rows of cells in columns, as wide as they need.

    On a terminal the last cell fits what is left of it: shortened, or left out where that is next
    to nothing, or, `whole`, gone on with below.
    """
    size = _width().columns
    widths = [max(map(size, column)) for column in zip(*rows, strict=True)]
    room = _room(1)
    left = room - sum(widths[:-1]) - 2 * len(widths[:-1])
    lines: list[str] = []
    for row in rows:
        last = row[-1]
        if room and not whole:
            last = _width().cut(last, left) if left >= LEAST else ""
        cells = [cell + " " * (width - size(cell))
                 for cell, width in zip(row[:-1], widths, strict=False)]  # fmt: skip
        line = "  ".join([*cells, last]).rstrip()
        lines += _width().wrapped(line, room, 4) if room and whole else [line]
    return "\n".join(lines)


def _room(fd: int) -> int:
    """Columns, 0 for what is no terminal."""
    try:
        return os.get_terminal_size(fd).columns if os.isatty(fd) else 0
    except OSError:
        return 0


def columns_of(fd: int) -> tuple[int, int]:
    """Columns and lines of a terminal, 80 and 24 where it does not tell."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24


def _width() -> Any:
    from . import width

    return width
