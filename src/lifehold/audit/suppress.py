"""`# lifehold: ignore[LH108] -- reason` and `# noqa: LH108`, and those that suppress nothing.

A comment speaks for the logical line that it ends, or for the next one if it stands alone;
`# lifehold: ignore-file[LH108] -- reason` for the whole file. One that begins so and goes on in
another way is a finding itself, for a typo must not silence every rule.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

UNUSED = "LH001"
OURS = re.compile(r"(?:#|//)\s*lifehold:\s*ignore(?P<rest>.*)")
# Without codes every rule is meant, so then nothing but a reason or another comment may follow.
UNDERSTOOD = re.compile(
    r"(?P<file>-file)?\s*(?:\[(?P<codes>[^\]]*LH\d{3}[^\]]*)\](?![\"'`])|(?=--|#|//|\*/|$))"
)
NOQA = re.compile(r"#\s*noqa:\s*(?P<codes>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)", re.IGNORECASE)
NEAR = re.compile(r"#\s*noqa:.*LH\d", re.IGNORECASE)
CODE = re.compile(r"LH\d{3}")


@dataclass(slots=True)
class Suppression:
    """`codes` is empty where all rules are meant. What is not `understood` suppresses nothing."""

    line: int
    last: int
    column: int
    codes: tuple[str, ...]
    whole_file: bool
    text: str
    understood: bool = True
    used: set[str] = field(default_factory=set)

    def covers(self, code: str, line: int, end_line: int) -> bool:
        if not self.understood or (self.codes and code not in self.codes):
            return False
        return self.whole_file or (self.line <= end_line and line <= self.last)


def suppressions(text: str) -> list[Suppression]:
    """All suppressions of a file; none where it cannot be cut into tokens."""
    if "lifehold:" not in text and not NEAR.search(text):
        return []
    found: list[Suppression] = []
    starts: list[int] = []
    alone: list[Suppression] = []
    logical = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                made = _read(token.string, token.start[0], token.start[1], logical)
                if made is not None:
                    found.append(made)
                    (alone if token.line.strip().startswith("#") and not logical else []).append(
                        made
                    )
                    starts.append(logical)
            elif token.type == tokenize.NEWLINE:
                for each in found:
                    if (
                        each.line <= token.start[0] <= each.last
                        or each.last == each.line == logical
                    ):
                        each.last = token.start[0]
                logical = 0
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                if not logical:
                    logical = token.start[0]
                    for each in alone:
                        each.last = max(each.last, logical)
                    alone = []
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass
    return found


def by_line(text: str, comments: Callable[[int], bool]) -> list[Suppression]:
    """Those of a language without tokens here: a comment speaks for its line, or for the next.

    `comments`: can a comment stand at this offset?
    """
    found = []
    at = 0
    for number, row in enumerate(text.split("\n"), 1):
        match = OURS.search(row)
        while match and not comments(at + match.start()):
            match = OURS.search(row, match.start() + 1)
        at += len(row) + 1
        made = _read(match[0], number, match.start(), 0) if match else None
        if made is not None:
            made.last += row.lstrip().startswith(("#", "//"))
            found.append(made)
    return found


def _read(comment: str, line: int, column: int, logical: int) -> Suppression | None:
    first = min(line, logical) if logical else line
    ours = OURS.search(comment)
    if ours:
        told = UNDERSTOOD.match(ours["rest"])
        if told is None:
            return Suppression(first, line, column, (), False, comment, understood=False)
        codes = tuple(CODE.findall(told["codes"] or ""))
        return Suppression(first, line, column, codes, bool(told["file"]), comment)
    other = NOQA.search(comment)
    if other:
        codes = tuple(CODE.findall(other["codes"].upper()))
        return Suppression(first, line, column, codes, False, comment) if codes else None
    return None
