"""What a pair is made of: Python calls, their depth, system calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from . import contenders


def python_calls(run: Callable[[], object]) -> tuple[int, int]:
    """(Python functions called, greatest depth) of one pair, warmed up."""
    run()
    calls = depth = deepest = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal calls, depth, deepest
        if event == "call":
            calls, depth = calls + 1, depth + 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls - 1, deepest - 1  # less the function around it


def calls_table(folder: Path) -> str:
    """Python calls and depth of everybody."""
    lines = ["Python calls of one pair", f"  {'':52} {'calls':>7} {'depth':>7}"]
    for row in [*contenders.ours(folder), *contenders.peers(folder)[0]]:
        calls, depth = python_calls(row.run)
        lines.append(f"  {row.name:52} {calls:7d} {depth:7d}")
    return "\n".join(lines) + "\n"


PAIRS = 50
WATCHED = {
    "raw": "raw: open, flock, unlock, close",
    "0": "lifehold: with lock",
    "2": "lifehold: record=False",
    "4": "lifehold: a new Lock object",
}
SCRIPT = """
import sys
from benchmarks import contenders
from pathlib import Path
folder, which, pairs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run = contenders.raw(folder) if which == "raw" else contenders.ours(folder)[int(which)].run
run(); run()
for _ in range(pairs): run()
"""


def system_calls(folder: Path) -> str:
    """System calls of one pair, by strace: a run with many pairs less one with none."""
    if shutil.which("strace") is None:
        return "system calls: not counted, strace is not installed\n"
    lines = ["system calls of one pair"]
    for which, name in WATCHED.items():
        counted = _strace(folder, which, PAIRS) - _strace(folder, which, 0)
        shown = ", ".join(
            f"{call} {n / PAIRS:g}" for call, n in counted.most_common() if n >= PAIRS
        )
        lines.append(f"  {name:34} {sum(counted.values()) / PAIRS:4.1f}   {shown}")
    return "\n".join(lines) + "\n"


def _strace(folder: Path, which: str, pairs: int) -> Counter[str]:
    with tempfile.NamedTemporaryFile() as out:
        command = ["strace", "-qq", "-o", out.name, sys.executable, "-c", SCRIPT]
        subprocess.run([*command, str(folder), which, str(pairs)], check=True)
        text = Path(out.name).read_text(errors="replace")
    return Counter(line.partition("(")[0] for line in text.splitlines() if "(" in line)
