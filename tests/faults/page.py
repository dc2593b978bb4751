"""`python -m faults.page PAGE [--few] [--guest FOLDER]`: play the whole table and write the page.

The text around the table is here, so that nobody edits the page by hand. `--few`: a few calls of
each cell instead of every one; `--guest`: also on NFSv4, with the packages of the guest there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
from pathlib import Path

import ground
from faults.cell import ALL, Cell, play
from faults.lines import TITLES
from faults.rows import LEASE, PROOF, ROWS, SETTLES

BEGIN = f"""# The fault table

What becomes of each kind of lock when something goes wrong. Every line was played with real
processes, on {{system}}; this page is written by `make faults` and never by hand.

A holder takes the lock, the fault strikes, another process asks. Two judges that know nothing of
locks say what came of it: a *canary*, a file made with `O_EXCL` inside the protected section,
notices a second holder; the *data* behind the section remembers the greatest token and refuses a
smaller one. Locks that are broken on purpose show in every run that each judge would notice.

- **double**: how often two were inside. It must be 0.
- **wedged**: how often nobody could take the lock any more. It must be 0.
- **recovered**: from the fault until the next one had the lock, at worst. Promised are
  {PROOF * 1000:.0f} ms where one kernel proves the death (`link` settles for {SETTLES * 1000:.0f}
  ms more), and ttl + one heartbeat ({LEASE:g} s here) where only the lease ends it. `-`: nobody
  had to.
- **told**: whether a holder that lost it heard so from its first `check()`.
- **refused**: whether the data refused that holder's token. `-`: there was nobody left to tell.

**Power cut**: all kinds work on a disk that logs each write and each flush (as dm-log-writes does):
taken, held, broken, left by the dead. Then the disk is made anew as it was at one of its writes,
for every other cut without a part of what was not flushed and with the last write torn, and every
kind is asked for by processes of another boot. Its tokens must be greater than all that were told
before the cut. *recovered* is the worst of those that need not be left alone first. An empty
record, which names nobody, is left alone for 120 s (`link`: 300 s, as liblockfile does); here 2 s.

Where a line says *not run*, the machine that wrote this page lacked the ground for it, and the
reason stands there.
"""
END = """
## Ten thousand turns on NFSv4

The guest is a kernel 6.1 with an NFSv4.2 server and two mounts of it (`nosharecache`), each used by
processes with their own PID and UTS namespaces and boot id. One kernel is both clients and the
server. In it two such clients took one lock in turn (`python -m soak.nfs --count 10000`):

| kind | acquisitions | overlaps | tokens that did not grow | least share | took |
|---|---|---|---|---|---|
| generation ttl | 10,001 | 0 | 0 | 49.9 % | 285 s |
| soft ttl | 10,001 | 0 | 0 | 50.0 % | 344 s |
| link ttl | 10,001 | 0 | 0 | 49.9 % | 297 s |
| directory ttl | 10,001 | 0 | 0 | 50.0 % | 450 s |

A few acquires of `soft`, `link` and `directory` met ESTALE in these runs, and raised it: the other
client had removed a file between two of their steps. All three take it for gone since, and in 401
turns each none met it. All kinds have asked the server [anew](ground.md#what-a-client-remembers)
since: before, a holder of `soft` or `link` that was stopped beyond its ttl could remove its
successor's record when it went on. In 401 turns each, of a soft writer and of a soft reader beside
a writer too, there was no overlap and no error.

## Not in this table

- **Windows and macOS**: the code of each kind for those systems is checked by types and simulated
  interfaces only. No cell was run there.
- **A fork by C code whose child calls lifehold**: a test of its own for each kind. The child finds
  out at its first call, and holds, releases and excludes as any other process.
"""
FEW = " Of the lines of every system call a few calls each had their turn here."
GUEST = "two hosts, real NFSv4"
POWER = [("The power", f"power cut at any write, {on}", on) for on in ("ext4", "xfs")]


def line(cell: Cell, why: str) -> str:
    if why:
        return f"| {cell.row} | {why} | | | | |"
    took = "-" if cell.recover is None else f"{cell.recover * 1000:.0f} ms"
    words = [cell.row, cell.double, cell.wedged, took, cell.told, cell.refused]
    text = "| " + " | ".join(map(str, words)) + " |"
    return text + (f" **{'; '.join(cell.wrong)[:200]}**" if cell.wrong else "")


class Kept:
    """The lines that an earlier run has played already; a long run may so be played in parts."""

    def __init__(self, path: str | None) -> None:
        self.path = Path(path) if path else None
        there = self.path is not None and self.path.exists()
        rows = map(json.loads, self.path.read_text().splitlines()) if there else ()
        self.lines = {(fault, row): text for fault, row, text in rows}

    def keep(self, fault: str, row: str, text: str) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([fault, row, text]) + "\n")


def run(few: bool, guest: str | None, kept: Kept, say=print):
    """The lines of each fault, by title; how many cells were wrong, and how many there are."""
    found: dict[str, dict[str, list[str]]] = {}
    wrong = total = 0
    for fault, row in itertools.product(ALL.values(), ROWS):
        lines = found.setdefault(TITLES[fault.group], {}).setdefault(fault.name, [])
        if reason := fault.unless(row):
            lines.append(line(Cell(fault.name, row.name), reason))
            continue
        if (text := kept.lines.get((fault.name, row.name))) is not None:
            lines.append(text)
            total, wrong = total + ("not run" not in text), wrong + ("**" in text)
            continue
        lacks = [
            why for name in ("linux", *fault.needs) if (why := ground.missing(name)) is not None
        ]
        cell = Cell(fault.name, row.name) if lacks else play(fault, row, whole=not few)
        wrong, total = wrong + bool(cell.wrong), total + (not lacks)
        lines.append(line(cell, "not run: " * bool(lacks) + ", ".join(lacks)))
        say(f"{fault.name}: {lines[-1]} {cell.note}", flush=True)
        kept.keep(fault.name, row.name, lines[-1])
    for title, name, played in (
        ("A real NFSv4 server", GUEST, guest_lines(guest, kept)),
        *((title, name, power_lines(name, on, few, kept)) for title, name, on in POWER),
    ):
        lines = found.setdefault(title, {}).setdefault(name, [])
        for text in played:
            lines.append(text)
            total, wrong = total + ("not run" not in text), wrong + ("**" in text)
    return found, wrong, total


def guest_lines(guest: str | None, kept: Kept) -> list[str]:
    """On real NFSv4, in a guest where all takes longer: its ttl is 3 s."""
    rows = [row for row in ROWS if row.shared]
    known = [kept.lines.get((GUEST, row.name)) for row in rows]
    if all(known):
        return [text for text in known if text]
    if not guest:
        return [line(Cell(GUEST, row.name), "not run: needs --guest, a kernel") for row in rows]
    from soak.nfs import play as play_guest

    found = []
    for each in play_guest(guest, count=1, seconds=1.0):
        if each.pop("what") == "cell":
            each.pop("wrong")
            cell = Cell(**each)
            found.append(line(cell, ""))
            kept.keep(GUEST, cell.row, found[-1])
    return found


def power_lines(name: str, on: str, few: bool, kept: Kept) -> list[str]:
    """All kinds on one disk, which is cut off at any of the writes to it."""
    known = [kept.lines.get((name, row.name)) for row in ROWS]
    if all(known):
        return [text for text in known if text]
    lacks = [why for each in ("root", "fuse", on) if (why := ground.missing(each))]
    if lacks:
        return [line(Cell(name, row.name), f"not run: {', '.join(lacks)}") for row in ROWS]
    from soak.powercut import play as play_cuts

    found = []
    for cell in play_cuts(cuts=10 if few else 60, kind=on, say=print):
        found.append(line(cell, ""))
        kept.keep(name, cell.row, found[-1])
    return found


def page(found, total, few) -> str:
    system = f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    text = BEGIN.format(system=system)
    text += f"\n{total} cells, {len(ROWS)} kinds.{FEW if few else ''}\n"
    for title, faults in found.items():
        text += f"\n## {title}\n"
        for name, lines in faults.items():
            text += f"\n### {name[0].upper()}{name[1:]}\n\n"
            text += "| kind | double | wedged | recovered | told | refused |\n"
            text += "|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    return text + END


def main():
    parser = argparse.ArgumentParser(prog="python -m faults.page", description=__doc__)
    parser.add_argument("page")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--guest")
    parser.add_argument("--keep", help="a file of the lines played so far, which are not again")
    options = parser.parse_args()
    found, wrong, total = run(options.few, options.guest, Kept(options.keep))
    Path(options.page).write_text(page(found, total, options.few))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
