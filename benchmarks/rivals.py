"""Everybody who waits for a lock on a file: `acquire()` and `release()`, one object per process.

`acquire()` may answer the instant (monotonic, ns) at which the lock was there, where that is
earlier than its return. The peers wait as they do when nobody sets anything: most
ask again and again.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

BASE = "flock(2)"


class Raw:
    """Blocking flock(2): what nothing can beat, and nothing can end."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def acquire(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)


class Shell(Raw):
    """`exec 9>lock; flock 9` of a shell script: a process that waits, and ends with the lock."""

    def __init__(self, path: str) -> None:
        if shutil.which("flock") is None:
            raise ImportError("flock(1)", name="flock(1)")
        super().__init__(path)

    def acquire(self) -> None:
        subprocess.run(["flock", str(self.fd)], pass_fds=[self.fd], check=True)


class Ours:
    """`Lock` with these options."""

    def __init__(self, path: str, **options: Any) -> None:
        from lifehold import Lock

        self.lock = Lock(path, **options)

    def acquire(self) -> None:
        self.lease = self.lock.acquire()

    def release(self) -> None:
        self.lease.release()


class OursAsync:
    """`AsyncLock`, in an event loop of its own."""

    def __init__(self, path: str, **options: Any) -> None:
        import asyncio

        from lifehold import AsyncLock

        self.lock, self.loop = AsyncLock(path, **options), asyncio.new_event_loop()

    def acquire(self) -> int:
        return self.loop.run_until_complete(self._acquire())

    async def _acquire(self) -> int:
        self.lease = await self.lock.acquire()
        return time.monotonic_ns()

    def release(self) -> None:
        self.loop.run_until_complete(self.lease.release())


class Theirs:
    """A class of another library, made with `path` and these options."""

    def __init__(self, path: str, *, of: str, **options: Any) -> None:
        module, _, name = of.partition(":")
        self.lock: Any = getattr(importlib.import_module(module), name)(path, **options)
        self.acquire: Callable[[], object] = self._acquire
        self.release: Callable[[], object] = self.lock.release

    def _acquire(self) -> None:
        self.lock.acquire()


def _oslo(path: str) -> Theirs:
    folder, name = os.path.split(path)
    return Theirs(name, of="oslo_concurrency.lockutils:external_lock", lock_path=folder)


Rival = Callable[[str], Any]
KERNEL: dict[str, Rival] = {
    BASE: Raw,
    "lifehold": Ours,
    "lifehold fair": partial(Ours, fair=True),
    "lifehold async": OursAsync,
    "flock(1)": Shell,
    "filelock FileLock": partial(Theirs, of="filelock:FileLock"),
    "portalocker Lock": partial(Theirs, of="portalocker:Lock", mode="a", timeout=3600),
    "fasteners InterProcessLock": partial(Theirs, of="fasteners:InterProcessLock"),
    "oslo.concurrency external_lock": _oslo,
}
SOFT: dict[str, Rival] = {
    "lifehold soft": partial(Ours, kind="soft"),
    "lifehold link": partial(Ours, kind="link"),
    "lifehold generation": partial(Ours, kind="generation"),
    "filelock SoftFileLock": partial(Theirs, of="filelock:SoftFileLock"),
    "filelock SoftFileLease": partial(Theirs, of="filelock:SoftFileLease"),
    "filelock StrictSoftFileLock": partial(Theirs, of="filelock:StrictSoftFileLock"),
}


def present(rivals: dict[str, Rival], folder: str) -> tuple[dict[str, Rival], list[str]]:
    """Those that are installed, warmed up by an acquire and release; the names of the others."""
    found, missing = {}, []
    for name, make in rivals.items():
        try:
            lock = make(f"{folder}/{name.replace(' ', '-')}")
            lock.acquire()
            lock.release()
        except ImportError as error:
            missing.append(f"{name} ({error.name})")
        else:
            found[name] = make
    return found, missing
