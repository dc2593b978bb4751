"""Everybody who locks a file, each in one function that acquires and releases once."""

from __future__ import annotations

import fcntl
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lifehold import Lock

from .measure import Row

FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def raw(folder: Path) -> Callable[[], object]:
    """What one writes by hand: open, flock, unlock, close."""
    path = str(folder / "raw.lock")

    def pair() -> None:
        fd = os.open(path, FLAGS, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    return pair


def ours(folder: Path) -> list[Row]:
    """The forms of our own lock."""
    lock, bare = Lock(folder / "ours.lock"), Lock(folder / "bare.lock", record=False)
    again = Lock(folder / "again.lock", reentrant=True)
    path = str(folder / "new.lock")

    def with_block() -> None:
        with lock:
            pass

    def without_record() -> None:
        with bare:
            pass

    def reentrant() -> None:
        with again:
            pass

    def fresh_object() -> None:
        with Lock(path):
            pass

    def by_hand() -> None:
        lock.acquire()
        lock.release()

    return [
        Row("lifehold: with lock", with_block),
        Row("lifehold: acquire(), release()", by_hand),
        Row("lifehold: record=False", without_record),
        Row("lifehold: reentrant=True", reentrant),
        Row("lifehold: a new Lock object each time", fresh_object),
    ]


def peers(folder: Path) -> tuple[list[Row], list[str]]:
    """Rows of the libraries that are installed, and the names of those that are not."""
    rows, missing = [], []
    for make in (_filelock, _filelock_soft, _portalocker, _fasteners, _zc, _oslo):
        try:
            rows.append(make(folder))
        except ImportError as error:
            missing.append(f"{error.name}")
    return rows, missing


def _filelock(folder: Path) -> Row:
    filelock: Any = importlib.import_module("filelock")
    lock = filelock.FileLock(folder / "filelock.lock")

    def pair() -> None:
        with lock:
            pass

    return Row(f"filelock {filelock.__version__} FileLock", pair)


def _filelock_soft(folder: Path) -> Row:
    filelock: Any = importlib.import_module("filelock")
    lock = filelock.SoftFileLock(folder / "filelock-soft.lock")

    def pair() -> None:
        with lock:
            pass

    return Row(f"filelock {filelock.__version__} SoftFileLock", pair)


def _portalocker(folder: Path) -> Row:
    portalocker: Any = importlib.import_module("portalocker")
    path = str(folder / "portalocker.lock")

    def pair() -> None:
        with portalocker.Lock(path, "a"):
            pass

    return Row(f"portalocker {portalocker.__version__} Lock", pair)


def _fasteners(folder: Path) -> Row:
    fasteners: Any = importlib.import_module("fasteners")
    version = importlib.import_module("importlib.metadata").version("fasteners")
    lock = fasteners.InterProcessLock(str(folder / "fasteners.lock"))

    def pair() -> None:
        lock.acquire()
        lock.release()

    return Row(f"fasteners {version} InterProcessLock", pair)


def _zc(folder: Path) -> Row:
    lockfile: Any = importlib.import_module("zc.lockfile")
    version = importlib.import_module("importlib.metadata").version("zc.lockfile")
    path = str(folder / "zc.lock")

    def pair() -> None:
        lockfile.LockFile(path).close()

    return Row(f"zc.lockfile {version} LockFile", pair)


def _oslo(folder: Path) -> Row:
    lockutils: Any = importlib.import_module("oslo_concurrency.lockutils")
    version = importlib.import_module("importlib.metadata").version("oslo.concurrency")

    def pair() -> None:
        with lockutils.external_lock("bench", lock_path=str(folder)):
            pass

    return Row(f"oslo.concurrency {version} external_lock", pair)
