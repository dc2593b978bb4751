"""All lines of the table: to import this is to know every fault."""

from __future__ import annotations

from faults import clocks, deaths, injected, paths, spaces
from faults.cell import ALL
from faults.rows import ROWS

GROUPS = {
    deaths: "The holder",
    spaces: "Who is who",
    clocks: "Clocks",
    paths: "What it lies on",
    injected: "Every system call",
}
TITLES = {module.__name__.rpartition(".")[2]: title for module, title in GROUPS.items()}
CELLS = [(fault, row) for fault in ALL.values() for row in ROWS if fault.rows(row)]


def often(fault, row):
    """Whether a cell is played in every run: of each kind with and without a ttl one in turn."""
    if not fault.ci(row):
        return False
    twins = [each for each in ROWS if each.kind == row.kind and fault.rows(each)]
    return len(twins) < 2 or twins.index(row) == [*ALL].index(fault.name) % len(twins)
