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
CELLS = [(fault, row) for fault in ALL.values() for row in ROWS if not fault.unless(row)]
EVERY = 5  # of the kinds that a fault can happen to, this one in so many has its turn in every run


def often(fault, row):
    """Whether a cell is played in every run: of each fault a few kinds, other ones than the last's.

    So every kind meets several faults, and every fault several kinds.
    """
    if not fault.ci(row):
        return False
    kinds = [each for each in ROWS if not fault.unless(each) and fault.ci(each)]
    return kinds.index(row) % EVERY == [*ALL].index(fault.name) % min(EVERY, len(kinds))
