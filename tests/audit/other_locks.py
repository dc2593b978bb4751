"""Other libraries' locks, and locks by hand, as factories for the crash test.

    python -m audit.other_locks [NAME ...]

runs them and prints a table: trials, steps at which a holder was killed, faults by their claims.
Each needs its own package; redis needs a server at `LIFEHOLD_TEST_REDIS` (a URL).
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lifehold.testing.crash_test import crash_test

Made = tuple[Callable[..., Any], ...]
TTL = 1.0  # seconds, of leases


def patiently(once: Callable[[], Any], pause: float = 0.005) -> Callable[[float], Any]:
    """A try that is repeated for some seconds."""

    def acquire(timeout: float) -> Any:
        until = time.monotonic() + timeout
        while not once():
            if time.monotonic() > until:
                return False
            time.sleep(random.uniform(0.5, 2) * pause)
        return True

    return acquire


def lifehold_kernel(path: str) -> Made:
    import lifehold

    lock = lifehold.Lock(path)
    return lambda timeout: lock.acquire(wait=timeout), lock.release


def lifehold_soft(path: str) -> Made:
    import lifehold

    lock = lifehold.Lock(path, kind="soft")
    return lambda timeout: lock.acquire(wait=timeout), lock.release


def filelock_file(path: str) -> Made:
    import filelock

    lock = filelock.FileLock(path)
    return lambda timeout: lock.acquire(timeout=timeout), lock.release


def filelock_soft(path: str) -> Made:
    import filelock

    lock = filelock.SoftFileLock(path)
    return lambda timeout: lock.acquire(timeout=timeout), lock.release


def portalocker_lock(path: str) -> Made:
    import portalocker

    held: list[Any] = []

    def acquire(timeout: float) -> object:
        lock = portalocker.Lock(path, "a", timeout=timeout, check_interval=0.005)
        handle = lock.acquire()
        held.append(lock)
        return handle

    return acquire, lambda: held.pop().release()


def zc_lockfile(path: str) -> Made:
    import zc.lockfile

    held: list[Any] = []

    def once() -> bool:
        try:
            held.append(zc.lockfile.LockFile(path))
        except zc.lockfile.LockError:
            return False
        return True

    return patiently(once), lambda: held.pop().close()


def fasteners_lock(path: str) -> Made:
    import fasteners

    lock = fasteners.InterProcessLock(path)
    return lambda timeout: lock.acquire(timeout=timeout, delay=0.005), lock.release


def lockfolder_lock(path: str) -> Made:
    from lockfolder import lockfolder

    folder = Path(path + ".d")
    folder.mkdir(exist_ok=True)
    lockfolder.setup()
    acquire = patiently(lambda: lockfolder.lock(folder))
    return acquire, lambda: lockfolder.unlock(folder), lambda: lockfolder.have_lock(folder)


def redis_lock(path: str) -> Made:
    import redis

    client = redis.Redis.from_url(os.environ["LIFEHOLD_TEST_REDIS"])
    lock = client.lock(path, timeout=TTL, sleep=0.005)
    return lambda timeout: lock.acquire(blocking_timeout=timeout), lock.release, lock.owned


def exclusive_file(path: str) -> Made:
    """O_EXCL with the number inside, removed at the end."""

    def once() -> bool:
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)
        return True

    return patiently(once), lambda: os.unlink(path)


def dead_number(path: str) -> Made:
    """The same, and who finds a number of no process removes the file."""

    def once() -> bool:
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            try:
                os.kill(int(Path(path).read_text() or "0"), 0)
            except (ProcessLookupError, FileNotFoundError, ValueError):
                Path(path).unlink(missing_ok=True)
            return False
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)
        return True

    return patiently(once), lambda: os.unlink(path)


def old_age(path: str) -> Made:
    """The same, and a file that is half a second old is taken for stale."""

    def once() -> bool:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            try:
                if time.time() - Path(path).stat().st_mtime > TTL / 2:
                    Path(path).unlink(missing_ok=True)
            except FileNotFoundError:
                pass
            return False
        return True

    return patiently(once), lambda: Path(path).unlink(missing_ok=True), lambda: True


def flock_and_unlink(path: str) -> Made:
    """The kernel lock of a file that is removed at the end."""
    held: list[int] = []

    def once() -> bool:
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        held.append(fd)
        return True

    def release() -> None:
        fcntl.flock(held[-1], fcntl.LOCK_UN)
        os.close(held.pop())
        Path(path).unlink(missing_ok=True)

    return patiently(once, 0.001), release


ALL: tuple[Callable[[str], Made], ...] = (
    lifehold_kernel,
    lifehold_soft,
    filelock_file,
    filelock_soft,
    portalocker_lock,
    zc_lockfile,
    fasteners_lock,
    lockfolder_lock,
    redis_lock,
    exclusive_file,
    dead_number,
    old_age,
    flock_and_unlink,
)


def main(names: list[str]) -> None:
    print("| lock | trials | faults | claims |\n|---|---|---|---|")
    for factory in ALL:
        if names and factory.__name__ not in names:
            continue
        stall = 1.5 * TTL if factory in (redis_lock, old_age) else 0.0
        with tempfile.TemporaryDirectory() as folder:
            report = crash_test(factory, folder, bound=3.0, stall=stall)
        claims = Counter(fault.claim for fault in report.faults)
        told = ", ".join(f"{claim} {number}" for claim, number in claims.items()) or "none"
        print(
            f"| {factory.__name__} | {report.trials} | {len(report.faults)} | {told} |", flush=True
        )
        for fault in report.faults:
            print(f"{factory.__name__}: {fault.claim}: {fault.at}: {fault.text}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
