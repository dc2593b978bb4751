"""What `acquire()` returns: usable with `with`, which then releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

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


def leave(lock: Any, error: BaseException | None) -> None:
    """Release at the end of a block; the block's error and the release's by the lock's policy."""
    try:
        lock.release()
    except BaseException as failed:
        if error is None or lock.context_error_policy != "group":
            raise
        failed.__context__ = None if failed.__context__ is error else failed.__context__
        raise BaseExceptionGroup("lock body and release both failed", [error, failed]) from None
