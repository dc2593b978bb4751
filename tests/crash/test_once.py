"""`once` among real processes: killed winners, and what a wait costs the system."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ground import needs
from lifehold import once
from lifehold.local.files import HOST
from lifehold.local.kernel_holders import waiters_of
from lifehold.recipes.once_build import build_once

PATIENCE = 60.0
SOURCE = Path(__file__).parents[2] / "src"
ENVIRON = os.environ | {"PYTHONPATH": str(SOURCE)}
CALLER = """
import os, sys, time
from lifehold import once
def job():
    open(sys.argv[2], "a").write(f"{os.getpid()}\\n")
    while not os.path.exists(sys.argv[3]):
        time.sleep(0.002)
    return [os.getpid(), time.monotonic()]
print(once(sys.argv[1], job)[0])
"""


def eventually(claim, what):
    until = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.001)


class Callers:
    def __init__(self, folder: Path, count: int) -> None:
        self.name, self.runs_file, self.door = (
            str(folder / each) for each in ("job", "runs", "door")
        )
        self.all = [self.start() for _ in range(count)]
        eventually(lambda: len(waiters_of(HOST, self.name)) == count - 1, "all but one wait")

    def start(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", CALLER, self.name, self.runs_file, self.door]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=ENVIRON)

    def runs(self) -> list[int]:
        try:
            return [int(line) for line in Path(self.runs_file).read_text().split()]
        except FileNotFoundError:
            return []

    def kill(self) -> float:
        """kill -9 of the one who runs; seconds until the next one does."""
        eventually(self.runs, "one runs")
        before = self.runs()
        os.kill(before[-1], signal.SIGKILL)
        killed_at = time.monotonic()
        eventually(lambda: len(self.runs()) > len(before), "another takes over")
        return time.monotonic() - killed_at


def test_of_killed_winners_each_is_followed_by_exactly_one_other(tmp_path):
    callers = Callers(tmp_path, 6)
    eventually(callers.runs, "one runs")
    for _ in range(3):
        callers.kill()
    Path(callers.door).touch()
    said = [each.communicate(timeout=PATIENCE)[0] for each in callers.all]
    runs = callers.runs()
    assert len(runs) == len(set(runs)) == 4
    assert sorted(said) == sorted(["", "", "", *[f"{runs[-1]}\n"] * 3])


def test_a_killed_builder_leaves_no_half_folder_and_another_builds(tmp_path):
    target = tmp_path / "cache"
    script = (
        "import os, sys\n"
        "from lifehold.recipes.once_build import build_once\n"
        "def build(staging):\n"
        "    open(f'{staging}/half', 'w').close()\n"
        "    os.kill(os.getpid(), 9)\n"
        "build_once(sys.argv[1], build)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(target)], env=ENVIRON, timeout=PATIENCE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert [name for name in os.listdir(tmp_path) if "building" in name]
    build_once(target, lambda staging: Path(staging, "whole").touch())
    assert os.listdir(target) == ["whole"]
    assert sorted(os.listdir(tmp_path)) == ["cache", "cache.lock", "cache.lock.once"]


def calls_of_a_waiter(folder: Path, seconds: float) -> list[str]:
    """The system calls of a caller that waits so long for another's result."""
    name, trace = str(folder / "job"), folder / "trace"
    go = threading.Event()

    def job():
        go.wait(PATIENCE)
        return 1

    runs = threading.Thread(target=once, args=(name, job))
    runs.start()
    script = (
        "import os, sys; from lifehold import once, Lock\n"
        "once(sys.argv[1] + '.warm', str)\n"
        "for mark in ('begin', 'end'):\n"
        "    os.access(f'/{mark}-of-once', 0)\n"
        "    mark == 'begin' and once(sys.argv[1], str)\n"
    )
    words = ["strace", "-f", "-o", str(trace), sys.executable, "-c", script, name]
    waiter = subprocess.Popen(words, env=ENVIRON)
    eventually(lambda: len(waiters_of(HOST, name)) == 1, "it waits")
    go.wait(seconds)
    go.set()
    assert waiter.wait(PATIENCE) == 0
    runs.join(PATIENCE)
    lines = trace.read_text().splitlines()
    first, last = (
        next(number for number, line in enumerate(lines) if f"/{mark}-of-once" in line)
        for mark in ("begin", "end")
    )
    return lines[first + 1 : last]


@needs("strace")
def test_a_waiter_makes_the_same_few_calls_however_long_it_waits(tmp_path):
    counts = []
    for number, seconds in enumerate((0.0, 1.2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        calls = [
            line for line in calls_of_a_waiter(folder, seconds)
            if not re.search(r"\\.pyc?\\b|__pycache__|site-packages|/lib/", line)
        ]  # fmt: skip
        on_files = [line for line in calls if str(folder) in line or "flock(" in line]
        counts.append((len(on_files), len(calls)))
        assert len(on_files) <= 16, "\n".join(on_files)
    (short, all_short), (long, all_long) = counts
    assert short == long, counts
    assert all_long - all_short < 30, counts
