"""What an exploration found: figures, and for each kind of violation its shortest schedule.

A schedule is lines such as `P1 flock(3, EX|NB) -> ok` and `P2 CRASH before pwrite(...)`. The text
can be played again (`Exploration.replay`), so it is itself the regression test of the bug it
shows.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from ..core.value import value
from .model import Error
from .world import Stat, TimedStat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .actor import Call

LONGEST = 76  # characters of a file's content that are shown
OPEN_FLAGS = ("CREAT", "EXCL", "TRUNC", "DIRECTORY")
LOCK_WORDS = {1: "SH", 2: "EX", 8: "UN"}


@value
class Violation:
    """One kind of violation: how often it was met, and the shortest way to it."""

    kind: str
    count: int
    schedule: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:3d}  {line}" for number, line in enumerate(self.schedule, 1))
        return f"{self.kind}, {self.count} times, shortest {len(self.schedule)} steps:\n{steps}"


@value
class Report:
    """The result. `cut` says what stopped it before every reachable state was looked at.

    `left`: the names that are there at the end, each set with the number of end states that show
    it.
    """

    name: str
    clients: int
    crashes: int
    states: int
    transitions: int
    runs: int
    seconds: float
    cut: str
    violations: Mapping[str, Violation]
    left: Mapping[tuple[str, ...], int]

    @property
    def exhaustive(self) -> bool:
        """Whether the reachable states of this configuration are exhausted."""
        return not self.cut

    @property
    def kinds(self) -> set[str]:
        """The kinds of violation that were found."""
        return set(self.violations)

    def line(self) -> str:
        """One row of a table of reports."""
        found = ", ".join(f"{v.kind} {len(v.schedule)}" for v in self.violations.values()) or "none"
        seen = f"cut: {self.cut}" if self.cut else "ALL"
        return (
            f"{self.name:68} {self.clients}x{self.crashes} {self.states:9,} "
            f"{self.transitions:10,} {self.runs:7,} {self.seconds:6.1f}  {seen:20} {found}"
        )

    def __str__(self) -> str:
        return "\n".join([self.line(), *map(str, self.violations.values())])


@value
class PlayedSchedule:
    """A schedule that was played: the kinds of violation seen on the way.

    `parted`: the index of the first line that cannot happen any more, None when all could; then
    `instead` is what can happen there.
    """

    kinds: frozenset[str]
    parted: int | None = None
    instead: tuple[str, ...] = ()


def shown(client: int, call: Call, answer: Any) -> str:
    """A step in one line."""
    return f"P{client} {called(call)} -> {answered(answer)}"


def called(call: Call) -> str:
    """A call with its arguments: flags and locks by name, contents shortened."""
    if not call:
        return "its end"
    op, arguments = call[0], list(map(_text, call[1:]))
    if op == "open":
        arguments[1] = _flags(call[2])
    if op in ("flock", "stand"):
        arguments[1] = LOCK_WORDS[call[2] & ~4] + ("|NB" if call[2] & 4 else "")
    return f"{op}({', '.join(arguments)})"


def answered(answer: object) -> str:
    """An answer: errors by name, stat by what matters."""
    if isinstance(answer, Error):
        return errno.errorcode.get(answer.errno, str(answer.errno))
    if isinstance(answer, Stat | TimedStat):
        kind = "folder" if stat.S_ISDIR(answer.st_mode) else "file"
        return f"{kind} ino={answer.st_ino} nlink={answer.st_nlink} size={answer.st_size}"
    return "ok" if answer is None else _text(answer)


def _text(item: object) -> str:
    if not isinstance(item, bytes):
        return repr(item)
    words = b" ".join(item.split()).decode("ascii", "backslashreplace")
    return repr(words if len(words) <= LONGEST else words[: LONGEST - 1] + "…")


def _flags(flags: int) -> str:
    access = {os.O_RDONLY: "RDONLY", os.O_WRONLY: "WRONLY", os.O_RDWR: "RDWR"}[flags & 3]
    return "|".join([access, *(name for name in OPEN_FLAGS if flags & getattr(os, f"O_{name}"))])
