"""Pictures of the lines: bars of ratios, of hand-overs on a logarithmic axis, of turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .measure import plain

OURS, OTHERS, RAW, LIMIT = "#0f766e", "#94a3b8", "#334155", "#b91c1c"
Entry = dict[str, Any]


def all_of(lines: list[Entry], folder: Path, kind: str = "png") -> list[Path]:
    """One picture for each question that was measured; none when matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "lifehold", "svg.fonttype": "none", "font.size": 9})
    parts: dict[str, list[Entry]] = {}
    for line in lines:
        parts.setdefault(line["part"], []).append(line)
    found = []
    for part, entries in parts.items():
        for begin, draw in DRAWN.items():
            if part.startswith(begin):
                path = folder / f"{slug(part)}.{kind}"
                _save(draw(part, entries), path)
                found.append(path)
    return found


def slug(part: str) -> str:
    """A file name of a title."""
    return "-".join("".join(c if c.isalnum() else " " for c in part.lower()).split())


def _ratios(part: str, entries: list[Entry]) -> Any:
    base = next(entry["against"] for entry in entries if entry["against"])
    return _bars(part, entries, "ratio", f"multiple of {base.removeprefix('raw: ')}", _times)


def _protocols(part: str, entries: list[Entry]) -> Any:
    return _bars(part, entries, "ratio", "multiple of the system calls of its own protocol", _times)


def _milliseconds(part: str, entries: list[Entry]) -> Any:
    def shown(entry: Entry) -> str:
        ratio = f"   {plain(entry['ratio'])} x" if entry["ratio"] is not None else ""
        return f"{plain(entry['value'])} ms{ratio}"

    return _bars(part, entries, "value", "milliseconds", shown)


def _turns(part: str, entries: list[Entry]) -> Any:
    label = "acquisitions of who had most, over those of who had least (1: even)"
    return _bars(part, entries, "value", label, lambda entry: plain(entry["value"]))


def _times(entry: Entry) -> str:
    return f"{plain(entry['ratio'])} x   {plain(entry['value'])} {entry['unit']}"


def _bars(part: str, entries: list[Entry], key: str, label: str, text: Any) -> Any:
    """Horizontal, the least on top, the budget of each as a red line across its bar."""
    from matplotlib import pyplot

    plot: Any = pyplot
    shown = sorted((e for e in entries if e[key] is not None), key=lambda entry: entry[key])
    values = [entry[key] for entry in shown]
    limits = [entry["budget"] if entry["of"] == key else None for entry in shown]
    figure, axes = plot.subplots(figsize=(9, 0.34 * len(shown) + 1.3))
    axes.barh([e["name"] for e in shown], values, color=[_colour(e["name"]) for e in shown])
    for index, (entry, limit) in enumerate(zip(shown, limits, strict=True)):
        end = max(entry[key], limit or 0.0)
        axes.text(end * 1.12, index, text(entry), va="center", fontsize=8.5)
        if limit is not None:
            axes.plot([limit] * 2, [index - 0.4, index + 0.4], color=LIMIT, linewidth=2)
    if any(limits):
        axes.plot([], [], color=LIMIT, linewidth=2, label="budget")
        axes.legend(loc="upper right", frameon=False)
    never = [entry["name"] for entry in entries if entry[key] is None]
    if never:
        label += f"      (never: {', '.join(never)})"
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max([*values, *(limit or 0.0 for limit in limits)]) * 12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(part, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def _colour(name: str) -> str:
    if name.startswith("raw") or name in ("flock(2)", "python -c pass"):
        return RAW
    return OURS if name.startswith("lifehold") else OTHERS


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


DRAWN = {
    "one uncontended pair": _ratios,
    "soft kinds against": _protocols,
    "hand-over": _milliseconds,
    "fairness": _turns,
    "crash": _milliseconds,
    "CPU": _milliseconds,
    "start of a command": _ratios,
}
