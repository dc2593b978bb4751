"""`python -m soak.waiters [--waiters 500] [--hold 0.0]`: a long line at a store, counted.

Processes of fifty threads each stand in line for one lock, in PostgreSQL and in SQLite. Told are
the requests that the store was asked while they stood there, and those of each hand-over; whether
they came in the order of the line; and how long a hand-over took. PostgreSQL counts its
transactions itself; for SQLite each process counts its steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lifehold import connect
from servers import postgres
from soak.troupe import told

TESTS = Path(__file__).parents[1]
EACH = 50  # threads of a process
PATIENCE = 300.0
LEFT_OUT, TWO = "somebody was not served", "two held it at once"


def steps_of(store):
    """Counts the questions of this process, whatever they are."""
    count, backend = [0], store._site.backend
    for name in ("acquire", "release", "renew", "look"):

        def counting(ask):
            async def asked(*given):
                count[0] += 1
                return await ask(*given)

            return asked

        setattr(backend, name, counting(getattr(backend, name)))
    return count


def stand(url, count, hold):
    """One process: its waiters, and a line of JSON about each grant, in the end."""
    store, grants, mutex = connect(url), [], threading.Lock()
    logging.getLogger("lifehold").setLevel(logging.ERROR)  # five hundred are told who holds it
    count_of = steps_of(store)

    def wait():
        with store.lock("line", wait=PATIENCE, ttl=60) as lease:
            came = time.monotonic()
            if hold:
                time.sleep(hold)
            left = time.monotonic()
        with mutex:
            grants.append((lease.token, lease.nonce.partition("-")[0], came, left))

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for each in threads:
        each.start()
    sys.stdin.readline()  # the line stands
    before = count_of[0]
    print(before, flush=True)
    for each in threads:
        each.join()
    print(json.dumps({"grants": grants, "asked": count_of[0]}), flush=True)


def line(url, waiters, hold, idle, asked_of):
    """Figures of one line. `asked_of`: how often the server was asked until now, or None."""
    store = connect(url)
    lease = store.lock("line", wait=0, ttl=600).acquire()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "soak.waiters", "--stand", url, str(min(EACH, waiters - at)),
             str(hold)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS,
        )
        for at in range(0, waiters, EACH)
    ]  # fmt: skip
    try:
        until = time.monotonic() + PATIENCE
        while len(state := waiting(store)) != waiters:
            assert time.monotonic() < until, f"{len(state)} of {waiters} stand in line"
            assert all(each.poll() is None for each in processes), "one has ended in line"
            time.sleep(0.2)
        before = asked_of and asked_of()
        time.sleep(idle)
        order = waiting(store)
        stood = asked_of and asked_of() - before
        for each in processes:
            each.stdin.write("\n")
            each.stdin.flush()
        firsts = [int(each.stdout.readline()) for each in processes]
        before, began = asked_of and asked_of(), time.monotonic()
        lease.release()
        found = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in processes]
        handed = asked_of and asked_of() - before
    finally:
        for each in processes:
            each.kill()
            each.wait()
    if asked_of is None:
        handed = sum(each["asked"] for each in found) - sum(firsts)
    grants = sorted(tuple(one) for each in found for one in each["grants"])
    return {
        "waiters": waiters,
        "hold": hold,
        "asked_per_second_idle": None if stood is None else round(stood / idle, 1),
        "asked_per_hand_over": round(handed / waiters, 2),
        "in_order": [mark for _, mark, _, _ in grants] == list(order),
        "served": len(grants),
        "hand_over_ms": round(1000 * (grants[-1][2] - began - hold * waiters) / waiters, 2),
        "overlaps": sum(one[3] > two[2] for one, two in itertools.pairwise(grants)),
    }


def waiting(store):
    return next(iter(store.states("line"))).waiters


def transactions(server):
    """What the database has been asked, in one count that the server keeps."""

    def asked():
        server.execute("SELECT pg_stat_clear_snapshot()", "postgres")
        (found,) = server.execute(
            "SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid"
            " WHERE d.datname = 'test' AND s.query ~ 'lifehold_'", "postgres",
        )[0]  # fmt: skip
        return int(found or 0)

    server.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements", "postgres")
    return asked


def run(waiters, hold, idle, stores=("postgres", "sqlite")):
    """(what is wrong, figures as text)."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        if "postgres" in stores:
            with postgres.started(max_connections="400") as server:
                connect(server.url).list()
                found["postgres"] = line(server.url, waiters, hold, idle, transactions(server))
        if "sqlite" in stores:
            found["sqlite"] = line(f"sqlite:///{Path(name)}/line.db", waiters, hold, idle, None)
    wrong = [
        f"{store}: {what}" for store, each in found.items()
        for what, bad in {
            LEFT_OUT: each["served"] != waiters,
            "not in the order of the line": not each["in_order"],
            TWO: each["overlaps"],
            "more than 6 requests for a hand-over": not hold and each["asked_per_hand_over"] > 6,
        }.items() if bad
    ]  # fmt: skip
    return wrong, "\n".join(f"{store}: {json.dumps(each)}" for store, each in found.items())


def main(arguments=None):
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--stand"]:
        stand(words[1], int(words[2]), float(words[3]))
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--waiters", type=int, default=500)
    parser.add_argument("--hold", type=float, default=0.0)
    parser.add_argument("--idle", type=float, default=10.0)
    parser.add_argument("--stores", default="postgres,sqlite")
    given = parser.parse_args(words)
    wrong, figures = run(given.waiters, given.hold, given.idle, given.stores.split(","))
    return told(wrong, figures)


if __name__ == "__main__":
    sys.exit(main())
