"""What is asked of a session for a lock, and what can be asked of the lock without getting in."""

from __future__ import annotations

import errno

from ...core import events
from ...core.acquire import Ask
from ...core.errors import StoreUnavailable, SystemRefused
from ...core.grant import Holder
from ...core.storage import NoReply, Unreachable
from ...runtime import clock
from ...runtime.blocking import BLOCKING, finish
from ..known import AWAY, FRESH
from ..leaving import FAILURES
from ..site import by_whom
from . import session_sql as sql
from .open import psycopg
from .session_holders import Seen, question, read, written
from .words import place, said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.deadline import Terms
    from ...core.ports import Runtime
    from ..site import Site
    from .session_key import Key
    from .session_open import Sessions
    from .session_wire import Question, Session

AUDIT = """INSERT INTO lifehold_audit (verb, name, reason, by, token, before)
    VALUES ('break', %s, %s, %s, %s, %s)"""


class SessionLook:
    """The half of a session lock that asks and looks. `SessionLock` (session.py) is the other."""

    site: Site
    terms: Terms
    sessions: Sessions
    number: Key
    name: str
    path: str
    label: str
    standing: set[int]
    seen: tuple[Seen, float] | None

    def text(self, session: Session, mark: str, *, wait: bool) -> str:
        """What takes the lock: at once or never, or with a place in the server's line."""
        first, *more = self.number.numbers
        if not session.tabled:
            call = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
            return sql.ASK_BARE.format(call=f"{call}({self._arguments()})")
        owner = written(self.site.owner(self.label))
        second = more[0] if more else None
        return bound(
            session, sql.ASK, (self.number.text, first, second, self.name, mark, owner, wait)
        )

    def _arguments(self) -> str:
        kind = "bigint" if len(self.number.numbers) == 1 else "integer"
        return ", ".join(f"'{number}'::{kind}" for number in self.number.numbers)

    def unlock_of(self) -> str:
        """What lets go of it, and says whether it was held."""
        return f"SELECT pg_advisory_unlock({self._arguments()})"

    def beat_of(self, session: Session) -> str:
        """What shows that it is held."""
        ours = sql.OURS.format(*self.number.in_pg_locks)
        return sql.BEAT.format(pid=session.pid, ours=ours)

    # ---- asking a session

    async def opened(self, runtime: Runtime) -> Session:
        """A session of nobody's. Raises Unreachable, UnsafeGround."""
        found = self.sessions.idle(self.terms.ttl)
        if found is not None:
            return found
        made: Session = await runtime.in_thread(
            lambda: self.sessions.opened(self.terms.ttl),
            lambda late: late.end("nobody is left to take it"),
        )
        return made

    async def exchange(self, runtime: Runtime, session: Session, text: str) -> Question:
        """Ask, and wait for the answer. Raises NoReply, which ends the session, or Unreachable."""
        until = runtime.now() + self.sessions.limit
        while True:
            question = session.ask(text)  # behind a beat that is under way
            await runtime.rung(Ask(""), question, until)
            if not question.over:
                session.end(f"no answer within {self.sessions.limit:g} s")
            if question.text == text or session.dead is not None:
                self.answered(question)
                return question

    def answered(self, question: Question) -> None:
        """Raises Unreachable for a refusal of the server, NoReply where it gave no answer."""
        known = self.sessions.plan.known
        if question.state:
            raise Unreachable(said(question.refused, known))
        if question.error:
            raise NoReply(f"{place(known)}: {question.error}")

    # ---- looking

    def look(self) -> Seen:
        """Who holds it, and who waits, now. By the calling thread. Raises StoreUnavailable."""
        (answer,) = self._ask(
            lambda session: question(self.number, session.tabled).replace("{at}", "")
        )
        all_keys = read(str(answer), lambda _: self.path, self.sessions.plan.known)
        found = all_keys.get(self.number.text, Seen(self.name))
        self.seen = found, clock.now()
        return found

    def _ask(self, make: Any) -> tuple[Any, ...]:
        """One row, over a session of nobody's."""
        try:
            for again in (True, False):
                session = finish(self.opened(BLOCKING))
                try:
                    rows = finish(self.exchange(BLOCKING, session, make(session))).rows
                except BaseException as error:
                    session.end("it was left")
                    if again and isinstance(error, FAILURES):
                        continue  # it was open already, and the server was restarted
                    raise
                self.sessions.back(session)
                return rows[0] if rows else ()
        except FAILURES as error:
            raise self.site.unavailable(error, self.name) from error
        raise AssertionError

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who holds it, None for nobody."""
        try:
            found = self.look()
        except StoreUnavailable as error:
            if not held:
                raise
            return Holder(evidence=AWAY.format(error), lock=self.path)
        return found.holders[0] if found.holders else None

    def waiters(self) -> int | None:
        """How many wait: before us, if we do."""
        seen = self.seen
        try:
            fresh = seen is not None and clock.now() - seen[1] < FRESH
            line = seen[0].line if seen is not None and fresh else self.look().line
        except StoreUnavailable:
            return None
        ours = [at for at, pid in enumerate(line) if pid in self.standing]
        return ours[0] if ours else len(line)

    def taken(self) -> bool:
        """Whether anybody holds it."""
        return bool(self.look().holders)

    def break_(self, reason: str) -> Holder | None:
        """End the session that holds it, whose holder is told at once; who that was.

        Raises SystemRefused where our role may not: it takes the same role, or pg_signal_backend.
        """
        found = self.look()
        if not found.holders:
            return None
        try:
            self._ask(lambda _: sql.END.format(ours=sql.OURS.format(*self.number.in_pg_locks)))
        except StoreUnavailable as error:
            raise SystemRefused(
                f"{self.path!r} could not be broken: {error}", name=self.name, errno=errno.EPERM,
                filename=self.path,
            ) from error  # fmt: skip
        until = clock.now() + self.sessions.limit
        while set(self.look().pids) & set(found.pids) and clock.now() < until:
            clock.pause(0.005)
        holder = found.holders[0]
        self._note(holder, reason)
        events.tell(events.Broken(self.path, holder, reason))
        return holder

    def _note(self, holder: Holder, reason: str) -> None:
        given = (self.name, reason, by_whom(), holder.token, repr(holder))
        try:
            self._ask(lambda session: bound(session, AUDIT, given))
        except StoreUnavailable:
            return  # no table of ours is here


def bound(session: Session, text: str, given: tuple[Any, ...]) -> str:
    """A statement with its values in it."""
    cursor = psycopg().ClientCursor(session.connection)
    return cursor.mogrify(text, given)  # type: ignore[no-any-return]
