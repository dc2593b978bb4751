"""Minutes of ours beside the real dotlockfile, lockfolder, flock(1), procmail's lockfile.

    python -m soak.peers_mixed [PEER ...] [--seconds 60] [--each 4]
    (in tests/, src on the path)
    python -m soak.peers_mixed --stale 2000

First: `each` processes of either side on one lock, with the canary inside. Exit 1 for an overlap
that ours caused, or a side with less than 5 % of the entries. With --stale: rounds in which a file
of a dead process is found by two of ours and two real dotlockfiles at one instant; every round with
two winners is attributed by what the winner had found: ours took the file of somebody who lives
(ours), or a winner's file was removed, which ours never does (theirs). LOCKFOLDER_PYTHON as always.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter

from soak.canary import Canary, entries, in_shell, overlaps

REAL = {
    "dotlockfile": "dotlockfile -r 0 -p {lock} && {{ {inside}; dotlockfile -u {lock}; }}",
    "lockfile": "lockfile -r 0 {lock} 2>/dev/null && {{ {inside}; rm -f {lock}; }}",
    "flock": "flock {lock} sh -c '{inside}'",
}
OURS = {
    "flock": "{python} -m lifehold flock {lock} sh -c '{inside}'",
    "dotlockfile": "{python} -m lifehold dotlockfile -r 0 -p {lock} sh -c '{inside}'",
}
LOOP = "while [ $(date +%s) -lt {end} ]; do {turn}; sleep {pause}; done"
LOCKFOLDER = """
import os, pathlib, random, sys, time
sys.path.insert(0, sys.argv[5])
from soak.canary import Canary
if sys.argv[4] == "real":
    from lockfolder import lockfolder
else:
    from lifehold.compat import lockfolder
lockfolder.setup()
path, end = pathlib.Path(sys.argv[1]), float(sys.argv[2])
canary, pause = Canary(os.path.dirname(sys.argv[1]), sys.argv[3]), float(sys.argv[6])
def withdraw():
    try:
        lockfolder.unlock(path)
    except FileNotFoundError:
        pass
while time.time() < end:
    try:
        got = lockfolder.lock(path)
    except Exception:
        if sys.argv[4] != "real":
            raise
        got = False
        withdraw()
    if got:
        if canary.enter():
            time.sleep(0.0005)
            canary.leave()
        withdraw()
    time.sleep(random.random() * pause)
"""
# Seconds between two turns, of ours and of theirs, so that either side gets its share.
PAUSES = {
    "dotlockfile": (0.05, 0.02), "lockfile": (0.05, 0.02), "flock": (0.0, 0.02),
    "lockfolder": (0.01, 0.02),
}  # fmt: skip


def by_library(path: str, end: float, name: str, pause: float) -> list[str]:
    """Ours by the functions. Whoever's lock was taken over alive is our own fault."""
    from lifehold.compat.liblockfile import L_PID, calls, lockfile_create, lockfile_remove

    canary, faults = Canary(os.path.dirname(path), name), []
    while time.time() < end:
        if lockfile_create(path, 0, L_PID) == 0:
            took = calls._made[path].lock.took
            if canary.enter():
                time.sleep(0.0005)
                canary.leave()
            elif took is not None:
                faults.append(took.marker.content[:16].decode(errors="replace"))
            lockfile_remove(path)
        time.sleep(random.random() * 2 * pause)
    return faults


def hammer(peer: str, seconds: float, each: int) -> bool:
    """One peer. Whether all is as it should be."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        lock, end = f"{folder}/lock", int(time.time() + seconds)
        if peer == "lockfolder":
            os.mkdir(lock)
        lines = []
        for at in range(each):
            for side, pause in zip(("ours", "real"), PAUSES[peer], strict=True):
                lines.append(line(peer, side, f"{side}.{at}", folder, end, pause, here))
        running = [
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             env=environment, text=True)
            for words in lines
        ]  # fmt: skip
        told = [process.communicate(timeout=seconds + 120)[0] for process in running]
        faults = [each for text in told if text.startswith("[") for each in json.loads(text)]
        sides = Counter(name.partition(".")[0] for _, name in entries(folder))
        pairs = Counter(tuple(name.partition(".")[0] for name in pair) for pair in overlaps(folder))
        left = sorted(set(os.listdir(folder)) - {"entries", "overlaps"})
    total = sum(sides.values())
    share = min(sides["ours"], sides["real"]) / max(total, 1)
    print(
        f"{peer}: ours {sides['ours']}, real {sides['real']}, least share {share:.0%}; overlaps "
        f"(inside, came): {dict(pairs) or 'none'}; caused by ours: {faults or 'none'}; "
        f"left: {left or 'nothing'}",
        flush=True,
    )
    return not faults and not pairs and share >= 0.05


def line(
    peer: str, side: str, name: str, folder: str, end: int, pause: float, here: str
) -> list[str]:
    """The command of one contender."""
    lock, at = f"{folder}/lock", int(name.partition(".")[2])
    if peer == "lockfolder":
        python = sys.executable
        if side == "real":
            python = os.environ.get("LOCKFOLDER_PYTHON", sys.executable)
        return [python, "-c", LOCKFOLDER, lock, str(end), name, side, here, str(pause)]
    if side == "ours" and peer != "flock" and (at % 2 or peer == "lockfile"):
        return [
            sys.executable,
            "-m",
            "soak.peers_mixed",
            "--ours",
            lock,
            str(end),
            name,
            str(pause),
        ]
    turn = (OURS if side == "ours" else REAL)[peer]
    text = turn.format(lock=lock, inside=in_shell(folder, name), python=sys.executable)
    return ["sh", "-c", LOOP.format(end=end, turn=text, pause=pause)]


# ---- stale files


def contender(side: str, path: str) -> None:
    """Take part in rounds: a line on stdin is an instant to begin at."""
    from lifehold.compat.liblockfile import L_PID, calls, status
    from lifehold.compat.liblockfile.create import RetryTerms

    for text in sys.stdin:
        at = float(text) + random.random() * 0.004
        while time.monotonic() < at:
            pass
        took = ""
        if side == "real":
            won = (
                subprocess.run(["dotlockfile", "-r", "0", "-p", path], check=False).returncode == 0
            )
        else:
            answer, lock, grant = calls.make(path, L_PID, RetryTerms(0))
            won = answer == status.L_SUCCESS
            if grant is not None and lock is not None:
                stake = grant.handle.pop()
                stake.let_go = None
                stake.shut()
                took = lock.took.marker.content[:16].decode() if lock.took else ""
        print(json.dumps([side, won, took]), flush=True)


def stale_rounds(rounds: int) -> bool:
    """Whether no double winner is ours."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        path = f"{folder}/lock"
        gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
        command = [sys.executable, "-m", "soak.peers_mixed", "--contender"]
        players = [
            subprocess.Popen([*command, side, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
            for side in ("ours", "ours", "real", "real")
        ]  # fmt: skip
        winners, doubles, none = Counter[str](), Counter[str](), 0
        for _ in range(rounds):
            with open(path, "w") as file:
                file.write(gone.stdout)
            for player in players:
                player.stdin.write(f"{time.monotonic() + 0.005}\n")
                player.stdin.flush()
            said = [json.loads(player.stdout.readline()) for player in players]
            won = [each for each in said if each[1]]
            none += not won
            winners.update(side for side, *_ in won)
            if len(won) > 1:
                live = [took for side, _, took in won if took and took != gone.stdout]
                who = "+".join(sorted(side for side, *_ in won))
                doubles[f"{who}, by {'ours' if live else 'theirs'}"] += 1
            if os.path.exists(path):
                os.unlink(path)
        for player in players:
            player.stdin.close()
            player.wait()
        left = os.listdir(folder)
    print(
        f"{rounds} rounds: winners {dict(winners)}; double winners {dict(doubles) or 'none'}; "
        f"rounds without a winner {none}; left: {left or 'nothing'}",
        flush=True,
    )
    return not any(name.endswith("by ours") for name in doubles)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--stale", type=int, default=0)
    parser.add_argument("--ours", nargs=4)
    parser.add_argument("--contender", nargs=2)
    options = parser.parse_args()
    if options.ours:
        path, end, name, pause = options.ours
        print(json.dumps(by_library(path, float(end), name, float(pause))))
        return 0
    if options.contender:
        contender(*options.contender)
        return 0
    if options.stale:
        return int(not stale_rounds(options.stale))
    missing = [each for each in REAL if not shutil.which(each)]
    chosen = options.peers or [each for each in PAUSES if each not in missing]
    return sum(not hammer(each, options.seconds, options.each) for each in chosen)


if __name__ == "__main__":
    raise SystemExit(main())
