"""filelock's names for tasks: `from lifehold.compat.filelock import AsyncFileLock`.

`loop`, `run_in_executor` and `executor` are taken as filelock takes them. The native lock needs no
thread pool: its wait ends by an event, and a task that is cancelled holds nothing afterwards.
"""

from __future__ import annotations

import asyncio  # noqa: TC003 - whoever watches the loop looks for it here
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from . import dropped, options, waits
from .awaited import Awaited, held_by_task
from .calls import has_fcntl
from .lease import SoftFileLease
from .meta import FileLockMeta, construct
from .proxy import AsyncAcquireReturnProxy, leave_awaited
from .soft import SoftFileLock
from .strict import StrictSoftFileLock
from .unix import UnixFileLock
from .windows import WindowsFileLock

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from concurrent import futures
    from types import TracebackType
    from typing import NoReturn, Self

    from .options import CloseErrorPolicy, ContextErrorPolicy

    _ExtraValue = Any

_AT = TypeVar("_AT")
DEFAULTS = options.DEFAULTS | {
    "thread_local": False,
    "loop": None,
    "run_in_executor": True,
    "executor": None,
}


class AsyncFileLockMeta(FileLockMeta):
    """The metaclass of all locks for tasks but reader/writer locks."""

    def __call__(
        cls: type[_AT],  # noqa: N805 - a metaclass's
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = -1,
        thread_local: bool = False,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        run_in_executor: bool = True,
        executor: futures.Executor | None = None,
        **kwargs: _ExtraValue,
    ) -> _AT:
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        if thread_local and run_in_executor:
            raise ValueError("run_in_executor is not supported when thread_local is True")
        made: _AT = construct(cls, lock_file, given, DEFAULTS, kwargs)
        return made


class BaseAsyncFileLock(Awaited, metaclass=AsyncFileLockMeta):
    """The base of the locks for tasks. Also an async context manager."""

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = -1,
        thread_local: bool = False,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        run_in_executor: bool = True,
        executor: futures.Executor | None = None,
    ) -> None:
        super().__init__(
            lock_file,
            timeout,
            mode,
            thread_local,
            blocking=blocking,
            is_singleton=is_singleton,
            poll_interval=poll_interval,
            lifetime=lifetime,
            context_error_policy=context_error_policy,
            close_error_policy=close_error_policy,
            fallback_to_soft=fallback_to_soft,
            preserve_lock_file=preserve_lock_file,
            on_acquired=on_acquired,
        )
        self._gate = None  # tasks take turns (turns.py)
        self._loop, self._run_in_executor, self._executor = loop, run_in_executor, executor

    @property
    def run_in_executor(self) -> bool:
        """Whether what a subclass brings runs in the executor."""
        return self._run_in_executor

    @property
    def executor(self) -> futures.Executor | None:
        """The executor that was given; None for a helper thread."""
        return self._executor  # type: ignore[no-any-return]

    @executor.setter
    def executor(self, value: futures.Executor | None) -> None:
        self._executor = value

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that was given. The lock works with any that runs the caller."""
        return self._loop

    async def acquire(  # type: ignore[override]
        self,
        timeout: float | None = None,
        poll_interval: float | None = None,
        *,
        blocking: bool | None = None,
        cancel_check: Callable[[], bool] | None = None,
    ) -> AsyncAcquireReturnProxy:
        """Hold the lock, waiting up to `timeout` seconds; below zero without a limit.

        Held already by this object: counted up, whichever task asks. Cancelled: nothing is held.

        Raises Timeout, which names the holder; RuntimeError for a wait for oneself, or in a forked
        child; OSError.
        """
        want = waits.Want(self._context, timeout, poll_interval, blocking, cancel_check)
        want.mine = held_by_task()
        self._refuse_child()
        await self._acquired(want)
        return AsyncAcquireReturnProxy(self)

    async def release(self, force: bool = False) -> None:  # type: ignore[override]
        """Give back one hold; at the last, or with `force`, the lock itself. Unheld: nothing."""
        await self._released(force)

    def __del__(self, *bound: Any) -> None:
        if not dropped.later(self):
            super().__del__(*bound)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await leave_awaited(self, exc_value)

    def __enter__(self) -> NoReturn:
        raise use_async_with(self)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise use_async_with(self)


def use_async_with(lock: object) -> Exception:
    return NotImplementedError(f"{type(lock).__name__} is for tasks: use `async with`, not `with`")


class AsyncUnixFileLock(UnixFileLock, BaseAsyncFileLock):
    """The native lock for tasks."""

    _runtime = Awaited._runtime

    @classmethod
    def _soft(cls) -> Any:
        return AsyncSoftFileLock


class AsyncSoftFileLock(SoftFileLock, BaseAsyncFileLock):
    """The soft lock for tasks."""

    _runtime = Awaited._runtime


class AsyncSoftFileLease(SoftFileLease, BaseAsyncFileLock):
    """The soft lease for tasks."""

    _runtime = Awaited._runtime


class AsyncStrictSoftFileLock(StrictSoftFileLock, BaseAsyncFileLock):
    """The strict soft lock for tasks."""

    _runtime = Awaited._runtime


class AsyncWindowsFileLock(WindowsFileLock, BaseAsyncFileLock):
    """The native lock of Windows for tasks."""

    _runtime = Awaited._runtime


AsyncFileLock = AsyncUnixFileLock
if TYPE_CHECKING:
    pass
elif sys.platform == "win32":
    AsyncFileLock = AsyncWindowsFileLock
elif not has_fcntl:
    AsyncFileLock = AsyncSoftFileLock

__all__ = [
    "AsyncAcquireReturnProxy",
    "AsyncFileLock",
    "AsyncSoftFileLease",
    "AsyncSoftFileLock",
    "AsyncStrictSoftFileLock",
    "AsyncUnixFileLock",
    "AsyncWindowsFileLock",
    "BaseAsyncFileLock",
]


def __dir__() -> list[str]:
    return sorted(__all__)
