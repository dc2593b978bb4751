"""Words to stderr and stdout.

stdout of `run` belongs to its CMD, so what we have to say goes to stderr, by write(2) in one piece:
lines of several processes do not mix, and a closed or full stderr never ends a run. Names and
commands of others were escaped where their text was made.
"""

from __future__ import annotations

import os
import sys

from ..core.errors import SystemRefused

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
    """An answer on stdout. Raises BrokenPipeError when the reader has gone; SystemRefused."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
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


def table(rows: list[list[str]]) -> str:
    """Rows of cells in columns, as wide as they need."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
