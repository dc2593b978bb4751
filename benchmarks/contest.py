"""Processes that pass one lock from hand to hand: what a hand-over takes, how many turns each has.

Each holds the lock for 2 ms and asks again after 0 to 0.2 ms; in a *relay* not before somebody
else has had it, so that a rival who asks now and then is not judged by the few times he was lucky.
A hand-over lasts from the moment at which the holder begins to release until another's acquire has
returned; only those are counted whose new holder had been waiting at that moment.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import resource
import select
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .rivals import Rival

HOLD, PAUSE = 0.002, 0.0002  # seconds
GRACE = 300_000_000  # ns after the end of a match in which another may still come for the lock
now = time.monotonic_ns


@dataclass
class Match:
    """What came of one: nanoseconds of each hand-over, turns of each process, CPU of a turn."""

    handed_ns: list[int]
    turns: list[int]
    cpu_us: float

    @property
    def unevenness(self) -> float:
        """Acquisitions of who had most, over those of who had least."""
        return max(self.turns) / max(1, min(self.turns))


def percentile(values: list[Any], share: float) -> float:
    """0.5: the median. NaN of nothing."""
    if not values:
        return float("nan")
    return float(sorted(values)[min(len(values) - 1, int(len(values) * share))])


def forked(work: Callable[[], object]) -> tuple[int, int]:
    """(process, pipe from which the JSON of `work()` can be read)."""
    here, there = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(here)
            os.write(there, json.dumps(work()).encode() + b"\n")
            code = 0
        except BaseException:  # noqa: BLE001 - told by the answer that does not come
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(there)
    return pid, here


def answer(pid: int, pipe: int) -> Any:
    """What the process answered. Raises RuntimeError when it failed."""
    with os.fdopen(pipe, "rb") as file:
        text = file.read()
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"a process of the benchmark failed: {text!r}")
    return json.loads(text)


def warm_up(make: Rival, path: str) -> None:
    """Wait once, so that no import is measured."""
    here, there = os.pipe()

    def hold() -> None:
        lock = make(path)
        lock.acquire()
        os.write(there, b"x")
        time.sleep(0.01)
        lock.release()

    pid, pipe = forked(hold)
    os.read(here, 1)
    lock = make(path)
    lock.acquire()
    lock.release()
    answer(pid, pipe)
    os.close(here)
    os.close(there)


class Baton:
    """What the processes of a match share: who released last and when, and a pipe to each."""

    def __init__(self, processes: int, *, relay: bool) -> None:
        self.last, self.relay, self.processes = mmap.mmap(-1, 24), relay, processes
        self.pipes = [os.pipe() for _ in range(processes)]
        self.ready, self.go = os.pipe(), os.pipe()

    def start(self, seconds: float) -> None:
        """Once all are there."""
        there = b""
        while len(there) < self.processes:
            there += os.read(self.ready[0], self.processes)
        struct.pack_into("q", self.last, 16, now() + int(seconds * 1e9))
        os.write(self.go[1], b"x" * self.processes)

    def begun(self) -> int:
        """The instant at which the match ends, once it has begun."""
        os.write(self.ready[1], b"x")
        os.read(self.go[0], 1)
        until: int = struct.unpack_from("q", self.last, 16)[0]
        return until

    def came(self, me: int) -> tuple[int, int]:
        """(the last release, by whom), told to that one too. At once after an acquire."""
        released, who = struct.unpack_from("qq", self.last)
        if self.relay and released and who != me:
            os.write(self.pipes[who][1], b"x")
        return released, who

    def goes(self, me: int, at: int) -> None:
        """Just before a release."""
        struct.pack_into("qq", self.last, 0, at, me)

    def stand_back(self, me: int, until: int) -> None:
        """In a relay: until another has it."""
        while self.relay and now() < until + GRACE:
            if select.select([self.pipes[me][0]], [], [], 0.1)[0]:
                os.read(self.pipes[me][0], 1)
                return

    def close(self) -> None:
        for fd in itertools.chain(self.ready, self.go, *self.pipes):
            os.close(fd)


def party(make: Rival, path: str, baton: Baton, me: int) -> Any:
    """One process: the hand-overs it got, its acquisitions, its seconds of CPU."""
    lock = make(path)
    draw, found, turns = random.Random(me), [], 0
    until = baton.begun()
    while now() < until:
        asked = now()
        came = lock.acquire() or now()
        released, who = baton.came(me)
        turns += 1
        if who != me and asked < released:
            found.append(came - released)
        time.sleep(HOLD)
        baton.goes(me, now())
        lock.release()
        baton.stand_back(me, until)
        time.sleep(draw.random() * PAUSE)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return found, turns, sum(each.ru_utime + each.ru_stime for each in used)


def play(make: Rival, processes: int, seconds: float, base: Path, *, relay: bool) -> Match:
    """One match, in a folder of its own below `base`."""
    with tempfile.TemporaryDirectory(prefix="lifehold-bench-", dir=base) as folder:
        path, baton = f"{folder}/lock", Baton(processes, relay=relay)
        warm_up(make, path)
        started = [forked(partial(party, make, path, baton, n)) for n in range(processes)]
        baton.start(seconds)
        results = [answer(pid, pipe) for pid, pipe in started]
        baton.close()
    turns = [turns for _, turns, _ in results]
    cpu = sum(cpu for _, _, cpu in results) / max(1, sum(turns))
    return Match([each for found, _, _ in results for each in found], turns, cpu * 1e6)
