"""Interleaved timing: everybody has a turn in every round, so a slow moment hits all alike.

A figure is the minimum or the median over the rounds, and what counts is its ratio to the baseline's
in the same run. An absolute time says something about the machine, not about a lock.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Row:
    """One contender: its name, what to run once, and how often in a round."""

    name: str
    run: Callable[[], object]
    weight: float = 1.0  # of the loops of a round: slow contenders need fewer
    times_ns: list[float] = field(default_factory=list)

    @property
    def least(self) -> float:
        return min(self.times_ns)

    @property
    def median(self) -> float:
        return statistics.median(self.times_ns)


def interleave(rows: list[Row], rounds: int, loops: int) -> None:
    """Time every row in every round; nanoseconds per call are appended to `times_ns`."""
    for row in rows:
        row.run()  # first use: imports, files, caches
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for row in rows:
                count = max(1, int(loops * row.weight))
                run, clock = row.run, time.perf_counter_ns
                begun = clock()
                for _ in range(count):
                    run()
                row.times_ns.append((clock() - begun) / count)
    finally:
        gc.enable()


def table(
    title: str, rows: list[Row], note: str = "", budgets: dict[str, float] | None = None
) -> str:
    """The rows with their ratios to the first one, as text."""
    base = rows[0]
    lines = [title, f"  {'':52} {'least':>10} {'ratio':>7} {'median':>7}   budget"]
    for row in rows:
        ratio = row.least / base.least
        limit = (budgets or {}).get(row.name)
        verdict = "" if limit is None else f"<= {limit:<4} {'kept' if ratio <= limit else 'BROKEN'}"
        figures = f"{row.least / 1000:7.2f} us {ratio:7.2f} {row.median / base.median:7.2f}"
        lines.append(f"  {row.name:52} {figures}   {verdict}")
    return "\n".join([*lines, f"  {note}" if note else ""]).rstrip() + "\n"
