"""`python -m benchmarks.handover [--seconds 3] [--processes 2 8]`: a lock passed from hand to hand.

Processes hold a lock for 2 ms and ask again after 0 to 0.2 ms. A hand-over lasts from the moment
at which the holder begins to release until another's acquire has returned; only those are counted
whose new holder had been waiting at that moment. The contenders take turns, in rounds, so that a
slow minute of the machine meets all of them. `crash`: the holder is killed instead.
"""

from __future__ import annotations

import argparse
import fcntl
import mmap
import os
import random
import resource
import signal
import statistics
import struct
import tempfile
import threading
import time
from collections import defaultdict

HOLD, PAUSE = 0.002, 0.0002
now = time.monotonic_ns


class Raw:
    """Blocking flock(2): what nothing can beat, and nothing can end."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def acquire(self):
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def release(self):
        fcntl.flock(self.fd, fcntl.LOCK_UN)


class Ours:
    def __init__(self, path, **options):
        from lifehold import Lock

        self.lock = Lock(path, **options)

    def acquire(self):
        self.lease = self.lock.acquire()

    def release(self):
        self.lease.release()


class Helped(Ours):
    """With a helper thread for the short wait as well."""

    def acquire(self):
        from lifehold.runtime import block_here

        block_here.possible = False
        super().acquire()
        block_here.possible = True


class Filelock:
    def __init__(self, path):
        from filelock import FileLock

        self.lock = FileLock(path)

    def acquire(self):
        self.lock.acquire()

    def release(self):
        self.lock.release()


CONTENDERS = {
    "flock(2)": Raw,
    "lifehold": Ours,
    "lifehold fair": lambda path: Ours(path, fair=True),
    "helper": Helped,
    "helper fair": lambda path: Helped(path, fair=True),
    "filelock": Filelock,
}


def loaded(make, path):
    """Once with a wait, so that no import is measured."""
    lock, other = make(path), os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    threading.Timer(0.01, os.close, (other,)).start()
    lock.acquire()
    lock.release()


def party(make, path, shared, pipe, until):
    """One process: the hand-overs it got, in ns, and its acquisitions."""
    lock = make(path)
    draw, found, turns = random.Random(os.getpid()), [], 0
    while now() < until:
        asked = now()
        lock.acquire()
        came = now()
        released, who = struct.unpack_from("qq", shared)
        turns += 1
        if who != os.getpid() and asked < released:
            found.append(came - released)
        time.sleep(HOLD)
        struct.pack_into("qq", shared, 0, now(), os.getpid())
        lock.release()
        time.sleep(draw.random() * PAUSE)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime
    with os.fdopen(pipe, "wb") as file:
        file.write(repr((found, turns, cpu)).encode())


def forked(work, *arguments):
    """(pid, end of a pipe to read from)."""
    here, there = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(here)
        code = 1
        try:
            work(*arguments[:-1], there, arguments[-1])
            code = 0
        finally:
            os._exit(code)
    os.close(there)
    return pid, here


def play(make, processes, seconds):
    """(hand-overs, turns of each, CPU seconds per turn)."""
    with tempfile.TemporaryDirectory() as folder:
        shared = mmap.mmap(-1, 16)
        loaded(make, f"{folder}/lock")
        until = now() + int(seconds * 1e9)
        started = [forked(party, make, f"{folder}/lock", shared, until) for _ in range(processes)]
        results = []
        for pid, pipe in started:
            with os.fdopen(pipe, "rb") as file:
                results.append(eval(file.read()))
            os.waitpid(pid, 0)
    turns = [turn for _, turn, _ in results]
    cpu = sum(cpu for _, _, cpu in results) / sum(turns)
    return [each for found, _, _ in results for each in found], turns, cpu


def crashes(make, kills):
    """From the kill of the holder to the return of the waiter's acquire, in ns."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/lock"
        lock = make(path)
        for _ in range(kills):
            here, there = os.pipe()
            pid = os.fork()
            if not pid:
                make(path).acquire()
                os.write(there, b"x")
                time.sleep(30)
                os._exit(0)
            os.read(here, 1)
            killer = os.fork()
            if not killer:
                time.sleep(0.02)
                at = now()
                os.kill(pid, signal.SIGKILL)
                os.write(there, struct.pack("q", at))
                os._exit(0)
            lock.acquire()
            came = now()
            lock.release()
            found.append(came - struct.unpack("q", os.read(here, 8))[0])
            os.waitpid(pid, 0)
            os.waitpid(killer, 0)
            os.close(here)
            os.close(there)
    return found


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS)[:-1])
    options = parser.parse_args()
    for processes in options.processes:
        found, turns, cpu = defaultdict(list), defaultdict(list), defaultdict(list)
        for _ in range(options.rounds):
            for name in options.only:
                make = CONTENDERS[name]
                handed, each, used = play(make, processes, options.seconds / options.rounds)
                found[name] += handed
                turns[name].append(each)
                cpu[name].append(used)
        base = percentile(found[options.only[0]], 0.5)
        print(f"{processes} processes        n   p50 us   p99 us      x   max/min  CPU us per turn")
        for name in options.only:
            total = [sum(column) for column in zip(*turns[name], strict=True)]
            spread = statistics.median(max(each) / max(1, min(each)) for each in turns[name])
            p50, p99 = percentile(found[name], 0.5), percentile(found[name], 0.99)
            used = statistics.median(cpu[name]) * 1e6
            print(f"{name:16}{len(found[name]):6}{p50 / 1e3:9.0f}{p99 / 1e3:9.0f}{p50 / base:7.1f}"
                  f"{spread:10.2f}{used:10.0f}   {sum(total)} turns")  # fmt: skip
    if options.kills:
        print("crash                 n   p50 us   max us")
        for name in options.only:
            found = crashes(CONTENDERS[name], options.kills)
            print(
                f"{name:16}{len(found):6}{percentile(found, 0.5) / 1e3:9.0f}{max(found) / 1e3:9.0f}"
            )


if __name__ == "__main__":
    main()
