"""The asynchronous client: a Link of its own for each event loop of asyncio.

Promise: a task that asks the store suspends, and no thread is needed for it; connections are closed
with their loop. Under trio, which psycopg does not know, a helper thread asks (engine.py).
"""

from __future__ import annotations

from ...runtime import fork
from ...runtime.eventloop import EVENT_LOOP, Signal, running_trio
from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import Any

    from .open import Plan


class Bell(Signal):
    """What a task waits for."""


def one_loop(backend: Any) -> Callable[[Any], Any]:
    """`swift` over a pool that belongs to the event loop that uses it first."""
    owner: list[Any] = []

    def swift(runtime: Any) -> Any:
        if runtime is not EVENT_LOOP or running_trio() is not None:
            return None
        asyncio: Any = fork.lazily("asyncio")
        loop = asyncio.get_running_loop()
        if not owner:
            owner.append(loop)
        return backend if owner[0] is loop else None

    return swift


class Loops:
    """The backends by event loop."""

    def __init__(
        self, plan: Plan, beats: Link, bells: Any, most: int, make: Callable[..., Any]
    ) -> None:
        self._plan, self._beats, self._bells, self._most = plan, beats, bells, most
        self._make = make
        self._known: dict[Any, tuple[Any, Link]] = {}
        self._generation = fork.here()

    def swift(self, runtime: Any) -> Any:
        """The backend that the running event loop can await, None where there is none."""
        if runtime is not EVENT_LOOP or running_trio() is not None:
            return None
        if self._generation != fork.here():
            self._known, self._generation = {}, fork.here()
        asyncio: Any = fork.lazily("asyncio")
        loop = asyncio.get_running_loop()
        found = self._known.get(loop)
        return found[0] if found is not None else self._new(loop)

    def _new(self, loop: Any) -> Any:
        for other in [known for known in self._known if known.is_closed()]:
            self._known.pop(other)[1].close()
        guard: list[Any] = []

        async def connect(until: float) -> Any:
            if not guard:  # closed by loop.shutdown_asyncgens(), as asyncio.run does at its end
                guard.append(self._until_the_end(loop))
                await guard[0].__anext__()
            return await self._plan.connect("AsyncConnection", until)

        link = Link(connect, Bell, self._plan, self._most)
        backend = self._make(self._plan, link, self._beats, self._bells)
        self._known[loop] = backend, link
        return backend

    def close(self) -> None:
        """Close what is idle, of every loop."""
        for _, link in list(self._known.values()):
            link.close()

    async def _until_the_end(self, loop: Any) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            found = self._known.pop(loop, None)
            if found is not None:
                found[1].close()
