"""One session of PostgreSQL: what it is asked, what it answers, and its end.

Promise: a session that ends is known to have ended as soon as its socket says so, whatever the
program is doing; who has asked a question is woken by its answer, in a thread or a task.
Rule: only `hear` reads. The ear calls it (runtime/socket_thread.py), and whoever wants to know now,
each under the session's mutex. So no answer is lost between a beat, a look and a release.

How it could fail. A server that is silent says nothing here: whoever asks gives up by the clock,
and closes (`end`). A socket closed by other code is found by the next read. A fork: the child
closes its copies (link.py, L9).
"""

from __future__ import annotations

import _thread

from ...core.storage import NoReply
from ...runtime import clock, fork, heartbeat, socket_thread
from .link import drop
from .wire import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TUPLES, DONE = 2, 1  # PGRES_TUPLES_OK, PGRES_COMMAND_OK
FATAL = ("FATAL", "PANIC")
ENDED = "the server ended its session"
OF_PARENT = "its session is the parent process's"


class Question:
    """What was asked of a session. A place for `Runtime.rung`; any number may wait for it.

    `rows` of the last statement when it was answered; `error` when it was `refused` or is lost;
    `state`: the SQLSTATE of a refusal, "" where the session has ended.
    """

    __slots__ = (
        "_rings", "error", "heard", "over", "refused", "rows", "sent_at", "state", "text",
    )  # fmt: skip

    def __init__(self, text: str) -> None:
        self.text = text
        self.sent_at = clock.now()  # L8  before it is sent
        self.heard = self.over = False
        self.rows: list[tuple[str | None, ...]] = []
        self.error, self.state = "", ""
        self.refused: Failed | None = None
        self._rings: list[Callable[[], object]] = []

    @property
    def rung(self) -> bool:
        return self.over

    @rung.setter
    def rung(self, _: bool) -> None:
        """An answer stays an answer."""

    @property
    def ring(self) -> Callable[[], object]:
        return self.tell

    @ring.setter
    def ring(self, ring: Callable[[], object]) -> None:
        self._rings.append(ring)

    def tell(self) -> None:
        """Wake all who wait."""
        for ring in self._rings:
            ring()

    def add(self, result: Any) -> None:
        """One result of several."""
        self.heard = True
        if result.status == TUPLES:
            self.rows = [
                tuple(_text(result.get_value(row, at)) for at in range(result.nfields))
                for row in range(result.ntuples)
            ]
        elif result.status != DONE:
            self.refused = Failed(result)
            self.state = self.refused.sqlstate or "XX000"
            self.error = self.refused.message_primary or "the server refused"
            if self.refused.severity_nonlocalized in FATAL:
                self.state, self.error = "", f"{ENDED}: {self.error}"


def _text(given: bytes | None) -> str | None:
    return None if given is None else given.decode("utf-8", "replace")


def readable(fd: int) -> bool:
    """Whether something has come. Several threads may ask at once."""
    select: Any = fork.lazily("select")
    if not hasattr(select, "poll"):
        return bool(select.select([fd], [], [], 0)[0])
    looks = select.poll()
    looks.register(fd, select.POLLIN)
    return bool(looks.poll(0))


class Session:
    """A connection that is ours alone. `pid`: of the server's process; `tabled`: it has the table.

    `ttl`: seconds after which the server gives it up when our side is silent; `dead`: why it has
    ended; `on_end(reason)`: called once when that was not our doing.
    """

    __slots__ = (
        "asked", "connection", "dead", "fd", "generation", "last_words", "mutex", "on_end", "pid",
        "tabled", "ttl",
    )  # fmt: skip

    def __init__(self, connection: Any, pid: int, ttl: float, tabled: bool) -> None:
        self.connection = connection
        self.pid, self.ttl, self.tabled = pid, ttl, tabled
        self.mutex = _thread.RLock()
        self.asked: Question | None = None
        self.dead: str | None = None
        self.last_words = ""
        self.on_end: Callable[[str], None] | None = None
        self.fd, self.generation = connection.fileno(), fork.here()
        connection.add_notice_handler(self._note)

    def ask(self, text: str) -> Question:
        """Send it; or the question that is open still, whatever it is. Raises NoReply."""
        if self.generation != fork.here():
            raise NoReply(OF_PARENT)
        with self.mutex:
            if self.dead is not None:
                raise NoReply(self.dead)
            if self.asked is not None:
                return self.asked
            self.asked = question = Question(text)
            try:
                self.connection.pgconn.send_query(text.encode())
                self.connection.pgconn.flush()
                return question
            except Exception as error:
                if not hasattr(error, "sqlstate"):
                    raise
                why = self._why(error)
        self.end(why, ours=False)
        raise NoReply(why)

    def hear(self) -> None:
        """Take in what has come. Never waits."""
        told, why = None, None
        with self.mutex:
            if self.dead is not None:
                return
            try:
                told = self._heard()
            except Exception as error:
                if not hasattr(error, "sqlstate"):
                    raise
                why = self._why(error)
            else:
                why = self.last_words or None  # FATAL: the end of the socket comes next
        if told is not None:
            told.tell()
        if why is not None:
            self.end(why, ours=False)

    def _heard(self) -> Question | None:
        """The question that is answered now."""
        wire = self.connection.pgconn
        wire.flush()
        wire.consume_input()
        question = self.asked
        while not wire.is_busy():
            result = wire.get_result()
            if result is None:
                if question is None or not question.heard:
                    return None
                self.asked, question.over = None, True
                return question
            if question is not None:
                question.add(result)
                if question.error and not question.state:
                    self.last_words = question.error
        return None

    def look(self) -> str | None:
        """Why it has ended, None as far as its socket tells now. One poll(2)."""
        if self.dead is None and readable(self.fd):
            self.hear()
        return self.dead

    def end(self, reason: str, *, ours: bool = True) -> None:
        """Close it: the server lets go of all it had. L9  Not in a child, whose it is not."""
        if self.generation != fork.here():
            return
        with self.mutex:
            if self.dead is not None:
                return
            self.dead = reason
            question, self.asked = self.asked, None
            told, self.on_end = self.on_end, None
            socket_thread.forget(self)
            drop(self.connection)
        if question is not None:
            question.state, question.error, question.over = "", reason, True
            question.tell()
        if told is not None and not ours:
            tell = told  # apart, since callbacks of the program may take their time
            heartbeat.apart(lambda: tell(reason))

    def _note(self, diagnosis: Any) -> None:
        if (diagnosis.severity_nonlocalized or diagnosis.severity) in FATAL:
            self.last_words = f"{ENDED}: {diagnosis.message_primary}"

    def _why(self, error: Exception) -> str:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return self.last_words or f"its session has ended: {lines[0]}"
