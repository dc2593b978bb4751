"""`python -m benchmarks.scale`: what many clients ask of a store, and how fast the simulator is.

Into docs/assets/simulate-scale.json and .svg, and between the marks of
docs/explanation/simulator.md. Takes some minutes.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from lifehold.testing.simulate import Scenario, simulate
from lifehold.testing.simulate.scale import SIZES, measured, model

DOCS = Path(__file__).parent.parent / "docs"
ASSETS, PAGE = DOCS / "assets", DOCS / "explanation" / "simulator.md"
FIGURES = ASSETS / "simulate-scale.json"
MARKED = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
TTLS = (10.0, 30.0, 60.0)
MEASURED = (10, 100, 1000)  # clients of the shipped engine, each with coroutines of its own
USUAL = {"think": 2.0, "pause": 12.0, "pause_every": 60.0, "crash_every": 200.0}


def main() -> int:
    figures = {"lines": lines(), "speed": speed()}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    draw(figures["lines"])
    PAGE.write_text(written(PAGE.read_text(), figures))
    return 0


def written(page: str, figures: dict[str, Any]) -> str:
    """The page with these figures in it."""
    tables = {"scale": scale_table(figures["lines"]), "speed": speed_table(figures["speed"])}
    return MARKED.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n{found[3]}", page)


def scale_table(found: list[dict[str, Any]]) -> str:
    text = "| commands per second | " + " | ".join(f"{size:,}" for size in SIZES) + " |\n"
    text += "|---|" + "--:|" * len(SIZES) + "\n"
    for line in found:
        known = dict(zip(line["clients"], line["mean"], strict=True))
        cells = [f"{known[size]:,.0f}" if size in known else "" for size in SIZES]
        text += f"| {line['name']} | " + " | ".join(cells) + " |\n"
    return text


def speed_table(found: list[dict[str, Any]]) -> str:
    text = "| nodes | hours per minute | events per second |\n|--:|--:|--:|\n"
    for each in found:
        text += (
            f"| {each['nodes']} | {each['hours_per_minute']} | {each['events_per_second']:,} |\n"
        )
    return text


def lines() -> list[dict[str, Any]]:
    found = []
    for ttl in TTLS:
        loads = [model(size, ttl) for size in SIZES]
        found.append(one(f"a lease each, ttl {ttl:g} s, heartbeat {ttl / 3:.3g} s", loads))
    found.append(
        one("lines of 10 clients, ttl 30 s", [model(size, 30.0, line=10) for size in SIZES])
    )
    engine = [measured(size, 30.0) for size in MEASURED]
    found.append(one("the shipped engine, a lease each, ttl 30 s", engine))
    engine = [measured(size, 30.0, line=10) for size in MEASURED]
    found.append(one("the shipped engine, lines of 10, ttl 30 s", engine))
    return found


def one(name: str, loads: list[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "clients": [load.clients for load in loads],
        "mean": [round(load.mean, 2) for load in loads],
        "peak": [round(load.peak, 2) for load in loads],
    }


def speed() -> list[dict[str, Any]]:
    """Simulated hours in a minute of one processor."""
    found = []
    for nodes, hours in ((2, 4.0), (5, 4.0), (20, 2.0), (100, 0.5)):
        plan = Scenario(ttl=10.0, nodes=nodes, hours=hours, **USUAL)
        began = time.process_time()
        outcome = simulate(plan, 1)
        took = time.process_time() - began
        found.append(
            {
                "nodes": nodes,
                "hours_per_minute": round(hours / took * 60),
                "events_per_second": round(outcome.events / took),
                "grants": outcome.grants,
            }
        )
    return found


def draw(found: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "lifehold", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    plot: Any = pyplot
    figure, axes = plot.subplots(figsize=(8, 4.4))
    shades = ["#134e4a", "#0f766e", "#5eead4", "#b91c1c", "#0f766e", "#b91c1c"]
    for line, colour in zip(found, shades, strict=True):
        engine = line["name"].startswith("the shipped")
        axes.plot(
            line["clients"], line["mean"], color=colour, label=line["name"],
            marker="o" if engine else None, linestyle="none" if engine else "-",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    axes.set_xlabel("clients, each a process of its own")
    axes.set_ylabel("commands per second at the store")
    axes.legend(frameon=False)
    axes.grid(visible=True, color="#e2e8f0")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(ASSETS / "simulate-scale.svg", metadata={"Date": None})
    plot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
