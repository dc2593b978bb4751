"""An answer in words: a head, and lines of a name and its text."""

from __future__ import annotations

MARGIN = 14  # columns before the text of a line


class Page:
    """`lines`: as they are printed."""

    def __init__(self, head: str) -> None:
        self.lines = [head]

    def add(self, name: str, *parts: str) -> None:
        """One more, its parts joined by spaces."""
        self.lines.append(f"  {name:<{MARGIN - 2}}{' '.join(parts)}")
