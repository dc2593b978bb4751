"""The fault table, cell by cell: no double holder, nobody wedged, soon recovered, told, refused."""

from __future__ import annotations

import pytest

import ground
from faults.cell import play
from faults.lines import CELLS, often


@pytest.mark.parametrize(
    ("fault", "row"),
    [
        pytest.param(
            fault,
            row,
            id=f"{fault.name}-{row.name}",
            marks=[] if often(fault, row) else pytest.mark.soak,
        )
        for fault, row in CELLS
    ],
)
def test_the_fault_leaves_the_lock_as_promised(fault, row):
    ground.require("linux", *fault.needs)
    cell = play(fault, row)
    assert not cell.wrong, f"{cell.wrong} {cell.note}"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "row"),
    [
        pytest.param(fault, row, id=f"{fault.name}-{row.name}")
        for fault, row in CELLS
        if fault.group == "injected"
    ],
)
def test_at_each_and_every_call_the_fault_leaves_the_lock_as_promised(fault, row):
    ground.require("linux", *fault.needs)
    cell = play(fault, row, whole=True)
    assert not cell.wrong, f"{cell.wrong} {cell.note}"
