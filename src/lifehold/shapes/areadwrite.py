"""`AsyncReadWriteLock`: the reader/writer lock for tasks of asyncio and trio."""

from __future__ import annotations

from ..aio import AsyncLease, AsyncLock
from ..blocks import Entry, Exit, OfShape, of_shape
from ..core.grant import Bound
from ..core.ports import is_asking
from ..runtime.eventloop import EVENT_LOOP, current_task
from ..runtime.held_here import this_thread
from ..single import Described, Single
from .sides import downgradable, fill, mechanisms, moved, refuse_oneself

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from types import EllipsisType, TracebackType
    from typing import Any

    from ..core.grant import Grant, Held, Holder, Unknown


class AsyncReadWriteLease(AsyncLease):
    """A reader's or a writer's lock in hand. `lease.exclusive` tells which."""

    __slots__ = ()

    async def downgrade(self) -> None:
        """Turn a writer into a reader, in one step: no other writer comes in between.

        As `ReadWriteLease.downgrade()`.
        """
        mechanism = downgradable(self)
        lock = self._lock
        if not lock._far:
            moved(self, mechanism.downgrade(self._grant))
            return
        turn = lock._runtime.in_thread(lambda: mechanism.downgrade(self._grant), lambda _: None)
        moved(self, await lock._runtime.shield(turn))


class AsyncSide(AsyncLock):
    """The readers, or the writers, of one `AsyncReadWriteLock`."""

    __slots__ = ("_other",)
    _hand = AsyncReadWriteLease
    _other: AsyncSide

    def __init__(self, *parts: Any) -> None:
        fill(self, *parts)
        if is_asking(self._mechanism):
            self._mechanism.asked_by(lambda: (this_thread.key, current_task()))

    async def _contend(self, answer: Held | Unknown, patience: float | None) -> tuple[Grant, float]:
        refuse_oneself(self, answer, patience, this_thread.key, current_task())
        return await super()._contend(answer, patience)

    def _of_asker(self, _thread: int, task: object) -> AsyncLease | None:
        return self._of_task(task)


class AsyncOfShape(OfShape):
    """The same for `async with`."""

    __slots__ = ()

    async def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """What stands for `__aexit__`."""
        try:
            lease = self.ended(None)
            if lease is not None:
                await lease._leave(error)
            self.lease = None
        except BaseException as other:
            self.undo(other)
            raise


class AsyncReadWriteBlock(Bound):
    """What `reading()` and `writing()` answer: `async with` it. Each block ends its own lease."""

    __slots__ = ("_blind", "_side", "_wait")
    _refusal = "a block cannot be copied or pickled: hand on the lock"

    def __init__(self, side: AsyncSide, wait: float | None | EllipsisType) -> None:
        self._side, self._wait = side, wait
        self._blind: list[AsyncOfShape] = []

    async def __aenter__(self) -> AsyncReadWriteLease:
        block = of_shape(self, AsyncOfShape)
        entry: Any = Entry(self._wait, block)
        try:
            lease: Any = await self._side.acquire(entry)
            return lease  # type: ignore[no-any-return]
        except BaseException as error:
            block.undo(error)
            raise

    if TYPE_CHECKING:

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __aexit__ = Exit(AsyncOfShape)


class AsyncReadWriteLock(Described, metaclass=Single):
    """Many readers or one writer, on a file, for tasks; excludes threads and processes as well.

    The arguments are those of `ReadWriteLock`, without `cancel`: cancel the task instead. A task
    that reads may read again.
    """

    __slots__ = ("__weakref__", "_given", "_reads", "_writes")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str = "auto",
        wait: float | None = None,
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
            path, EVENT_LOOP, kind, label, mode, shared, (ttl, heartbeat, margin)
        )
        self._reads = AsyncSide(name, reads, wait, None, max_hold, True)
        self._writes = AsyncSide(name, writes, wait, None, max_hold, reentrant)
        self._reads._other, self._writes._other = self._writes, self._reads

    def reading(self, wait: float | None | EllipsisType = ...) -> AsyncReadWriteBlock:
        """`async with lock.reading() as lease:` beside other readers, without a writer."""
        return AsyncReadWriteBlock(self._reads, wait)

    def writing(self, wait: float | None | EllipsisType = ...) -> AsyncReadWriteBlock:
        """`async with lock.writing() as lease:` alone."""
        return AsyncReadWriteBlock(self._writes, wait)

    async def acquire_read(self, wait: float | None | EllipsisType = ...) -> AsyncReadWriteLease:
        """A reader's lease, as of `ReadWriteLock.acquire_read`; the asker is the task."""
        return await self._reads.acquire(wait)  # type: ignore[return-value]

    async def acquire_write(self, wait: float | None | EllipsisType = ...) -> AsyncReadWriteLease:
        """The writer's lease, as of `ReadWriteLock.acquire_write`; the asker is the task."""
        return await self._writes.acquire(wait)  # type: ignore[return-value]

    @property
    def lease(self) -> AsyncReadWriteLease | None:
        """The lease that this task holds, to write or to read; None for none."""
        return self._writes.lease or self._reads.lease  # type: ignore[return-value]

    async def release(self) -> None:
        """Release the lease of this task. Raises NotHeld for none."""
        await (self._reads if self._writes.lease is None else self._writes).release()

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
        return f"<AsyncReadWriteLock {self._writes._name!r}: {reads} reading, {writes} writing>"
