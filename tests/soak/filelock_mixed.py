"""`python -m tests.soak.filelock_mixed [--seconds 60] [--turns] [CLASS ...]`: beside the real one.

Four processes with lifehold.compat.filelock and four with filelock, which is taken from PYTHONPATH,
hammer one path. Writers have a canary inside, made with O_EXCL; readers look that no writer's
canary is there, when they come and when they go. Ours rests between two turns: the real one looks
some times a second, and a lock that is never free would starve it. 0 overlaps, and each side at
least 5 % of all turns, else the status is 1.

With --turns: two processes of each side, 5 ms inside, and nobody rests: ours leaves the lock alone
for programs that poll. Each side has at least 25 % of all turns, else the status is 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
import time

OURS, THEIRS = "lifehold.compat.filelock", "filelock"
CLASSES = {
    "FileLock": {},
    "SoftFileLock": {},
    "MarkerSoftFileLock": {},
    "SoftFileLease": {"lease_duration": 30.0},
    "StrictSoftFileLock": {},
    "ReadWriteLock": {"is_singleton": False},
    "SoftReadWriteLock": {"is_singleton": False, "poll_interval": 0.02},
}
REST = {"ReadWriteLock": 0.02, "SoftReadWriteLock": 0.1, "StrictSoftFileLock": 0.1}
LEAST, LEAST_TURNS = 0.05, 0.25
INSIDE, INSIDE_TURNS = 0.001, 0.005
PARTY = textwrap.dedent("""
    import glob, importlib, json, os, random, sys, time, warnings
    warnings.simplefilter("ignore")
    module, name, path, options, seconds, rest, inside = sys.argv[1:]
    peer = importlib.import_module(module)
    lock = getattr(peer, name)(path, **json.loads(options))
    shared = hasattr(lock, "acquire_read")
    canary, me = path + ".canary", f"{path}.reader.{os.getpid()}"
    turns = {"write": 0, "read": 0, "overlap": 0, "timeout": 0}
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)

    def write():
        try:
            os.close(os.open(canary, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            turns["overlap"] += 1
            return
        turns["overlap"] += bool(glob.glob(path + ".reader.*"))
        time.sleep(float(inside))
        turns["overlap"] += bool(glob.glob(path + ".reader.*"))
        os.unlink(canary)

    def read():
        os.close(os.open(me, os.O_CREAT))
        turns["overlap"] += os.path.exists(canary)
        time.sleep(float(inside))
        turns["overlap"] += os.path.exists(canary)
        os.unlink(me)

    while time.monotonic() < until:
        side = random.choice(["write", "read", "read"]) if shared else "write"
        take = getattr(lock, f"acquire_{side}") if shared else lock.acquire
        try:
            take(timeout=20)
        except peer.Timeout:
            turns["timeout"] += 1
            continue
        try:
            (write if side == "write" else read)()
            turns[side] += 1
        finally:
            lock.release()
        if float(rest):
            time.sleep(float(rest))
    print(json.dumps(turns), flush=True)
""")


def party(module, name, path, seconds, rest, inside):
    command = [sys.executable, "-c", PARTY, module, name, path, json.dumps(CLASSES[name])]
    return subprocess.Popen(
        [*command, str(seconds), str(rest), str(inside)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def play(name, seconds, turns):
    """What each side did, and whether it is as it should be."""
    each, least, inside = (2, LEAST_TURNS, INSIDE_TURNS) if turns else (4, LEAST, INSIDE)
    ours, theirs = (0, 0) if turns else (REST.get(name, 0.02), 0.001)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/shared.lock"
        sides = [(OURS, ours)] * each + [(THEIRS, theirs)] * each
        started = [party(module, name, path, seconds, rest, inside) for module, rest in sides]
        try:
            for process in started:
                assert process.stdout.readline() == "ready\n", process.stderr.read()
            for process in started:
                process.stdin.write("\n")
                process.stdin.flush()
            said = [process.communicate(timeout=seconds + 90) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    wrong = [errors for (_, errors), process in zip(said, started, strict=True)
             if process.returncode]  # fmt: skip
    found = [json.loads(out) for out, _ in said if out.strip()]
    total = {
        side: {key: sum(turns[key] for turns in part) for key in found[0]} if part else {}
        for side, part in (("ours", found[:each]), ("theirs", found[each:]))
    }
    counts = {side: turns.get("write", 0) + turns.get("read", 0) for side, turns in total.items()}
    fair = min(counts.values()) >= least * sum(counts.values())
    overlaps = sum(turns.get("overlap", 0) for turns in total.values())
    return total, not wrong and fair and not overlaps, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="*", default=list(CLASSES))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", action="store_true")
    given = parser.parse_args()
    bad = 0
    for name in given.classes:
        begun = time.monotonic()
        total, right, wrong = play(name, given.seconds, given.turns)
        bad += not right
        print(f"{name}: {'right' if right else 'WRONG'} after {time.monotonic() - begun:.0f} s")
        for side, turns in total.items():
            print("  ", side, turns)
        for errors in wrong:
            print("   ", errors.strip().splitlines()[-1:])
        sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
