"""Processes that play with locks while they are killed and paused; their diaries are judged.

What the soaks of kinds and stores share: a troupe begins its cast, troubles one after another, and
brings them home; the histories are judged by lifehold.testing.history.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from lifehold import LifeholdError
from lifehold.testing.history import READ, SLOT, WRITE, Diary, judge, longest_wait, read

PERMITS = 3
HOLD, REST = 0.001, 0.002
HOME = 30.0  # seconds after the end in which all must be home
LONG = 0.15  # of the pauses, that outlast the ttl where there is one


class Troupe:
    """The parties: each is a forked process, started anew under a new name when it was killed.

    `play(role, who)` is what a process does; `ttl`: of leases, which some pauses outlast.
    """

    ttl = 0.0

    def __init__(self, folder, cast, diary="config"):
        self.folder, self.count = folder, 0
        self.diary = Diary(folder, diary, "killer")
        self.running: dict[int, tuple[str, str]] = {}
        self.kills = self.pauses = self.long = 0
        for role in cast:
            self.start(role)

    def play(self, role, who):
        raise NotImplementedError("what a process of this troupe does")

    def names(self, who):
        """Under which one process writes diaries."""
        return (who,)

    def start(self, role):
        self.count += 1
        who = f"{role}-{self.count}"
        pid = os.fork()
        if pid == 0:
            try:
                self.play(role, who)
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
            for name in self.names(who):
                self.diary.note("killed", who=name)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.kills += 1
            self.start(role)
            return
        long = bool(self.ttl) and dice.random() < LONG
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.ttl * 1.3 if long else dice.random() * 0.3)
        os.kill(pid, signal.SIGCONT)
        self.pauses += 1
        self.long += long

    def troubled(self, seconds):
        """Trouble them for so long; then what is wrong, and figures, a line each."""
        dice, end = random.Random(), time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(dice.random() * 0.3)
            self.trouble(dice)
        wrong, lines = self.home(), []
        for lock, turns in sorted(read(self.folder).items()):
            found = judge(turns, PERMITS if lock == "gpu" else None)
            wrong += [f"{lock}: {finding}" for finding in found]
            for what in (WRITE, READ, SLOT):
                count = sum(turn.what == what for turn in turns)
                if count:
                    longest = longest_wait(turns, what)
                    lines.append(f"{lock:8} {what:6} {count:8} turns, longest wait {longest:.3f} s")
        pauses = f"{self.pauses} pauses" + (f" ({self.long} beyond the ttl)" if self.ttl else "")
        lines.append(f"{self.kills} kills, {pauses}, {len(wrong)} findings")
        return wrong, lines

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


def told(wrong, figures, bad=False):
    """Print it; the exit code: 0 for what was to be expected."""
    print(figures)
    for line in wrong[:10]:
        print("WRONG", line)
    return int(bool(wrong) is not bool(bad))
