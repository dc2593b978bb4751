"""What a start costs: `lifehold run`, an import, and looking at a thousand locks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lifehold import Lock

from .measure import Line, Plan, Row, compared, quartiles

LOCKS, ASKED = 1000, 10
BASE = "python -c pass"
PEERS = "filelock portalocker fasteners zc.lockfile oslo_concurrency.lockutils".split()
IMPORT_MS = 25.0
RUN = 2.3
OURS = [sys.executable, "-m", "lifehold"]


def run(plan: Plan) -> list[Line]:
    """`lifehold run -- true`, against an interpreter that does nothing, and flock(1)."""
    lock = str(plan.disk / "run.lock")
    commands = {
        BASE: [sys.executable, "-c", "pass"],
        "lifehold run -- true": [*OURS, "run", lock, "--", "true"],
        "lifehold run --no-history -- true": [*OURS, "run", "--no-history", lock, "--", "true"],
        "lifehold run -F -- true": [*OURS, "run", "-F", lock, "--", "true"],
    }
    packed = str(_packed(plan.disk))
    commands["lifehold.pyz run -- true"] = [sys.executable, packed, "run", lock, "--", "true"]
    if shutil.which("flock"):
        commands["flock(1)"] = ["flock", str(plan.disk / "flock.lock"), "true"]
    rows = _started(commands, plan.of(6, 60), plan.disk)
    budgets = {"lifehold run -- true": RUN}
    part = "start of a command under a lock"
    return [compared(part, row, rows[0], budgets.get(row.name)) for row in rows]


def _packed(folder: Path) -> Path:
    """The command as one file, as `make pyz` builds it."""
    target = folder / "lifehold.pyz"
    tool = Path(__file__).parents[1] / "tools" / "pyz.py"
    subprocess.run([sys.executable, tool, target], check=True)
    return target


def imports(plan: Plan) -> list[Line]:
    """Milliseconds over an interpreter that does nothing: of the least times."""
    ours = "from lifehold import Lock"  # which is loaded when it is asked for
    wanted = {BASE: "pass", "lifehold": ours, **{name: f"import {name}" for name in PEERS}}
    commands = {name: [sys.executable, "-c", code] for name, code in wanted.items()}
    bare, *rows = _started(commands, plan.of(3, 30), plan.disk)
    lines = []
    for row in rows:
        over = [mine - other for mine, other in zip(row.times_ns, bare.times_ns, strict=True)]
        low, _, high = quartiles([ns / 1e6 for ns in over])
        lines.append(Line(
            "import, over bare Python", row.name, (row.least - bare.least) / 1e6, "ms",
            low=low, high=high, budget=IMPORT_MS if row.name == "lifehold" else None, of="value",
            count=len(over),
        ))  # fmt: skip
    return lines


def looking(plan: Plan) -> list[Line]:
    """`ls` and `who` over a thousand locks, all of them held by one process, and over none."""
    folder, empty = plan.disk / "many", plan.disk / "none"
    empty.mkdir()
    locks = [Lock(folder / f"{number}.lock") for number in range(LOCKS)]
    leases = [lock.acquire() for lock in locks]
    try:
        names = [str(folder / f"{number}.lock") for number in range(LOCKS)]
        commands = {
            BASE: [sys.executable, "-c", "pass"],
            "lifehold ls, no lock": [*OURS, "ls", str(empty)],
            f"lifehold ls, {LOCKS} locks held": [*OURS, "ls", str(folder)],
            f"lifehold who, 1 of {LOCKS} locks": [*OURS, "who", names[0]],
            f"lifehold who, {ASKED} of {LOCKS} locks": [*OURS, "who", *names[:ASKED]],
        }
        if shutil.which("lslocks"):
            commands[f"lslocks, {LOCKS} locks held"] = ["lslocks"]
        rows = _started(commands, plan.of(1, 10), plan.disk)
    finally:
        for lease in leases:
            lease.release()
    return [compared("looking at locks", row, rows[0]) for row in rows]


def _started(commands: dict[str, list[str]], rounds: int, home: Path) -> list[Row]:
    """From start to end of each, in rounds. A command that fails is left out, with a word."""
    rows = {name: Row(name, lambda: None) for name in commands}
    environment = {**os.environ, "LIFEHOLD_DIR": str(home / "names"), "NO_COLOR": "1"}
    for number in range(rounds + 1):
        for name, command in commands.items():
            if name not in rows:
                continue
            with tempfile.TemporaryFile() as out:
                begun = time.perf_counter_ns()
                done = subprocess.run(command, stdout=out, stderr=out, env=environment, check=False)
                took = time.perf_counter_ns() - begun
                out.seek(0)
                text = out.read().decode(errors="replace")
            if done.returncode:
                print(f"{name}: left out, it ended with {done.returncode}: {text.strip()[-200:]}")
                del rows[name]
            elif number:  # the first one fills the caches
                rows[name].times_ns.append(took)
    return list(rows.values())
