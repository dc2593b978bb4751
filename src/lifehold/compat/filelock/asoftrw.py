"""`AsyncSoftReadWriteLock`: the soft reader/writer lock for tasks of asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .asides import AsyncSides
from .proxy import Awaited
from .softrw import SoftReadWriteLock

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable
    from concurrent import futures

    from .lease import LeaseCompromise
    from .levels import Mode


class AsyncSoftReadWriteLock(AsyncSides):
    """As `SoftReadWriteLock`; each task holds for itself."""

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        heartbeat_interval: float = 30.0,
        stale_threshold: float | None = None,
        poll_interval: float = 0.25,
        on_compromise: Callable[[LeaseCompromise], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        executor: futures.Executor | None = None,
    ) -> None:
        lock = SoftReadWriteLock(
            lock_file,
            timeout,
            blocking=blocking,
            is_singleton=is_singleton,
            heartbeat_interval=heartbeat_interval,
            stale_threshold=stale_threshold,
            poll_interval=poll_interval,
            on_compromise=on_compromise,
        )
        self._begin(lock, is_singleton, loop, executor)

    @property
    def generation(self) -> int | None:
        """The fencing token of the hold; None when not held."""
        return self._lock.generation  # type: ignore[no-any-return]

    @property
    def compromise(self) -> LeaseCompromise | None:
        """How the hold was lost; None while it stands."""
        return self._lock.compromise  # type: ignore[no-any-return]

    def _lost(self, mode: Mode) -> None:
        self._lock._lost(mode)

    async def acquire_read(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireSoftReadWriteReturnProxy:
        """Hold it for reading. As `SoftReadWriteLock.acquire_read`."""
        await self._acquire("read", timeout, blocking)
        return AsyncAcquireSoftReadWriteReturnProxy(self)

    async def acquire_write(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireSoftReadWriteReturnProxy:
        """Hold it for writing. As `SoftReadWriteLock.acquire_write`."""
        await self._acquire("write", timeout, blocking)
        return AsyncAcquireSoftReadWriteReturnProxy(self)


class AsyncAcquireSoftReadWriteReturnProxy(Awaited):
    """`async with await lock.acquire_read():` releases at its end."""

    def __init__(self, lock: AsyncSoftReadWriteLock) -> None:
        super().__init__(lock)

    async def __aenter__(self) -> AsyncSoftReadWriteLock:
        return self.lock  # type: ignore[no-any-return]
