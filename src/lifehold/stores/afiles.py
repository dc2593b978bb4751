"""`AsyncFileStore`: the same for tasks. Its questions are asked in a helper thread."""

from __future__ import annotations

from ..aio import AsyncLock
from ..runtime.eventloop import EVENT_LOOP
from ..shapes.areadwrite import AsyncReadWriteLock
from ..shapes.asemaphore import AsyncSemaphore
from .files import FileStore
from .folder import Folder, Ground

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ..core.grant import Holder

    T = TypeVar("T")


class AsyncFileStore(Folder):
    """What `await aconnect("file:///FOLDER")` answers."""

    __slots__ = ()

    def lock(self, name: str, **options: Any) -> AsyncLock:
        """One holder at a time. Options as of `AsyncLock`."""
        return AsyncLock(self.address(name), **self._options(options))

    def read_write(self, name: str, **options: Any) -> AsyncReadWriteLock:
        """Many readers or one writer. Options as of `AsyncReadWriteLock`."""
        return AsyncReadWriteLock(self.address(name), **self._options(options))

    def semaphore(self, name: str, permits: int, **options: Any) -> AsyncSemaphore:
        """`permits` holders at once. Options as of `AsyncSemaphore`."""
        return AsyncSemaphore(self.address(name), permits, **self._options(options, leased=False))

    async def close(self) -> None:
        """Nothing is kept open between two calls: for `async with` alike."""

    async def __aenter__(self) -> AsyncFileStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def inspect(self, name: str, **options: Any) -> Holder | None:
        """Who holds a lock, None for nobody. Takes nothing. `kind`: of a lock that names one."""
        return await _aside(lambda: self._blocking().inspect(name, **options))

    async def list(self, prefix: str = "") -> list[str]:
        """The names of the locks here, held or not, that begin with `prefix`, in order."""
        return await _aside(lambda: self._listed(prefix))

    async def waiters(self, name: str, **options: Any) -> int | None:
        """How many wait for a lock; None where that cannot be seen."""
        return await _aside(lambda: self._blocking().waiters(name, **options))

    async def break_(self, name: str, reason: str, **options: Any) -> Holder | None:
        """Take a lock from its holder, who is told; who that was. Noted beside the lock."""
        return await _aside(lambda: self._blocking().break_(name, reason, **options))

    async def ground(self) -> Ground:
        """What these locks stand on, in words. Raises SystemRefused."""
        return await _aside(self._ground)

    def _blocking(self) -> FileStore:
        return FileStore(
            self.url, kind=self.kind, ttl=self.ttl, label=self.label, shared=self.shared
        )


async def _aside(call: Callable[[], T]) -> T:
    """A call that may read files, not made by the thread of the event loop."""
    return await EVENT_LOOP.in_thread(call, lambda _: None)
