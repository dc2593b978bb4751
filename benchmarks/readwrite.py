"""`python -m benchmarks.readwrite [--folder DIR]`: shared locks, in one run, as ratios.

An uncontended pair of acquire and release of each, against a hand-written open, flock, unlock,
close of the same folder, and against filelock's reader/writer locks where it is installed. Budgets:
kernel reader/writer at most 2.5 times raw; soft reader/writer at least 100 times faster than
filelock's. And a hand-over: from the release of one permit to its waiter.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lifehold import Lock, ReadWriteLock, Semaphore

BUDGET, FASTER = 2.5, 100.0
ROUNDS = 25


def pair(acquire: Callable[[], Any]) -> Callable[[], None]:
    """One acquire and its release."""

    def run() -> None:
        acquire().release()

    return run


def raw(folder: Path) -> Callable[[], None]:
    """What an expert writes by hand."""
    path = str(folder / "raw")

    def run() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    return run


def ours(folder: Path) -> dict[str, tuple[Callable[[], None], int]]:
    """Each with how often it runs in a round."""
    kernel, soft = ReadWriteLock(folder / "kernel"), ReadWriteLock(folder / "soft", kind="soft")
    leased = ReadWriteLock(folder / "leased", kind="soft", ttl=30)
    kernel.acquire_write().release()  # so that there is a token to carry
    return {
        "Lock": (pair(Lock(folder / "lock").acquire), 400),
        "kernel, read": (pair(kernel.acquire_read), 400),
        "kernel, write": (pair(kernel.acquire_write), 400),
        "semaphore of 1": (pair(Semaphore(folder / "one", 1).acquire), 400),
        "semaphore of 8": (pair(Semaphore(folder / "eight", 8).acquire), 400),
        "soft, read": (pair(soft.acquire_read), 40),
        "soft, write": (pair(soft.acquire_write), 40),
        "soft with ttl, read": (pair(leased.acquire_read), 40),
        "soft with ttl, write": (pair(leased.acquire_write), 40),
    }


def theirs(folder: Path) -> dict[str, tuple[Callable[[], None], int]]:
    """filelock's, if it is there."""
    try:
        filelock: Any = importlib.import_module("filelock")
    except ImportError:
        return {}
    found = {}
    for name, count in (("ReadWriteLock", 20), ("SoftReadWriteLock", 2)):
        made = getattr(filelock, name, None)
        if made is None:
            continue
        lock = made(str(folder / name))
        for side in ("read", "write"):
            block = getattr(lock, f"{side}_lock")

            def run(block: Any = block) -> None:
                with block():
                    pass

            found[f"filelock {filelock.__version__} {name}, {side}"] = (run, count)
    return found


def timed(
    contenders: dict[str, tuple[Callable[[], None], int]], rounds: int
) -> dict[str, list[float]]:
    """Microseconds of each in each round; all have a turn in every round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run, _ in contenders.values():
        run()
    for _ in range(rounds):
        for name, (run, count) in contenders.items():
            began = time.perf_counter_ns()
            for _ in range(count):
                run()
            times[name].append((time.perf_counter_ns() - began) / count / 1000)
    return times


def handover(folder: Path, permits: int, rounds: int) -> list[float]:
    """Microseconds from a release to the waiter's return, of a semaphore that is full."""
    gate, found = Semaphore(folder / f"handover{permits}", permits), []
    for _ in range(rounds):
        leases = [gate.acquire() for _ in range(permits)]
        came: list[int] = []

        def wait(came: list[int] = came) -> None:
            lease = gate.acquire()
            came.append(time.perf_counter_ns())
            lease.release()

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.02)
        began = time.perf_counter_ns()
        leases[0].release()
        waiter.join()
        found.append((came[0] - began) / 1000)
        for lease in leases[1:]:
            lease.release()
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.readwrite")
    parser.add_argument("--folder", type=Path, help="on which file system (default: a new one)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        folder = Path(made)
        contenders = {"raw flock": (raw(folder), 400), **ours(folder), **theirs(folder)}
        times = timed(contenders, given.rounds)
        least = {name: min(values) for name, values in times.items()}
        for name, value in least.items():
            ratio = value / least["raw flock"]
            print(f"{name:44} {value:10.2f} us  {ratio:8.2f} x raw")
        for side in ("read", "write"):
            slow = [v for k, v in least.items() if "SoftReadWriteLock" in k and k.endswith(side)]
            if slow:
                faster = slow[0] / least[f"soft with ttl, {side}"]
                print(f"soft with ttl, {side}: {faster:.0f} times faster (budget {FASTER:g})")
            kernel = least[f"kernel, {side}"] / least["raw flock"]
            print(f"kernel, {side}: {kernel:.2f} x raw (budget {BUDGET:g})")
        for permits in (2, 16):
            waits = handover(folder, permits, 25)
            print(f"hand-over, semaphore of {permits}: p50 {statistics.median(waits):.0f} us, "
                  f"max {max(waits):.0f} us")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
