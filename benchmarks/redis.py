"""Leases in Redis against a raw pair of commands and other locks, on a server of our own.

    python -m benchmarks.redis [--pairs N] [--turns N] [--rounds N]

Prints, of one run: acquire + release through one warm client, blocking, against SET NX PX and a
script that compares and deletes, by redis-py; and the hand-over between two and eight processes,
beside redis-py's Lock and python-redis-lock (where it is installed), rounds in turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

COMPARE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
PARTNER = """
import json, sys, time
who, url, path, turns = sys.argv[1:]
if who == "lifehold":
    from lifehold import connect
    lock = connect(url).lock("handed", ttl=30)
else:
    import redis
    client = redis.Redis(unix_socket_path=path)
    if who == "redis-py":
        lock = client.lock("handed-py", timeout=30)
    else:
        import redis_lock
        lock = redis_lock.Lock(client, "handed-rl", expire=30)
lock.acquire(); lock.release()
print("there", flush=True)
sys.stdin.readline()
said = []
for _ in range(int(turns)):
    lock.acquire()
    came = time.monotonic()
    time.sleep(0.002)
    left = time.monotonic()
    lock.release()
    said.append((came, left))
print(json.dumps(said))
"""


def pairs(server, count: int) -> dict[str, float]:
    """Microseconds of a pair: the best of some batches, in turns."""
    import redis

    from lifehold import connect

    ours = connect(server.unix_url).lock("pair")
    client = redis.Redis(unix_socket_path=str(server.socket))
    give = client.register_script(COMPARE)

    def by_hand() -> None:
        client.set("raw", "nonce", nx=True, px=30_000)
        give(keys=["raw"], args=["nonce"])

    def by_us() -> None:
        ours.acquire().release()

    best = {"SET NX + EVALSHA": 1e9, "lifehold": 1e9}
    for _ in range(20):
        for name, pair in zip(best, (by_hand, by_us), strict=True):
            pair()
            began = time.perf_counter()
            for _ in range(count // 20):
                pair()
            best[name] = min(best[name], (time.perf_counter() - began) / (count // 20) * 1e6)
    client.close()
    return best


def handovers(server, who: str, processes: int, turns: int) -> list[float]:
    """Milliseconds from a release to the next one's return, where another process came next."""
    command = [sys.executable, "-c", PARTNER, who, server.unix_url, str(server.socket), str(turns)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "there\n"
    for each in started:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    told = [(*turn, at) for at, each in enumerate(started) for turn in json.loads(_last(each))]
    told.sort()
    return [
        (came - left) * 1e3
        for (_, left, before), (came, _, at) in itertools.pairwise(told)
        if at != before
    ]


def _last(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=600)
    return said.splitlines()[-1]


def main() -> None:
    from servers import redis

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with redis.started() as server:
        found = pairs(server, given.pairs)
        base = found["SET NX + EVALSHA"]
        for name, cost in found.items():
            print(f"pair               {name:20} {cost:8.1f} us  {cost / base:5.2f} x")
        rivals = ["lifehold", "redis-py"]
        rivals += ["python-redis-lock"] if importlib.util.find_spec("redis_lock") else []
        for processes in (2, 8):
            late: dict[str, list[float]] = {who: [] for who in rivals}
            for _ in range(given.rounds):
                for who in rivals:
                    turns = given.turns if who != "redis-py" else max(5, given.turns // 10)
                    late[who] += handovers(server, who, processes, turns)
            for who, times in late.items():
                middle = statistics.median(times) if times else float("nan")
                worst = max(times, default=float("nan"))
                told = f"{middle:8.2f} ms  {worst:8.1f} at worst  ({len(times)})"
                print(f"hand-over, {processes} procs {who:20} {told}")


if __name__ == "__main__":
    main()
