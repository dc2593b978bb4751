"""`locked_file` for tasks of asyncio and trio, to be used by `async with`.

The lock is awaited; opening, copying and replacing are done by a helper thread. A step that has
begun is run to its end under the lock, whoever cancels meanwhile: so a copy is never removed after
another writer has made his own.
"""

from __future__ import annotations

from .aio import AsyncLock
from .core.grant import Bound
from .data_file import HAND_ON, OPENED, FileDraft, checked, drafted, refuse_second
from .described import ASYNC, explained
from .lease import BlockEntry, part
from .runtime.eventloop import EVENT_LOOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from .aio import AsyncLease
    from .data_file import OpenFile


class AsyncLockedFile(Bound):
    """What `locked_file()` of `lifehold.aio` answers: `async with` it, once at a time."""

    __slots__ = ("_draft", "_free", "_lock", "_make", "lease")
    _refusal = "a locked file cannot be copied or pickled: it is open in this process"
    if not TYPE_CHECKING:
        __enter__ = ASYNC
        read = readline = readlines = write = OPENED

    def __init__(self, lock: AsyncLock, make: Callable[[], FileDraft]) -> None:
        self._lock, self._make = lock, make
        self._draft: FileDraft | None = None
        self._free = [True]  # whoever takes it has the block
        self.lease: AsyncLease | None = None  # while it is held

    async def __aenter__(self) -> OpenFile:
        refuse_second(self._free)
        block = part()
        entry: Any = BlockEntry(..., block)
        try:
            draft = await EVENT_LOOP.in_thread(self._make, FileDraft.abandon)
            lease = self.lease = await self._lock.acquire(entry)
        except BaseException as error:
            self._free[:] = [True]
            block.undo(error)  # L6  it may have been interrupted before we knew of the lease
            raise
        try:
            await EVENT_LOOP.shield(self._begin(draft))
            await EVENT_LOOP.sleep(0)  # who was cancelled meanwhile does not enter
            assert self._draft is not None, "begun, or raised"
            return self._draft.file  # type: ignore[no-any-return]
        except BaseException as error:
            await self._end(lease, error)
            raise

    async def _begin(self, draft: FileDraft) -> None:
        self._draft = await EVENT_LOOP.in_thread(draft.begin, FileDraft.abandon)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = self.lease
        if lease is not None:
            await self._end(lease, error)

    async def _end(self, lease: AsyncLease, error: BaseException | None) -> None:
        """Put the copy in its place, if nothing was raised, and let the lock go."""
        draft, self._draft, self.lease = self._draft, None, None

        async def end() -> None:
            said = error
            try:
                if draft is not None and error is None:
                    await EVENT_LOOP.in_thread(lambda: draft.commit(lease.check), _nothing)
            except BaseException as other:
                said = other
                raise
            finally:
                try:
                    if draft is not None:
                        await EVENT_LOOP.in_thread(draft.abandon, _nothing)
                finally:
                    self._free[:] = [True]
                    await lease._leave(said)

        await EVENT_LOOP.shield(end())


def _nothing(_: None) -> None:
    """The step is over, and nobody undoes it."""


@explained(
    "alocked_file()",
    "alocked_file('data.json', 'w')",
    "name it, for example alocked_file(.., wait={value})",
)
def alocked_file(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    durable: bool = True,
    **options: Any,
) -> AsyncLockedFile:
    """As `lifehold.locked_file`, for `async with`; `options` are those of `AsyncLock`.

    The file itself is a plain one: reading and writing it are not awaited.
    """
    text = {"encoding": encoding, "errors": errors, "newline": newline}
    where, writes = checked(path, mode, durable, text, options)
    lock = AsyncLock(f"{where}.lock", exclusive=writes, **options)
    lock._cure = HAND_ON
    return AsyncLockedFile(lock, lambda: drafted(where, mode, durable, text))
