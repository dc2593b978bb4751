"""Minutes of ours beside real lockfolder processes on one folder: overlaps, and who gets how much.

    python -m soak.folder_mixed --original PYTHON [--seconds 60]    (in tests/, src on the path)

Exit 1 when two were inside together, a token did not grow, or a side got less than 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from lifehold import Lock

HOLD, PACE = 0.0005, 0.03  # seconds; ours pauses up to twice that, so that the folder is empty
ORIGINAL = """
import json, os, pathlib, random, sys, time
from lockfolder import lockfolder
lockfolder.setup()
path, hold = pathlib.Path(sys.argv[1]), float(sys.argv[3])
end = time.monotonic() + float(sys.argv[2])
done = wrong = 0
def withdraw():
    try:
        lockfolder.unlock(path)
    except FileNotFoundError:
        pass
while time.monotonic() < end:
    try:
        got = lockfolder.lock(path)
    except Exception:
        got = False
        withdraw()
    if got:
        try:
            os.close(os.open(sys.argv[1] + ".canary", os.O_CREAT | os.O_EXCL))
            time.sleep(hold)
            os.unlink(sys.argv[1] + ".canary")
        except FileExistsError:
            wrong += 1
        done += 1
        withdraw()
    time.sleep(random.random() * 0.002)
print(json.dumps([done, wrong]))
"""


def ours(path: str, seconds: float) -> list[int]:
    """[grants, overlaps and tokens that did not grow]."""
    end = time.monotonic() + seconds
    lock = Lock(path, kind="folder")
    done = wrong = last = 0
    while time.monotonic() < end:
        with lock as lease:
            wrong += lease.token <= last
            last = lease.token
            try:
                os.close(os.open(path + ".canary", os.O_CREAT | os.O_EXCL))
                time.sleep(HOLD)
                os.unlink(path + ".canary")
            except FileExistsError:
                wrong += 1
            done += 1
        time.sleep(random.random() * 2 * PACE)
    return [done, wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--original", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--ours")
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(ours(options.ours, options.seconds)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bids")
        os.mkdir(path)
        seconds = str(options.seconds)
        peers = [options.original, "-c", ORIGINAL, path, seconds, str(HOLD)]
        mine = [sys.executable, "-m", "soak.folder_mixed", "--ours", path, "--seconds", seconds]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE)
            for command in (mine, peers)
            for _ in range(options.each)
        ]
        found = [json.loads(each.communicate()[0]) for each in running]
        left = os.listdir(path)
    sides = [sum(done for done, _ in found[at : at + options.each]) for at in (0, options.each)]
    wrong = sum(bad for _, bad in found)
    share = min(sides) / max(sum(sides), 1)
    print(f"ours {sides[0]}, lockfolder {sides[1]}, overlaps {wrong}, least share {share:.0%}")
    print(f"left in the folder: {left}")
    return int(bool(wrong) or share < 0.05)


if __name__ == "__main__":
    raise SystemExit(main())
