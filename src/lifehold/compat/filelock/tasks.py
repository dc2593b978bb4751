"""Which tasks hold a reader/writer lock together, and who of them waits.

The lock below counts threads; tasks are counted here, in front of it, and hold one level of it
together. Rule: of the levels that a task has taken through several objects, each object ends its
own; what is at the end of the last one, and only that, is released below.
"""

from __future__ import annotations

import math
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ...runtime import clock, fork
from ...runtime.eventloop import Signal
from .errors import Timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .levels import Mode, Patience

_tables: WeakKeyDictionary[Any, Table] = WeakKeyDictionary()


def table_of(lock: Any) -> Table:
    """The one of a lock, for all objects in front of it."""
    fork.here()
    with fork.gate:
        return _tables.setdefault(lock, Table())


def running_task() -> Any:
    """Raises RuntimeError outside of a task."""
    events: Any = fork.lazily("asyncio")
    try:
        task = events.current_task()
    except RuntimeError:
        task = None
    if task is None:
        raise RuntimeError("an async reader/writer lock must be used from inside an asyncio task")
    return task


class Table:
    """The tasks of one lock."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._mode = ""
        self._holds: dict[Any, dict[Any, int]] = {}  # task -> object -> levels
        self._moving = False  # one of them acquires or releases below
        self._writers = 0  # that wait
        self._waiting: list[Signal] = []

    # ---- taking

    async def acquire(
        self, mode: Mode, want: Patience, via: Any, name: str,
        enter: Callable[[float], Awaitable[None]], joinable: Callable[[], bool],
    ) -> None:  # fmt: skip
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
        self, task: Any, mode: str, via: Any, name: str, joinable: Any, counted: bool, signal: Any
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

    def _settle(self, mode: str, holds: dict[Any, dict[Any, int]] | None = None) -> None:
        """What was begun has ended so."""
        with self._mutex:
            self._moving, self._mode = False, mode
            if mode and holds:
                for task, levels in holds.items():
                    self._holds.setdefault(task, {}).update(levels)
            self._ring()

    # ---- letting go

    async def release(
        self, via: Any, name: str, force: bool, leave: Callable[[], Awaitable[None]],
        held: Callable[[], bool],
    ) -> None:  # fmt: skip
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
        self, via: Any, leave: Callable[[], Awaitable[None]], held: Callable[[], bool]
    ) -> None:
        """End all that was taken through `via`; None: everything, and `leave` in any case."""
        events: Any = fork.lazily("asyncio")
        cancelled: BaseException | None = None
        while True:
            signal = Signal()
            found = self._dropped(via, signal)
            if found is not None:
                break
            try:
                await signal.wait(math.inf)
            except events.CancelledError as error:
                cancelled = error
            finally:
                self._forget(signal)
        mode, dropped = found
        if via is None or (mode and held()):
            try:
                await leave()
            except BaseException as error:
                if not isinstance(error, events.CancelledError):
                    self._settle(mode if held() else "", dropped)
                    raise
                cancelled = error
            self._settle("")
        elif mode:
            self._settle("")
        if cancelled is not None:
            raise cancelled

    def _dropped(self, via: Any, signal: Signal) -> tuple[str, dict[Any, dict[Any, int]]] | None:
        with self._mutex:
            if self._moving:
                self._waiting.append(signal)
                return None
            dropped: dict[Any, dict[Any, int]] = {}
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
