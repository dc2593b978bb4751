"""All lines of the table: to import this is to know every fault."""

from __future__ import annotations

from faults import clocks, deaths, injected, mounts, paths, spaces
from faults.cell import ALL
from faults.rows import ROWS

GROUPS = {
    deaths: "The holder",
    spaces: "Who is who",
    clocks: "Clocks",
    paths: "What it lies on",
    mounts: "File systems",
    injected: "Every system call",
}
TITLES = {module.__name__.rpartition(".")[2]: title for module, title in GROUPS.items()}
CELLS = [(fault, row) for fault in ALL.values() for row in ROWS if fault.rows(row)]


def often(fault, row):
    """Whether a cell is played in every run.

    Of each kind with and without a ttl one in turn; the kernel lock, which tests/crash is about, in
    every other fault.
    """
    if not fault.ci(row):
        return False
    number = [*ALL].index(fault.name)
    twins = [each for each in ROWS if each.kind == row.kind and fault.rows(each)]
    if len(twins) > 1:
        return twins.index(row) == number % len(twins)
    return row.kind != "kernel" or number % 2 == 0
