"""`python -m soak.postgres [--seconds 600]`: leases in PostgreSQL, holders and the server hurt.

Processes take one lock, read and write under one reader/writer lock, and take the slots of one
semaphore, over a server of their own. Meanwhile processes are killed and paused (soak/sqlite.py),
and the server is killed with SIGKILL and started anew, restarted in order, or paused. Everybody
keeps a diary; in the end the histories are judged (lifehold.testing.history).
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from lifehold import LeaseLost, LifeholdError, NotAcquired, StoreUnavailable, connect
from lifehold.testing.history import READ, SLOT, WRITE, judge, longest_wait, read
from servers import postgres
from soak.sqlite import PERMITS, REST, Party, Troupe


class PostgresParty(Party):
    """Who finds the server away tries again; a lease that could not be ended runs out."""

    def __init__(self, url, folder, who):
        self.folder, self.who, self.bad = folder, who, False
        self.store, self.dice = connect(url, timeout=3.0), random.Random()

    def until_end(self, play):
        while not (self.folder / "end").exists():
            try:
                play()
            except (LeaseLost, StoreUnavailable, NotAcquired):
                time.sleep(0.02)
            time.sleep(REST * self.dice.random())


class PostgresTroupe(Troupe):
    def __init__(self, server, folder):
        self.server = server
        self.crashes = self.restarts = self.stops = 0
        super().__init__(folder, bad=False)

    def start(self, role):
        self.count += 1
        who = f"{role}-{self.count}"
        pid = os.fork()
        if pid == 0:
            try:
                getattr(PostgresParty(self.server.url, self.folder, who), role)()
                os._exit(0)
            except LifeholdError as error:
                print(f"{who}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        self.running[pid] = role, who

    def trouble(self, dice):
        chance = dice.random()
        if chance < 0.03:
            self.server.kill()
            self.server.start()
            self.crashes += 1
        elif chance < 0.05:
            self.server.stop()
            self.server.start()
            self.restarts += 1
        elif chance < 0.10:
            self.server.pause()
            time.sleep(dice.random() * 2)
            self.server.resume()
            self.stops += 1
        else:
            super().trouble(dice)


def run(seconds):
    """(what is wrong, figures as text)."""
    with tempfile.TemporaryDirectory() as name, postgres.started() as server:
        folder = Path(name)
        with sqlite3.connect(folder / "data.db") as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE data AS SELECT 0 AS fence")
        db.close()
        troupe = PostgresTroupe(server, folder)
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
        lines.append(
            f"{troupe.kills} processes killed, {troupe.pauses} paused "
            f"({troupe.long} beyond the ttl); "
            f"server: {troupe.crashes} crashes, {troupe.restarts} restarts, {troupe.stops} pauses; "
            f"{len(wrong)} findings"
        )
        return wrong, "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args(arguments)
    wrong, figures = run(given.seconds)
    print(figures)
    for line in wrong[:10]:
        print("WRONG", line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
