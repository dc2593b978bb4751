"""`kind="session"`: a lock that lives exactly as long as a session of PostgreSQL.

Promise: the server's advisory lock excludes, also those who take it without us. It is free as soon
as the server sees the session end: at the death of its process at once. Who loses its session is
told at once when the socket says so, and at its deadline when nothing answers any more; the server
gives a silent session up later than that. Who waits stands in the server's own line.

How it could fail, and what keeps it.
- The server, or an operator, ends the session: the ear hears it (session_server.py), and `check()`
  looks at the socket itself.
- The network is cut without a word: a beat goes over the session every `heartbeat`, and an answer
  counts from when its question was sent (L8). At the deadline it is lost, at `ttl` closed; the
  server's own limits, set with the session, come no sooner (session_server.py).
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

import errno
import os

from ...core import events
from ...core.acquire import Ask
from ...core.backend import NoReply, Unreachable
from ...core.deadline import Backoff
from ...core.errors import StoreUnavailable, SystemRefused
from ...core.grant import Grant, Held, Holder, Lost, Unknown, is_grant_of
from ...core.value import replace
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import BLOCKING, finish
from ..engine import AWAY, FAILURES, FORKED, FRESH, GrantInHand
from ..site import by_whom
from . import session_sql as sql
from .connect import psycopg
from .messages import place, said
from .session_server import SILENCE, SessionSeen, ending, question, read, written
from .session_sql import CLEAN, key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...core.deadline import Terms
    from ...core.ports import Runtime
    from ...runtime.renewal import RenewedLease
    from ..site import Site
    from .session_server import PendingAnswer, Session, Sessions
    from .session_sql import AdvisoryKey


AUDIT = """INSERT INTO lifehold_audit (verb, name, reason, by, token, before)
    VALUES ('break', %s, %s, %s, %s, %s)"""


def bound(session: Session, text: str, given: tuple[Any, ...]) -> str:
    """A statement with its values in it."""
    cursor = psycopg().ClientCursor(session.connection)
    return cursor.mogrify(text, given)  # type: ignore[no-any-return]


OVER = ("55P03", "57014")  # SQLSTATE: a slice is over; somebody has cancelled the statement
ENDING = (0.0, 0.02, 0.1)  # seconds in which the server sees that a session of ours has ended
SIGNS = 3  # beats before a grant is handed out, while each is answered late
GONE = "the server does not know it as held by its session any more"


class SessionLock:
    """The mechanism (core/ports.py) of one key. Made once per lock object."""

    site: Site
    terms: Terms
    sessions: Sessions
    number: AdvisoryKey
    name: str
    path: str
    label: str
    standing: set[int]
    seen: tuple[SessionSeen, float] | None
    kind = "session"
    option = "--kind session "  # of the command that takes the same lock
    remote = True  # an event loop awaits it, and never calls it
    exclusive = True

    def __init__(
        self, site: Site, name: object, runtime: Runtime, terms: Terms, *, label: str = ""
    ) -> None:
        self.site, self.runtime, self.label = site, runtime, label
        # L8  For longer no server can be told to bear silence: the holder gives up before it does.
        self.terms = terms.at_most(SILENCE)
        self.number = key_of(name)
        self.name = self.number.name
        self.path = site.address(self.name)
        self.locked_key = f"{site.url}#{self.number.text}"  # one for all names of it
        self.sessions = site.sessions()
        self.joint = SESSION_GUARD
        self.now = runtime.now
        self.standing = set()  # processes of the server in which we wait
        self.seen = None

    def unavailable(self, cause: BaseException, nonce: str) -> StoreUnavailable:
        """The error for a caller whose question had no answer."""
        return self.site.unavailable(cause, self.name, nonce)

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
        nonce = os.urandom(8).hex()
        session = await self.opened(runtime)
        try:
            question = await self.exchange(runtime, session, self.text(session, nonce, wait=False))
            self.site.reached = True
            if question.rows[0][0] == "t":
                sent_at = await self._signed(runtime, session, question)
                return self.granted(session, question, nonce, sent_at)
        except BaseException:
            session.end("nobody is left to take what came")  # L6
            raise
        self.sessions.back(session)
        return Held(key=self.locked_key)

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        """Stand in the server's line, sleep until it answers."""
        pending = ask.place
        if type(pending) is not PendingLock or not pending.ours:
            pending = ask.place = PendingLock(
                self
            )  # before it begins: an exception can end it (L6)
        if pending.question is None and not await self._stood(ask, pending, until):
            return Held(key=self.locked_key) if pending.error is None else self.away(pending.error)
        question, session = pending.question, pending.session
        assert question is not None
        assert session is not None
        silent_at = question.sent_at + self.sessions.slice + self.sessions.limit
        await self.runtime.rung(ask, question, min(until, silent_at))
        if not pending.ours:
            return Held(key=self.locked_key)
        if not question.over and self.now() < silent_at:
            if self.now() >= ask.deadline and self.runtime is not BLOCKING:
                pending.session = None  # the place is given up before that is said
                try:
                    await self.runtime.in_thread(lambda: pending.quit(session), lambda _: None)
                except SystemRefused:  # no thread for it
                    session.end("it was left")
            return Held(key=self.locked_key)
        if not question.over:
            session.end(f"no answer within {self.sessions.limit:g} s")
        try:
            if question.state in OVER and session.dead is None:
                text = self.text(session, pending.nonce, wait=True)
                pending.question = session.ask(sql.CLEAN + text)
                return Held(key=self.locked_key)
            return await self._came(ask, pending, question)
        except FAILURES as error:
            pending.failed(error)
            return self.away(error)

    async def _stood(self, ask: Ask, pending: PendingLock, until: float) -> bool:
        """Whether we stand in line; not yet while the server is away."""
        if self.now() < pending.look_at:
            await self.runtime.rung(ask, pending, min(until, pending.look_at))
            if ask.cancelled or self.now() < pending.look_at:
                return False
        try:
            pending.session = session = await self.opened(self.runtime)
            pending.question = session.ask(self.text(session, pending.nonce, wait=True))
        except FAILURES as error:
            pending.failed(error)
            return False
        self.standing.add(session.pid)
        return True

    async def _came(self, ask: Ask, pending: PendingLock, question: PendingAnswer) -> Grant:
        """The answer of the line. Raises Unreachable, NoReply."""
        session = pending.session
        assert session is not None
        self.answered(question)
        self.site.reached = True
        sent_at = await self._signed(self.runtime, session, question)
        grant = self.granted(session, question, pending.nonce, sent_at)
        pending.session = ask.place = None  # only now: until then whoever leaves ends the session
        self.standing.discard(session.pid)
        return grant

    async def _signed(self, runtime: Runtime, session: Session, question: PendingAnswer) -> float:
        """L8  When the server was asked last, not long ago, and answered that the lock is held.

        An answer that was slow leaves little of the lease or nothing: it is asked again. Raises
        Unreachable, NoReply.
        """
        sent_at = question.sent_at
        for _ in range(SIGNS):
            if self.now() - sent_at <= self.terms.heartbeat / 2:
                break
            beat = await self.exchange(runtime, session, self.beat_of(session))
            if beat.rows[0][0] != "t":
                raise NoReply(GONE)
            sent_at = beat.sent_at
        return sent_at

    def granted(
        self, session: Session, question: PendingAnswer, nonce: str, sent_at: float
    ) -> Grant:
        """The lock is ours, and the session of its claim."""
        _, token, acquired_us = question.rows[0]
        in_hand = self.site.hand_out(SessionInHand(session, self.terms))
        why = None if token is not None else self.sessions.bare or "the server keeps no tokens"
        return Grant(
            self.path,
            nonce,
            None if token is None else int(token),
            why,
            int(acquired_us or 0) * 1000,
            self.locked_key,
            [in_hand],
            self.terms.deadline(sent_at),
        )

    # ---- holding it

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """A sign of us, and of the server. By whichever thread."""
        for in_hand in grant.handle:
            session = in_hand.session
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
        for in_hand in grant.handle:
            if in_hand.generation != fork.here():
                return Lost(FORKED)
            if in_hand.spent:
                return Lost("given back: its program ends", gone=True)
            if grant.deadline is not None and grant.deadline <= self.now():
                return Lost("its ttl has passed", gone=True)
            why = in_hand.session.look()
            return None if why is None else Lost(why, gone=True)
        return Lost("released already")

    # ---- letting go

    def drop(self, grant: Grant) -> Lost | Unknown | None:
        return finish(self._release(BLOCKING, grant))

    async def release(self, grant: Grant) -> Lost | Unknown | None:
        return await self._release(self.runtime, grant)

    async def _release(self, runtime: Runtime, grant: Grant) -> Lost | Unknown | None:
        for in_hand in grant.handle:
            if in_hand.generation != fork.here():
                return Lost(FORKED)
        try:
            in_hand = grant.handle.pop()
        except IndexError:
            return Lost("released already")
        in_hand.spent = True
        session = in_hand.session
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

    # --------------------------------------------------------------------------------------------
    # What is asked of a session for a lock, and what can be asked of the lock without getting in.
    #
    # The half of a session lock that asks and looks. `SessionLock` (session.py) is the other.

    def text(self, session: Session, nonce: str, *, wait: bool) -> str:
        """What takes the lock: at once or never, or with a place in the server's line."""
        first, *more = self.number.numbers
        if not session.tabled:
            call = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
            return sql.ASK_BARE.format(call=f"{call}({self._arguments()})")
        owner = written(self.site.owner(self.label))
        second = more[0] if more else None
        return bound(
            session, sql.ASK, (self.number.text, first, second, self.name, nonce, owner, wait)
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

    async def exchange(self, runtime: Runtime, session: Session, text: str) -> PendingAnswer:
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

    def answered(self, question: PendingAnswer) -> None:
        """Raises Unreachable for a refusal of the server, NoReply where it gave no answer."""
        known = self.sessions.plan.known
        if question.state:
            raise Unreachable(said(question.refused, known))
        if question.error:
            raise NoReply(f"{place(known)}: {question.error}")

    def look(self) -> SessionSeen:
        """Who holds it, and who waits, now. By the calling thread. Raises StoreUnavailable."""
        (answer,) = self._ask(
            lambda session: question(self.number, session.tabled).replace("{at}", "")
        )
        all_keys = read(str(answer), lambda _: self.path, self.sessions.plan.known)
        found = all_keys.get(self.number.text, SessionSeen(self.name))
        self.seen = found, clock.now()
        return found

    def _ask(self, make: Any) -> tuple[Any, ...]:
        """What a question is answered that changes nothing. Raises StoreUnavailable."""
        try:
            try:
                return self._say(make)
            except NoReply:  # the session was open already, and the server was restarted
                return self._say(make)
        except FAILURES as error:
            raise self.site.unavailable(error, self.name) from error

    def _say(self, make: Any) -> tuple[Any, ...]:
        """One row, over a session of nobody's; said once.

        Raises StoreUnavailable where no session is to be had; Unreachable for a refusal of the
        server, NoReply where it may have been carried out.
        """
        try:
            session = finish(self.opened(BLOCKING))
        except Unreachable as error:
            raise self.site.unavailable(error, self.name) from error
        try:
            rows = finish(self.exchange(BLOCKING, session, make(session))).rows
        except BaseException:
            session.end("it was left")
            raise
        self.sessions.back(session)
        return rows[0] if rows else ()

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

    def break_(self, reason: str, whom: Holder | None = None) -> Holder | None:
        """End the session that holds it, whose holder is told at once; who that was.

        None where that, or `whom`, has let go meanwhile: who came since is not touched. Raises
        SystemRefused where our role may not: it takes the same role, or pg_signal_backend. Raises
        StoreUnavailable.
        """
        found = self.look()
        if not any(is_grant_of(each, whom) for each in found.holders) or not self._end(found):
            return None
        until = clock.now() + self.sessions.limit
        try:
            while set(self.look().pids) & set(found.pids) and clock.now() < until:
                clock.pause(0.005)
        except StoreUnavailable:
            pass  # the order was carried out all the same
        holder = found.holders[0]
        self._note(holder, reason)
        events.tell(events.Broken(self.path, holder, reason))
        return holder

    def _end(self, found: SessionSeen) -> int:
        """How many of the sessions that were seen to hold it did so still, and are ending."""
        try:
            (ended,) = self._say(
                lambda session: bound(session, *ending(self.number, found, session.tabled))
            )
        except NoReply as error:
            raise self.site.perhaps_done("break", self.name, error) from error
        except Unreachable as error:
            raise SystemRefused(
                f"{self.path!r} could not be broken: {error}",
                name=self.name,
                errno=errno.EPERM,
                filename=self.path,
            ) from error
        return int(ended)

    def _note(self, holder: Holder, reason: str) -> None:
        given = (self.name, reason, by_whom(), holder.token, repr(holder))
        try:
            self._say(lambda session: bound(session, AUDIT, given))
        except (*FAILURES, StoreUnavailable):
            return  # no table of ours is here


# ------------------------------------------------------------------------------------------------
# A place in the server's line for a session lock, kept from one call of `wait` to the next.
#
# Promise: who leaves the line leaves nothing there: the statement is cancelled, and the session is
# closed unless it has said that it was. A grant that met the leaving goes with its session (L6).
# Who gives up waits for that; a task that is cancelled does not.


AGAIN = Backoff(0.05, 2.0)  # seconds between two tries while the server does not answer
CANCELS = Backoff(0.02, 1.0)  # seconds between two: one that comes before its statement is ignored
PATIENCE = 3.0  # seconds that a cancel may take, before the session is closed without
CANCELLED = "57014"


class PendingLock:
    """`question`: the statement that waits at the server; None while the server is away."""

    __slots__ = (
        "_generation",
        "error",
        "lock",
        "look_at",
        "nonce",
        "question",
        "ring",
        "rung",
        "session",
        "tries",
    )

    def __init__(self, lock: SessionLock) -> None:
        self.lock, self.nonce = lock, os.urandom(8).hex()
        self._generation = fork.here()
        self.session: Session | None = None
        self.question: PendingAnswer | None = None
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
    """In place of a wakeup while nobody sleeps."""


# ------------------------------------------------------------------------------------------------
# Who watches over a session lock that is held: its beats, its end, and its fuse.
#
# Promise: a loss that the session tells is told to the holder at once. A lock whose beats get no
# answer is lost at its deadline, and its session is closed when its ttl is over, not before: so
# others come in after the holder was told (L8), and no later than if it had died.


class SessionInHand(GrantInHand):
    """A grant in hand: as long as its session is open."""

    __slots__ = ("session",)

    def __init__(self, session: Session, terms: Terms) -> None:
        self.session = session
        super().__init__(None, "", session.generation, terms)

    def _let_go(self, here: bool, until: float) -> None:  # an end is sent, not answered
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


class SessionGuard:
    """In place of a Joint (runtime/renewal.py): each lock has a session, and beats on it."""

    apart = True

    def __init__(self) -> None:
        self._strikes: dict[RenewedLease, Callable[[], None]] = {}
        fork.in_child(self._forget)  # the parent's sessions are not watched by a child

    def _forget(self) -> None:
        self._strikes.clear()

    def enter(self, mechanism: object, kept: RenewedLease) -> None:
        """A lock that is to be kept. Raises RuntimeError when there is no thread to be had."""
        session = kept.grant.handle[0].session
        self._burn(kept, session)
        session.on_end = kept.end
        if (why := session.dead) is not None:  # it ended before anybody could be told
            kept.end(why)

    def leave(self, kept: RenewedLease) -> None:
        """It is kept no more."""
        strike = self._strikes.pop(kept, None)
        if strike is not None:
            strike()

    def add(self, mechanism: Any, kept: RenewedLease) -> None:
        """Its beat is due. By the heartbeat thread, which waits for nobody."""
        heartbeat.apart(kept.renew)

    def _burn(self, kept: RenewedLease, session: Session) -> None:
        """The fuse, which each renewal makes longer."""
        due = kept.deadline + kept.terms.margin
        if clock.now() < due:
            self._strikes[kept] = heartbeat.at(due, lambda: self._burn(kept, session))
        elif kept.grant.handle:
            heartbeat.apart(lambda: session.end("its ttl is over, and no beat was answered"))


SESSION_GUARD = SessionGuard()
