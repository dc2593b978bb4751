"""Ours and another tool follow one dead holder at one instant: both have judged it already.

    python -m soak.same_dead [PEER ...] [--rounds 2000]
    (in tests/)

Each round has a file of a process that is gone. Ours of kind soft stops when it has judged the
file, and the other, the real filelock or a liblockfile in Python, stops there too; then both go on.
Counted are the rounds in which both are in, and whose file was replaced. Exit 1 when ours replaced
the file of somebody who lives. What liblockfile unlinks by name, which it judged before we came, is
its own doing; ours is told of it, and it is counted apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter

PATIENCE = 30.0
SPREAD = (0.0, 0.0, 0.0001, 0.0005, 0.002)  # seconds by which one may come later than the other


class Side:
    """One party: `take`, which calls `judged()` when it has found the holder dead; `holds`."""

    def __init__(self, path, meet):
        self.path, self.meet, self.met = path, meet, False

    def judged(self):
        if not self.met:
            self.met = True
            self.meet.wait(PATIENCE)
            time.sleep(random.choice(SPREAD))


class Ours(Side):
    """kind="soft"."""

    def take(self):
        from lifehold.core.grant import Grant
        from lifehold.local.soft import SoftLock
        from lifehold.runtime.blocking import BLOCKING

        side = self

        class Soft(SoftLock):
            def judged_of(self, found):
                case = super().judged_of(found)
                side.judged()
                return case

        self.lock = Soft(self.path, BLOCKING)
        self.grant = self.lock.attempt()
        return isinstance(self.grant, Grant)

    def holds(self):
        return self.lock.check(self.grant) is None

    def end(self):
        self.lock.drop(self.grant)


class Filelock(Side):
    """The real one."""

    def take(self):
        import filelock
        from filelock import _soft

        plain = _soft.owner_is_stale
        try:

            def stale(*given):
                answer = plain(*given)
                self.judged()
                return answer

            _soft.owner_is_stale = stale
            self.lock = filelock.SoftFileLock(self.path, timeout=0, is_singleton=False)
            self.lock.acquire()
        except filelock.Timeout:
            return False
        finally:
            _soft.owner_is_stale = plain
        return True

    def holds(self):
        return self.lock.is_lock_held_by_us

    def end(self):
        self.lock.release()

    @staticmethod
    def dead(gone):
        from filelock._identity import host_name

        return f"{gone}\n{host_name()}\n"


class Liblockfile(Side):
    """lockfile_create(3) with L_PID."""

    def take(self):
        self.aside = f"{self.path}.{os.getpid()}"
        with open(self.aside, "w") as file:
            file.write(f"{os.getpid()}\n")
        for _ in range(2):
            try:
                os.link(self.aside, self.path)
            except FileExistsError:
                try:
                    with open(self.path, "rb") as file:
                        pid = int(file.read(16).split(b"\n")[0])
                    alive = os.path.exists(f"/proc/{pid}")
                    self.judged()
                    if alive:
                        return False
                    os.unlink(self.path)
                except FileNotFoundError:
                    continue
            else:
                return True
        return False

    def holds(self):
        try:
            return os.path.samefile(self.path, self.aside)
        except FileNotFoundError:
            return False

    def end(self):
        if self.holds():
            os.unlink(self.path)

    @staticmethod
    def dead(gone):
        return f"{gone}\n"


PEERS = {"filelock": Filelock, "liblockfile": Liblockfile}


def party(kind, paths, meet, pace, told):
    """One process: each round it takes, and says what it has."""
    for path in paths:
        pace.wait(PATIENCE)
        side = kind(path, meet)
        won = side.take()
        side.judged()  # the other may be waiting for us
        pace.wait(PATIENCE)
        told.put((won, won and side.holds()))
        pace.wait(PATIENCE)
        if won:
            try:
                side.end()
            except OSError:
                pass
        pace.wait(PATIENCE)


def play(name, rounds):
    """What came of it, counted."""
    counts = Counter()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{number}.lock" for number in range(rounds)]
        meet, pace = multiprocessing.Barrier(2), multiprocessing.Barrier(3)
        queues = [multiprocessing.SimpleQueue() for _ in range(2)]
        sides = [
            multiprocessing.Process(target=party, args=(kind, paths, meet, pace, told))
            for kind, told in zip((Ours, PEERS[name]), queues, strict=True)
        ]
        for side in sides:
            side.start()
        for path in paths:
            with open(path, "w") as file:
                file.write(PEERS[name].dead(gone.pid))
            pace.wait(PATIENCE)
            pace.wait(PATIENCE)
            (ours, ours_now), (theirs, theirs_now) = (each.get() for each in queues)
            counts["ours" if ours else "theirs" if theirs else "nobody"] += 1
            if ours and theirs:
                counts["both were let in"] += 1
                counts["ours replaced a live file"] += ours_now and not theirs_now
                counts["theirs replaced a live file"] += theirs_now and not ours_now
            pace.wait(PATIENCE)
            pace.wait(PATIENCE)
        for side in sides:
            side.join()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser("soak.same_dead", description=__doc__)
    parser.add_argument("peers", nargs="*", default=list(PEERS), help="filelock, liblockfile")
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    wrong = 0
    for name in options.peers:
        counts = play(name, options.rounds)
        wrong += counts["ours replaced a live file"]
        print(name, f"{options.rounds} rounds:", dict(counts), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
