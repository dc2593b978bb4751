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
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from lifehold import ReadWriteLock, Semaphore, lock_all
from lifehold.testing.history import READ, SLOT, WRITE, Diary, stamp
from soak.troupe import HOLD, PERMITS, REST, Troupe, told


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


class Cast(Troupe):
    """The parties of one kind. A reader is two threads, with a diary each."""

    def __init__(self, folder, cast, kind):
        self.kind = kind
        super().__init__(folder, cast)

    def play(self, role, who):
        PARTIES[role](self.folder, who, self.kind)

    def names(self, who):
        return who, f"{who}-thread"


def run(seconds, bad="", kind="kernel", cast=CAST):
    """(what is wrong, figures as text)."""
    with tempfile.TemporaryDirectory() as name:
        more = [f"bad-{bad}"] if bad else []
        wrong, lines = Cast(Path(name), [*cast, *more], kind).troubled(seconds)
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
    return told(wrong, figures, given.bad)


if __name__ == "__main__":
    sys.exit(main())
