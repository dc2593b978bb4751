"""`python -m tests.soak.readwrite [--seconds 600] [--bad NAME]`: shared locks, kills, pauses.

Processes read and write under one ReadWriteLock (two of the readers are threads of one process, one
writer downgrades), take the slots of one Semaphore, and two locks at once by `lock_all`. Meanwhile
one of them after another is killed (SIGKILL, and started anew) or paused (SIGSTOP, SIGCONT).
Everybody keeps a diary, and in the end the histories are judged (lifehold.testing.history): nothing
may be found, each side must have been in, and nobody may hang.

`--bad` plays a party that does not lock as it should; then the judge must find it: `reader` reads
without a lock, `slot` is one more than there are permits, `stale` writes after its release.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from lifehold import LifeholdError, ReadWriteLock, Semaphore, lock_all
from lifehold.testing.history import READ, SLOT, WRITE, Diary, judge, longest_wait, read, stamp

PERMITS = 3
HOLD, REST = 0.001, 0.002
HOME = 20.0  # seconds after the end in which all must be home


def until_told(folder, work):
    """`work()` again and again, until the file `end` is there."""
    end = folder / "end"
    while not end.exists():
        work()
        time.sleep(REST * random.random())


def reader(folder, who, kind="kernel", locked=True):
    lock = ReadWriteLock(folder / "config", **options_of(kind))

    def work(diary):
        asked = stamp()
        if not locked:
            with diary.turn(READ, None, asked=asked):
                time.sleep(HOLD)
            return
        with lock.reading() as lease, diary.turn(READ, lease.token, asked=asked):
            time.sleep(HOLD)

    def read_on(name):
        with Diary(folder, "config", name) as diary:
            until_told(folder, lambda: work(diary))

    other = threading.Thread(target=read_on, args=(f"{who}-thread",))
    other.start()
    read_on(who)
    other.join()


def writer(folder, who, kind="kernel", stale=False):
    lock, dice = ReadWriteLock(folder / "config", **options_of(kind)), random.Random()

    def work():
        asked = stamp()
        with lock.writing() as lease:
            with diary.turn(WRITE, lease.token, asked=asked) as number:
                time.sleep(HOLD * dice.random())
                if not stale:
                    diary.stored(number)
            if kind == "kernel" and dice.random() < 0.3:
                lease.downgrade()
                with diary.turn(READ, lease.token):
                    time.sleep(HOLD)
        if stale:
            time.sleep(0.05)
            diary.stored(number)

    with Diary(folder, "config", who) as diary:
        until_told(folder, work)


def slots(folder, who, kind="kernel", more=0):
    gate = Semaphore(folder / "gpu", PERMITS)

    def work():
        asked = stamp()
        if more:
            with diary.turn(SLOT, None, 0, asked=asked):
                time.sleep(HOLD)
            return
        with gate as lease, diary.turn(SLOT, lease.token, lease.slot, asked=asked) as number:
            time.sleep(HOLD)
            diary.stored(number)

    with Diary(folder, "gpu", who) as diary:
        until_told(folder, work)


def several(folder, who, kind="kernel"):
    names = [folder / "a", folder / "b"]
    random.shuffle(names)

    def work():
        asked = stamp()
        with lock_all(names), diary.turn(WRITE, None, asked=asked):
            time.sleep(HOLD)

    with Diary(folder, "several", who) as diary:
        until_told(folder, work)


def options_of(kind):
    return {"kind": kind, "ttl": 5} if kind != "kernel" else {}


PARTIES = {
    "reader": reader, "writer": writer, "slots": slots, "several": several,
    "bad-reader": lambda *a: reader(*a, locked=False),
    "bad-slot": lambda *a: slots(*a, more=1), "bad-stale": lambda *a: writer(*a, stale=True),
}  # fmt: skip
CAST = ["reader", "reader", "writer", "writer", "slots", "slots", "slots", "slots", "slots",
        "several", "several"]  # fmt: skip


class Troupe:
    """The parties: each is a forked process, started anew under a new name when it was killed."""

    def __init__(self, folder, cast, kind):
        self.folder, self.kind, self.count = folder, kind, 0
        self.diary = Diary(folder, "config", "killer")
        self.running: dict[int, tuple[str, str]] = {}
        self.kills = self.pauses = 0
        for role in cast:
            self.start(role)

    def start(self, role):
        self.count += 1
        who = f"{role}-{self.count}"
        pid = os.fork()
        if pid == 0:
            try:
                PARTIES[role](self.folder, who, self.kind)
                os._exit(0)
            except LifeholdError as error:
                print(f"{who}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        self.running[pid] = role, who

    def trouble(self, dice):
        """Kill one and start another in its place, or pause one for a while."""
        pid = dice.choice(list(self.running))
        if dice.random() < 0.6:
            role, who = self.running.pop(pid)
            for name in (who, f"{who}-thread"):
                self.diary.note("killed", who=name)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.kills += 1
            self.start(role)
            return
        os.kill(pid, signal.SIGSTOP)
        time.sleep(dice.random() * 0.3)
        os.kill(pid, signal.SIGCONT)
        self.pauses += 1

    def home(self):
        """Whoever did not come home, or failed."""
        (self.folder / "end").touch()
        late, until = [], time.monotonic() + HOME
        for pid, (_, who) in self.running.items():
            while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
                time.sleep(0.01)
            if found[0] == 0:
                late.append(f"{who} hangs")
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            elif found[1]:
                late.append(f"{who} failed")
        return late


def run(seconds, bad="", kind="kernel", cast=CAST):
    """(what is wrong, figures as text)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        troupe = Troupe(folder, [*cast, *([f"bad-{bad}"] if bad else [])], kind)
        dice, end = random.Random(), time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(dice.random() * 0.3)
            troupe.trouble(dice)
        wrong, lines = list(troupe.home()), []
        for lock, turns in sorted(read(folder).items()):
            found = judge(turns, PERMITS if lock == "gpu" else None)
            wrong += [f"{lock}: {finding}" for finding in found]
            for what in (WRITE, READ, SLOT):
                count = sum(turn.what == what for turn in turns)
                if count:
                    longest = longest_wait(turns, what)
                    lines.append(f"{lock:8} {what:6} {count:8} turns, longest wait {longest:.3f} s")
        lines.append(f"{troupe.kills} kills, {troupe.pauses} pauses, {len(wrong)} findings")
        return wrong, "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--bad", choices=["reader", "slot", "stale"], default="")
    parser.add_argument("--kind", default="kernel")
    given = parser.parse_args(arguments)
    cast = (
        CAST if given.kind == "kernel" else [role for role in CAST if role in ("reader", "writer")]
    )
    wrong, figures = run(given.seconds, given.bad, given.kind, cast)
    print(figures)
    for line in wrong[:10]:
        print("WRONG", line)
    if given.bad:
        return 0 if wrong else 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
