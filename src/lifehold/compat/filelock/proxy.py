"""What `acquire()` returns: usable with `with` or `async with`, which then releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .several import BODY, both_failed

if TYPE_CHECKING:
    from types import TracebackType

    from .asyncio import BaseAsyncFileLock

_LockT = TypeVar("_LockT")


class AcquireReturnProxy(Generic[_LockT]):
    """`with lock.acquire() as same_lock:` releases once at its end."""

    def __init__(self, lock: _LockT) -> None:
        self.lock: Any = lock

    def __enter__(self) -> _LockT:
        return self.lock  # type: ignore[no-any-return]

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self.lock, exc_value)


class Awaited:
    """What `await lock.acquire...()` answers: `async with` it, and it is released at the end.

    Each says of itself which class of lock it gives, as filelock's do.
    """

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.lock.release()


class AsyncAcquireReturnProxy(Awaited):
    """`async with await lock.acquire() as same_lock:` releases once at its end."""

    def __init__(self, lock: BaseAsyncFileLock) -> None:
        super().__init__(lock)

    async def __aenter__(self) -> BaseAsyncFileLock:
        return self.lock  # type: ignore[no-any-return]

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await leave_awaited(self.lock, exc_value)


def leave(lock: Any, error: BaseException | None) -> None:
    """Release at the end of a block; the block's error and the release's by the lock's policy."""
    try:
        lock.release()
    except BaseException as failed:  # noqa: BLE001 - raised, with the other
        both_failed(lock, BODY, error, failed)


async def leave_awaited(lock: Any, error: BaseException | None) -> None:
    """The same for a task."""
    try:
        await lock.release()
    except BaseException as failed:  # noqa: BLE001 - raised, with the other
        both_failed(lock, BODY, error, failed)
