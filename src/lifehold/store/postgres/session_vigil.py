"""Who watches over a session lock that is held: its beats, its end, and its fuse.

Promise: a loss that the session tells is told to the holder at once. A lock whose beats get no
answer is lost at its deadline, and its session is closed when its ttl is over, not before: so
others come in after the holder was told (L8), and no later than if it had died.
"""

from __future__ import annotations

from ...core.renew import beat
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import BLOCKING, finish
from ..claim import Claim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...runtime.renewal import Kept
    from .session_wire import Session


class SessionClaim(Claim):
    """A grant in hand: as long as its session is open."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session
        super().__init__(None, "", session.generation)

    def _let_go(self, here: bool) -> None:
        session = self.session
        session.on_end = None
        if here:
            session.end("it was let go of")
        else:
            heartbeat.apart(lambda: session.end("nobody has it in hand any more"))

    @property
    def fd(self) -> int:
        """The socket. Whoever has a copy keeps the session, and so the lock."""
        return int(self.session.fd)


class Vigil:
    """In place of a Joint (runtime/renewal.py): each lock has a session, and beats on it."""

    apart = True

    def __init__(self) -> None:
        self._strikes: dict[Kept, Callable[[], None]] = {}
        fork.in_child(self._strikes.clear)

    def enter(self, mechanism: Any, kept: Kept) -> None:
        """A lock that is to be kept. Raises RuntimeError when there is no thread to be had."""
        session = kept.grant.handle[0].session
        self._burn(kept, session)
        session.on_end = kept.end
        if (why := session.dead) is not None:  # it ended before anybody could be told
            kept.end(why)

    def leave(self, kept: Kept) -> None:
        """It is kept no more."""
        strike = self._strikes.pop(kept, None)
        if strike is not None:
            strike()

    def add(self, mechanism: Any, kept: Kept) -> None:
        """Its beat is due. By the heartbeat thread, which waits for nobody."""
        heartbeat.apart(lambda: kept.again(finish(beat(mechanism, BLOCKING, kept))))

    def _burn(self, kept: Kept, session: Session) -> None:
        """The fuse, which each renewal makes longer."""
        due = kept.deadline + kept.terms.margin
        if clock.now() < due:
            self._strikes[kept] = heartbeat.at(due, lambda: self._burn(kept, session))
        elif kept.grant.handle:
            heartbeat.apart(lambda: session.end("its ttl is over, and no beat was answered"))


VIGIL = Vigil()
