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

__version__ = "0.1.0"
__all__ = [
    "AcquireCancelled",
    "AsyncLock",
    "Backoff",
    "Cancel",
    "CorruptRecord",
    "InvalidArgument",
    "LeaseLost",
    "LifeholdError",
    "Lock",
    "NotAcquired",
    "NotHeld",
    "SelfDeadlock",
    "StaleToken",
    "StoreUnavailable",
    "SystemRefused",
    "Timeout",
    "UnsafeGround",
    "WouldBlock",
    "current_token",
]


def __getattr__(name: str) -> object:
    if name == "AsyncLock":  # on demand: importing asyncio takes twice as long as all of lifehold
        from .runtime.fork import lazily

        return lazily("lifehold.aio").AsyncLock
    raise AttributeError(f"module 'lifehold' has no attribute {name!r}")
