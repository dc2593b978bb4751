"""`kind="session"`: a lock that lives exactly as long as a session of PostgreSQL.

Promise: the server's advisory lock excludes, also those who take it without us. It is free as soon
as the server sees the session end: at the death of its process at once. Who loses its session is
told at once when the socket says so, and at its deadline when nothing answers any more; the server
gives a silent session up later than that. Who waits stands in the server's own line.

How it could fail, and what keeps it.
- The server, or an operator, ends the session: the ear hears it (session_wire.py), and `check()`
  looks at the socket itself.
- The network is cut without a word: a beat goes over the session every `heartbeat`, and an answer
  counts from when its question was sent (L8). At the deadline it is lost, at `ttl` closed; the
  server's own limits, set with the session, come no sooner (session_open.py).
- A paused holder: its kernel goes on answering for it, so nobody else comes in. When it wakes after
  its deadline it is told that the lock is lost, and its session is closed. A paused machine is
  given up as with any lease, and then only the token helps.
- An answer that is lost: the session is closed, and whatever it got goes with it. Nothing stays
  held without a hand, and no outcome stays unknown for longer than the session lives (L6).
- Waiting for minutes in one statement would keep its snapshot: vacuum, and a CREATE INDEX
  CONCURRENTLY of the holder, would wait for the waiter, for ever. So it waits in slices.
- Something runs DISCARD ALL or pg_advisory_unlock_all() in our session, or a pooler hands it on:
  a beat asks pg_locks for this very process.
- A fork: the child closes its copies and holds nothing (L9). It may hold a copy on purpose, as CMD
  of `lifehold run`: then the session ends with the last copy.
- A failover: the new primary knows no advisory locks. Who held one is told, since its session ends.
"""

from __future__ import annotations

import os

from ...core.acquire import Ask
from ...core.errors import SystemRefused
from ...core.grant import Grant, Held, Lost, Unknown
from ...core.storage import NoReply, Unreachable
from ...core.value import replace
from ...runtime import fork
from ...runtime.blocking import BLOCKING, finish
from ..ending import FORKED
from ..leaving import FAILURES
from . import session_sql as sql
from .session_key import key_of
from .session_look import SessionLook
from .session_stand import Stand
from .session_vigil import VIGIL, SessionClaim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.deadline import Terms
    from ...core.ports import Runtime
    from ..site import Site
    from .session_wire import Question, Session

OVER = ("55P03", "57014")  # SQLSTATE: a slice is over; somebody has cancelled the statement
ENDING = (0.0, 0.02, 0.1)  # seconds in which the server sees that a session of ours has ended
GONE = "the server does not know it as held by its session any more"


class SessionLock(SessionLook):
    """The mechanism (core/ports.py) of one key. Made once per lock object."""

    kind = "session"
    option = "--kind session "  # of the command that takes the same lock
    remote = True  # an event loop awaits it, and never calls it
    exclusive = True

    def __init__(
        self, site: Site, name: object, runtime: Runtime, terms: Terms, *, label: str = ""
    ) -> None:
        self.site, self.runtime, self.terms, self.label = site, runtime, terms, label
        self.number = key_of(name)
        self.name = self.number.name
        self.path = site.address(self.name)
        self.locked_key = f"{site.url}#{self.number.text}"  # one for all names of it
        self.sessions = site.sessions()
        self.joint = VIGIL
        self.now = runtime.now
        self.standing: set[int] = set()  # processes of the server in which we wait
        self.seen = None

    def far(self) -> bool:
        """Its calls may take their time, as on another machine."""
        return True

    # ---- getting in

    def attempt(self) -> Grant | Held | Unknown:
        """One try, by the calling thread."""
        return finish(self._first(BLOCKING))

    async def try_acquire(self, ask: Ask) -> Grant | Held | Unknown:
        return await self._first(self.runtime)

    async def _first(self, runtime: Runtime) -> Grant | Held | Unknown:
        try:
            return await self._tried(runtime)
        except NoReply:  # a session that was open already, perhaps: the server was restarted
            pass
        except Unreachable as error:
            return self._unmet(error)
        found: Grant | Held = Held()
        for pause in ENDING:
            await runtime.sleep(pause)
            try:
                found = await self._tried(runtime)
            except FAILURES as error:
                return self._unmet(error)
            if isinstance(found, Grant):
                break
        return found

    def _unmet(self, error: Exception) -> Held:
        if not self.site.reached:  # more likely a wrong URL than a server that comes back
            raise self.site.unavailable(error, self.name) from error
        return self.away(error)

    def away(self, error: Exception) -> Held:
        """No answer for now, and nothing held: whoever has patience asks again."""
        return Held(f"{self.site.url} does not answer: {error}", self.locked_key, None, error)

    async def _tried(self, runtime: Runtime) -> Grant | Held:
        mark = os.urandom(8).hex()
        session = await self.opened(runtime)
        try:
            question = await self.exchange(runtime, session, self.text(session, mark, wait=False))
            self.site.reached = True
            if question.rows[0][0] == "t":
                return self.granted(session, question, mark, question.sent_at)
        except BaseException:
            session.end("nobody is left to take what came")  # L6
            raise
        self.sessions.back(session)
        return Held(key=self.locked_key)

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        """Stand in the server's line, sleep until it answers."""
        stand: Any = ask.place
        if type(stand) is not Stand or not stand.ours:
            stand = ask.place = Stand(self)  # before it begins: an exception can end it (L6)
        if stand.question is None and not await self._stood(ask, stand, until):
            return Held(key=self.locked_key) if stand.error is None else self.away(stand.error)
        question, session = stand.question, stand.session
        assert question is not None
        assert session is not None
        silent_at = question.sent_at + self.sessions.slice + self.sessions.limit
        await self.runtime.rung(ask, question, min(until, silent_at))
        if not stand.ours:
            return Held(key=self.locked_key)
        if not question.over and self.now() < silent_at:
            if self.now() >= ask.deadline and self.runtime is not BLOCKING:
                stand.session = None  # the place is given up before that is said
                try:
                    await self.runtime.in_thread(lambda: stand.quit(session), lambda _: None)
                except SystemRefused:  # no thread for it
                    session.end("it was left")
            return Held(key=self.locked_key)
        if not question.over:
            session.end(f"no answer within {self.sessions.limit:g} s")
        try:
            if question.state in OVER and session.dead is None:
                text = self.text(session, stand.mark, wait=True)
                stand.question = session.ask(sql.CLEAN + text)
                return Held(key=self.locked_key)
            return await self._came(ask, stand, question)
        except FAILURES as error:
            stand.failed(error)
            return self.away(error)

    async def _stood(self, ask: Ask, stand: Stand, until: float) -> bool:
        """Whether we stand in line; not yet while the server is away."""
        if self.now() < stand.look_at:
            await self.runtime.rung(ask, stand, min(until, stand.look_at))
            if ask.cancelled or self.now() < stand.look_at:
                return False
        try:
            stand.session = session = await self.opened(self.runtime)
            stand.question = session.ask(self.text(session, stand.mark, wait=True))
        except FAILURES as error:
            stand.failed(error)
            return False
        self.standing.add(session.pid)
        return True

    async def _came(self, ask: Ask, stand: Stand, question: Question) -> Grant:
        """The answer of the line. Raises Unreachable, NoReply."""
        session = stand.session
        assert session is not None
        self.answered(question)
        self.site.reached, sent_at = True, question.sent_at
        if self.now() - sent_at > self.terms.heartbeat / 2:  # L8  a fresh sign of us at the server
            beat = await self.exchange(self.runtime, session, self.beat_of(session))
            if beat.rows[0][0] != "t":
                raise NoReply(GONE)
            sent_at = beat.sent_at
        grant = self.granted(session, question, stand.mark, sent_at)
        stand.session = ask.place = None  # only now: until then whoever leaves ends the session
        self.standing.discard(session.pid)
        return grant

    def granted(self, session: Session, question: Question, mark: str, sent_at: float) -> Grant:
        """The lock is ours, and the session of its claim."""
        _, token, acquired_us = question.rows[0]
        claim = self.site.hand_out(SessionClaim(session))
        why = None if token is not None else self.sessions.bare or "the server keeps no tokens"
        return Grant(
            self.path, mark, None if token is None else int(token), why,
            int(acquired_us or 0) * 1000, self.locked_key, [claim], self.terms.deadline(sent_at),
        )  # fmt: skip

    # ---- holding it

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """A sign of us, and of the server. By whichever thread."""
        for claim in grant.handle:
            session = claim.session
            try:
                question = session.ask(self.beat_of(session))
            except NoReply as error:
                return Lost(str(error), gone=True)
            limit = min(self.sessions.limit, self.terms.heartbeat)
            await BLOCKING.rung(Ask(""), question, BLOCKING.now() + limit)
            if session.dead is not None:
                return Lost(session.dead, gone=True)
            if not question.over or question.state:
                cause = question.error or f"no answer within {limit:g} s"
                return Unknown(grant.nonce, NoReply(cause))
            if question.rows[0][0] != "t":
                session.end(GONE)
                return Lost(GONE, gone=True)
            return replace(grant, deadline=self.terms.deadline(question.sent_at))
        return Lost("released already")

    def check(self, grant: Grant) -> Lost | None:
        """One look at the socket, no round trip."""
        for claim in grant.handle:
            if claim.generation != fork.here():
                return Lost(FORKED)
            if claim.spent:
                return Lost("given back: its program ends", gone=True)
            if grant.deadline is not None and grant.deadline <= self.now():
                return Lost("its ttl has passed", gone=True)
            why = claim.session.look()
            return None if why is None else Lost(why, gone=True)
        return Lost("released already")

    # ---- letting go

    def drop(self, grant: Grant) -> Lost | Unknown | None:
        return finish(self._release(BLOCKING, grant))

    async def release(self, grant: Grant) -> Lost | Unknown | None:
        return await self._release(self.runtime, grant)

    async def _release(self, runtime: Runtime, grant: Grant) -> Lost | Unknown | None:
        for claim in grant.handle:
            if claim.generation != fork.here():
                return Lost(FORKED)
        try:
            claim = grant.handle.pop()
        except IndexError:
            return Lost("released already")
        claim.spent = True
        session = claim.session
        session.on_end = None
        if (why := session.look()) is not None:
            return Lost(why, gone=True)
        try:
            freed = await self.exchange(runtime, session, self.unlock_of())
        except NoReply as error:
            if session.last_words:
                return Lost(session.last_words, gone=True)
            return Unknown(grant.nonce, error)
        except Unreachable:  # somebody cancelled the statement: held until now
            session.end("it was let go of")
            return None
        except BaseException:
            session.end("it was let go of")
            raise
        if freed.rows[0][0] == "t":
            self.sessions.back(session)
            return None
        session.end(GONE)  # L5
        return Lost(GONE, gone=True)
