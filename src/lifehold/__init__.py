"""Locks that live exactly as long as their holder, and that always tell you who that is.

PYTEST_DONT_REWRITE: the plugin of pytest has no assertions to rewrite, and `install()` may have
loaded this package before pytest begins.
"""

from __future__ import annotations

from .core.acquire import Cancel
from .core.deadline import Backoff
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
    from .aio import AsyncLease, AsyncLock
    from .aio import AsyncReadWriteLock as AsyncReadWriteLock
    from .aio import AsyncSemaphore as AsyncSemaphore
    from .astores import aconnect as aconnect
    from .core.grant import Holder
    from .core.owner import Owner
    from .lock import Lease
    from .recipes.once import OnceFailed, once
    from .recipes.once_async import aonce as aonce
    from .shapes import ReadWriteLock, Semaphore, lock_all
    from .stores import connect

__version__ = "0.1.0"
__all__ = [
    "AcquireCancelled",
    "AsyncLease",
    "AsyncLock",
    "Backoff",
    "Cancel",
    "CorruptRecord",
    "Holder",
    "InvalidArgument",
    "Lease",
    "LeaseLost",
    "LifeholdError",
    "Lock",
    "NotAcquired",
    "NotHeld",
    "OnceFailed",
    "Owner",
    "ReadWriteLock",
    "SelfDeadlock",
    "Semaphore",
    "StaleToken",
    "StoreUnavailable",
    "SystemRefused",
    "Timeout",
    "UnsafeGround",
    "WouldBlock",
    "connect",
    "current_token",
    "lock_all",
    "once",
]
# Imported when asked for: asyncio alone takes twice as long as all of lifehold.
_ON_DEMAND = {
    "AsyncLease": "lifehold.aio",
    "AsyncLock": "lifehold.aio",
    "AsyncReadWriteLock": "lifehold.aio",
    "AsyncSemaphore": "lifehold.aio",
    "Holder": "lifehold.core.grant",
    "Lease": "lifehold.lock",
    "OnceFailed": "lifehold.recipes.once",
    "Owner": "lifehold.core.owner",
    "ReadWriteLock": "lifehold.shapes",
    "Semaphore": "lifehold.shapes",
    "aconnect": "lifehold.astores",
    "aonce": "lifehold.recipes.once_async",
    "connect": "lifehold.stores",
    "lock_all": "lifehold.shapes",
    "once": "lifehold.recipes.once",
}


if not TYPE_CHECKING:  # a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        if name in _ON_DEMAND:
            from .runtime.fork import lazily

            return getattr(lazily(_ON_DEMAND[name]), name)
        raise AttributeError(f"module 'lifehold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
