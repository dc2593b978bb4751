"""A place in the server's line for a session lock, kept from one call of `wait` to the next.

Promise: who leaves the line leaves nothing there: the statement is cancelled, and the session is
closed unless it has said that it was. A grant that met the leaving goes with its session (L6). Who
gives up waits for that; a task that is cancelled does not.
"""

from __future__ import annotations

import os

from ...core.acquire import Ask
from ...core.backoff import Backoff
from ...core.storage import NoReply
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import BLOCKING, finish
from .session_sql import CLEAN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .session import SessionLock
    from .session_wire import Question, Session

AGAIN = Backoff(0.05, 2.0)  # seconds between two tries while the server does not answer
CANCELS = Backoff(0.02, 1.0)  # seconds between two: one that comes before its statement is ignored
PATIENCE = 3.0  # seconds that a cancel may take, before the session is closed without
CANCELLED = "57014"


class Stand:
    """`question`: the statement that waits at the server; None while the server is away."""

    __slots__ = (
        "_generation", "error", "lock", "look_at", "mark", "question", "ring", "rung", "session",
        "tries",
    )  # fmt: skip

    def __init__(self, lock: SessionLock) -> None:
        self.lock, self.mark = lock, os.urandom(8).hex()
        self._generation = fork.here()
        self.session: Session | None = None
        self.question: Question | None = None
        self.error: Exception | None = None
        self.look_at = 0.0
        self.rung = False
        self.ring: Callable[[], object] = _nobody
        self.tries: Any = None

    @property
    def ours(self) -> bool:
        """L9  Whether it is of this process, not of one that forked in the middle of the wait."""
        return self._generation == fork.here()

    def failed(self, error: Exception) -> None:
        """The server gave no answer, or refused: try again in a while."""
        self._off()
        self.error = error
        if self.tries is None:
            self.tries = AGAIN.pauses()
        self.look_at = clock.now() + next(self.tries)

    def _off(self) -> None:
        session, self.session, self.question = self.session, None, None
        if session is not None:
            self.lock.standing.discard(session.pid)
            session.end("it was left")

    def leave(self) -> bool:
        """Give the place up. Never True: a grant comes as the answer to a question alone."""
        session = self.session
        if session is None or not self.ours:
            return False
        if self.lock.runtime is not BLOCKING:
            self.session = None
            heartbeat.apart(lambda: self.quit(session))
            return False
        try:
            self.quit(session)
        except BaseException:
            self._off()
            raise
        self.session = None
        return False

    def undo(self) -> None:
        """Nothing came that is not in a hand."""

    def quit(self, session: Session) -> None:
        """Take it out of the line. By a thread that may block."""
        self.lock.standing.discard(session.pid)
        question, sent = session.asked, 0
        until = clock.now() + min(PATIENCE, self.lock.sessions.limit)
        pauses = CANCELS.pauses()
        while question is not None and not question.over and (left := until - clock.now()) > 0:
            try:
                session.connection.cancel_safe(timeout=left)
            except Exception as error:
                if not hasattr(error, "sqlstate"):
                    raise
            sent += 1
            finish(BLOCKING.rung(Ask(""), question, clock.now() + next(pauses)))
        # A second cancel may be on its way still, and would meet the next question.
        if question is not None and question.state == CANCELLED and sent == 1 and _free(session):
            self.lock.sessions.back(session)
        else:
            session.end("it has left the line")


def _free(session: Session) -> bool:
    """L6  Who was cancelled just behind the lock has it still: an error does not undo that."""
    try:
        question = session.ask(CLEAN)
    except NoReply:
        return False
    finish(BLOCKING.rung(Ask(""), question, clock.now() + PATIENCE))
    return question.over and not question.error


def _nobody() -> None:
    """In place of a bell while nobody sleeps."""
