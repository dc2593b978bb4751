"""`python -m soak.postgres [--seconds 600]`: leases in PostgreSQL, holders and the server hurt.

Processes take one lock, read and write under one reader/writer lock, and take the slots of one
semaphore, over a server of their own. Meanwhile processes are killed and paused (soak/sqlite.py),
and the server is killed with SIGKILL and started anew, restarted in order, or paused. Everybody
keeps a diary; in the end the histories are judged (lifehold.testing.history).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from lifehold import LeaseLost, NotAcquired, StoreUnavailable, connect
from servers import postgres
from soak.sqlite import CAST, TTL, Party, data_in
from soak.troupe import REST, Troupe, told


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
    ttl = TTL

    def __init__(self, server, folder):
        self.server = server
        self.crashes = self.restarts = self.stops = 0
        super().__init__(folder, CAST, "mutex")

    def play(self, role, who):
        getattr(PostgresParty(self.server.url, self.folder, who), role)()

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
        data_in(folder)
        troupe = PostgresTroupe(server, folder)
        wrong, lines = troupe.troubled(seconds)
        hurt = f"{troupe.crashes} crashes, {troupe.restarts} restarts, {troupe.stops} pauses"
        return wrong, "\n".join([*lines, f"server: {hurt}"])


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args(arguments)
    wrong, figures = run(given.seconds)
    return told(wrong, figures)


if __name__ == "__main__":
    sys.exit(main())
