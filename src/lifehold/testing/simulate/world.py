"""True time, and everything that happens in it, in one order.

Promise: what happens is a function of the seed and the scenario alone. Nothing here reads a clock,
starts a thread or looks at the order of a set; the log of a run has one line for each event, and
its digest is equal whenever the run is.
Rule: one heap of appointments by (time, number). The coroutines of the library are driven from it:
who waits is a `PendingEvent`, and goes on when somebody sets it.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

LAST = 400  # lines that are remembered
Call = tuple[float, int, Any]


class ProcessGone(BaseException):
    """The process of this coroutine is no more: it ends, and nothing that it does has an effect."""


class TaskCancelled(BaseException):
    """The task is cancelled, as an event loop does it."""


class PendingEvent:
    """What a coroutine waits for. Set once; later settings are nothing."""

    __slots__ = ("done", "error", "resume", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: object = None
        self.error: BaseException | None = None
        self.resume: Callable[[], None] | None = None

    def set(self, value: object = None, error: BaseException | None = None) -> None:
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        if self.resume is not None:
            self.resume()

    def __await__(self) -> Generator[PendingEvent, None, Any]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class SimulatedTask:
    """A coroutine of the library under way. `run(call)` is how its node lets it go on.

    `awaited`: whoever awaits `done` gets its errors; else an error is one of the library or of the
    simulator, and ends the run.
    """

    __slots__ = ("_awaited", "_due", "_ended", "_run", "cancels", "coro", "done", "waits")

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        run: Callable[[Any], None],
        ended: Callable[[], object],
        awaited: bool,
    ) -> None:
        self.coro, self._run, self._ended, self._awaited = coro, run, ended, awaited
        self.done = PendingEvent()
        self.cancels = False
        self.waits: PendingEvent | None = None
        self._due = False

    def start(self) -> SimulatedTask:
        self._step()
        return self

    def _step(self) -> None:
        self._due = False
        if self.done.done:
            return
        self.waits = None
        try:
            if self.cancels:
                self.cancels = False
                waits = self.coro.throw(TaskCancelled())
            else:
                waits = self.coro.send(None)
        except StopIteration as end:
            self._ended()
            self.done.set(end.value)
        except (ProcessGone, TaskCancelled) as end:
            self._ended()
            self.done.set(None, end)
        except Exception as error:
            if not self._awaited:
                raise
            self._ended()
            self.done.set(None, error)
        else:
            self.waits = waits
            waits.resume = self._goes_on
            if waits.done:
                self._goes_on()

    def _goes_on(self) -> None:
        if not self._due:
            self._due = True
            self._run(self._step)

    def cancel(self) -> None:
        """As an event loop does it: at the place where it waits."""
        if not self.done.done and self.waits is not None:
            self.cancels = True
            self.waits.resume = None
            self._goes_on()

    def kill(self) -> None:
        """As kill -9 does it: nothing that is left of it may have an effect any more."""
        if self.done.done:
            return
        self.done.done = True
        if self.waits is not None:
            self.waits.resume = None
        try:
            self.coro.throw(ProcessGone())
        except (ProcessGone, StopIteration):
            return
        raise AssertionError("a coroutine lives on after its process has gone")


class SimulatedWorld:
    """One run: its time, its appointments, its chance, its log."""

    def __init__(self, seed: int, *, keep: bool = False) -> None:
        self.seed, self.now = seed, 0.0
        self._heap: list[Call] = []
        self._number = 0
        self._digest = blake2b(digest_size=16)
        self.events = 0
        self.lines: deque[str] = deque(maxlen=None if keep else LAST)

    def chance(self, of: str) -> Random:
        """A source of chance of its own for each purpose, so that one does not move the others."""
        return Random(f"{self.seed}/{of}")

    def at(self, instant: float, call: Callable[[], None]) -> Call:
        """`call()` at that instant."""
        self._number += 1
        entry = (max(instant, self.now), self._number, call)
        heappush(self._heap, entry)
        return entry

    def after(self, seconds: float, call: Callable[[], None]) -> Call:
        return self.at(self.now + seconds, call)

    def log(self, text: str) -> None:
        line = f"{self.now:.6f} {text}"
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        self.lines.append(line)

    @property
    def digest(self) -> str:
        """Equal for two runs whose logs are equal."""
        return self._digest.hexdigest()

    def run(self, until: float) -> None:
        """Everything that is due up to that instant."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call = heappop(heap)
            self.events += 1
            call()
        self.now = max(self.now, until)
