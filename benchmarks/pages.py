"""`python -m benchmarks.pages`: the figures of docs/assets/cost.json into docs/explanation/cost.md.

In the page, what stands between `<!-- figures: PART -->` and `<!-- end -->` is written here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from .measure import Line, judged, plain, shown

DOCS = Path(__file__).parent.parent / "docs"
FIGURES, PAGE, ASSETS = DOCS / "assets/cost.json", DOCS / "explanation/cost.md", DOCS / "assets"
MARKED = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = "| | measured | ratio | quartiles | budget | |\n|---|--:|--:|--:|--:|---|\n"


def main() -> int:
    from . import plot

    figures = json.loads(FIGURES.read_text())
    drawn = plot.all_of(figures["lines"], ASSETS, "svg")
    wanted = set(re.findall(r"\(\.\./assets/(cost-[^)]+\.svg)\)", PAGE.read_text()))
    for file in drawn:
        name = f"cost-{file.name}"
        if name in wanted:
            file.rename(ASSETS / name)
        else:
            file.unlink()
    PAGE.write_text(written(PAGE.read_text(), figures))
    print(f"{PAGE}: {len(wanted)} pictures")
    return 0


def written(page: str, figures: dict[str, Any]) -> str:
    """The page with the figures of this file in it. Raises KeyError for a part it has not."""
    lines = [line_of(entry) for entry in figures["lines"]]

    def block(found: re.Match[str]) -> str:
        part = found[2]
        if part == "machine":
            text = figures["machine"] + ".\n"
        elif part == "budgets":
            text = budgets(lines)
        else:
            rows = [line for line in lines if line.part == part]
            if not rows:
                raise KeyError(part)
            text = HEAD + "".join(row(line) for line in rows)
        return f"{found[1]}\n{text}\n{found[3]}"

    return MARKED.sub(block, page)


def line_of(entry: dict[str, Any]) -> Line:
    """A line as it was measured; what JSON has no number for is infinite."""
    known = {key: value for key, value in entry.items() if key != "met"}
    return Line(**{**known, "value": float("inf") if known["value"] is None else known["value"]})


def row(line: Line) -> str:
    ratio = "" if line.ratio is None else plain(line.ratio)
    spread = (
        "" if line.low is None or line.high is None else f"{plain(line.low)} to {plain(line.high)}"
    )
    return (
        f"| {line.name} | {shown(line)} | {ratio} | {spread} | {limit(line)} | {judged(line)} |\n"
    )


def budgets(lines: list[Line]) -> str:
    text = "| what | measured | budget | |\n|---|--:|--:|---|\n"
    for line in lines:
        if line.budget is not None:
            ratio = line.of == "ratio" and line.ratio is not None
            measured = f"{plain(line.ratio or 0)} x" if ratio else shown(line)
            what = f"{line.part}: {line.name}"
            text += f"| {what} | {measured} | {limit(line)} | {judged(line)} |\n"
    return text


def limit(line: Line) -> str:
    if line.budget is None:
        return ""
    return f"{line.budget:g} {'x' if line.of == 'ratio' else line.unit}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
