"""What redis-py's lock, replaced, costs beside the real one and python-redis-lock, in one run.

    PYTHONPATH=src:tests python -m benchmarks.redis_lock [--turns 200]

A pair: acquire and release of a free lock through one warm client, beside SET NX PX and one EVALSHA
written by hand. A hand-over: from just before a release to just after the next acquire, with 2 and
8 processes that each hold for 10 ms. A private Redis is started; python-redis-lock is left out
where it is not installed. Ratios count: the machine is whatever it is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import redis

from lifehold.compat.redis_lock import Lock

TTL = 30
RELEASE = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"


def _by_hand(client: Any) -> Callable[[], None]:
    script = client.register_script(RELEASE)

    def pair() -> None:
        client.set("pair", "value", nx=True, px=TTL * 1000)
        script(keys=["pair"], args=["value"])

    return pair


def _of(make: Callable[[Any, str], Any]) -> Callable[[Any], Callable[[], None]]:
    def made(client: Any) -> Callable[[], None]:
        lock = make(client, "pair")

        def pair() -> None:
            lock.acquire()
            lock.release()

        return pair

    return made


def _theirs(client: Any, name: str) -> Any:
    import redis_lock  # type: ignore[import-not-found]

    return redis_lock.Lock(client, name, expire=TTL)


MAKERS: dict[str, Callable[[Any, str], Any]] = {
    "ours": lambda client, name: Lock(client, name, timeout=TTL),
    "redis-py": lambda client, name: redis.lock.Lock(client, name, timeout=TTL),
}
if find_spec("redis_lock"):
    MAKERS["python-redis-lock"] = _theirs


def pairs(url: str, turns: int) -> dict[str, float]:
    """Medians in milliseconds, the contenders in turn."""
    with redis.Redis.from_url(url) as client:
        work = {"by hand": _by_hand(client)} | {
            name: _of(make)(client) for name, make in MAKERS.items()
        }
        took: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(turns * 5):
            for name, pair in work.items():
                began = time.perf_counter()
                pair()
                took[name].append((time.perf_counter() - began) * 1000)
    return {name: statistics.median(each) for name, each in took.items()}


def _turns(
    url: str, name: str, me: int, turns: int, last: Any, released: Any, ready: Any, found: Any
) -> None:
    gaps = []
    with redis.Redis.from_url(url) as client:
        client.ping()
        ready.wait()
        for _ in range(turns):
            lock = MAKERS[name](client, f"hand-over-{name}")
            lock.acquire()
            now = time.monotonic()
            if last.value not in (me, -1):
                gaps.append((now - released.value) * 1000)
            last.value = me
            time.sleep(0.01)  # meanwhile the one before stands in line again
            released.value = time.monotonic()
            lock.release()
            until = time.monotonic() + 0.5  # nobody takes it twice: that is no hand-over
            while last.value == me and time.monotonic() < until:
                time.sleep(0.0005)
    found.put(gaps)


def hand_over(url: str, name: str, count: int, turns: int) -> list[float]:
    """Milliseconds of each hand-over."""
    context = multiprocessing.get_context("spawn")
    last, released = context.Value("i", -1), context.Value("d", 0.0)
    ready, found = context.Barrier(count), context.Queue()
    each = max(5, turns // count)
    those = [
        context.Process(target=_turns, args=(url, name, me, each, last, released, ready, found))
        for me in range(count)
    ]
    for process in those:
        process.start()
    gaps = [gap for _ in those for gap in found.get(timeout=300)]
    for process in those:
        process.join()
    return sorted(gaps)


def main() -> None:
    from servers import redis as servers  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    turns = parser.parse_args().turns
    with servers.started() as server:
        found = pairs(server.url, turns)
        print("| pair | ms | by hand = 1 |\n|---|---|---|")
        for name, median in found.items():
            print(f"| {name} | {median:.3f} | {median / found['by hand']:.2f} |")
        print("\n| hand-over | processes | p50 ms | p99 ms |\n|---|---|---|---|")
        for count in (2, 8):
            for name in MAKERS:
                gaps = hand_over(server.url, name, count, turns)
                p50, p99 = statistics.median(gaps), gaps[int(len(gaps) * 0.99)]
                print(f"| {name} | {count} | {p50:.2f} | {p99:.2f} |", flush=True)


if __name__ == "__main__":
    main()
