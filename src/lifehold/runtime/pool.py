"""Executors, for faces whose callers hand one in or expect one of their own.

Nothing of ours waits in one: a cancelled waiter's thread would take its lock and keep it. Who uses
this sees to that: what is begun is awaited to its end, and undone.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

from . import fork

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent import futures


def one_thread() -> futures.Executor:
    """An executor of one thread, which ends with it."""
    pools: Any = fork.lazily("concurrent.futures")
    return pools.ThreadPoolExecutor(max_workers=1)  # type: ignore[no-any-return]


def mutex() -> Any:
    """A lock between threads."""
    return _thread.allocate_lock()


def aside(call: Callable[[], object]) -> Callable[[float], bool]:
    """Run `call()` in a thread of its own, which no end of the program waits for.

    The answer waits for its end, so many seconds at most, and tells whether it came. `call` raises
    nothing.
    """
    runs = _thread.allocate_lock()
    runs.acquire()

    def run() -> None:
        try:
            call()
        finally:
            runs.release()

    def ended(seconds: float) -> bool:
        if not runs.acquire(timeout=max(0.0, seconds)):
            return False
        runs.release()
        return True

    _thread.start_new_thread(run, ())
    return ended


def begin(loop: Any, executor: Any, call: Callable[[], Any]) -> asyncio.Future[Any]:
    """`call()` in an executor; None for that of the loop; loop None for the running one."""
    events: Any = fork.lazily("asyncio")
    running = loop or events.get_running_loop()
    return running.run_in_executor(executor, call)  # type: ignore[no-any-return]


async def ended(begun: asyncio.Future[Any]) -> BaseException | None:
    """Wait for it without touching it. The cancellation when the caller was cancelled meanwhile."""
    events: Any = fork.lazily("asyncio")
    if not begun.done():
        try:
            await events.wait((begun,))
        except events.CancelledError as error:
            return error  # type: ignore[no-any-return]
    return None
