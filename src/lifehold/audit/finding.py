"""What the auditor says: a finding at its place, and a notice about a file it could not read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """A second place that belongs to a finding, and what happens there."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect. Lines count from 1, columns too; `fingerprint` outlives moved lines."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    message: str
    source: str = ""
    function: str = ""
    spans: tuple[Span, ...] = ()
    fingerprint: str = field(default="", compare=False)

    @property
    def place(self) -> tuple[str, int, int, str]:
        return (self.path, self.line, self.column, self.code)


@dataclass(frozen=True, slots=True)
class Edit:
    """Text that comes into the place of whole lines: from the start of `line` up to the end."""

    line: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Why a file was not read, or read in part only."""

    path: str
    text: str
    line: int = 0

    @property
    def means_unread(self) -> bool:
        """Is there something in the file that nobody has looked at?"""
        return self.text.startswith(("not read", "not finished")) or "not looked at" in self.text


def fingerprint(path: str, code: str, function: str, source: str, number: int) -> str:
    """The same as long as file, rule, function and the text of the line stay as they are."""
    parts = [path, code, function, " ".join(source.split()), str(number)]
    text = "\0".join(parts).encode(errors="surrogateescape")  # names of files are bytes
    return hashlib.sha256(text).hexdigest()[:20]
