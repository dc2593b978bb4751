"""The system calls of each soft kind's own protocol, by hand: what its lock cannot do without.

Each function makes one acquire and release, in the order that the module of that kind states, with
a text made beforehand. What is left out is what Python code decides: judging, tokens, waiting.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
READ, WRITE, NEW = (
    os.O_RDONLY | FLAGS,
    os.O_RDWR | FLAGS,
    os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS,
)
LOCKED = fcntl.LOCK_EX | fcntl.LOCK_NB
GUARDED = b"\1\0".ljust(32, b"\0")  # struct flock: F_WRLCK, of the whole file
RECORD, COUNTER = b"{" + b" " * 1022 + b"\n", b"{" + b" " * 57 + b"\n"
Pair = Callable[[], object]


def exclusive(folder: Path) -> Pair:
    """What soft locks are often written as: O_EXCL and unlink. Nobody can tell a dead one."""
    path = f"{folder}/exclusive"

    def pair() -> None:
        os.close(os.open(path, NEW, 0o600))
        os.unlink(path)

    return pair


def soft(folder: Path) -> Pair:
    """Nothing there; a nameless record with a witness is linked; the counter; guarded removal."""
    path, counter, parent = f"{folder}/raw-soft", f"{folder}/raw-soft.token", str(folder)
    os.close(os.open(counter, WRITE | os.O_CREAT, 0o600))

    def pair() -> None:
        _absent(path)
        os.urandom(16)
        fd = os.open(parent, os.O_TMPFILE | WRITE, 0o600)
        os.fstat(fd)
        fcntl.flock(fd, LOCKED)
        os.pwrite(fd, RECORD, 0)
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        number = os.open(counter, WRITE)
        os.pread(number, 59, 0)
        os.pwrite(number, COUNTER, 0)
        os.close(number)
        os.pwrite(fd, RECORD, 0)  # with the token
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, GUARDED)
        os.lstat(path)
        os.unlink(path)
        os.close(fd)

    return pair


def link(folder: Path) -> Pair:
    """lockfile_create(3) with a record and a witness; guarded removal of what is surely ours.

    As on a disk of one kernel, whose reply to link(2) is the truth.
    """
    path, aside = f"{folder}/raw-link", f"{folder}/.lk00001raw"

    def pair() -> None:
        _absent(path)
        os.urandom(16)
        fd = os.open(aside, NEW, 0o644)
        os.fstat(fd)
        fcntl.flock(fd, LOCKED)
        os.pwrite(fd, RECORD, 0)
        os.link(aside, path)
        os.unlink(aside)
        os.pwrite(fd, RECORD, 0)  # with the token
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, GUARDED)
        os.lstat(path)
        os.unlink(path)
        os.close(fd)

    return pair


def generation(folder: Path) -> Pair:
    """The highest number is read, the next one linked, the last one seen again; one is removed.

    As on a disk of one kernel, and of who knows the highest number from the last time.
    """
    parent, aside = f"{folder}/raw-generation", f"{folder}/raw-generation/.lifehold-raw"
    os.mkdir(parent)
    number = time.time_ns() // 1000
    first = os.open(f"{parent}/{number:020d}", NEW, 0o600)
    os.pwrite(first, RECORD, 0)
    os.close(first)

    def pair() -> None:
        nonlocal number
        last, mine = f"{parent}/{number:020d}", f"{parent}/{number + 1:020d}"
        before = os.open(last, READ)
        os.pread(before, 1024, 0)
        os.urandom(16)
        fd = os.open(aside, NEW, 0o600)
        os.fstat(fd)
        fcntl.flock(fd, LOCKED)
        os.pwrite(fd, RECORD, 0)
        os.link(aside, mine)
        os.unlink(aside)
        os.fstat(before)
        os.lstat(last)
        os.close(before)
        _missing(f"{parent}/{number + 2:020d}")
        os.lstat(mine)
        os.pwrite(fd, RECORD, 0)  # released
        os.unlink(last)
        os.close(fd)
        number += 1

    return pair


def _absent(path: str) -> None:
    try:
        os.open(path, WRITE)
    except FileNotFoundError:
        pass


def _missing(path: str) -> None:
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
