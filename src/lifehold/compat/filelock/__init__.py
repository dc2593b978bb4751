"""filelock's names over lifehold's locks: `from lifehold.compat.filelock import FileLock`.

Old and new processes exclude each other on the same files. The native and the
soft lock are here, and their forms for tasks. The marker, leased, strict and reader/writer classes
are not yet: a name that is missing is an AttributeError, never a lock that excludes nobody.
"""

from __future__ import annotations

import sys
from typing import Any

from ...runtime.fork import lazily
from .errors import Timeout
from .unix import UnixFileLock

__version__ = version = "4.2.11"  # the release whose names these are
has_fcntl = sys.platform != "win32"
FileLock = UnixFileLock

LAZY = {
    "AcquireReturnProxy": "proxy",
    "AsyncAcquireReturnProxy": "proxy",
    "AsyncFileLock": "asyncio",
    "AsyncUnixFileLock": "asyncio",
    "BaseAsyncFileLock": "asyncio",
    "BaseFileLock": "exclusive",
    "CloseErrorPolicy": "options",
    "ContextErrorPolicy": "options",
    "LockOptions": "options",
    "AsyncSoftFileLock": "asyncio",
    "AsyncSoftFileLease": "asyncio",
    "AsyncStrictSoftFileLock": "asyncio",
    "AsyncAcquireReadWriteReturnProxy": "areadwrite",
    "AsyncReadWriteLock": "areadwrite",
    "ReadWriteLock": "readwrite",
    "StrictSoftFileClaim": "claims",
    "StrictSoftFileClaimState": "claims",
    "StrictSoftFileLock": "strict",
    "CompromiseReason": "lease",
    "LeaseCompromise": "lease",
    "LeaseSettingsMismatch": "errors",
    "MarkerSoftFileLock": "marker",
    "OwnerMode": "marks",
    "OwnerRecord": "marks",
    "SoftFileLease": "lease",
    "SoftFileLock": "soft",
    "SoftFileLockProtocolError": "errors",
    "SoftFileLockLifetimeWarning": "errors",
    "lock_descriptor": "descriptor",
    "unlock_descriptor": "descriptor",
}

__all__ = [
    "AcquireReturnProxy",
    "AsyncAcquireReturnProxy",
    "AsyncFileLock",
    "AsyncSoftFileLock",
    "AsyncUnixFileLock",
    "BaseAsyncFileLock",
    "BaseFileLock",
    "CloseErrorPolicy",
    "ContextErrorPolicy",
    "FileLock",
    "LockOptions",
    "SoftFileLock",
    "SoftFileLockLifetimeWarning",
    "Timeout",
    "UnixFileLock",
    "__version__",
    "asyncio",
    "has_fcntl",
    "lock_descriptor",
    "unlock_descriptor",
]


def __getattr__(name: str) -> Any:
    if name == "asyncio":
        return lazily(f"{__name__}.asyncio")
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(lazily(f"{__name__}.{LAZY[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
