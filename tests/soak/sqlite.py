"""`python -m tests.soak.sqlite [--seconds 600] [--bad NAME]`: leases in SQLite, kills, pauses.

Processes take one lock, read and write under one reader/writer lock, and take the slots of one
semaphore, all in one database. Meanwhile one of them after another is killed (SIGKILL, and started
anew), or paused: mostly for less than the ttl, sometimes for longer, and then its successor must
come in, the late holder must be told before it writes, and its late write refused by its token.
Everybody keeps a diary, and in the end the histories are judged (lifehold.testing.history).

A turn ends, as far as the history goes, at the deadline of its lease: a paused holder is one no
more from then on, and finds that out at its next check(). With `--bad late` writes land after the
release, without a look at the token; then the judge must find them.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from lifehold import LeaseLost, connect
from lifehold.runtime import clock
from lifehold.testing.history import READ, SLOT, WRITE, Diary, stamp
from soak.troupe import HOLD, PERMITS, REST, Troupe, told

TTL = 2.0


def url_of(folder):
    return f"sqlite:///{folder}/x.db"


def write(folder, token):
    """The data: it takes a write whose token is not older than the last one's. When it did."""
    db = sqlite3.connect(folder / "data.db", timeout=30, isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")
        at = stamp()
        done = db.execute("UPDATE data SET fence = ? WHERE fence <= ?", (token, token))
        db.execute("COMMIT")
        return at if done.rowcount else None
    finally:
        db.close()


class Party:
    """One process: it plays until the file `end` is there."""

    def __init__(self, folder, who, bad):
        self.folder, self.who, self.bad = folder, who, bad
        self.store, self.dice = connect(url_of(folder)), random.Random()

    def until_end(self, play):
        while not (self.folder / "end").exists():
            try:
                play()
            except LeaseLost:
                pass  # told, as it must be
            time.sleep(REST * self.dice.random())

    def inside(self, diary, what, lease, asked, work=None):
        """One turn, as far as the lease reaches."""
        until = int((clock.now() + lease.remaining()) * 1e9)
        entered = stamp()
        if entered >= until:
            lease.check()  # tells that it is over
            return
        diary._count += 1
        turn = diary._count
        slot = lease.slot if what == SLOT else None
        facts = {"what": what, "token": lease.token, "slot": slot, "asked": asked}
        diary.note("in", turn=turn, **facts, at=entered)
        time.sleep(HOLD * self.dice.random())
        try:
            if work is not None:
                work(turn, lease)
        finally:
            diary.note("out", turn=turn, at=min(stamp(), until))

    def mutex(self):
        lock = self.store.lock("mutex", ttl=TTL, wait=60)

        def store(turn, lease):
            if self.bad:
                return
            lease.check()
            at = write(self.folder, lease.token)
            if at is not None:
                diary.note("stored", turn=turn, at=at)

        def play():
            asked = stamp()
            with lock as lease:
                self.inside(diary, WRITE, lease, asked, store)
            if self.bad:  # its write lands when others have been in
                time.sleep(0.05)
                diary.note("stored", turn=diary._count)

        with Diary(self.folder, "mutex", self.who) as diary:
            self.until_end(play)

    def read_write(self):
        lock = self.store.read_write("config", ttl=TTL, wait=60)

        def play():
            asked = stamp()
            writes = self.dice.random() < 0.3
            with lock.writing() if writes else lock.reading() as lease:
                self.inside(diary, WRITE if writes else READ, lease, asked)

        with Diary(self.folder, "config", self.who) as diary:
            self.until_end(play)

    def slots(self):
        gate = self.store.semaphore("gpu", PERMITS, ttl=TTL, wait=60)

        def play():
            asked = stamp()
            with gate as lease:
                self.inside(diary, SLOT, lease, asked)

        with Diary(self.folder, "gpu", self.who) as diary:
            self.until_end(play)


CAST = ["mutex"] * 4 + ["read_write"] * 3 + ["slots"] * 5


class SqliteTroupe(Troupe):
    """`bad`: the writes of the mutex land after the release."""

    ttl = TTL

    def __init__(self, folder, bad):
        self.bad = bad
        super().__init__(folder, CAST, "mutex")

    def play(self, role, who):
        getattr(Party(self.folder, who, self.bad), role)()


def data_in(folder):
    """The data that refuses a late writer."""
    with sqlite3.connect(folder / "data.db") as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE data AS SELECT 0 AS fence")
    db.close()


def run(seconds, bad=""):
    """(what is wrong, figures as text)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data_in(folder)
        wrong, lines = SqliteTroupe(folder, bool(bad)).troubled(seconds)
        return wrong, "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--bad", choices=["late"], default="")
    given = parser.parse_args(arguments)
    wrong, figures = run(given.seconds, given.bad)
    return told(wrong, figures, given.bad)


if __name__ == "__main__":
    sys.exit(main())
