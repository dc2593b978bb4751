"""`python -m benchmarks [--quick] [SECTION ...]`: tables on stdout, plots in benchmarks/out."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from . import plot, structure, uncontended
from .measure import Row

SECTIONS = ("blocking", "asyncio", "calls", "syscalls", "import")
OUT = Path(__file__).parent / "out"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "section", nargs="*", default=[], help=f"of {', '.join(SECTIONS)}; all when left out"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rounds: a look, no figures to quote"
    )
    parser.add_argument("--disk", default="/var/tmp", help="a folder on a disk's file system")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder on tmpfs; '' for none")
    options = parser.parse_args()
    if unknown := set(options.section) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    wanted = options.section or SECTIONS
    OUT.mkdir(exist_ok=True)
    print(f"CPython {platform.python_version()}, Linux {platform.release()}, {platform.machine()}")
    print("Ratios within this run; the least of all rounds, and the median.\n")
    results: dict[str, object] = {"python": platform.python_version(), "kernel": platform.release()}
    rounds, loops = (8, 100) if options.quick else (80, 250)
    folders = [Path(base) for base in (options.disk, options.tmpfs) if base and Path(base).is_dir()]
    for base in folders:
        folder = Path(tempfile.mkdtemp(prefix="lifehold-bench-", dir=base))
        try:
            for section in wanted:
                if section in ("blocking", "asyncio") or base is folders[0]:
                    run(section, folder, base, rounds, loops, results)
        finally:
            shutil.rmtree(folder)
    (OUT / "results.json").write_text(json.dumps(results, indent=1))
    print(f"plots and results.json are in {OUT}")
    return 0


def run(
    section: str, folder: Path, base: Path, rounds: int, loops: int, results: dict[str, object]
) -> None:
    """One section: its table, and where it has one its plot."""
    name = f"{section}-{base.name}"
    if section == "blocking":
        rows, text = uncontended.blocking(folder, rounds, loops)
        plot.bars(rows, "An uncontended file lock, blocking", OUT / f"{name}.png", 2.0)
        results[name] = figures(rows)
    elif section == "asyncio":
        rows, text = uncontended.asynchronous(folder, rounds, loops)
        plot.bars(rows, "An uncontended file lock, asyncio", OUT / f"{name}.png", 2.2)
        results[name] = figures(rows)
    elif section == "calls":
        text = structure.calls_table(folder)
    elif section == "syscalls":
        text = structure.system_calls(folder)
    else:
        text, results["import_ms"] = structure.import_cost(max(5, rounds // 4))
    print(text, flush=True)


def figures(rows: list[Row]) -> dict[str, dict[str, float]]:
    """What a later run can be compared with."""
    base = rows[0]
    return {
        row.name: {"least_us": row.least / 1000, "ratio": row.least / base.least,
                   "median_ratio": row.median / base.median}
        for row in rows
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
