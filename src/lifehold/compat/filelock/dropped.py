"""A lock for tasks that nobody refers to any more, while it is held.

Promise: it is let go of. Rule: the collector runs in the middle of anything, so where a loop runs
the release is a task of that; what such a task does not end, and where no loop runs, is ended at
once. A singleton may have been handed out anew just now: it ends with its own descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from concurrent import futures
from typing import Any

from ...runtime import fork
from ...runtime.eventloop import running_trio

_begun: set[Any] = set()  # a loop keeps its tasks by weak references only


def later(lock: Any) -> bool:
    """Whether a loop sees to it."""
    loop = _loop(lock)
    if loop is None or lock._is_singleton or lock._generation != fork.here():
        return False
    if sys.is_finalizing() or not any(not hold.moving for hold in lock._holds):
        return False
    here, loop = loop
    for hold in list(lock._holds):
        if hold.mine is not None:  # whoever asks for the path now waits for the task
            hold.mine.pop(id(hold), None)
    work = _released(lock)
    try:
        pending = loop.create_task(work) if here else asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # closed just now
        work.close()
        return False
    _begun.add(pending)
    pending.add_done_callback(lambda done: _settled(lock, done))
    return True


async def _released(lock: Any) -> None:
    await lock._released(True)


def _loop(lock: Any) -> tuple[bool, Any] | None:
    """The running loop, or the one that the lock was given and another thread runs."""
    if getattr(lock, "_executor", lock) is lock or running_trio() is not None:
        return None
    try:
        return True, asyncio.get_running_loop()
    except RuntimeError:
        loop = lock._loop
        return (False, loop) if loop is not None and loop.is_running() else None


def _settled(lock: Any, done: Any) -> None:
    """Nobody awaits it: what it has left is ended here."""
    _begun.discard(done)
    with contextlib.suppress(asyncio.CancelledError, futures.CancelledError):
        if done.exception() is None:
            return
    for hold in list(lock._holds):
        with contextlib.suppress(Exception):
            lock._release_last(hold)
