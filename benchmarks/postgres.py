"""Leases and session locks in PostgreSQL against raw pairs of statements, on a server of our own.

    python -m benchmarks.postgres [--fsync off] [--rounds N]

Prints ratios of one run: acquire + release, blocking and async, against an INSERT ... ON CONFLICT
and an UPDATE, prepared, on one connection; of kind="session" against pg_advisory_lock and
pg_advisory_unlock; the hand-over between processes, against a ring of processes that each claim the
row by UPDATE when LISTEN says so, and let go by UPDATE and NOTIFY, in turns with ours; and from
kill -9 of a holder to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

TABLE = """CREATE TABLE raw
(name text PRIMARY KEY, token bigint, holder text, ends_at timestamptz)"""
TAKE = """PREPARE take (text, text) AS INSERT INTO raw VALUES ($1, 1, $2, now() + '30 s')
ON CONFLICT (name) DO UPDATE SET token = raw.token + 1, holder = excluded.holder,
ends_at = excluded.ends_at WHERE raw.holder IS NULL OR raw.ends_at < now() RETURNING token"""
GIVE = "PREPARE give (text, text) AS UPDATE raw SET holder = NULL WHERE name = $1 AND holder = $2"
PARTNER = """
import json, sys, time
from lifehold import connect
lock, said = connect(sys.argv[1]).lock("handed", kind=sys.argv[3]), []
lock.acquire().release()
print("there", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    lease = lock.acquire()
    came = time.monotonic()
    time.sleep(0.002)
    left = time.monotonic()
    lease.release()
    said.append((came, left))
print(json.dumps(said))
"""
BY_HAND = """
import json, os, select, sys, time
import psycopg
url, count, me, next_one = sys.argv[1:]
connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor)
listening = psycopg.connect(url, autocommit=True)
listening.execute("LISTEN raw_" + me)
connection.execute('''PREPARE claim AS UPDATE raw SET token = token + 1, holder = '%s',
ends_at = clock_timestamp() + '30 s' WHERE name = 'handed'
AND (holder IS NULL OR ends_at < clock_timestamp()) RETURNING token''' % me)
connection.execute('''PREPARE give AS WITH gone AS (UPDATE raw SET holder = NULL
WHERE name = 'handed' AND holder = '%s' RETURNING name)
SELECT pg_notify('raw_%s', '') FROM gone''' % (me, next_one))
print("there", flush=True)
sys.stdin.readline()
said = []
for _ in range(int(count)):
    while not [*iter(listening.pgconn.notifies, None)]:
        select.select([listening.fileno()], [], [])
        listening.pgconn.consume_input()
    assert connection.execute("EXECUTE claim").fetchall()
    came = time.monotonic()
    time.sleep(0.002)
    left = time.monotonic()
    assert connection.execute("EXECUTE give").fetchall()
    said.append((came, left))
print(json.dumps(said))
"""


HOLDER = """
import sys, time
from lifehold import connect
lease = connect(sys.argv[1]).lock("killed", kind="session").acquire()
print("in", flush=True)
time.sleep(600)
"""

HAND_OVERS = 4  # rounds


def per_pair(act, count=100):
    began = time.perf_counter()
    for _ in range(count):
        act()
    return (time.perf_counter() - began) / count * 1e6


def uncontended(url, rounds):
    import psycopg

    from lifehold import connect

    lock = connect(url).lock("pair")
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as raw:
        raw.execute(TABLE)
        raw.execute(TAKE)
        raw.execute(GIVE)

        def by_hand():
            raw.execute("EXECUTE take (%s, %s)", ("pair", "me")).fetchall()
            raw.execute("EXECUTE give (%s, %s)", ("pair", "me"))

        def ours():
            with lock:
                pass

        found = {"by hand": [], "ours": [], "ours, async": []}
        for act in (by_hand, ours):
            per_pair(act)
        for _ in range(rounds):
            found["by hand"].append(per_pair(by_hand))
            found["ours"].append(per_pair(ours))
            found["ours, async"].append(asyncio.run(awaited(url)))
    return {name: statistics.median(times) for name, times in found.items()}


def sessions(url, rounds):
    import psycopg

    from lifehold import connect

    lock = connect(url).lock("pair", kind="session")
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as raw:

        def by_hand():
            raw.execute("SELECT pg_advisory_lock(1)").fetchall()
            raw.execute("SELECT pg_advisory_unlock(1)").fetchall()

        def ours():
            with lock:
                pass

        found = {"by hand": [], "session": [], "session, async": []}
        for act in (by_hand, ours):
            per_pair(act)
        for _ in range(rounds):
            found["by hand"].append(per_pair(by_hand))
            found["session"].append(per_pair(ours))
            found["session, async"].append(asyncio.run(awaited(url, kind="session")))
    return {name: statistics.median(times) for name, times in found.items()}


def after_death(url, count=9):
    """Seconds from kill -9 of a holder to the grant of who waits."""
    from lifehold import connect

    store, times = connect(url), []
    for _ in range(count):
        command = [sys.executable, "-c", HOLDER, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
            holder.stdout.readline()
            died: list[float] = []

            def end(holder=holder, died=died):
                died.append(time.monotonic())
                holder.kill()

            threading.Timer(0.2, end).start()
            with store.lock("killed", kind="session"):
                times.append(time.monotonic() - died[0])
    return statistics.median(times)


async def awaited(url, count=100, kind="auto"):
    from lifehold.aio import aconnect

    lock = (await aconnect(url)).lock("pair", kind=kind)
    async with lock:
        pass
    began = time.perf_counter()
    for _ in range(count):
        async with lock:
            pass
    return (time.perf_counter() - began) / count * 1e6


def handed_over(url, processes, count, kind):
    """Seconds from the call of release() in one process to the grant in the next."""
    partners = [started(PARTNER, url, count, kind) for _ in range(processes)]
    return between(partners)


def by_hand(url, processes, count):
    """The same of statements that are written by hand."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("INSERT INTO raw VALUES ('handed', 1) ON CONFLICT DO NOTHING")
        partners = [
            started(BY_HAND, url, count, number, (number + 1) % processes)
            for number in range(processes)
        ]
        return between(partners, lambda: raw.execute("NOTIFY raw_0"))


def started(script, *words):
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def between(partners, begin=lambda: None):
    """From each end of a turn to the next beginning, in another process."""
    for partner in partners:
        assert partner.stdout.readline() == "there\n"
    for partner in partners:
        partner.stdin.write("\n")
        partner.stdin.flush()
    begin()
    turns = []
    for number, partner in enumerate(partners):
        turns += [(came, left, number) for came, left in json.loads(partner.communicate()[0])]
    turns.sort()
    pairs = itertools.pairwise(turns)
    return [after[0] - before[1] for before, after in pairs if after[2] != before[2]]


def main():
    from servers import postgres

    parser = argparse.ArgumentParser()
    parser.add_argument("--fsync", default="on", choices=("on", "off"))
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with postgres.started(fsync=given.fsync, full_page_writes=given.fsync) as server:
        for pairs in (uncontended, sessions):
            found = pairs(server.url, given.rounds)
            for name, microseconds in found.items():
                ratio = microseconds / found["by hand"]
                print(f"acquire + release, {name:14} {microseconds:8.0f} us   x {ratio:.2f}")
        for processes in (2, 8):
            found = {"lease": [], "session": [], "by hand": []}
            for _ in range(HAND_OVERS):
                count = 80 // processes
                found["lease"] += handed_over(server.url, processes, count, "auto")
                found["session"] += handed_over(server.url, processes, count, "session")
                found["by hand"] += by_hand(server.url, processes, count)
            floor = statistics.median(found["by hand"])
            for word, times in found.items():
                half, most = statistics.median(times), sorted(times)[int(len(times) * 0.99)]
                print(
                    f"hand-over, {word:8} {processes} processes: p50 {half * 1e3:.2f} ms "
                    f"x {half / floor:.2f}, p99 {most * 1e3:.2f} ms, {len(times)} of them"
                )
        print(f"kill -9 to the next, session: p50 {after_death(server.url) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
