"""The lease engine: the mechanism of one name in a store.

Promise: a lease is ours from the answer of the store to our own deadline, which lies before the
instant at which the store would let anyone else in; each exclusive grant has a token that grows; a
request whose answer was lost is found again and kept, or undone. One round trip to acquire, one to
release.

L2  The store's clock decides whose lease is over; without one, a watch in turn.py.
L6  The mark goes with the request. No answer: asked again with the same mark. Still none: undone,
    and if that cannot be confirmed either, the outcome is Unknown and said to be so.
L8  The deadline counts from before the request was sent, by a clock that counts suspend.
L9  Renewal is not the caller's: the heartbeat thread renews all leases of a store together, over
    the blocking client (site.py). A forked child holds none of them.
"""

from __future__ import annotations

from ..core import events
from ..core.deadline import NEVER
from ..core.grant import Grant, Held, Lost, Unknown
from ..core.storage import Given, NoReply, Renewal, Request, Unable, Unreachable
from ..core.value import replace
from ..runtime import fork
from ..runtime.blocking import finish
from .claim import Claim
from .ending import FORKED, Ending
from .holders import crowded
from .leaving import FAILURES
from .lighten import lightened
from .site import within
from .turn import PATIENCE, Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.acquire import Ask
    from ..core.storage import Refused

TOKENLESS = "no writer has been here yet"


class StoreLock(Ending):
    """The mechanism (core/ports.py) of one name. Made once per lock object."""

    # ---- getting in

    def attempt(self) -> Grant | Held | Unknown:
        """One try, by the calling thread."""
        turn, take = self.site.turn(), self.site.take_free
        if take is not None:
            try:
                sent_at = self.now()  # L8
                given = take(self._request(turn))
                if given is not None and turn.ours:
                    return self._grant(turn, given, sent_at)
            except FAILURES as error:  # asked in full, by the same mark, which says more
                turn.doubt = isinstance(error, NoReply)
            except BaseException:  # L6
                finish(self._abandon(turn))
                raise
            if not turn.ours:
                return Held(key=self.path)  # L9  forked meanwhile: it was our parent who asked
        return finish(self._first(turn))

    async def try_acquire(self, ask: Ask) -> Grant | Held | Unknown:
        return await self._first(self.site.turn())

    async def _first(self, turn: Turn) -> Grant | Held | Unknown:
        error: Exception
        began = self.now()
        until = began + self.site.limit
        try:
            return await self._ask(turn, wait=False)
        except NoReply as lost:
            turn.doubt, error = True, lost
        except Unreachable as unreached:
            error = unreached
        if turn.doubt and turn.ours:  # else whatever became of it is our parent's
            if self.now() >= until:
                turn = self._undo_behind(turn)
            else:
                try:  # L6  the same mark finds the same grant
                    return await self._ask(turn, wait=False, until=until)
                except FAILURES as again:
                    if await self._undone(turn, again, until) is not None:
                        turn = self._undo_behind(turn)
                    else:  # L5  a late copy of that release must not find a grant
                        turn = self.site.turn()
        # L10  More likely a wrong URL than a store that comes back; or people have to mend it, and
        # a caller without a limit would wait in vain.
        if not self.site.reached or isinstance(error, Unable):
            raise self.site.unavailable(error, self.name, turn.doubted) from error
        turn.failed(self.now())
        turn.began = began
        return self._silent(error, turn)

    def _silent(self, error: Exception, turn: Turn) -> Held:
        """No answer for now, and nothing held: whoever has patience asks again."""
        self._away = error
        return Held(f"{self.site.url} does not answer: {error}", self.path, turn, error)

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        """Stand in line, sleep until called or until it is time to look, ask once."""
        turn = ask.slot
        if not isinstance(turn, Turn) or not turn.ours:
            ask.place, turn = None, self.site.turn()
        if not turn.stands:
            ask.slot, ask.place, turn.stands = turn, turn, True
            turn.leave_now = lambda: self._left(turn)
        else:
            try:
                await self.runtime.rung(ask, turn, min(until, turn.look_at))
            except BaseException:  # L6
                await self._abandon(turn)
                raise
            patient = turn.doubt or turn.came is not None or self.now() < ask.deadline
            if ask.cancelled or not patient or not turn.ours:
                return await self._too_late(turn, ask.deadline)
        try:
            found = await self._ask(turn, wait=True, ask=ask)
            over = isinstance(found, Held) and self.now() >= ask.deadline
            return await self._too_late(turn, ask.deadline) if over else found
        except FAILURES as error:
            turn.doubt = turn.doubt or isinstance(error, NoReply)
            turn.failed(self.now())
            if self.now() < ask.deadline or not turn.ours:
                return self._silent(error, turn)
            until = min(ask.deadline, self.now()) + self.site.limit
            if turn.doubt and (unknown := await self._undone(turn, error, until)) is not None:
                return unknown
            raise self.site.unavailable(error, self.name) from error

    async def _ask(
        self, turn: Turn, *, wait: bool, ask: Ask | None = None, until: float = NEVER
    ) -> Grant | Held:
        """One request, and what its answer means; none where the store has let us in unasked."""
        word = turn.next_word() if wait and self.site.hands else ""
        sent_at = self.now()  # L8
        answer: Given | Refused
        came = turn.handed(self.terms, sent_at)
        try:
            if came is not None:
                answer, sent_at = came, turn.since
            else:
                bell = self.site.listen(turn) if wait else ""
                request = self._request(turn, wait, bell, turn.gone(sent_at), word)
                sent_at = self.now()
                answer = await self._send(
                    lambda backend: within(backend, until).acquire(request),
                    lambda _: self._unwanted(turn),
                )
            turn.doubt, self.site.reached, self._away = False, True, None
            if not turn.ours:
                return Held(key=self.path)  # L9  forked meanwhile: it was our parent who asked
            if isinstance(answer, Given):
                if ask is not None:
                    ask.place, turn.stands = None, False
                    self.site.rings.forget(turn.mark)
                return self._grant(turn, answer, sent_at)
        except FAILURES:
            raise
        except BaseException:  # L6  cancelled, or interrupted: nobody is left to take what came
            await self._abandon(turn)
            raise
        if answer.capacity is not None:
            raise crowded(self.path, self.capacity, answer.capacity)
        turn.refused(answer, self.now())
        turn.stood(word, sent_at)
        self._seen = answer, self.now()
        return Held(key=self.path, hint=turn)

    def _request(
        self, turn: Turn, wait: bool = False, bell: str = "", gone: str | None = None,
        word: str = "",
    ) -> Request:  # fmt: skip
        return Request(
            self.name, turn.mark, self.terms.ttl, self.site.owner(self.label), self.capacity,
            self.weight, self.shared, self.delay, wait, self.fair, PATIENCE, bell, gone, word,
        )  # fmt: skip

    def _grant(self, turn: Turn, answer: Given, sent_at: float) -> Grant:
        mark, site = turn.mark, self.site
        site.reached, self._away = True, None
        claim = site.hand_out(Claim(self, mark, turn.generation))
        if answer.over is not None and events.listeners:
            over = site.holder(answer.over, self.name)
            events.tell(events.TakenOver(self.path, f"{mark}-{answer.token}", over, over.evidence))
        return Grant(
            self.path, mark, answer.token, TOKENLESS if answer.token is None else None,
            int(answer.acquired_at * 1e9), self.key(answer.slot), [claim],
            self.terms.deadline(sent_at),
        )  # fmt: skip

    # ---- holding it

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        return (await self.renew_many([(self, grant)]))[0]

    @staticmethod
    async def renew_many(many: list[tuple[StoreLock, Grant]]) -> list[Grant | Lost | Unknown]:
        """Prolong leases of one store in one round trip. By the heartbeat thread."""
        first = many[0][0]
        asked = [Renewal(each.name, grant.mark, each.terms.ttl) for each, grant in many]
        sent_at = first.now()  # L8
        try:
            there, kept = await first.site.beside(lambda backend: backend.renew(asked))
        except FAILURES as error:
            return [Unknown(grant.nonce, error) for _, grant in many]
        first.site.drift.note(there, sent_at, first.now())
        return [
            replace(grant, deadline=each.terms.deadline(sent_at))
            if held
            else Lost(f"{first.site.url} has let it go: its ttl had passed, or it was broken", True)
            for (each, grant), held in zip(many, kept, strict=True)
        ]

    def check(self, grant: Grant) -> Lost | None:
        """No I/O: what is not noticed here is caught by the deadline, and by the token."""
        for claim in grant.handle:
            if claim.generation != fork.here():
                return Lost(FORKED)
            if claim.spent:
                return Lost("given back: its program ends", gone=True)
            if grant.deadline is not None and grant.deadline <= self.now():
                return Lost("its ttl has passed", gone=True)
            return None
        return Lost("released already")

    def downgrade(self, grant: Grant) -> Grant | Lost | Unknown:
        """A writer becomes a reader in one step. By a thread that may block."""
        return finish(lightened(self, grant, self.site.beside))

    async def lighten(self, grant: Grant) -> Grant | Lost | Unknown:
        """The same, awaited."""
        return await lightened(self, grant, self._send)
