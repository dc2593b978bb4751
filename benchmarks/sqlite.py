"""`python -m benchmarks.sqlite [--folder DIR]`: leases in SQLite, in one run, as ratios.

An uncontended acquire and release against the leanest pair of statements that leaves the same in
the file: a random mark, a token that grows and is not behind the clock, the end, the holder's
record. Each statement is a transaction by itself, with values bound to it, over one connection. And
against the same two between BEGIN IMMEDIATE and COMMIT, as most write it by hand. Then the steps
and statements of a hand-over with 10, 50 and 500 waiters, and the time from a release to the next
process, two and eight of them. Budgets: 1.15 times the leanest pair, 1 ms, and no more steps with
many waiters than with few.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from lifehold import connect
from lifehold.runtime import clock, process
from lifehold.store.sqlite.rows import encoded

BUDGET, ROUNDS = 1.15, 21
TABLE = """CREATE TABLE lease (name TEXT PRIMARY KEY, token INTEGER NOT NULL, holder TEXT,
    until REAL, ttl REAL, acquired_at REAL, owner TEXT)"""
TAKE = """UPDATE lease SET holder = ?, token = max(token + 1, ?), until = ?, ttl = ?,
    acquired_at = ?, owner = ? WHERE name = ? AND (holder IS NULL OR until < ?) RETURNING token"""
LEAVE = "UPDATE lease SET holder = NULL WHERE name = ? AND holder = ?"


def raw(path: str, synchronous: str, *, begin: bool) -> Callable[[], None]:
    """What an expert writes by hand: two statements on one row, with `begin` in a frame."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute(TABLE)
    db.execute("INSERT INTO lease (name, token) VALUES ('a', 0)")
    owner = encoded(process.here())

    def run() -> None:
        now, utc_us, mark = clock.now(), clock.utc_ns() // 1000, os.urandom(8).hex()
        if begin:
            db.execute("BEGIN IMMEDIATE")
        values = mark, utc_us, now + 30, 30.0, utc_us / 1e6, owner, "a", now
        (token,) = db.execute(TAKE, values).fetchall()[0]
        if begin:
            db.execute("COMMIT")
            db.execute("BEGIN IMMEDIATE")
        left = db.execute(LEAVE, ("a", mark)).rowcount
        if begin:
            db.execute("COMMIT")
        assert token >= utc_us
        assert left == 1

    return run


def uncontended(folder: Path, synchronous: str, times: int) -> str:
    """The pair of each, in turn, and the ratio of each round."""
    lean, framed = (
        raw(str(folder / f"raw-{synchronous}-{begin}.db"), synchronous, begin=begin)
        for begin in (False, True)
    )
    url = f"sqlite:///{folder}/ours-{synchronous}.db?synchronous={synchronous}"
    lock = connect(url).lock("a")

    def ours() -> None:
        lock.acquire().release()

    took: dict[str, list[float]] = {"lean": [], "framed": [], "ours": []}
    for _ in range(ROUNDS):
        for name, call in (("lean", lean), ("framed", framed), ("ours", ours)):
            began = time.perf_counter()
            for _ in range(times):
                call()
            took[name].append((time.perf_counter() - began) / times)
    ratio, wider = (
        statistics.median(b / a for a, b in zip(took[name], took["ours"], strict=True))
        for name in ("lean", "framed")
    )
    best = min(took["ours"]) / min(took["lean"])
    lean_us, framed_us, our_us = (statistics.median(found) * 1e6 for found in took.values())
    verdict = "met" if ratio <= BUDGET else "MISSED"
    return (
        f"synchronous={synchronous}: raw {lean_us:.0f} us, ours {our_us:.0f} us, ratio {ratio:.2f} "
        f"(best of each {best:.2f}), budget {BUDGET}: {verdict}; raw between BEGIN IMMEDIATE and "
        f"COMMIT {framed_us:.0f} us, ratio {wider:.2f}"
    )


def counted(file: Any) -> list[str]:
    """The steps of a database from now on, and its statements."""
    seen: list[str] = [""]
    step, once = file.step, file.once

    def stepped(work: Any, **how: Any) -> Any:
        seen.append("step")
        return step(work, **how)

    def by_one(statement: str, values: Any) -> int:
        seen.append("step")
        return int(once(statement, values))

    file.step, file.once = stepped, by_one

    def noted(text: str) -> None:
        if text != seen[-1]:  # a statement is traced again with its trigger
            seen.append(text)

    file._db.set_trace_callback(noted)
    return seen


def line(folder: Path, count: int) -> str:
    """So many threads wait, and all come in, one after another."""
    store = connect(f"sqlite:///{folder}/line-{count}.db")
    first = store.lock("a", ttl=300).acquire()
    order: list[int] = []
    came: list[float] = []
    left: list[float] = []

    def wait(number: int) -> None:
        lease = store.lock("a", ttl=300, wait=600).acquire()
        came.append(clock.now())
        order.append(number)
        left.append(clock.now())
        lease.release()

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(count)]
    for number, thread in enumerate(threads):
        thread.start()
        while store.waiters("a") != number + 1:
            time.sleep(0.001)
    seen = counted(store._site.backend.file)
    first.release()
    for thread in threads:
        thread.join()
    gaps = [(b - a) * 1e3 for a, b in zip(left, came[1:], strict=False)]
    steps = seen.count("step") / count
    statements = sum(text != "step" and text[:2] not in ("", "--") for text in seen) / count
    kept = "kept" if order == sorted(order) else "NOT KEPT"
    return (
        f"{count} waiters: {steps:.2f} steps and {statements:.1f} statements per hand-over, "
        f"p50 {statistics.median(gaps):.2f} ms, order {kept}"
    )


def worker(url: str, folder: Path, number: int, turns: int) -> None:
    """One process, whose turns go into a file."""
    lock, found = connect(url).lock("a", ttl=300), []
    for _ in range(turns):
        lease = lock.acquire()
        came = clock.now()
        time.sleep(0.001)
        found.append((came, clock.now()))
        lease.release()
    (folder / f"{number}.turns").write_text(json.dumps(found))


def processes(folder: Path, count: int, turns: int) -> str:
    """From a release to the acquire of another process."""
    place = folder / f"of-{count}"
    place.mkdir()
    url = f"sqlite:///{place}/x.db"
    connect(url).list()
    children = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                worker(url, place, number, turns)
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    found: list[Any] = []
    for number in range(count):
        found += [(*turn, number) for turn in json.loads((place / f"{number}.turns").read_text())]
    found.sort()
    gaps = sorted((b[0] - a[1]) * 1e3 for a, b in pairwise(found) if a[2] != b[2])
    p50, p99 = gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100]
    verdict = "met" if p50 <= 1 else "MISSED"
    return (
        f"{count} processes: hand-over p50 {p50:.2f} ms, p99 {p99:.2f} ms, budget 1 ms: {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        print(uncontended(folder, "normal", 50), flush=True)
        print(uncontended(folder, "full", 5), flush=True)
        for count in (2, 8):
            print(processes(folder, count, 400 // count), flush=True)
        for count in (10, 50, 500):
            print(line(folder, count), flush=True)


if __name__ == "__main__":
    main()
