"""The types of what the public calls answer, for annotations.

    from lifehold.typing import AnyLease, LeaseGroup
    def pay(lease: AnyLease) -> None: ...

Each is imported when it is asked for. They are not made by hand: `lifehold` makes them.
"""

from __future__ import annotations

from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .aio import AsyncLease, AsyncReadWriteLease, AsyncSlotLease
    from .astores import AsyncFileStore, AsyncLeaseStore
    from .core.grant import Holder
    from .core.owner import Owner
    from .data_file import LockedFile
    from .data_file_async import AsyncLockedFile
    from .lock import Lease
    from .ops.answer import ClearOutcome, LockAnswer
    from .per import AsyncPerArguments, PerArguments
    from .runtime.eventloop import AsyncLostSignal
    from .runtime.loss import LostSignal
    from .several import LeaseGroup
    from .several_async import AsyncLeaseGroup
    from .shapes import ReadWriteLease, SlotLease
    from .stores import FileStore, LeaseStore

    AnyLease = Lease | AsyncLease
    AnyStore = FileStore | LeaseStore

_ROWS = {
    "AsyncFileStore": "lifehold.astores:AsyncFileStore",
    "AsyncLease": "lifehold.aio:AsyncLease",
    "AsyncLeaseGroup": "lifehold.several_async:AsyncLeaseGroup",
    "AsyncLeaseStore": "lifehold.astores:AsyncLeaseStore",
    "AsyncLockedFile": "lifehold.data_file_async:AsyncLockedFile",
    "AsyncLostSignal": "lifehold.runtime.eventloop:AsyncLostSignal",
    "AsyncPerArguments": "lifehold.per:AsyncPerArguments",
    "AsyncReadWriteLease": "lifehold.aio:AsyncReadWriteLease",
    "AsyncSlotLease": "lifehold.aio:AsyncSlotLease",
    "ClearOutcome": "lifehold.ops.answer:ClearOutcome",
    "FileStore": "lifehold.stores:FileStore",
    "Holder": "lifehold.core.grant:Holder",
    "Lease": "lifehold.lock:Lease",
    "LeaseGroup": "lifehold.several:LeaseGroup",
    "LeaseStore": "lifehold.stores:LeaseStore",
    "LockAnswer": "lifehold.ops.answer:LockAnswer",
    "LockedFile": "lifehold.data_file:LockedFile",
    "LostSignal": "lifehold.runtime.loss:LostSignal",
    "Owner": "lifehold.core.owner:Owner",
    "PerArguments": "lifehold.per:PerArguments",
    "ReadWriteLease": "lifehold.shapes:ReadWriteLease",
    "SlotLease": "lifehold.shapes:SlotLease",
}
__all__ = [
    "AnyLease",
    "AnyStore",
    "AsyncFileStore",
    "AsyncLease",
    "AsyncLeaseGroup",
    "AsyncLeaseStore",
    "AsyncLockedFile",
    "AsyncLostSignal",
    "AsyncPerArguments",
    "AsyncReadWriteLease",
    "AsyncSlotLease",
    "ClearOutcome",
    "FileStore",
    "Holder",
    "Lease",
    "LeaseGroup",
    "LeaseStore",
    "LockAnswer",
    "LockedFile",
    "LostSignal",
    "Owner",
    "PerArguments",
    "ReadWriteLease",
    "SlotLease",
]

if not TYPE_CHECKING:  # a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        if name == "AnyLease":
            return __getattr__("Lease") | __getattr__("AsyncLease")
        if name == "AnyStore":
            return __getattr__("FileStore") | __getattr__("LeaseStore")
        if name in _ROWS:
            module, _, _ = _ROWS[name].partition(":")
            return getattr(fork.lazily(module), name)
        raise AttributeError(f"module 'lifehold.typing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
