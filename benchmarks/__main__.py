"""`python -m benchmarks [--quick] [--only SECTION ...]`: tables, plots, and each budget judged."""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import lifehold
from lifehold.local.ground import ground_of

from . import handover, plot, startup, structure, uncontended, waiting
from .measure import Line, Plan, judged, shown, table

SECTIONS: dict[str, Callable[[Plan], list[Line]]] = {
    "blocking": uncontended.blocking,
    "around": uncontended.around_a_block,
    "asyncio": uncontended.asynchronous,
    "soft": uncontended.soft_kinds,
    "handover": handover.handovers,
    "fairness": handover.fairness,
    "crash": handover.crashes,
    "waiting": waiting.cpu,
    "run": startup.run,
    "import": startup.imports,
    "looking": startup.looking,
}
TEXTS: dict[str, Callable[[Path], str]] = {
    "calls": structure.calls_table,
    "syscalls": structure.system_calls,
}
OUT = Path(__file__).parent / "out"


def main() -> int:
    options = arguments()
    wanted = options.only or [*SECTIONS, *TEXTS]
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="lifehold-bench-") as elsewhere:
        compiled(f"{elsewhere}/compiled")
        folders = made(options.disk, options.tmpfs)
        try:
            lines = measured(Plan(folders, options.quick), wanted)
        finally:
            for _, folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
    print(verdicts(lines))
    figures = {"schema": 1, "machine": machine(), "quick": options.quick,
               "lines": [entry(line) for line in lines]}  # fmt: skip
    OUT.mkdir(exist_ok=True)
    for file in {OUT / "results.json", options.json or OUT / "results.json"}:
        file.write_text(json.dumps(figures, indent=1) + "\n")
    drawn = plot.all_of(figures["lines"], OUT)  # type: ignore[arg-type]
    print(f"{OUT}: results.json" + "".join(f", {file.name}" for file in drawn))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    names = [*SECTIONS, *TEXTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="SECTION",
                        help=f"of {', '.join(names)}; all when left out")  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="one or two minutes: a look, no figures to quote"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    parser.add_argument("--disk", default="/var/tmp", help="a folder on a disk; '' for none")
    shm = "/dev/shm" if Path("/dev/shm").is_dir() else ""
    parser.add_argument("--tmpfs", default=shm, help="a folder on tmpfs; '' for none")
    options = parser.parse_args()
    for folder in filter(None, (options.disk, options.tmpfs)):
        if not Path(folder).is_dir():
            parser.error(f"no folder {folder!r}: name one by --disk and --tmpfs, or '' for none")
    if not (options.disk or options.tmpfs):
        parser.error("--disk and --tmpfs are both empty: name a folder to measure in")
    return options


def made(*bases: str) -> list[tuple[str, Path]]:
    """A folder of ours in each, with the name of its file system; no file system twice."""
    found: dict[str, Path] = {}
    for base in bases:
        if base:
            system = ground_of(f"{base}/x").kind or "disk"
            if system not in found:
                found[system] = Path(tempfile.mkdtemp(prefix="lifehold-bench-", dir=base))
    return list(found.items())


def compiled(prefix: str) -> None:
    """Have all compiled beforehand, as what is installed is; whatever the environment says."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = prefix
    sys.dont_write_bytecode = False
    compileall.compile_dir(str(Path(lifehold.__file__).parent), quiet=2)


def machine() -> str:
    system = platform.release().partition("-")[0]
    return (
        f"CPython {platform.python_version()}, Linux {system}, {platform.machine()}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    )


def measured(plan: Plan, wanted: list[str]) -> list[Line]:
    lines = []
    for name in wanted:
        began = time.monotonic()
        if name in TEXTS:
            print(TEXTS[name](plan.disk))
        else:
            found = SECTIONS[name](plan)
            print(table(found))
            lines += found
        print(f"({name}: {time.monotonic() - began:.0f} s)\n", flush=True)
    return lines


def entry(line: Line) -> dict[str, object]:
    """As JSON knows it: a number to four figures, null for none."""
    found = {**asdict(line), "met": line.met}
    for key, value in found.items():
        if isinstance(value, float):
            found[key] = float(f"{value:.4g}") if math.isfinite(value) else None
    return found


def verdicts(lines: list[Line]) -> str:
    """Every line that has a budget, and what became of it."""
    text = [f"{'budgets':76} {'measured':>9} {'budget':>8}"]
    for line in lines:
        if line.budget is not None:
            ratio = line.of == "ratio" and line.ratio is not None
            measured = f"{line.ratio:.2f} x" if ratio else shown(line)
            limit = f"{line.budget:g} {'x' if ratio else line.unit}".rstrip()
            what = f"{line.part}: {line.name}"
            text.append(f"{what:76} {measured:>9} {limit:>8}  {judged(line)}")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
