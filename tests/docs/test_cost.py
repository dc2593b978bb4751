"""The page about cost says what was measured, and says it whole."""

from __future__ import annotations

import json
import re

import pytest
from benchmarks import pages
from benchmarks.measure import Line, Row, compared, judged, shown

FIGURES = json.loads(pages.FIGURES.read_text())


def test_the_page_is_what_its_figures_write():
    assert pages.PAGE.read_text() == pages.written(pages.PAGE.read_text(), FIGURES)


def test_the_figures_are_of_a_whole_run():
    assert FIGURES["quick"] is False


def test_every_line_with_a_budget_stands_on_the_page_with_its_verdict():
    text = pages.PAGE.read_text()
    held = [line for line in map(pages.line_of, FIGURES["lines"]) if line.budget is not None]
    assert held
    for line in held:
        what = re.escape(f"| {line.part}: {line.name} |")
        assert re.search(rf"{what}.* {judged(line)} \|", text), line


def test_every_picture_of_the_page_is_there():
    wanted = re.findall(r"\(\.\./(assets/cost-[^)]+)\)", pages.PAGE.read_text())
    assert wanted
    assert [name for name in wanted if not (pages.DOCS / name).is_file()] == []


def test_a_part_that_was_not_measured_is_no_empty_table():
    with pytest.raises(KeyError):
        pages.written("<!-- figures: nothing -->\n<!-- end -->", FIGURES)


@pytest.mark.parametrize(
    ("ratio", "value", "of", "verdict"),
    [(2.0, 9.0, "ratio", "met"), (2.01, 1.0, "ratio", "MISSED"), (9.0, 2.0, "value", "met"),
     (1.0, float("inf"), "value", "MISSED")],
)  # fmt: skip
def test_a_budget_is_of_the_ratio_or_of_the_value(ratio, value, of, verdict):
    assert judged(Line("part", "name", value, "ms", ratio, budget=2.0, of=of)) == verdict


def test_a_rival_who_never_recovers_is_told_so_and_kept_in_json():
    line = Line("part", "name", float("inf"), "ms", of="value")
    assert shown(line) == "never"
    entry = json.loads(json.dumps({"part": "part", "name": "name", "value": None, "unit": "ms"}))
    assert shown(pages.line_of(entry)) == "never"


def test_a_ratio_is_of_the_least_times_and_its_quartiles_of_the_rounds():
    base, row = (
        Row("base", int, [1000.0, 2000.0, 4000.0]),
        Row("row", int, [3000.0, 2000.0, 8000.0]),
    )
    line = compared("part", row, base)
    assert (line.value, line.ratio) == (2.0, 2.0)
    assert (line.low, line.high) == (1.5, 2.5)
