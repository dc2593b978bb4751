"""An uncontended pair, blocking and asynchronous, against raw system calls and the peers."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lifehold import AsyncLock

from . import contenders
from .measure import Row, interleave, table

BUDGETS = {
    "lifehold: with lock (record and token)": 2.0,
    "lifehold: acquire(), release()": 2.0,
    "lifehold: record=False": 1.2,
    "lifehold: a new Lock object each time": 2.5,
}


def blocking(folder: Path, rounds: int, loops: int) -> tuple[list[Row], str]:
    """Rows and text of the blocking face."""
    others, missing = contenders.peers(folder)
    rows = [
        Row("raw: open, flock, unlock, close", contenders.raw(folder)),
        *contenders.ours(folder),
    ]
    rows += others
    interleave(rows, rounds, loops)
    note = f"not installed, so not measured: {', '.join(missing)}" if missing else ""
    return rows, table(f"one uncontended pair, blocking, in {folder}", rows, note, BUDGETS)


def asynchronous(folder: Path, rounds: int, loops: int) -> tuple[list[Row], str]:
    """Rows and text of the async face, on asyncio. The baseline is a coroutine of raw calls."""
    rows = [Row(name, lambda: None, weight) for name, _, weight in _coroutines(folder)]
    asyncio.run(_time(rows, [make for _, make, _ in _coroutines(folder)], rounds, loops))
    budgets = {"lifehold: async with lock": 2.2}
    return rows, table(f"one uncontended pair, asyncio, in {folder}", rows, "", budgets)


async def _time(
    rows: list[Row], pairs: list[Callable[[], Awaitable[None]]], rounds: int, loops: int
) -> None:
    for pair in pairs:
        await pair()
    for _ in range(rounds):
        for row, pair in zip(rows, pairs, strict=True):
            count = max(1, int(loops * row.weight))
            begun = time.perf_counter_ns()
            for _ in range(count):
                await pair()
            row.times_ns.append((time.perf_counter_ns() - begun) / count)


def _coroutines(folder: Path) -> list[tuple[str, Callable[[], Awaitable[None]], float]]:
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

    found: list[tuple[str, Callable[[], Awaitable[None]], float]] = [
        ("raw coroutine: open, flock, unlock, close", raw, 1.0),
        ("lifehold: async with lock", with_block, 1.0),
    ]
    try:
        filelock: Any = importlib.import_module("filelock")
    except ImportError:
        return found
    other = filelock.AsyncFileLock(folder / "filelock-async.lock")

    async def theirs() -> None:
        async with other:
            pass

    return [*found, (f"filelock {filelock.__version__} AsyncFileLock", theirs, 0.02)]
