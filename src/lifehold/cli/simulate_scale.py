"""`lifehold simulate --scale`: what many clients ask of a store."""

from __future__ import annotations

import sys

from ..core.value import as_dict
from ..testing.simulate.scale import SIZES, model
from . import exits
from .page import MARGIN, Page
from .render import put, say, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..testing.simulate.scale import Load
    from ..testing.simulate.scenario import Scenario

SCHEMA = "lifehold.simulate-scale/1"
LINE = 10  # clients per lock, where they share
SAME = 1.0  # seconds within which all begin, as after a deployment


def scaled(plan: Scenario, wants_json: bool) -> int:
    """The exit code. Takes about a minute for the largest sizes."""
    terms = plan.terms
    if sys.stderr is not None and sys.stderr.isatty():
        say(f"counting for up to {SIZES[-1]:,} clients: this takes about a minute")
    rows = []
    for size in SIZES:
        alone = model(size, terms.ttl, terms.heartbeat)
        burst = model(size, terms.ttl, terms.heartbeat, spread=SAME)
        lines = model(size, terms.ttl, terms.heartbeat, line=LINE)
        rows.append((size, alone, burst, lines))
    put(as_json(rows) if wants_json else in_words(plan, rows), fold=not wants_json, margin=MARGIN)
    return exits.DONE


def in_words(plan: Scenario, rows: list[tuple[int, Load, Load, Load]]) -> str:
    """The table, and how to read it."""
    terms = plan.terms
    cells = [["CLIENTS", "A LEASE EACH", "BUSIEST 0.1 s", "STARTED AT ONCE", f"LINES OF {LINE}"]]
    cells += [
        [f"{size:,}", f"{alone.mean:,.1f}", f"{alone.peak:,.0f}", f"{burst.peak:,.0f}",
         f"{lines.mean:,.1f}"]
        for size, alone, burst, lines in rows
    ]  # fmt: skip
    size, alone, _, lines = rows[-1]
    page = Page(
        f"ttl {terms.ttl:g} s, heartbeat {terms.heartbeat:.3g} s: commands per second at the store"
    )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    page.lines.append(
        table([[cell.rjust(w) for cell, w in zip(row, widths, strict=True)] for row in cells])
    )
    page.add("a holder", f"{alone.mean / size:.3g} commands/s: one per heartbeat. Half the",
             "heartbeat, twice the load")  # fmt: skip
    page.add("who waits", f"in lines of {LINE}: {lines.mean / size:.3g} commands/s per client,",
             f"with {lines.handovers / size:.2g} grants/s")  # fmt: skip
    page.add("at once", "clients that begin in the same second renew in the same second ever",
             "after: spread their starts, or hold many leases in one process, whose renewals go",
             "together, 1,000 to a command")  # fmt: skip
    return "\n".join(page.lines)


def as_json(rows: list[tuple[int, Load, Load, Load]]) -> str:
    """One object."""
    import json

    return json.dumps(
        {
            "schema": SCHEMA,
            "sizes": [
                {"clients": size, "a_lease_each": as_dict(alone),
                 "started_at_once": as_dict(burst), "in_lines": as_dict(lines)}
                for size, alone, burst, lines in rows
            ],
        },
        indent=2,
    )  # fmt: skip
