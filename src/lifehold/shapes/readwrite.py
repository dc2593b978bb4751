"""`ReadWriteLock`: many readers or one writer, for threads, processes and containers.

    lock = ReadWriteLock("config.lock")
    with lock.reading() as lease: ...
    with lock.writing() as lease: ...      # lease.downgrade() makes a reader of it

The object is only a description, as a `Lock` is: each acquire makes a lease of its own.
"""

from __future__ import annotations

from ..blocks import Entry, Exit, OfShape, of_shape
from ..core.grant import Bound
from ..lock import Lease, Lock
from ..runtime.blocking import BLOCKING
from ..single import Described, Single
from .sides import downgradable, fill, mechanisms, moved, refuse_oneself

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from types import EllipsisType, TracebackType
    from typing import Any

    from ..core.acquire import Cancel
    from ..core.grant import Grant, Held, Holder, Unknown


class ReadWriteLease(Lease):
    """A reader's or a writer's lock in hand. `lease.exclusive` tells which."""

    __slots__ = ()

    def downgrade(self) -> None:
        """Turn a writer into a reader, in one step: no other writer comes in between.

        The lease, its token and its release stay the same; `exclusive` is False from here on.
        Raises LeaseLost when it was lost before or, on systems that cannot convert in one step,
        meanwhile; NotHeld; InvalidArgument for a reader; StoreUnavailable when a store gave no
        answer: the lease is a reader's all the same, since others may read by now.
        """
        moved(self, downgradable(self).downgrade(self._grant))


class Side(Lock):
    """The readers, or the writers, of one `ReadWriteLock`."""

    __slots__ = ("_other",)
    _hand = ReadWriteLease
    _other: Side

    def __init__(self, *parts: Any) -> None:
        fill(self, *parts)

    def _contend(
        self, answer: Held | Unknown, patience: float | None, cancel: Cancel | None
    ) -> tuple[Grant, float]:
        from ..runtime.held_here import this_thread

        refuse_oneself(self, answer, patience, this_thread.key, None)
        return super()._contend(answer, patience, cancel)

    def _of_asker(self, thread: int, _task: object) -> Lease | None:
        return self._of_thread(thread)


class ReadWriteBlock(Bound):
    """What `reading()` and `writing()` answer: `with` it. Each block ends its own lease."""

    __slots__ = ("_blind", "_cancel", "_side", "_wait")
    _refusal = "a block cannot be copied or pickled: hand on the lock"

    def __init__(
        self, side: Side, wait: float | None | EllipsisType, cancel: Cancel | None
    ) -> None:
        self._side, self._wait, self._cancel = side, wait, cancel
        self._blind: list[OfShape] = []

    def __enter__(self) -> ReadWriteLease:
        block = of_shape(self)
        entry: Any = Entry(self._wait, block)
        try:
            lease: Any = self._side.acquire(entry, cancel=self._cancel)
            return lease  # type: ignore[no-any-return]
        except BaseException as error:
            block.undo(error)
            raise

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __exit__ = Exit(OfShape)


class ReadWriteLock(Described, metaclass=Single):
    """Many readers or one writer, on a file.

    Who comes first goes first: a waiting writer keeps later readers out, and waits for no later
    one; readers wait for no later writer.

    `path`: the lock file; it is made, with its folders, when it is not there, and it stays.
    `kind`: "kernel" (one machine), "soft" (records instead of kernel locks, also on file servers
    with a `ttl`), or "auto", which chooses by the file system.
    `wait`: seconds that an acquire waits; None until acquired, 0 for one try.
    `reentrant`: the thread that writes may take the write lock again. Readers always may, read.
    `label`, `max_hold`, `mode`, `shared`, `cancel`, `singleton`: as of `Lock`. `ttl`, `heartbeat`
    and `margin`: of the leases of kind "soft".

    Raises InvalidArgument. See docs/explanation/readwrite-lock.md.
    """

    __slots__ = ("__weakref__", "_given", "_reads", "_writes")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str = "auto",
        wait: float | None = None,
        cancel: Cancel | None = None,
        label: str = "",
        reentrant: bool = False,
        max_hold: float | None = None,
        mode: int | None = None,
        shared: bool = False,
        ttl: float | None = None,
        heartbeat: float | None = None,
        margin: float | None = None,
        singleton: bool = False,
    ) -> None:
        name, reads, writes = mechanisms(
            path, BLOCKING, kind, label, mode, shared, (ttl, heartbeat, margin)
        )
        self._reads = Side(name, reads, wait, cancel, max_hold, True)
        self._writes = Side(name, writes, wait, cancel, max_hold, reentrant)
        self._reads._other, self._writes._other = self._writes, self._reads

    def reading(
        self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
    ) -> ReadWriteBlock:
        """`with lock.reading() as lease:` beside other readers, without a writer.

        Its errors are those of `acquire_read`.
        """
        return ReadWriteBlock(self._reads, wait, cancel)

    def writing(
        self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
    ) -> ReadWriteBlock:
        """`with lock.writing() as lease:` alone. Its errors are those of `acquire_write`."""
        return ReadWriteBlock(self._writes, wait, cancel)

    def acquire_read(
        self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
    ) -> ReadWriteLease:
        """A reader's lease. Its token is that of the last writer; None before the first.

        A thread that reads already gets the lease that it has: release it as often.
        Raises Timeout or WouldBlock, which name a holder; SelfDeadlock, at once, when this thread
        writes; AcquireCancelled; SystemRefused, CorruptRecord, UnsafeGround.
        """
        return self._reads.acquire(wait, cancel=cancel)  # type: ignore[return-value]

    def acquire_write(
        self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
    ) -> ReadWriteLease:
        """The writer's lease; its token grows with each.

        Raises as `acquire_read`; SelfDeadlock, at once, when this thread reads or writes.
        """
        return self._writes.acquire(wait, cancel=cancel)  # type: ignore[return-value]

    @property
    def lease(self) -> ReadWriteLease | None:
        """The lease that this thread holds, to write or to read; None for none."""
        return self._writes.lease or self._reads.lease  # type: ignore[return-value]

    def release(self) -> None:
        """Release the lease of this thread. Raises NotHeld for none."""
        (self._reads if self._writes.lease is None else self._writes).release()

    @property
    def path(self) -> str:
        """The lock file, absolute."""
        return self._writes.path

    def holder(self) -> Holder | None:
        """The writer, or one of the readers; None for nobody. Takes no lock."""
        return self._writes.holder()

    def locked(self) -> bool:
        """Whether anybody reads or writes now."""
        return self._reads.locked() or self._writes.locked()

    def __repr__(self) -> str:
        reads, writes = (len(side._leases) for side in (self._reads, self._writes))
        return f"<ReadWriteLock {self._writes._name!r}: {reads} reading, {writes} writing>"
