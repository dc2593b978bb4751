"""Who shares one path in the mixed runs: ours in four ways, flock(1), filelock, two known-bad ones.

A party is a function of (folder, name, end); it uses `folder/lock` until CLOCK_MONOTONIC passes
`end` and answers with what it counted. Ours pause between two grants, since polling parties and
those that start two processes for each grant would else hardly get in.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter

from lifehold import AsyncLock, LeaseLost, Lock, NotAcquired, NotHeld

from .canary import Canary, in_shell

PACE = 0.008  # seconds; the mean pause of one of ours after a grant
WAITS = (None, None, 10, 0.02, 0.003, 0)


def plain(folder, name, end):
    """The blocking face, with every kind of patience."""
    counts = Counter()
    _turns(Lock(f"{folder}/lock", label=name), Canary(folder, name), end, counts)
    return counts


def threads(folder, name, end):
    """Three threads and one object."""
    lock, counts = Lock(f"{folder}/lock", label=name), [Counter() for _ in range(3)]
    running = [
        threading.Thread(target=_turns, args=(lock, Canary(folder, name), end, count, 3 * PACE))
        for count in counts
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts, Counter())


def forking(folder, name, end):
    """Forks while it holds; the child outlives the grant and cannot release it."""
    lock, canary, counts = Lock(f"{folder}/lock", label=name), Canary(folder, name), Counter()
    while time.monotonic() < end:
        with lock as lease:
            counts["grants"] += 1
            inside = canary.enter(lease.token)
            child = os.fork()
            if not child:
                _child(lease)
            _work()
            if inside:
                canary.leave()
        _, status = os.waitpid(child, 0)
        counts["released by a child"] += status != 0
        _pause(PACE / 2)
    return counts


def _child(lease):
    try:
        lease.release()
    except NotHeld:
        time.sleep(random.random() * 0.003)
        os._exit(0)
    finally:
        os._exit(1)


def tasks(folder, name, end):
    """Three tasks of one event loop; some waits are cancelled."""
    counts = Counter()

    async def one():
        lock, canary = AsyncLock(f"{folder}/lock", label=name), Canary(folder, name)
        while time.monotonic() < end:
            try:
                if random.random() < 0.2:
                    lease = await asyncio.wait_for(lock.acquire(), random.random() * 0.01)
                else:
                    lease = await lock.acquire(random.choice(WAITS))
            except (NotAcquired, TimeoutError):
                counts["in vain"] += 1
                await asyncio.sleep(0.0005)
                continue
            counts["grants"] += 1
            if canary.enter(lease.token):
                _work()
                canary.leave()
            await _released(lease, counts)
            await asyncio.sleep(random.expovariate(1 / (3 * PACE)))

    async def all_of_them():
        await asyncio.gather(*[one() for _ in range(3)])

    asyncio.run(all_of_them())
    return counts


async def _released(lease, counts):
    try:
        lease.check()
        await lease.release()
    except LeaseLost:
        counts["lost"] += 1


def command(folder, name, end):
    """`flock PATH sh -c ...`."""
    section = in_shell(folder, name)
    return _shell(["flock", f"{folder}/lock", "sh", "-c", section], end)


def redirection(folder, name, end):
    """`( flock 9; ... ) 9>PATH`, the form of the manual page, which empties the file each time."""
    script = f"( flock 9; {in_shell(folder, name)} ) 9>{folder}/lock"
    return _shell(["sh", "-c", script], end)


def _shell(words, end):
    counts = Counter()
    while time.monotonic() < end:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        counts["grants"] += 1
        counts["complaints"] += done.returncode != 0 or bool(done.stderr)
    return counts


def filelock(folder, name, end, package):
    """FileLock of the package unpacked in the folder `package`."""
    sys.path.insert(0, str(package))
    for imported in [each for each in sys.modules if each.partition(".")[0] == "filelock"]:
        del sys.modules[imported]
    from filelock import FileLock

    lock, canary, counts = (
        FileLock(f"{folder}/lock", poll_interval=0.001), Canary(folder, name), Counter()
    )  # fmt: skip
    while time.monotonic() < end:
        with lock:
            counts["grants"] += 1
            if canary.enter():
                _work()
                canary.leave()
        _pause(PACE / 2)
    return counts


def blind(folder, name, end):
    """Known bad: like flock(1) it locks what it has opened and never looks at the path again."""
    canary, counts = Canary(folder, name), Counter()
    while time.monotonic() < end:
        fd = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX)
        counts["grants"] += 1
        if canary.enter():
            _work()
            canary.leave()
        os.close(fd)
        _pause(PACE / 4)
    return counts


def one_descriptor(folder, name, end):
    """Known bad: two threads lock one open file, which flock(2) takes for one holder."""
    fd = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o666)

    def turns(number):
        canary = Canary(folder, f"{name}-{number}")
        while time.monotonic() < end:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if canary.enter():
                time.sleep(0.001)
                canary.leave()
            fcntl.flock(fd, fcntl.LOCK_UN)

    running = [threading.Thread(target=turns, args=(number,)) for number in (1, 2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return Counter()


def _turns(lock, canary, end, counts, pace=PACE):
    while time.monotonic() < end:
        try:
            lease = lock.acquire(random.choice(WAITS))
        except NotAcquired:
            counts["in vain"] += 1
            time.sleep(0.0005)
            continue
        counts["grants"] += 1
        if canary.enter(lease.token):
            _work()
            canary.leave()
        try:
            lease.check()
            lease.release()
        except LeaseLost:
            counts["lost"] += 1
        _pause(pace)


def _work():
    """Now and then the section takes a while, so that a second one has time to come in."""
    if random.random() < 0.2:
        time.sleep(random.random() * 0.001)


def _pause(mean):
    time.sleep(random.expovariate(1 / mean))
