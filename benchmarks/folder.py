"""How often who asks for a folder of bids gets it, beside lockfolder, with 1 to 8 contenders.

    python -m benchmarks.folder [--seconds 4] [--original PYTHON]

Each contender holds the lock for half a millisecond, again and again. `tries`: one try after the
other without patience, as lockfolder does; `waits`: it stands in line. Success is grants over
tries. `--original`: an interpreter that has lockfolder; without one its rows are left out, and
that is said.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lifehold import Lock, NotAcquired

HOLD = 0.0005
ORIGINAL = """
import json, pathlib, sys, time
from lockfolder import lockfolder
lockfolder.setup()
path, hold = pathlib.Path(sys.argv[1]), float(sys.argv[2])
print("up", flush=True)
end = float(sys.stdin.readline())
tries = done = 0
while time.monotonic() < end:
    tries += 1
    try:
        got = lockfolder.lock(path)
    except Exception:
        got = False
        try:
            lockfolder.unlock(path)
        except FileNotFoundError:
            pass
    if got:
        time.sleep(hold)
        lockfolder.unlock(path)
        done += 1
print(json.dumps([tries, done]))
"""


def contend(path: str, way: str) -> list[int]:
    """[tries, grants] of one contender, from when all are up to the instant that it is told."""
    lock = Lock(path, kind="folder")
    print("up", flush=True)
    end = float(sys.stdin.readline())
    tries = done = 0
    while time.monotonic() < end:
        tries += 1
        try:
            lease = lock.acquire(0 if way == "tries" else max(0.0, end - time.monotonic()))
        except NotAcquired:
            tries -= way == "waits"  # its time was over
            continue
        time.sleep(HOLD)
        lease.release()
        done += 1
    return [tries, done]


def measured(way: str, count: int, seconds: float, original: str) -> tuple[int, int]:
    """(tries, grants) of all contenders together."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bids")
        path.mkdir()
        command = (
            [original, "-c", ORIGINAL, path, str(HOLD)]
            if way == "lockfolder"
            else [sys.executable, "-m", "benchmarks.folder", "--contend", way, path]
        )
        pipe = subprocess.PIPE
        running = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)
        ]
        for each in running:
            each.stdout.readline()
        end = time.monotonic() + seconds
        for each in running:
            each.stdin.write(f"{end}\n")
            each.stdin.flush()
        found = [json.loads(each.communicate()[0]) for each in running]
    return sum(tries for tries, _ in found), sum(done for _, done in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--original", default="")
    parser.add_argument("--contend", nargs=2)
    options = parser.parse_args()
    if options.contend:
        way, path = options.contend
        print(json.dumps(contend(path, way)))
        return
    ways = [*(["lockfolder"] if options.original else []), "tries", "waits"]
    if not options.original:
        print("without --original there are no rows of lockfolder")
    print(f"{'way':12} {'n':>2} {'success':>8} {'grants/s':>9}")
    for count in (1, 2, 4, 8):
        for way in ways:
            tries, done = measured(way, count, options.seconds, options.original)
            print(f"{way:12} {count:2} {done / max(tries, 1):8.1%} {done / options.seconds:9.0f}")


if __name__ == "__main__":
    main()
