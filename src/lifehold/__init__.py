"""Locks that live exactly as long as their holder, and that always tell you who that is.

PYTEST_DONT_REWRITE: the plugin of pytest has no assertions to rewrite, and `install()` may have
loaded this package before pytest begins.
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "lifehold":
    # `python -m lifehold` loads the package first: Ctrl-C ends it from here on (lifehold_command).
    import _signal  # type: ignore[import-not-found]

    try:
        if _signal.getsignal(_signal.SIGINT) == _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    except KeyboardInterrupt:  # in these very lines
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        _signal.raise_signal(_signal.SIGINT)

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
from .runtime.fork import lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .aio import AsyncLease, AsyncLock, AsyncReadWriteLock, AsyncSemaphore
    from .astores import aconnect
    from .core.acquire import Cancel
    from .core.deadline import Backoff
    from .core.grant import Holder
    from .core.owner import Owner
    from .data_file import locked_file
    from .data_file_async import alocked_file
    from .lease import current_token
    from .lock import Lease, Lock
    from .ops.program import clear, look
    from .recipes.once import OnceFailed, once
    from .recipes.once_async import aonce
    from .several import lock_all
    from .several_async import alock_all
    from .shapes import ReadWriteLock, Semaphore
    from .stores import connect

__version__ = "0.2.0"
__all__ = [
    "AcquireCancelled",
    "AsyncLease",
    "AsyncLock",
    "AsyncReadWriteLock",
    "AsyncSemaphore",
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
    "aconnect",
    "alock_all",
    "alocked_file",
    "aonce",
    "clear",
    "connect",
    "current_token",
    "lock_all",
    "locked_file",
    "look",
    "once",
]
# Imported when asked for: asyncio alone takes twice as long as all of lifehold, and of the commands
# some need no Lock. What the import brings is what holds forks back meanwhile.
_ON_DEMAND = {
    "AsyncLease": "lifehold.aio",
    "AsyncLock": "lifehold.aio",
    "AsyncReadWriteLock": "lifehold.aio",
    "AsyncSemaphore": "lifehold.aio",
    "Backoff": "lifehold.core.deadline",
    "Cancel": "lifehold.core.acquire",
    "Holder": "lifehold.core.grant",
    "Lease": "lifehold.lock",
    "Lock": "lifehold.lock",
    "OnceFailed": "lifehold.recipes.once",
    "Owner": "lifehold.core.owner",
    "ReadWriteLock": "lifehold.shapes",
    "Semaphore": "lifehold.shapes",
    "aconnect": "lifehold.astores",
    "alock_all": "lifehold.several_async",
    "alocked_file": "lifehold.data_file_async",
    "aonce": "lifehold.recipes.once_async",
    "clear": "lifehold.ops.program",
    "connect": "lifehold.stores",
    "current_token": "lifehold.lease",
    "lock_all": "lifehold.several",
    "locked_file": "lifehold.data_file",
    "look": "lifehold.ops.program",
    "once": "lifehold.recipes.once",
}
# What other libraries call it: words.py says what it is here.
_ELSEWHERE = frozenset(
    "FileLock SoftFileLock UnixFileLock AsyncFileLock BaseFileLock RLock RWLock RedLock Redlock "
    "LockTimeout LockException AlreadyLocked LockError LockNotOwnedError TimeoutError "
    "BoundedSemaphore NamedLock InterProcessLock InterProcessReaderWriterLock Mutex LockFile "
    "acquire lock timeout AsyncLockAll lockfile".split()
)


if not TYPE_CHECKING:  # a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        if name in _ON_DEMAND:
            found = globals()[name] = getattr(lazily(_ON_DEMAND[name]), name)
            return found
        if name in _ELSEWHERE:
            from .words import of_name

            raise of_name(name, sys._getframe(1))
        raise AttributeError(f"module 'lifehold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ON_DEMAND, "__doc__", "__file__", "__path__", "__version__"})
