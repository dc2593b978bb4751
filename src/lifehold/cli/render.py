"""Words to stderr and stdout.

stdout of `run` belongs to its CMD, so what we have to say goes to stderr, by write(2) in one piece:
lines of several processes do not mix, and a closed or full stderr never ends a run. Names and
commands of others were escaped where their text was made.
"""

from __future__ import annotations

import os
import sys

PREFIX = "lifehold: "


def say(text: str, prefix: str = PREFIX) -> None:
    """One message on stderr."""
    left = f"{prefix}{text}\n".encode("utf-8", "backslashreplace")
    try:
        while left:
            left = left[os.write(2, left) :]
    except OSError:
        return  # nobody listens; the exit code still tells


def put(text: str) -> None:
    """An answer on stdout. Raises BrokenPipeError when the reader has gone."""
    if sys.stdout is not None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()


def table(rows: list[list[str]]) -> str:
    """Rows of cells in columns, as wide as they need."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
