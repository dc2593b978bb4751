"""What the reader/writer locks for tasks have in common.

Promise: a task that is cancelled while it acquires holds nothing afterwards, and a release that was
begun is done. Rule: a step of the lock below runs in an executor, as callers know it, and is
awaited to its end whatever is cancelled meanwhile; what came too late is given back.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from ...runtime import clock, eventloop, fork
from ...runtime.eventloop import Signal
from .errors import Timeout, both_failed
from .sides import TASKS, WaitTerms, patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from .sides import Mode
else:
    asyncio = fork.later("asyncio", globals())


class ChainErrors:
    """The policy of these locks for two errors: the later one after the first."""

    context_error_policy = "chain"


class AsyncSides:
    """A reader/writer lock for tasks, in front of one for threads."""

    _lock: Any
    _loop: object
    _executor: Any

    def _begin(self, lock: object, is_singleton: bool, loop: object, executor: object) -> None:
        self._lock, self._loop, self._executor = lock, loop, executor
        self._via, self._alone, self._closed = object(), not is_singleton, False
        self._table, self._generation = table_of(lock), fork.generation

    def _closed_error(self) -> Exception:
        return RuntimeError(f"{type(self).__name__} on {self.lock_file} has been closed")

    def _lost(self, mode: Mode) -> None:
        """Raises RuntimeError when the hold that is there was lost."""

    @property
    def lock_file(self) -> str:
        """The path, as it was given."""
        return self._lock.lock_file  # type: ignore[no-any-return]

    @property
    def timeout(self) -> float:
        """Seconds of patience; -1 without a limit."""
        return self._lock.timeout  # type: ignore[no-any-return]

    @property
    def blocking(self) -> bool:
        """Whether an acquire waits."""
        return self._lock.blocking  # type: ignore[no-any-return]

    @property
    def loop(self) -> object:
        """The loop that was given; None for the running one."""
        return self._loop

    @property
    def executor(self) -> object:
        """The executor in which steps of the lock run."""
        return self._executor

    # ---- taking

    def _refuse(self) -> None:
        if self._generation != fork.here():
            raise RuntimeError(
                f"{type(self).__name__} on {self.lock_file} was invalidated by fork(): it was "
                "inherited across fork; construct a new instance"
            )
        if self._closed:
            raise self._closed_error()

    async def _acquire(self, mode: Mode, timeout: float | None, blocking: bool | None) -> None:
        self._refuse()
        blocking = self.blocking if blocking is None else blocking
        seconds = patience(self.timeout if timeout is None else timeout, blocking)
        want = WaitTerms(seconds, blocking, None)

        async def enter(left: float) -> None:
            self._refuse()  # it may have been closed while this task waited for the others
            await self._entered(mode, left, blocking)

        def joinable() -> bool:
            self._refuse()
            self._lost(mode)
            return self._holds()

        await self._table.acquire(mode, want, self._via, self.lock_file, enter, joinable)

    async def _entered(self, mode: Mode, left: float, blocking: bool) -> None:
        given_up: list[bool] = []
        begun = self._begun(
            lambda: self._lock._acquire_level_of(
                TASKS, mode, left, blocking=blocking, cancel_check=lambda: bool(given_up)
            )
        )
        cancelled = await eventloop.ended(begun)
        if cancelled is None:
            result_of(begun)
            return
        given_up.append(True)
        await to_end(begun)
        try:
            result_of(begun)
        except Timeout:
            raise cancelled from None
        except BaseException as error:  # noqa: BLE001 - raised, with the other
            both_failed(ChainErrors, "", cancelled, error)
        try:
            back = self._begun(self._left)
            await to_end(back)
            result_of(back)
        except BaseException as error:  # noqa: BLE001 - raised, with the other
            both_failed(ChainErrors, "", cancelled, error)
        raise cancelled

    def _begun(self, call: Callable[[], object]) -> Any:
        def caught() -> tuple[object, BaseException | None]:
            try:
                return call(), None
            except BaseException as error:  # noqa: BLE001 - raised again by who awaits
                return None, error

        return eventloop.begin(self._loop, self._executor, caught)

    def _left(self) -> None:
        self._lock._release_level_of(TASKS)

    def _holds(self) -> bool:
        return self._lock._holds_level_of(TASKS)  # type: ignore[no-any-return]

    # ---- letting go

    async def _leave(self, call: Callable[[], object] | None = None) -> None:
        begun = self._begun(call or self._left)
        cancelled = await eventloop.ended(begun)
        if cancelled is None:
            result_of(begun)
            return
        await to_end(begun)
        try:
            result_of(begun)
        except BaseException as error:  # noqa: BLE001 - raised, with the other
            both_failed(ChainErrors, "", cancelled, error)
        raise CancelledAfterRelease(cancelled)

    async def release(self, *, force: bool = False) -> None:
        """Give back one level of the calling task; with `force`, all that it took through this.

        Raises RuntimeError when the task holds none, and `force` is false.
        """
        if self._generation != fork.here():
            return
        cancelled: list[BaseException] = []

        async def leave() -> None:
            try:
                await self._leave()
            except CancelledAfterRelease as ended:  # it is released all the same
                cancelled.append(ended.cancelled)

        await self._table.release(self._via, self.lock_file, force, leave, self._holds)
        if cancelled:
            raise cancelled[0]

    async def close(self) -> None:
        """End what tasks hold through this object, which is of no more use."""
        if self._generation != fork.here() or self._closed:
            return
        self._closed = True

        async def leave() -> None:
            try:
                await self._leave(self._lock.close if self._alone else None)
            except CancelledAfterRelease as ended:
                raise ended.cancelled from None

        try:
            await self._table.retire(None if self._alone else self._via, leave, self._holds)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) and self._holds():
                self._closed = False  # to be tried again
            else:
                self._unused(False)
            raise
        await self._unused_awaited()

    def _unused(self, wait: bool) -> None:
        """An executor of our own is not needed any more."""

    async def _unused_awaited(self) -> None:
        """The same, until its thread is gone."""

    # ---- the two sides

    @asynccontextmanager
    async def read_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncGenerator[None]:
        """Hold it for reading, for a block."""
        await self._acquire("read", timeout, blocking)
        try:
            yield
        except BaseException as error:
            await self._released_after(error)
            raise
        await self.release()

    @asynccontextmanager
    async def write_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncGenerator[None]:
        """Hold it for writing, for a block."""
        await self._acquire("write", timeout, blocking)
        try:
            yield
        except BaseException as error:
            await self._released_after(error)
            raise
        await self.release()

    async def _released_after(self, error: BaseException) -> None:
        try:
            await self.release()
        except BaseException as failed:  # noqa: BLE001 - raised, with the other
            both_failed(ChainErrors, "", error, failed)


class CancelledAfterRelease(Exception):
    """A release was done, and its caller was cancelled meanwhile."""

    def __init__(self, cancelled: BaseException) -> None:
        super().__init__()
        self.cancelled = cancelled


async def to_end(begun: Any) -> None:
    """However often the caller is cancelled."""
    while not begun.done():
        await eventloop.ended(begun)


def result_of(begun: Any) -> Any:
    """Of a step. Raises its exception."""
    value, error = begun.result()
    if error is not None:
        context = error.__context__
        try:
            raise error
        except BaseException:
            error.__context__ = context
            raise
    return value


# ------------------------------------------------------------------------------------------------
# Which tasks hold a reader/writer lock together, and who of them waits.
#
# The lock below counts threads; tasks are counted here, in front of it, and hold one level of it
# together. Rule: of the levels that a task has taken through several objects, each object ends its
# own; what is at the end of the last one, and only that, is released below.


_tables: WeakKeyDictionary[object, TaskTable] = WeakKeyDictionary()


def table_of(lock: object) -> TaskTable:
    """The one of a lock, for all objects in front of it."""
    fork.here()
    with fork.gate:
        return _tables.setdefault(lock, TaskTable())


def running_task() -> object:
    """Raises RuntimeError outside of a task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        raise RuntimeError("an async reader/writer lock must be used from inside an asyncio task")
    return task


class TaskTable:
    """The tasks of one lock."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._mode = ""
        self._holds: dict[object, dict[object, int]] = {}  # task -> object -> levels
        self._moving = False  # one of them acquires or releases below
        self._writers = 0  # that wait
        self._waiting: list[Signal] = []

    # ---- taking

    async def acquire(
        self,
        mode: Mode,
        want: WaitTerms,
        via: object,
        name: str,
        enter: Callable[[float], Awaitable[None]],
        joinable: Callable[[], bool],
    ) -> None:
        """A level for the running task. `enter` takes the lock below, within some seconds."""
        task, counted = running_task(), False
        try:
            while True:
                signal = Signal()
                found = self._admitted(task, mode, via, name, joinable, counted, signal)
                if found:
                    break
                try:
                    left = want.deadline - clock.now()
                    if not want.blocking or left <= 0:
                        raise Timeout(name)
                    if mode == "write" and not counted:
                        counted = True
                        with self._mutex:
                            self._writers += 1
                    await signal.wait(left)
                finally:
                    self._forget(signal)
        finally:
            if counted:
                with self._mutex:
                    self._writers -= 1
                    self._ring()
        if found == "held":
            return
        try:
            left = want.deadline - clock.now()
            await enter(-1 if left == math.inf else max(0.0, left))
        except BaseException:
            self._settle("")
            raise
        self._settle(mode, {task: {via: 1}})

    def _admitted(
        self,
        task: object,
        mode: str,
        via: object,
        name: str,
        joinable: Any,
        counted: bool,
        signal: Any,
    ) -> str:
        """What to do: "held", "enter", or nothing, after the signal was noted."""
        with self._mutex:
            if self._mode and not self._moving and not joinable():
                self._holds.clear()  # somebody has ended the level below
                self._mode = ""
            levels = self._holds.get(task)
            if levels is not None:
                if self._mode != mode:
                    other, way = ("write", "down") if mode == "read" else ("read", "up")
                    raise RuntimeError(
                        f"Cannot acquire {mode} lock on {name}: already holding a {other} lock "
                        f"({way}grade not allowed)"
                    )
                levels[via] = levels.get(via, 0) + 1
                return "held"
            ahead = self._writers - counted
            if not self._moving:
                if mode == "read" and self._mode == "read" and not ahead:
                    self._holds[task] = {via: 1}
                    return "held"
                if not self._holds and (mode == "write" or not ahead):
                    self._moving, self._mode = True, mode
                    return "enter"
            self._waiting.append(signal)
            return ""

    def _forget(self, signal: Signal) -> None:
        with self._mutex:
            if signal in self._waiting:
                self._waiting.remove(signal)

    def _ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.ring()

    def _settle(self, mode: str, holds: dict[object, dict[object, int]] | None = None) -> None:
        """What was begun has ended so."""
        with self._mutex:
            self._moving, self._mode = False, mode
            if mode and holds:
                for task, levels in holds.items():
                    self._holds.setdefault(task, {}).update(levels)
            self._ring()

    # ---- letting go

    async def release(
        self,
        via: object,
        name: str,
        force: bool,
        leave: Callable[[], Awaitable[None]],
        held: Callable[[], bool],
    ) -> None:
        """One level of the running task, with `force` all that it took through `via`."""
        task = running_task()
        with self._mutex:
            levels = self._holds.get(task)
            if levels is None or via not in levels:
                if force:
                    return
                raise RuntimeError(
                    f"Cannot release a lock on {name} that is not held by this task through this "
                    "wrapper"
                )
            if not force and levels[via] > 1:
                levels[via] -= 1
                return
            removed = levels.pop(via)
            if levels:
                return
            del self._holds[task]
            if self._holds:
                return
            self._moving, mode = True, self._mode
        if not held():
            self._settle("")
            raise RuntimeError(f"Cannot release a lock on {name} that is not held by this task")
        try:
            await leave()
        except BaseException:
            # Only while the lock below still has the level is there anything to try again.
            self._settle(mode if held() else "", {task: {via: removed}})
            raise
        self._settle("")

    async def retire(
        self, via: object, leave: Callable[[], Awaitable[None]], held: Callable[[], bool]
    ) -> None:
        """End all that was taken through `via`; None: everything, and `leave` in any case."""
        cancelled: BaseException | None = None
        while True:
            signal = Signal()
            found = self._dropped(via, signal)
            if found is not None:
                break
            try:
                await signal.wait(math.inf)
            except asyncio.CancelledError as error:
                cancelled = error
            finally:
                self._forget(signal)
        mode, dropped = found
        if via is None or (mode and held()):
            try:
                await leave()
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    self._settle(mode if held() else "", dropped)
                    raise
                cancelled = error
            self._settle("")
        elif mode:
            self._settle("")
        if cancelled is not None:
            raise cancelled

    def _dropped(
        self, via: object, signal: Signal
    ) -> tuple[str, dict[object, dict[object, int]]] | None:
        with self._mutex:
            if self._moving:
                self._waiting.append(signal)
                return None
            dropped: dict[object, dict[object, int]] = {}
            if via is None:
                dropped, self._holds = self._holds, {}
            else:
                for task, levels in list(self._holds.items()):
                    if via in levels:
                        dropped[task] = {via: levels.pop(via)}
                        if not levels:
                            del self._holds[task]
                if self._holds:
                    return "", dropped
            mode = self._mode
            self._moving = bool(mode) or via is None
            return mode, dropped
