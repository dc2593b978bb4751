"""Locks that live exactly as long as their holder, and that always tell you who that is."""

from __future__ import annotations

from .core.backoff import Backoff
from .core.cancel import Cancel
from .core.errors import (
    AcquireCancelled,
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    LifeholdError,
    NotAcquired,
    NotHeld,
    SelfDeadlock,
    StaleToken,
    StoreUnavailable,
    SystemRefused,
    Timeout,
    UnsafeGround,
    WouldBlock,
)
from .lease import current_token
from .lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .aio import AsyncLock
    from .shapes.areadwrite import AsyncReadWriteLock
    from .shapes.asemaphore import AsyncSemaphore
    from .shapes.readwrite import ReadWriteLock
    from .shapes.semaphore import Semaphore
    from .shapes.several import lock_all

__version__ = "0.1.0"
__all__ = [
    "AcquireCancelled",
    "AsyncLock",
    "AsyncReadWriteLock",
    "AsyncSemaphore",
    "Backoff",
    "Cancel",
    "CorruptRecord",
    "InvalidArgument",
    "LeaseLost",
    "LifeholdError",
    "Lock",
    "NotAcquired",
    "NotHeld",
    "ReadWriteLock",
    "SelfDeadlock",
    "Semaphore",
    "StaleToken",
    "StoreUnavailable",
    "SystemRefused",
    "Timeout",
    "UnsafeGround",
    "WouldBlock",
    "current_token",
    "lock_all",
]


# Loaded on demand: importing asyncio takes twice as long as all of lifehold.
_ROOMS = {
    "AsyncLock": "lifehold.aio",
    "AsyncReadWriteLock": "lifehold.shapes.areadwrite",
    "AsyncSemaphore": "lifehold.shapes.asemaphore",
    "ReadWriteLock": "lifehold.shapes.readwrite",
    "Semaphore": "lifehold.shapes.semaphore",
    "lock_all": "lifehold.shapes.several",
}


def __getattr__(name: str) -> object:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'lifehold' has no attribute {name!r}")
    from .runtime.fork import lazily

    return getattr(lazily(room), name)
