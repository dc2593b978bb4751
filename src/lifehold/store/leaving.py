"""How a lock of a store asks, and how a wait for it ends without the lock.

L6  Whoever goes lets go of whatever its mark has by then, and of what it may be given later: a
    place in line is a wish that the store may grant at any instant.
"""

from __future__ import annotations

from ..core.grant import Held, Unknown
from ..core.storage import NoReply, Unreachable
from ..runtime.blocking import BLOCKING, finish
from .known import Known
from .site import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ..core.storage import Backend
    from .turn import Turn

FAILURES = (Unreachable, NoReply)


class Leaving(Known):
    """The part of a store's lock that goes away: under `Ending`, and so under `StoreLock`."""

    async def _send(
        self, make: Callable[[Backend], Coroutine[Any, Any, Any]],
        undo: Callable[[Any], None] = lambda _: None,
    ) -> Any:  # fmt: skip
        """One round trip: awaited where the client can be, else by a thread that may block.

        Who is cancelled goes at once, and what comes late is undone; only a store in this very
        machine, which answers soon, is waited for.
        """
        swift = self.site.swift(self.runtime)
        if swift is not None:
            return await make(swift)
        backend = self.site.backend
        if getattr(backend, "prompt", False):
            return await make(backend)
        errand = self.runtime.in_thread(lambda: finish(make(backend)), undo)
        if getattr(backend, "brief", False):
            return await self.runtime.shield(errand)
        return await errand

    def _disown(self, turn: Turn) -> None:
        """Nobody waits here any more. What the store gives all the same is given back."""
        if not turn.ours:
            self.site.rings.forget(turn.mark)
            return
        self.site.disown(
            turn.mark,
            lambda: self.site.post(lambda b: b.release(self.name, turn.mark), here=False),
        )

    def _unwanted(self, turn: Turn) -> None:
        """The answer came for a caller who has gone: no grant, and no place in line, is left."""
        self.site.post(lambda backend: backend.release(self.name, turn.mark), here=True)

    async def _abandon(self, turn: Turn) -> None:
        """Let go of whatever the mark has. A far store is not waited for."""
        turn.stands = False
        self._disown(turn)
        try:
            if self.site.near and turn.ours:
                await self.runtime.shield(self._send(lambda b: b.release(self.name, turn.mark)))
            elif turn.ours:
                self.site.post(lambda backend: backend.release(self.name, turn.mark), here=False)
        except FAILURES:
            pass  # what may be there runs out by itself

    async def _undone(self, turn: Turn, error: Exception, until: float) -> Unknown | None:
        """L6  Nobody can say whether it is ours: let it be nobody's, or say that too is unknown.

        The caller waits for that until an instant; then it goes on behind.
        """
        try:
            if self.now() >= until:
                raise error
            await self._send(lambda backend: within(backend, until).release(self.name, turn.mark))
        except FAILURES:
            self.site.undo(self.name, turn.mark, self.terms.ttl)
            return Unknown(turn.mark, error)
        turn.doubt = False
        return None

    def _left(self, turn: Turn) -> None:
        """The place in line is given up. The caller does not wait for the store to note it."""
        self._disown(turn)
        here = self.runtime is BLOCKING
        self.site.post(lambda backend: backend.release(self.name, turn.mark), here=here)

    def _undo_behind(self, turn: Turn) -> Turn:
        """L6  The time is up: what the mark may have is given back behind the caller.

        It goes on with a new turn, which knows of the old one.
        """
        self.site.undo(self.name, turn.mark, self.terms.ttl)
        fresh = self.site.turn()
        fresh.doubted = turn.mark
        return fresh

    async def _too_late(self, turn: Turn, deadline: float) -> Held | Unknown:
        """The patience is over: the place in line is given up before that is said."""
        turn.stands = False
        self._disown(turn)
        try:
            if turn.ours:
                until = min(deadline, self.now()) + self.site.limit
                await self._send(
                    lambda backend: within(backend, until).release(self.name, turn.mark)
                )
        except FAILURES as error:
            self.site.undo(self.name, turn.mark, self.terms.ttl)
            if turn.doubt or turn.came is not None:
                return Unknown(turn.mark, error)
            # else it is a place in line alone, and dies by itself
        return Held(key=self.path)
