"""Bars of ratios, one picture per table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .measure import Row

OURS, OTHERS, RAW = "#0f766e", "#94a3b8", "#334155"


def bars(rows: list[Row], title: str, path: Path, budget: float | None = None) -> bool:
    """Ratios to the first row on a logarithmic scale. False when matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    plot: Any = pyplot
    shown = sorted(rows, key=lambda row: -row.least)
    ratios = [row.least / rows[0].least for row in shown]
    colours = [RAW if r is rows[0] else OURS if "lifehold" in r.name else OTHERS for r in shown]
    figure, axes = plot.subplots(figsize=(9, 0.42 * len(shown) + 1.4))
    axes.barh([row.name for row in shown], ratios, color=colours)
    for index, ratio in enumerate(ratios):
        axes.text(ratio * 1.05, index, f"{ratio:.2f}", va="center", fontsize=9)
    if budget is not None:
        axes.axvline(budget, color="#b91c1c", linewidth=1, linestyle="--")
        axes.text(budget * 1.03, len(shown) - 0.4, f"budget {budget}", color="#b91c1c", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(0.5, max(ratios) * 2)
    axes.set_xlabel(
        "time of one acquire and release, as a multiple of raw open, flock, unlock, close"
    )
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plot.close(figure)
    return True
