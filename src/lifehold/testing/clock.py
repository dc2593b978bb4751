"""A clock that jumps: an hour of waiting takes milliseconds and no second of luck.

Promise: time passes only where somebody waits for it, and then it jumps to the next appointment.
What is due comes in its order, in the waiting thread. One thread at a time: play the others by
`at`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.acquire import look
from ..local.files import HOST, LOCK_NB, Files

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ..core.acquire import Ask

    T = TypeVar("T")


class _Armed:
    """The place of one who waits for a change."""

    def leave(self) -> bool:
        return False

    def undo(self) -> None:
        """Nothing is held."""


class VirtualRuntime:
    """A `Runtime` (core/ports.py) with time of its own, for the blocking face.

    Use it under a face (`class Patient(Lock): _runtime = VirtualRuntime()`) or below it, with
    `finish(acquire(mechanism, runtime, ask))`. `max_hold` and `lease.remaining()` keep to the real
    clock.
    """

    def __init__(self, start: float = 1_000_000.0, files: Files = HOST) -> None:
        self._now, self._files = start, files
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def now(self) -> float:
        return self._now

    def at(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        """`call()` when time has come to `instant`; the answer strikes it out."""
        entry = (max(instant, self._now), next(self._number), call)
        heappush(self._due, entry)

        def strike() -> None:
            if entry in self._due:
                self._due.remove(entry)
                self._due.sort()

        return strike

    def after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """`call()` when `seconds` have passed."""
        return self.at(self._now + seconds, call)

    def step(self, until: float) -> bool:
        """Jump to the next appointment and keep it; to `until` and False when none comes before."""
        if not self._due or self._due[0][0] > until:
            self._now = max(self._now, until)
            return False
        self._now, _, call = heappop(self._due)
        call()
        return True

    async def sleep(self, seconds: float) -> None:
        until = self._now + seconds
        while self.step(until):
            pass

    async def block(self, ask: Ask, slot: Any, operation: int, until: float) -> bool:
        """flock(2), tried again whenever something has happened."""
        while True:
            try:
                self._files.flock(slot.fd, operation | LOCK_NB)
            except BlockingIOError:
                if ask.cancelled or not self.step(until):
                    return False
            else:
                return True

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        """Arm at first; then keep one appointment, since anything may have happened in it."""
        if ask.place is None:
            ask.place = _Armed()
        elif not ask.cancelled:
            self.step(until)

    async def rung(self, ask: Ask, place: Any, until: float) -> None:
        """Keep one appointment, since somebody may ring in it."""
        if not place.rung and not ask.cancelled:
            self.step(until)
        place.rung = False

    async def look(self, mechanism: Any) -> Any:
        return await self.in_thread(lambda: look(mechanism), lambda _: None)

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        return call()

    async def shield(self, work: Coroutine[object, None, T]) -> T:
        return await work
