"""`memory://`: leases among the threads and tasks of one process. `memory://NAME`: a store by name.

The reference in the fewest lines: store/rules.py under one mutex, by the library's own clock, and
waiters rung directly. Nothing survives the process; a forked child starts with an empty store (L9).
"""

from __future__ import annotations

import _thread

from ..core.backend import AT_ONCE, Traits, Unreachable
from ..core.value import replace
from ..runtime import clock, fork
from .rules import LockState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.backend import Given, Order, Refused, Renewal, Request, State


LACKS = {"audit": "it ends with its process, and so would a note of who broke a lock"}


class Memory:
    """The backend, and the wakeups of its waiters.

    `now`, `utc_us`: the clocks; a simulation gives its own.
    """

    traits = Traits(AT_ONCE, lacks=LACKS)

    def __init__(
        self,
        now: Callable[[], float] = clock.now,
        utc_us: Callable[[], int] = lambda: clock.utc_ns() // 1000,
    ) -> None:
        self._now, self._utc_us = now, utc_us
        self._forget_all()
        fork.in_child(self._forget_all)

    def _forget_all(self) -> None:
        self._mutex: Any = _thread.RLock()  # so that its own thread can tell that it has it
        self._locks: dict[str, LockState] = {}
        self._wakes: dict[str, Callable[[], object]] = {}

    def busy_here(self) -> bool:
        """Whether this very thread is in the middle of a step, and was interrupted in it."""
        return bool(self._mutex._is_owned())

    def _alone(self) -> Any:
        """The mutex of a step. A step within a step would find its state half changed."""
        if self.busy_here():
            raise Unreachable("a signal handler asks in the middle of a step of the same thread")
        return self._mutex

    def _lock(self, name: str) -> LockState:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = LockState(name)
        return lock.at(self._now(), "", self._utc_us())

    def _wake(self, calls: list[str]) -> None:
        for nonce in calls:
            wake = self._wakes.get(nonce)
            if wake is not None:
                wake()

    # ---- the backend

    async def acquire(self, request: Request) -> Given | Refused:
        with self._alone():
            lock = self._lock(request.name)
            answer = lock.acquire(request)
        self._wake(lock.calls)
        return answer

    async def renew(self, many: Sequence[Renewal]) -> tuple[float | None, tuple[bool, ...]]:
        kept, calls = [], []
        with self._alone():
            for one in many:
                lock = self._lock(one.name)
                kept.append(lock.renew(one))
                calls += lock.calls
        self._wake(calls)
        return self._now(), tuple(kept)

    async def release(self, name: str, nonce: str) -> bool:
        with self._alone():
            lock = self._lock(name)
            was_in = lock.release(nonce)
            calls = lock.calls
        self._wake(calls)
        return was_in

    async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
        with self._alone():
            chosen = (
                sorted(self._locks) if names is None else [n for n in names if n in self._locks]
            )
            states = [self._lock(name).state() for name in chosen if name.startswith(prefix)]
            return tuple(states if names is not None else [replace(s, kept=None) for s in states])

    async def page(
        self, prefix: str, after: str, most: int, *, bare: bool = False
    ) -> tuple[State, ...]:
        with self._alone():
            behind = (name for name in self._locks if name > after and name.startswith(prefix))
            chosen = sorted(behind)[:most]
            return tuple(replace(self._lock(name).state(), kept=None) for name in chosen)

    async def prune(self, after: str, idle: float, most: int) -> tuple[str | None, int]:
        with self._alone():
            chosen = sorted(name for name in self._locks if name > after)[:most]
            before = self._utc_us() - int(idle * 1e6)
            old = [name for name in chosen if self._lock(name).idle(before)]
            for name in old:
                del self._locks[name]
        return (chosen[-1] if chosen else None), len(old)

    async def order(self, order: Order) -> State | None:
        with self._alone():
            known = order.name in self._locks
            lock = self._lock(order.name)
            before = lock.order(order)
            calls = lock.calls
        self._wake(calls)
        return before if known else None

    async def ground(self) -> tuple[str, ...]:
        return (
            "in the memory of this process: threads and tasks exclude each other, processes do not",
            "leases run by this machine's clock that counts suspend; tokens are not behind its UTC",
            "nothing survives the process: a token of an earlier run is smaller by its UTC alone",
        )

    # ---- the wakeups

    def listen(self, nonce: str, wake: Callable[[], object]) -> str:
        self._wakes[nonce] = wake
        return nonce

    def forget(self, nonce: str) -> None:
        self._wakes.pop(nonce, None)


_named: dict[str, Memory] = {}


def named(name: str) -> Memory:
    """The store of this name in this process."""
    found = _named.get(name)
    if found is None:
        found = _named.setdefault(name, Memory())
    return found
