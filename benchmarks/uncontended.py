"""An uncontended pair of acquire and release, against the raw system calls and the peers."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lifehold import AsyncLock, Lock

from . import contenders, protocols
from .measure import Line, Plan, Row, compared, interleave, loops_of, quartiles

BUDGETS = {
    "lifehold: with lock": 2.0,
    "lifehold: acquire(), release()": 2.0,
    "lifehold: record=False": 1.2,
    "lifehold: async with lock": 2.2,
}
SOFT = ("soft", "link", "generation")


def blocking(plan: Plan) -> list[Line]:
    """The kernel lock and the locks of other libraries, in threads."""
    lines = []
    for system, folder in plan.folders:
        rows = [Row("raw: open, flock, unlock, close", contenders.raw(folder))]
        rows += contenders.ours(folder)
        others, missing = contenders.peers(folder)
        rows += others
        interleave(rows, plan.of(60, 600))
        part = f"one uncontended pair, blocking, {system}"
        lines += [compared(part, row, rows[0], BUDGETS.get(row.name)) for row in rows]
        if missing:
            print(f"not installed, so not measured: {', '.join(missing)}")
    return lines


def around_a_block(plan: Plan) -> list[Line]:
    """The same pair around a block that opens a file, as blocks do: what the lock adds to it."""
    lines = []
    for system, folder in plan.folders:
        path, raw = str(folder / "data"), str(folder / "raw-block.lock")
        lock = Lock(folder / "block.lock")

        def block(path: str = path) -> None:
            os.close(os.open(path, contenders.FLAGS, 0o666))

        def by_raw_calls(raw: str = raw, block: Callable[[], None] = block) -> None:
            fd = os.open(raw, contenders.FLAGS, 0o666)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            block()
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

        def with_lock(lock: Lock = lock, block: Callable[[], None] = block) -> None:
            with lock:
                block()

        def by_hand(lock: Lock = lock, block: Callable[[], None] = block) -> None:
            lease = lock.acquire()
            block()
            lease.release()

        alone = Row("the block alone", block)
        rows = [Row("raw: open, flock, BLOCK, unlock, close", by_raw_calls),
                Row("lifehold: with lock: BLOCK", with_lock),
                Row("lifehold: acquire(), BLOCK, release()", by_hand)]  # fmt: skip
        interleave([alone, *rows], plan.of(60, 600))
        for row in rows:  # what each adds to the block
            pairs = zip(row.times_ns, alone.times_ns, strict=True)
            row.times_ns = [both - block for both, block in pairs]
        part = f"one pair around a block that opens a file, {system}"
        lines += [_added(part, row, rows[0]) for row in rows]
    return lines


def _added(part: str, row: Row, raw: Row) -> Line:
    """(T(pair and block) - T(block)) / (T(raw and block) - T(block)), of each round's times."""
    ratios = [mine / its for mine, its in zip(row.times_ns, raw.times_ns, strict=True) if its > 0]
    low, middle, high = quartiles(ratios)
    budget = None if row is raw else BUDGETS["lifehold: with lock"]
    return Line(part, row.name, row.median / 1000, "us", middle, raw.name, low, high, budget,
                count=len(ratios))  # fmt: skip


def asynchronous(plan: Plan) -> list[Line]:
    """The same on asyncio. The baseline is a coroutine of raw calls."""
    lines = []
    for system, folder in plan.folders:
        pairs = _coroutines(folder)
        rows = [Row(name, lambda: None) for name, _ in pairs]
        asyncio.run(_time(rows, [pair for _, pair in pairs], plan.of(60, 600)))
        part = f"one uncontended pair, asyncio, {system}"
        lines += [compared(part, row, rows[0], BUDGETS.get(row.name)) for row in rows]
    return lines


def soft_kinds(plan: Plan) -> list[Line]:
    """Each kind whose lock is a file, against the system calls of its own protocol."""
    lines = []
    for system, folder in plan.folders:
        raw = [Row(f"raw: {kind}", getattr(protocols, kind)(folder)) for kind in SOFT]
        ours = [Row(f"lifehold {kind}", _with(Lock(folder / kind, kind=kind))) for kind in SOFT]
        plain = Row("raw: O_EXCL, unlink", protocols.exclusive(folder))
        theirs = _filelocks(folder)
        interleave([plain, *raw, *ours, *theirs], plan.of(60, 600))
        part = f"one uncontended pair, soft kinds, {system}"
        lines += [compared(part, row, plain) for row in (plain, *raw, *theirs)]
        part = f"soft kinds against their own protocol, {system}"
        lines += [compared(part, *pair, 2.0) for pair in zip(ours, raw, strict=True)]
    return lines


def _filelocks(folder: Path) -> list[Row]:
    try:
        filelock: Any = importlib.import_module("filelock")
    except ImportError:
        return []
    names = ("SoftFileLock", "SoftFileLease", "StrictSoftFileLock")
    return [
        Row(f"filelock {name}", _with(getattr(filelock, name)(folder / f"filelock-{name}")))
        for name in names
    ]


def _with(lock: Any) -> Callable[[], object]:
    def pair() -> None:
        with lock:
            pass

    return pair


async def _time(rows: list[Row], pairs: list[Callable[[], Awaitable[None]]], rounds: int) -> None:
    loops = []
    for pair in pairs:
        for _ in range(3):
            begun = time.perf_counter_ns()
            await pair()
            took = time.perf_counter_ns() - begun
        loops.append(loops_of(took))
    for _ in range(rounds):
        for row, pair, count in zip(rows, pairs, loops, strict=True):
            begun = time.perf_counter_ns()
            for _ in range(count):
                await pair()
            row.times_ns.append((time.perf_counter_ns() - begun) / count)


def _coroutines(folder: Path) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
    path = str(folder / "raw-async.lock")
    lock = AsyncLock(folder / "ours-async.lock")

    async def raw() -> None:
        fd = os.open(path, contenders.FLAGS, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    async def with_block() -> None:
        async with lock:
            pass

    found = [
        ("raw coroutine: open, flock, unlock, close", raw),
        ("lifehold: async with lock", with_block),
    ]
    try:
        filelock: Any = importlib.import_module("filelock")
    except ImportError:
        return found
    other = filelock.AsyncFileLock(folder / "filelock-async.lock")

    async def theirs() -> None:
        async with other:
            pass

    return [*found, (f"filelock {filelock.__version__} AsyncFileLock", theirs)]
