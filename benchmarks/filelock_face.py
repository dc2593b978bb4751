"""`python -m benchmarks.filelock_face [FOLDER]`: our filelock face against filelock, pairwise.

Class by class on one file system: acquire and release of a free lock, both sides in turn in one
process, so that what else the machine does hits both; the ratio of the medians and of the fastest
rounds. Then the hand-over: from just before the release of a holder to the waiter of another
process, median of some. filelock is taken from PYTHONPATH.
"""

from __future__ import annotations

import importlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

OURS, THEIRS = "lifehold.compat.filelock", "filelock"
ROUNDS, HANDED = 9, 11
CLASSES: dict[str, tuple[dict[str, Any], int]] = {
    "FileLock": ({}, 200),
    "SoftFileLock": ({}, 100),
    "MarkerSoftFileLock": ({}, 100),
    "SoftFileLease": ({}, 50),
    "StrictSoftFileLock": ({}, 20),
    "ReadWriteLock": ({"is_singleton": False}, 100),
    "SoftReadWriteLock": ({"is_singleton": False}, 20),
}
WAITER = """
import importlib, sys, time
module, name, path, shared = sys.argv[1:]
lock = getattr(importlib.import_module(module), name)(path, **eval(shared))
take = getattr(lock, "acquire_write", None) or lock.acquire
for line in sys.stdin:
    print("waits", flush=True)
    take()
    print(time.monotonic_ns(), flush=True)
    lock.release()
"""


def made(module: str, name: str, path: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """How a lock of one side is taken, and let go of."""
    lock = getattr(importlib.import_module(module), name)(path, **CLASSES[name][0])
    return getattr(lock, "acquire_write", None) or lock.acquire, lock.release


def free(folder: str, name: str) -> tuple[list[float], list[float]]:
    """Microseconds of a pair on a lock that is free, in each round, of both sides."""
    sides = [made(module, name, f"{folder}/{module}-{name}") for module in (OURS, THEIRS)]
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for (take, give), times in zip(sides, found, strict=True):
            begun = time.perf_counter()
            for _ in range(CLASSES[name][1]):
                take()
                give()
            times.append((time.perf_counter() - begun) / CLASSES[name][1] * 1e6)
    return found[0][1:], found[1][1:]


def handed(folder: str, module: str, name: str) -> float:
    """Milliseconds from a release to the waiter of another process, median."""
    path = f"{folder}/{module}-{name}-handed"
    take, give = made(module, name, path)
    options = repr(CLASSES[name][0])
    waiter = subprocess.Popen(
        [sys.executable, "-c", WAITER, module, name, path, options],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert waiter.stdin is not None
    assert waiter.stdout is not None
    times = []
    with waiter:
        for _ in range(HANDED):
            take()
            waiter.stdin.write("go\n")
            waiter.stdin.flush()
            waiter.stdout.readline()
            time.sleep(random.uniform(0.2, 0.3))
            begun = time.monotonic_ns()
            give()
            times.append((int(waiter.stdout.readline()) - begun) / 1e6)
        waiter.stdin.close()
    return statistics.median(times)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for name in CLASSES:
            ours, theirs = free(folder, name)
            middle = statistics.median(theirs) / statistics.median(ours)
            least = min(theirs) / min(ours)
            one, other = handed(folder, OURS, name), handed(folder, THEIRS, name)
            print(
                f"{name:20} free {min(ours):7.0f} us, filelock {min(theirs):7.0f} us:"
                f" {least:5.1f}x (medians {middle:5.1f}x)   handed over {one:7.2f} ms,"
                f" filelock {other:6.1f} ms: {other / one:5.0f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
