"""filelock's names over lifehold's locks: `from lifehold.compat.filelock import FileLock`.

Old and new processes exclude each other on the same files, class by class. Every name of filelock
4.2.11 is here, made when it is first asked for; what a class adds, and what it refuses, says its
own module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...runtime.fork import lazily
from .errors import Timeout
from .native import UnixFileLock
from .system_calls import has_fcntl
from .version import version

__version__ = version  # the release whose names these are
FileLock = UnixFileLock
if TYPE_CHECKING:
    from . import asyncio
    from .api import AcquireReturnProxy, AsyncAcquireReturnProxy, BaseFileLock
    from .asyncio import (
        AsyncFileLock,
        AsyncSoftFileLease,
        AsyncSoftFileLock,
        AsyncStrictSoftFileLock,
        AsyncUnixFileLock,
        AsyncWindowsFileLock,
        BaseAsyncFileLock,
    )
    from .construction import CloseErrorPolicy, ContextErrorPolicy, LockOptions
    from .errors import (
        LeaseSettingsMismatch,
        SoftFileLockLifetimeWarning,
        SoftFileLockProtocolError,
    )
    from .lease import (
        CompromiseReason,
        LeaseCompromise,
        MarkerSoftFileLock,
        SoftFileLease,
    )
    from .native import WindowsFileLock, lock_descriptor, unlock_descriptor
    from .owner_record import OwnerMode, OwnerRecord
    from .readwrite import AsyncAcquireReadWriteReturnProxy, AsyncReadWriteLock, ReadWriteLock
    from .soft import SoftFileLock
    from .soft_rw import (
        AsyncAcquireSoftReadWriteReturnProxy,
        AsyncSoftReadWriteLock,
        SoftReadWriteLock,
    )
    from .strict import StrictSoftFileLock
    from .strict_claims import StrictSoftFileClaim, StrictSoftFileClaimState
elif sys.platform == "win32":
    from .native import WindowsFileLock as FileLock
elif not has_fcntl:
    from warnings import warn

    from .soft import SoftFileLock as FileLock

    warn("only soft file lock is available", stacklevel=2)

LAZY = {
    "AcquireReturnProxy": "api",
    "AsyncAcquireReadWriteReturnProxy": "readwrite",
    "AsyncAcquireReturnProxy": "api",
    "AsyncAcquireSoftReadWriteReturnProxy": "soft_rw",
    "AsyncFileLock": "asyncio",
    "AsyncReadWriteLock": "readwrite",
    "AsyncSoftFileLease": "asyncio",
    "AsyncSoftFileLock": "asyncio",
    "AsyncSoftReadWriteLock": "soft_rw",
    "AsyncStrictSoftFileLock": "asyncio",
    "AsyncUnixFileLock": "asyncio",
    "AsyncWindowsFileLock": "asyncio",
    "BaseAsyncFileLock": "asyncio",
    "BaseFileLock": "api",
    "CloseErrorPolicy": "construction",
    "CompromiseReason": "lease",
    "ContextErrorPolicy": "construction",
    "LeaseCompromise": "lease",
    "LeaseSettingsMismatch": "errors",
    "LockOptions": "construction",
    "MarkerSoftFileLock": "lease",
    "OwnerMode": "owner_record",
    "OwnerRecord": "owner_record",
    "ReadWriteLock": "readwrite",
    "SoftFileLease": "lease",
    "SoftFileLock": "soft",
    "SoftFileLockLifetimeWarning": "errors",
    "SoftFileLockProtocolError": "errors",
    "SoftReadWriteLock": "soft_rw",
    "StrictSoftFileClaim": "strict_claims",
    "StrictSoftFileClaimState": "strict_claims",
    "StrictSoftFileLock": "strict",
    "WindowsFileLock": "native",
    "lock_descriptor": "native",
    "unlock_descriptor": "native",
}
SQLITE = ("sqlite3", "_sqlite3", "_sqlite3_cffi")  # a Python may be built without
NEEDS_SQLITE = ("ReadWriteLock", "AsyncReadWriteLock")  # else None, as in filelock

__all__ = [
    "AcquireReturnProxy",
    "AsyncAcquireReadWriteReturnProxy",
    "AsyncAcquireReturnProxy",
    "AsyncAcquireSoftReadWriteReturnProxy",
    "AsyncFileLock",
    "AsyncReadWriteLock",
    "AsyncSoftFileLease",
    "AsyncSoftFileLock",
    "AsyncSoftReadWriteLock",
    "AsyncStrictSoftFileLock",
    "AsyncUnixFileLock",
    "AsyncWindowsFileLock",
    "BaseAsyncFileLock",
    "BaseFileLock",
    "CloseErrorPolicy",
    "CompromiseReason",
    "ContextErrorPolicy",
    "FileLock",
    "LeaseCompromise",
    "LeaseSettingsMismatch",
    "LockOptions",
    "MarkerSoftFileLock",
    "OwnerMode",
    "OwnerRecord",
    "ReadWriteLock",
    "SoftFileLease",
    "SoftFileLock",
    "SoftFileLockLifetimeWarning",
    "SoftFileLockProtocolError",
    "SoftReadWriteLock",
    "StrictSoftFileClaim",
    "StrictSoftFileClaimState",
    "StrictSoftFileLock",
    "Timeout",
    "UnixFileLock",
    "WindowsFileLock",
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
    if name in NEEDS_SQLITE and not _has_sqlite():
        return None
    found = getattr(lazily(f"{__name__}.{LAZY[name]}"), name)
    globals()[name] = found
    return found


def _has_sqlite() -> bool:
    try:
        lazily("sqlite3")
    except ModuleNotFoundError as error:
        if error.name in SQLITE:
            return False
        raise
    return True


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
