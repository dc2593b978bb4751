"""Leases in Redis while its servers fail over and its slots move: two holders, late writes.

    python -m soak.redis_groups sentinel --seconds 600 --every 20     in the folder tests
    python -m soak.redis_groups sentinel --lossy --hold 6 ...         cut off a second before
    python -m soak.redis_groups sentinel --lossy --hold 6 --replicas 1    confirmed by WAIT
    python -m soak.redis_groups cluster --seconds 600 --every 5
    python -m soak.redis_groups single --seconds 600 --every 20       killed, with AOF always
    python -m soak.redis_groups quorum --seconds 600 --every 8        of 5, one emptied or paused

Processes take one lock in turn, and write to a resource outside Redis that refuses an older token.
Printed are grants, faults, those who were inside together (an asynchronous failover may do that;
one server with AOF always, or a quorum, must not) and late writes that landed: 0, else the status
is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import sys
import time
from typing import Any

from lifehold import LifeholdError, connect
from servers import quorum, redis, redis_groups

WORKERS, TTL = 6, 3.0


class Resource:
    """What the lock guards, in memory that all processes share: the token of the last write."""

    def __init__(self) -> None:
        self.mutex = multiprocessing.Lock()
        self.counts = multiprocessing.Array("q", 6)  # token, inside, grants, doubles, late, landed
        self.writer = multiprocessing.Array("c", 40)

    def enter(self) -> None:
        with self.mutex:
            self.counts[2] += 1
            self.counts[3] += self.counts[1] > 0
            self.counts[1] += 1

    def leave(self) -> None:
        with self.mutex:
            self.counts[1] -= 1

    def write(self, token: int, nonce: str) -> None:
        """Taken from who has the greatest token. The same one of two holders would be a fault."""
        with self.mutex:
            if token < self.counts[0]:
                self.counts[4] += 1
                return
            if token == self.counts[0] and self.writer.value != nonce.encode()[:40]:
                self.counts[5] += 1
            self.counts[0], self.writer.value = token, nonce.encode()[:40]


def work(url: str, resource: Resource, over: Any, seed: int, hold: float) -> None:
    """`hold`: seconds inside, at most; nobody looks whether it still may be."""
    chance = random.Random(seed)
    lock = connect(url, timeout=2).lock("soak", ttl=TTL, wait=10)
    while not over.is_set():
        with contextlib.suppress(LifeholdError), lock as lease:
            resource.enter()
            try:
                for _ in range(chance.randrange(1, 4)):
                    time.sleep(chance.random() * hold / 3)
                    resource.write(lease.token, lease.nonce)
            finally:
                resource.leave()


@contextlib.contextmanager
def servers(which: str, lossy: bool):
    """The URL, and what goes wrong with it each time."""
    if which == "single":
        with redis.started(aof=True) as server:
            yield server.url, server.restart
    elif which == "sentinel":
        with redis_groups.sentinels() as group:

            def fail_over() -> None:
                before = group.primary
                if lossy:
                    group.cut_off()
                    time.sleep(1.0)
                group.fail_over()
                group.again(before)

            yield group.url, fail_over
    elif which == "quorum":
        with quorum.started(5) as five:

            def fail() -> None:
                one = random.choice(five)
                if random.random() < 0.5:
                    one.restart(empty=True)
                    return
                one.pause()
                time.sleep(random.random() * TTL)
                one.resume()

            hosts = ",".join(f"127.0.0.1:{each.port}" for each in five)
            yield f"redis+quorum://{hosts}/0?longest_ttl={TTL:g}", fail
    else:
        with redis_groups.cluster() as group:
            slot = group.slot("lifehold:{soak}:lease")

            def move() -> None:
                source = group.owner(slot)
                if random.random() < 0.3:
                    before = source
                    group.fail_over(source)
                    before.start()
                    redis.until("it follows", before.follows)
                    return
                group.move(slot, random.choice([e for e in group.primaries if e is not source]))

            yield group.url, move


def main(words: list[str]) -> int:
    told = argparse.ArgumentParser()
    told.add_argument("which", choices=("single", "sentinel", "cluster", "quorum"))
    told.add_argument("--seconds", type=float, default=600.0)
    told.add_argument("--every", type=float, default=20.0)
    told.add_argument("--hold", type=float, default=0.06)
    told.add_argument("--lossy", action="store_true")
    told.add_argument("--replicas", type=int, default=0)
    given = told.parse_args(words)
    resource, over, faults = Resource(), multiprocessing.Event(), 0
    with servers(given.which, given.lossy) as (there, fault):
        url = f"{there}?replicas={given.replicas}" if given.replicas else there
        crowd = [
            multiprocessing.Process(target=work, args=(url, resource, over, number, given.hold))
            for number in range(WORKERS)
        ]
        for each in crowd:
            each.start()
        end = time.monotonic() + given.seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(given.every, left))
            if time.monotonic() < end:
                fault()
                faults += 1
        over.set()
        for each in crowd:
            each.join(60)
    _, _, grants, doubles, late, landed = resource.counts
    print(f"{given.which}: {grants} grants, {faults} faults, {doubles} inside together "
          f"({doubles / max(1, faults) * 100:.0f} per 100 faults), {late} late writes refused, "
          f"{landed} landed")  # fmt: skip
    alone = given.which in ("single", "quorum") and doubles > 0
    return int(landed > 0 or alone or grants == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
