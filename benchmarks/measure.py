"""Interleaved timing: everybody has a turn in every round, so a slow moment hits all alike.

What counts is a ratio within one run: that of the least times, where one's own work is timed, or
the median of the ratios of each round, where the system's is. The quartiles of the rounds' ratios
say how much the machine swayed. An absolute time tells of the machine, not of a lock.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SLICE_NS = 250_000  # of one turn: so short that most turns are not interrupted by the scheduler


@dataclass
class Plan:
    """Where to measure and how long. `folders`: (name of the file system, folder)."""

    folders: list[tuple[str, Path]]
    quick: bool

    def of(self, quick: int, full: int) -> int:
        """How many, how long."""
        return quick if self.quick else full

    @property
    def disk(self) -> Path:
        return self.folders[0][1]


@dataclass
class Line:
    """One figure. `ratio` is to the line `against` of the same part; `low`, `high`: its quartiles.

    `budget`: the most it may be, of `ratio` or of `value`.
    """

    part: str
    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    low: float | None = None
    high: float | None = None
    budget: float | None = None
    of: str = "ratio"
    count: int = 0

    @property
    def met(self) -> bool | None:
        """None where there is no budget."""
        measured = self.ratio if self.of == "ratio" else self.value
        return None if self.budget is None or measured is None else measured <= self.budget


@dataclass
class Row:
    """One contender: its name, and what to run once."""

    name: str
    run: Callable[[], object]
    times_ns: list[float] = field(default_factory=list)

    @property
    def least(self) -> float:
        return min(self.times_ns)

    @property
    def median(self) -> float:
        return statistics.median(self.times_ns)


def loops_of(least_ns: float) -> int:
    """How often to run in one turn what takes so long."""
    return max(1, int(SLICE_NS / least_ns))


def interleave(rows: list[Row], rounds: int) -> None:
    """Time every row in every round; nanoseconds per call are appended to `times_ns`."""
    clock, loops = time.perf_counter_ns, []
    for row in rows:
        for _ in range(3):  # first use: imports, files, caches
            begun = clock()
            row.run()
            took = clock() - begun
        loops.append(loops_of(took))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for row, count in zip(rows, loops, strict=True):
                run = row.run
                begun = clock()
                for _ in range(count):
                    run()
                row.times_ns.append((clock() - begun) / count)
    finally:
        gc.enable()


def quartiles(ratios: list[float]) -> tuple[float, float, float]:
    """(a quarter is below, the median, a quarter is above)."""
    if len(ratios) < 2:
        return (*ratios, *ratios, *ratios)[:3] if ratios else (float("nan"),) * 3  # type: ignore[return-value]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def compared(part: str, row: Row, base: Row, budget: float | None = None) -> Line:
    """The line of a row: the ratio of the least times, with the quartiles of the rounds'."""
    paired = [mine / other for mine, other in zip(row.times_ns, base.times_ns, strict=True)]
    low, _, high = quartiles(paired)
    return Line(
        part, row.name, row.least / 1000, "us", row.least / base.least, base.name, low, high,
        budget, count=len(paired),
    )  # fmt: skip


def table(lines: list[Line]) -> str:
    """Lines of one or more parts, as text."""
    text, part = [], ""
    for line in lines:
        if line.part != part:
            part = line.part
            text += ["", part, f"  {'':40} {'measured':>12} {'ratio':>7} {'quartiles':>13}  budget"]
        ratio = "" if line.ratio is None else plain(line.ratio)
        spread = "" if line.low is None else f"{plain(line.low)}-{plain(line.high)}"
        verdict = "" if line.budget is None else f"<= {line.budget:g} {judged(line)}"
        figures = f"{shown(line):>12} {ratio:>7} {spread:>13}"
        text.append(f"  {line.name:40} {figures}  {verdict}".rstrip())
    return "\n".join(text[1:]) + "\n"


def judged(line: Line) -> str:
    """In one word whether the budget is met."""
    return {True: "met", False: "MISSED", None: ""}[line.met]


def shown(line: Line) -> str:
    """The value with its unit; three figures of it."""
    value = line.value
    if not math.isfinite(value):
        return "never"
    if value >= 1000 and line.unit == "us":
        return f"{plain(value / 1000)} ms"
    return f"{plain(value)} {line.unit}".rstrip()


def plain(value: float) -> str:
    """Three figures, without a power of ten."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
