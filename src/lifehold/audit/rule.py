"""What a rule is: its words, its two examples, and the check that finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .finding import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .events import Event

Severity = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium"]
Language = Literal["python", "shell", "unit", "javascript"]


class Titled(Protocol):
    """A function, a script, a container: what holds the place of a finding."""

    @property
    def title(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Hit:
    """One place that a check found, in the function that holds it.

    `node` has `lineno`, `col_offset`, `end_lineno` and `end_col_offset`, like those of ast.
    """

    function: Titled
    node: object
    message: str
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """`default`: is it asked when nothing is selected? `bad` is found by it, `good` by no rule.

    `about`: the kinds of acts without one of which there is nothing to ask. `cured`: the best that
    `--fix` has for it; "unsafe" is written with `--unsafe-fixes` alone. `check` is handed what its
    language is read into: a Judge, a Script, a Unit, a Source.
    """

    code: str
    slug: str
    cwe: int
    severity: Severity
    confidence: Confidence
    default: bool
    title: str
    why: str
    timeline: str
    bad: str
    good: str
    fix: str
    check: Callable[[Any], Iterator[Hit]]
    about: frozenset[str] = frozenset()
    cured: Literal["", "safe", "unsafe"] = ""
    language: Language = "python"


def at(event: Event, message: str, *spans: Span) -> Hit:
    """A hit at the place of an event."""
    return Hit(event.where, event.site, message, spans)


def there(event: Event, text: str) -> Span:
    """A second place: what an event does there."""
    return Span(event.line, text)
