"""`AsyncReadWriteLock`: the reader/writer lock for tasks of asyncio."""

from __future__ import annotations

import os
import sys
from sqlite3 import ProgrammingError
from typing import TYPE_CHECKING

from ...runtime import eventloop, fork
from .asides import AsyncSides
from .proxy import Awaited
from .readwrite import ReadWriteLock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent import futures


class AsyncReadWriteLock(AsyncSides):
    """As `ReadWriteLock`; each task holds for itself. `close()` it when it made its executor."""

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
        executor: futures.Executor | None = None,
    ) -> None:
        self._owns, self._begun_by = False, fork.generation
        lock = ReadWriteLock(lock_file, timeout, blocking=blocking, is_singleton=is_singleton)
        self._owns = executor is None
        self._begin(lock, is_singleton, loop, executor or eventloop.one_thread())

    _ending = staticmethod(sys.is_finalizing)

    def __del__(self, _getpid: Callable[[], int] = os.getpid) -> None:
        # Bound in the class: at the end of the program the module's names are gone before this is.
        if not self._ending() and self._begun_by == fork.here():
            self._unused(False)

    def _unused(self, wait: bool) -> None:
        if self._owns:
            self._executor.shutdown(wait=wait)

    async def _unused_awaited(self) -> None:
        if self._owns:
            await eventloop.begin(None, None, lambda: self._unused(True))

    def _closed_error(self) -> Exception:
        return ProgrammingError("Cannot operate on a closed database.")

    async def acquire_read(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireReadWriteReturnProxy:
        """Hold it for reading. As `ReadWriteLock.acquire_read`."""
        await self._acquire("read", timeout, blocking)
        return AsyncAcquireReadWriteReturnProxy(self)

    async def acquire_write(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireReadWriteReturnProxy:
        """Hold it for writing. As `ReadWriteLock.acquire_write`."""
        await self._acquire("write", timeout, blocking)
        return AsyncAcquireReadWriteReturnProxy(self)


class AsyncAcquireReadWriteReturnProxy(Awaited):
    """`async with await lock.acquire_read():` releases at its end."""

    def __init__(self, lock: AsyncReadWriteLock) -> None:
        super().__init__(lock)

    async def __aenter__(self) -> AsyncReadWriteLock:
        return self.lock  # type: ignore[no-any-return]
