"""`python -m soak.powercut [--cuts N] [--seconds S] [--on ext4,xfs]`: the power fails at any write.

A file system on a disk that logs every write and every flush (powercut_disk.py); on it, locks of
every kind are taken, held, broken and left by the dead. Then the disk is made anew as it was at one
entry of the log after another, mounted, and every kind of lock is asked for by processes of another
boot: it must be had, at once or when what names nobody was left alone for long enough, by one at a
time, and under a token that is greater than all that were granted before that entry.
Every other cut loses part of what was not flushed and tears the last write, as real disks may.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from faults.cell import Cell
from faults.party import NEW_PIDS
from faults.rows import ROWS
from faults.spaces import OtherBoot
from soak.powercut_disk import Disk, entries
from soak.powercut_work import GRACE

SIZES = {"ext4": 48, "xfs": 320, "btrfs": 128}  # MiB
OPTIONS = {"ext4": "loop,commit=1", "xfs": "loop,nouuid", "btrfs": "loop,commit=1"}
WORK = Path(__file__).with_name("powercut_work.py")
PROMPT = 1.0  # seconds, of a machine that does much else
# Kinds whose records need not be left alone when they name nobody: the kernel tells who has them.
WHOLE = ("kernel", "folder", "semaphore", "once")
FAULT = "power cut at any write"


@contextlib.contextmanager
def mounted(what, where, options):
    subprocess.run(["mount", "-o", options, what, where], check=True, capture_output=True)
    try:
        yield where
    finally:
        unmounted(where)


def unmounted(where):
    """A loop device lets go of its file some time after its last user has."""
    until = time.monotonic() + 20
    while subprocess.run(["umount", where], check=False, capture_output=True).returncode:
        if time.monotonic() > until:
            subprocess.run(["umount", "-l", where], check=False)
            return
        time.sleep(0.05)


@contextlib.contextmanager
def logged(image, base, log):
    """The disk, as a file that logs."""
    where = base / "logged"
    where.mkdir()
    package = Path(importlib.util.find_spec("mfusepy").origin).parent
    server = subprocess.Popen(
        [sys.executable, WORK.with_name("powercut_disk.py"), image, where, log],
        env=os.environ | {"PYTHONPATH": str(package)},
    )
    try:
        until = time.monotonic() + 20
        while not os.path.ismount(where):
            assert server.poll() is None, "no FUSE mount"
            assert time.monotonic() < until
            time.sleep(0.01)
        yield where / "disk"
    finally:
        unmounted(where)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def record(kind, base, seconds, seed):
    """Let them work on such a disk; (the log, the disk before it, the grants told)."""
    image, log, before = base / "image", base / "log", base / "before"
    with image.open("wb") as file:
        file.truncate(SIZES[kind] << 20)
    subprocess.run([f"mkfs.{kind}", "-q", image], check=True, capture_output=True)
    subprocess.run(["cp", "--sparse=always", image, before], check=True)
    where = base / "work"
    where.mkdir()
    with logged(image, base, log) as disk, mounted(disk, where, OPTIONS[kind]):
        said = subprocess.run(
            [sys.executable, WORK, "work", where, str(seconds), str(seed)],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
        now = time.monotonic_ns()
    grants = [line.split() for line in said.splitlines()]
    return log, before, [(int(at), row, int(token)) for at, row, token in grants], now


class Tally:
    """What came of one kind of lock in all cuts."""

    def __init__(self, row, on):
        self.cell = Cell(f"{FAULT}, {on}", row.name, recover=0.0, bound=max(row.lease, PROMPT))
        self.row, self.late, self.asked = row, 0, 0

    def add(self, said, least, cut):
        self.asked += 1
        if (error := said.get("error")) is not None:
            self.cell.wedged += 1
            self.cell.complaints.append(f"{cut}: {error['error']}: {error['text']}")
            return
        if said["took"] < GRACE:
            self.cell.recover = max(self.cell.recover, said["took"])
        else:
            self.late += 1
            if self.row.kind in WHOLE or said["took"] > GRACE + PROMPT:
                self.cell.complaints.append(f"{cut}: left alone for {said['took']:.1f} s")
        self.cell.double += not said["alone"]
        if said["token"] is not None and not least < said["token"] < said["next"]:
            self.cell.complaints.append(
                f"{cut}: tokens {said['token']}, {said['next']} after {least} was granted"
            )

    def end(self):
        self.cell.note = f"{self.asked} cuts, in {self.late} it was left alone first"
        return self.cell


def ask(base, image, kind):
    """What the locks say on the disk after the cut."""
    where = base / "after"
    where.mkdir(exist_ok=True)
    scene = SimpleNamespace(base=base)
    with mounted(image, where, OPTIONS[kind]), OtherBoot(scene, *NEW_PIDS) as under:
        done = subprocess.run(
            [*under, sys.executable, WORK, "ask", where],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr[-1000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def play(cuts=50, seconds=12.0, seed=1, kind="ext4", say=None):
    """A Cell for each kind of lock."""
    tallies = {row.name: Tally(row, kind) for row in ROWS}
    with tempfile.TemporaryDirectory(prefix="powercut-") as folder:
        base = Path(folder)
        log, before, grants, end = record(kind, base, seconds, seed)
        first = min(at for at, _, _ in grants)
        times = [at for _, at, *_ in entries(log)]
        candidates = [n for n, at in enumerate(times) if first <= at <= end]
        dice = random.Random(seed)
        chosen = sorted(dice.sample(candidates, min(cuts, len(candidates))))
        disk = Disk(before, log, base / "then")
        for turn, number in enumerate(chosen):
            lossy = number if turn % 2 else None
            image = base / f"cut{number}"  # a new one: a loop device may still write the old one
            disk.cut(number, image, lossy)
            cut = f"{kind}, entry {number} of {len(times)}{', lossy' if lossy else ''}"
            for said in ask(base, image, kind):
                name = said["row"].replace(" ", "-")
                before_it = (token for at, row, token in grants
                             if row == name and at < times[number])  # fmt: skip
                tallies[said["row"]].add(said, max(before_it, default=0), cut)
                if say and (said.get("error") or said["took"] > PROMPT):
                    say(cut, said, flush=True)
            image.unlink()
        if say:
            say(f"{kind}: {len(chosen)} cuts in {len(candidates)} entries, {len(grants)} grants")
    return [tally.end() for tally in tallies.values() if tally.asked]


def main():
    parser = argparse.ArgumentParser(prog="python -m soak.powercut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=12.0, help="of work before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", default="ext4,xfs")
    options = parser.parse_args()
    well = True
    for kind in options.on.split(","):
        for cell in play(options.cuts, options.seconds, options.seed, kind, print):
            well &= not cell.wrong
            print(f"{kind} | {cell.row} | double {cell.double} | wedged {cell.wedged} | "
                  f"recovered {cell.recover:.3f} s | {cell.note} | {cell.wrong[:5]}")  # fmt: skip
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
