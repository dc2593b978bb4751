"""One machine: its clock, its pauses, its death; and the runtime that it gives to the library.

Promise: while it is paused none of its coroutines runs, and time goes on; what was due comes when
it wakes, in its order. Its clock runs at its own rate, and in a stopped virtual machine it stands
still. What a crashed process had begun has no effect any more, but what it had sent is under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ...core.acquire import look
from .world import PendingEvent, ProcessGone, SimulatedTask, TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from ...core.acquire import Ask
    from .world import SimulatedWorld

    T = TypeVar("T")

LATE = 1e-6  # seconds by which an alarm comes after its time, as on every machine
FOREVER = 1e12


class NodeProcess:
    """One process of a node, from its start to its crash."""

    __slots__ = ("alive", "tasks")

    def __init__(self) -> None:
        self.alive = True
        self.tasks: dict[int, SimulatedTask] = {}


class Node:
    """`rate`: seconds of its clock in a second; `skew`: by which its clock is set wrong."""

    def __init__(
        self, world: SimulatedWorld, name: str, rate: float = 1.0, skew: float = 0.0
    ) -> None:
        self.world, self.name, self.rate, self.skew = world, name, rate, skew
        self.chance: Random = world.chance(name)
        self.life = NodeProcess()
        self.pauses = self.stops = self.cuts_out = self.cuts_in = 0
        self._stopped_at = self._lost = 0.0
        self._queue: list[tuple[NodeProcess, Callable[[], None]]] = []
        self._count = 0
        self.troubles = 0  # faults so far: who had one meanwhile may be overtaken

    # ---- its clock

    def now(self) -> float:
        """Its own clock."""
        at = self._stopped_at if self.stops else self.world.now
        return 1_000_000.0 + self.skew + self.rate * (at - self._lost)

    def stop_clock(self) -> None:
        if not self.stops:
            self._stopped_at = self.world.now
        self.stops += 1

    def start_clock(self) -> None:
        self.stops -= 1
        if not self.stops:
            self._lost += self.world.now - self._stopped_at

    def alarm(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        """`call()` when its clock has come to `instant`, and it runs. The answer strikes it out."""
        if instant > FOREVER:
            return _nothing
        life, struck = self.life, [False]

        def due() -> None:
            if struck[0] or not life.alive:
                return
            if self.now() < instant:
                arm()  # its clock stood still meanwhile
            else:
                call()

        def arm() -> None:
            left = max(0.0, instant - self.now()) / self.rate
            self.world.after(left + LATE, lambda: self.run(due))

        def strike() -> None:
            struck[0] = True

        arm()
        return strike

    # ---- its coroutines

    def run(self, call: Callable[[], None]) -> None:
        """Now, or when it wakes; never, when its process has died meanwhile."""
        if self.pauses:
            self._queue.append((self.life, call))
        elif self.life.alive:
            call()

    def spawn(self, coro: Coroutine[Any, None, object], *, awaited: bool = False) -> SimulatedTask:
        """A task of its present process."""
        life = self.life
        self._count += 1
        number = self._count

        def run(step: Callable[[], None]) -> None:
            if life.alive:
                self.run(step)

        task = life.tasks[number] = SimulatedTask(
            coro, run, lambda: life.tasks.pop(number, None), awaited
        )
        return task.start()

    def pause(self) -> None:
        self.pauses += 1

    def wake(self) -> None:
        self.pauses -= 1
        while self._queue and not self.pauses:
            life, call = self._queue.pop(0)
            if life.alive:
                call()

    def crash(self) -> None:
        """Its process ends; the next one is another life."""
        life, self.life = self.life, NodeProcess()
        self.life.alive = False
        life.alive = False
        for task in list(life.tasks.values()):
            task.kill()
        life.tasks.clear()

    def restart(self) -> None:
        self.life = NodeProcess()


class NodeRuntime:
    """The Runtime (core/ports.py) of a node: the same calls, in virtual time."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.now = node.now
        self.at = node.alarm

    async def sleep(self, seconds: float) -> None:
        self._live()
        waits = PendingEvent()
        self.node.alarm(self.now() + seconds, waits.set)
        await waits

    async def rung(self, ask: Ask, place: Any, until: float) -> None:
        self._live()
        event = PendingEvent()
        place.ring = event.set
        if not place.rung and not ask.cancelled and until > self.now():
            strike = self.node.alarm(until, event.set)
            try:
                await event
            finally:
                strike()
        place.rung = False

    async def look(self, mechanism: Any) -> object:
        return await self.in_thread(lambda: look(mechanism), lambda _: None)

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        """At once: what is called this way in a store is a look for people."""
        return call()

    async def shield(self, work: Coroutine[object, None, T]) -> T:
        if not self.node.life.alive:
            work.close()
            raise ProcessGone
        task = self.node.spawn(work, awaited=True)
        cancelled: list[TaskCancelled] = []
        while not task.done.done:
            try:
                await task.done
            except TaskCancelled as error:  # ours, or that of the work itself
                cancelled.append(error)
        for each in cancelled:
            raise each
        return await task.done  # type: ignore[no-any-return]

    def _live(self) -> None:
        if not self.node.life.alive:
            raise ProcessGone

    async def block(self, ask: Ask, slot: object, operation: int, until: float) -> bool:
        raise RuntimeError("there are no files in a simulated store")

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        raise RuntimeError("there are no files in a simulated store")


def _nothing() -> None:
    """No alarm was set."""
