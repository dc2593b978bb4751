"""The page of the fault table: written by its target, with every line and kind there is."""

from __future__ import annotations

from pathlib import Path

from faults.cell import Cell
from faults.lines import CELLS
from faults.page import line, page

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"


def sections():
    """Fault -> its lines on the page."""
    found, name = {}, None
    for text in PAGE.read_text().splitlines():
        if text.startswith("### "):
            name = text[4:].lower()
            found[name] = []
        elif name and text.startswith("| "):
            found[name].append(text)
    return found


def test_the_page_has_a_line_for_every_fault_and_kind():
    found = sections()
    lacks = [
        f"{fault.name}: {row.name}"
        for fault, row in CELLS
        if not any(text.startswith(f"| {row.name} |") for text in found.get(fault.name.lower(), ()))
    ]
    assert not lacks, f"run make faults: {lacks}"


def test_the_page_shows_no_cell_that_is_not_as_promised():
    assert "**" not in "".join(text for lines in sections().values() for text in lines)


def test_a_cell_that_is_not_as_promised_would_stand_out_on_the_page():
    bad = line(Cell("kill -9", "soft", double=1), "")
    assert "1 double holders" in bad
    assert bad in page({"The holder": {"kill -9": [bad]}}, 1, False)
