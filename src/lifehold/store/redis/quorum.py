"""`redis+quorum://A,B,C/0`: leases that a majority of independent Redis servers has given.

Promise: never more than one holder, and tokens that grow, while fewer than a majority of the
servers is down, paused, cut off, slow, or wrong about the time; a server that has forgotten
counts again only when no lease can rest on what it forgot. docs/adr/0019 has the proof.

acquire   each server is asked at once, with one nonce. A majority has given it: the greatest of
          their tokens is written to each that still has this nonce, and only when a majority has
          confirmed that is it a grant. Else what was given is undone, and the next try has another
          nonce: a late request of the old one is never mistaken for it.
renew     likewise, each lease by itself: a majority says yes, or a majority cannot any more.
release   on all. A server that gave no answer is told later, until the lease there is over.

L2  Each server ends leases by its own clock. L4  Any two majorities meet: the later one reads a
token at least as great. L6  See acquire. L8  The deadline counts from before the first request.

How it could fail, and what keeps it. A server comes back empty, or with an old file: its marker
(`lifehold:quorum`) is gone or names another run, each step looks at that, and the server is absent
for `longest_ttl` by its clock from when that was first seen. Clients that name another number of
servers, or another longest ttl, do not agree with the marker and are refused.
"""

from __future__ import annotations

from ...core.backend import (
    CAPABILITIES,
    Given,
    NoReply,
    Order,
    Refused,
    State,
    Traits,
    Unable,
    Unreachable,
)
from ...core.deadline import NEVER, Backoff
from ...core.errors import CorruptRecord, InvalidArgument, LifeholdError, UnsafeGround
from ...core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import Any, Protocol, TypeVar

    from ...core.backend import Backend, Renewal, Request, StoreHolder

    T = TypeVar("T")

    class Member(Backend, Protocol):
        """One server, as the quorum asks it; quorum_servers.py has it.

        `counts`: whether it may be asked; `why`: the reason for which it may not; `heard`: whether
        it has answered at all; `looks`: how often it was looked at while it was away; `hearing`:
        how its wake-ups are heard.
        """

        counts: bool
        heard: bool
        place: str
        looks: int
        why: Exception | None

        @property
        def hearing(self) -> str: ...
        async def confirm(self, name: str, nonce: str, token: int, since: float) -> bool: ...
        async def undo(self, name: str, nonce: str) -> bool: ...
        def wanted(self) -> bool: ...
        def failed(self, error: Exception) -> None: ...
        def owe(self, name: str, nonce: str, until: float) -> None: ...
        def close(self) -> None: ...

    Asked = Mapping[Member, Coroutine[Any, Any, Any]]
    Found = dict[Member, Any]  # the answer of each, or the error in its place

    class QuorumNetwork(Protocol):
        """How servers are asked at once, and by whose clock: what a simulation replaces."""

        def now(self) -> float: ...
        async def pause(self, seconds: float) -> None: ...
        async def together(
            self,
            asked: Asked,
            until: float,
            settled: Callable[[Found], bool],
            *,
            beat: bool = False,
        ) -> Found:
            """What each has answered. Once it is `settled` the others have a moment left."""
            ...

        async def gathered(
            self, servers: Sequence[Member], most: int, until: float
        ) -> list[Member]:
            """Those that count, once each that is away was looked at, or enough are here."""
            ...


USEFUL = 0.5  # of its ttl that a grant must have left
TRIES = 4  # at a lock that nobody has for certain: others ask for it at the same time
CONTENDED = Backoff(0.01, 0.2)  # seconds between them
SHARE = 4  # a server takes this part of the limit at most
LACKS = {
    "queue": "each server has its own line, and no order holds between them",
    "lock_delay": "a server that forgets would forget it too",
    "readers": "a quorum gives a name to one holder",
    "permits": "a quorum gives a name to one holder",
    "kept": "a text that was removed at a majority would come back with the others",
    "audit": "Redis keeps what counts now: what was broken is told by events and logs",
}
FAILURES = (Unreachable, NoReply, LifeholdError)


class Absent(Unreachable):
    """The server was started anew, or has lost its marker: it does not count for now."""


# ------------------------------------------------------------------------------------------------
# Which of our nonces stands for one of the engine: that of its last try.
#
# L6  A number is kept for as long as the last request with it can be of any effect, for its ttl: an
# undoing may come so late, and a lease lives so long. A holder and a waiter ask again before that,
# else they would go back to a nonce that is given up. Of a single try that was refused nothing is
# heard any more, so its number is forgotten then.


KEPT = 60.0  # seconds for which a number is kept at the least: a waiter asks every 5 s or so


class TryNumbers:
    """The number of the last try of each nonce; 0 for the first, of which nothing is kept."""

    __slots__ = ("_kept", "_sweep_at")

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, float, float]] = {}  # with the ttl, and until when
        self._sweep_at = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def number(self, nonce: str, now: float) -> int:
        """Of the last try. It is kept anew."""
        found = self._kept.get(nonce)
        if found is None:
            return 0
        self._keep(nonce, found[0], found[1], now)
        return found[0]

    def next(self, nonce: str, ttl: float, now: float) -> None:
        """The last try is given up: the next one has another number."""
        self._keep(nonce, self.number(nonce, now) + 1, ttl, now)
        if now >= self._sweep_at:
            self._sweep_at = now + KEPT
            for each, found in list(self._kept.items()):
                if found[2] < now and self._kept.get(each) is found:
                    self.forget(each)

    def _keep(self, nonce: str, number: int, ttl: float, now: float) -> None:
        self._kept[nonce] = number, ttl, now + max(ttl, KEPT)

    def forget(self, nonce: str) -> None:
        """Its lease, or its place in line, was released."""
        self._kept.pop(nonce, None)


# ------------------------------------------------------------------------------------------------
# The algorithm.


class Quorum:
    """The backend over several servers."""

    def __init__(
        self,
        servers: Sequence[Member],
        limit: float,
        longest: float,
        asking: QuorumNetwork,
    ) -> None:
        self.servers, self.longest = tuple(servers), longest
        self.most = len(self.servers) // 2 + 1  # a majority
        self.traits = Traits(limit=limit, round_trips=2, lacks=LACKS)
        self.asking = asking
        self.reached: Callable[[], object] = nothing  # called when a majority has answered
        self._tries = TryNumbers()
        self._until = NEVER

    def within(self, until: float) -> Quorum:
        """The same, for a question whose answer is of use until that instant."""
        made = Quorum(self.servers, self.traits.limit, self.longest, self.asking)
        made._tries, made._until, made.reached = self._tries, until, self.reached
        return made

    # ---- acquire

    async def acquire(self, request: Request) -> Given | Refused:
        if request.ttl > self.longest:
            raise too_long(request.ttl, self.longest)
        if request.capacity != 1 or request.shared:
            return await self._another_shape(request)
        began = self.asking.now()
        until = min(self._ends(began), began + request.ttl * USEFUL)
        pauses = CONTENDED.pauses()
        for left in range(TRIES - 1, -1, -1):
            answer, certain = await self._attempt(request, until)
            if isinstance(answer, Given):
                if self.asking.now() > until:  # L8  asked again, it finds this very grant
                    raise NoReply(f"the servers took more than half of the ttl, {request.ttl:g} s")
                return answer
            if certain or not left or self.asking.now() >= until:
                break
            await self.asking.pause(next(pauses))
        return answer

    async def _attempt(self, request: Request, until: float) -> tuple[Given | Refused, bool]:
        """One try at all servers, and whether what it found is certain. Raises what kept it."""
        nonce, name = self._ours(request.nonce), request.name
        asked = replace(request, nonce=nonce, fair=False, handoff_id="", gone=None)
        here = await self._counting(until)
        try:
            found = await self._ask({each: each.acquire(asked) for each in here}, until, self._won)
            given = {each: a for each, a in found.items() if isinstance(a, Given)}
            if len(given) >= self.most:
                token = max(answer.token or 0 for answer in given.values())
                since = max(answer.acquired_at for answer in given.values())
                confirming = {each: each.confirm(name, nonce, token, since) for each in here}

                def confirmed(told: Found) -> bool:  # L4  by those whose token was read
                    return sum(told.get(each) is True for each in given) >= self.most

                told = await self._ask(confirming, until, confirmed)
                if confirmed(told):
                    return Given(token, 0, since, None, self._robbed(given)), True
                found |= {each: a for each, a in told.items() if isinstance(a, Exception)}
        except BaseException as error:
            self._owe(name, nonce, request.ttl, here)  # L6
            if isinstance(error, Exception):  # who asks again must not get what is being undone
                self._next_try(request)
            raise
        if given or any(isinstance(answer, Exception) for answer in found.values()):
            await self._undo(request, nonce, found, until)
        if sum(isinstance(a, Given | Refused) for a in found.values()) < self.most:
            raise self._trouble(found)
        return self._refused(found, self._tries.number(request.nonce, self.asking.now()))

    def _won(self, found: Found) -> bool:
        """Whether the others cannot change it any more."""
        given = sum(isinstance(answer, Given) for answer in found.values())
        out = sum(isinstance(answer, Refused) for answer in found.values())
        return given >= self.most or out > len(self.servers) - self.most

    def _answered(self, found: Found) -> bool:
        return sum(not isinstance(each, Exception) for each in found.values()) >= self.most

    def _robbed(self, given: Found) -> StoreHolder | None:
        """Whose lease was found to be over, at a majority."""
        over = [answer.over for answer in given.values() if answer.over is not None]
        whose = [each.nonce for each in over]
        robbed = next((each for each in over if whose.count(each.nonce) >= self.most), None)
        return None if robbed is None else _shown(robbed)

    async def _undo(self, request: Request, nonce: str, found: Found, until: float) -> None:
        """L6  No grant came of it: what it has, or may have, is given back, its places too."""
        self._next_try(request)
        owes = [each for each, answer in found.items() if isinstance(answer, Exception)]
        undoing = {each: each.undo(request.name, nonce) for each in found if each not in owes}
        try:
            told = await self._ask(undoing, until, lambda told: len(told) == len(undoing))
        except BaseException:
            self._owe(request.name, nonce, request.ttl, found)
            raise
        owes += [each for each, answer in told.items() if isinstance(answer, Exception)]
        self._owe(request.name, nonce, request.ttl, owes)

    def _refused(self, found: Found, tries: int) -> tuple[Refused, bool]:
        """Whom they name, and whether that is one who holds it for certain."""
        refusals = [answer for answer in found.values() if isinstance(answer, Refused)]
        unheard = len(self.servers) - sum(
            isinstance(answer, Refused | Given) for answer in found.values()
        )
        merged = self._merged([answer.holders for answer in refusals], unheard)
        other = next((a.capacity for a in refusals if a.capacity is not None), None)
        certain = other is not None or (bool(merged) and merged[0][0] >= self.most)
        ends = [each.ends_in for _, each in merged if each.ends_in is not None]
        soon = next(CONTENDED.pauses()) * 2 ** min(tries, 6)
        look_in = min(ends) if certain and ends else min(soon, 1.0)
        ahead = min((answer.ahead for answer in refusals), default=0)
        holders = tuple(each for _, each in merged)
        return Refused(holders, ahead if certain else 0, look_in, other), certain

    def _merged(
        self, each_of: Sequence[Sequence[StoreHolder]], unheard: int
    ) -> list[tuple[int, StoreHolder]]:
        """Who may be in at a majority, and at how many servers it was seen.

        `unheard`: servers of which nothing is known now.
        """
        seen: dict[str, list[StoreHolder]] = {}
        for holders in each_of:
            for holder in holders:
                seen.setdefault(holder.nonce, []).append(holder)
        found = []
        for copies in seen.values():
            if len(copies) + unheard < self.most:
                continue
            ends = sorted((copy.ends_in or 0.0 for copy in copies), reverse=True)
            newest = max(copies, key=lambda copy: copy.renewals)
            tokens = [copy.token for copy in copies if copy.token is not None]
            ends_in = ends[min(self.most, len(ends)) - 1]
            merged = replace(newest, ends_in=ends_in, token=max(tokens, default=None))
            found.append((len(copies), _shown(merged)))
        return sorted(found, key=lambda each: -each[0])

    async def _another_shape(self, request: Request) -> Refused:
        """It is held by one alone, or it is refused by name."""
        states = await self.look((request.name,))
        if states and states[0].holders:
            return Refused(states[0].holders, capacity=states[0].capacity)
        lacking = "readers" if request.shared or request.weight > 1 else "permits"
        raise InvalidArgument(f"a quorum has no {CAPABILITIES[lacking]}: {LACKS[lacking]}")

    # ---- renew, release

    async def renew(
        self, many: Sequence[Renewal]
    ) -> tuple[None, tuple[bool | Unreachable | NoReply, ...]]:
        """Each by itself: kept by a majority, lost at one, or unknown."""
        for one in many:
            if one.ttl > self.longest:
                raise too_long(one.ttl, self.longest)
        ours = [replace(one, nonce=self._ours(one.nonce)) for one in many]
        until = self._ends(self.asking.now())
        here = [each for each in self.servers if each.wanted()]
        renewing = {each: each.renew(ours) for each in here}
        found = await self._ask(renewing, until, self._answered, beat=True)
        kept = list[bool | Unreachable | NoReply]()
        for number, one in enumerate(ours):
            votes: Found = {
                each: answer if isinstance(answer, Exception) else answer[1][number]
                for each, answer in found.items()
            }
            if _count(votes, True) >= self.most:
                kept.append(True)
            elif _count(votes, False) > len(self.servers) - self.most:
                left = [each for each in self.servers if votes.get(each) is not False]
                self._owe(one.name, one.nonce, one.ttl, left)
                kept.append(False)
            else:
                why = self._trouble(votes)
                kept.append(why if isinstance(why, NoReply) else Unreachable(str(why)))
        return None, tuple(kept)

    async def release(self, name: str, nonce: str) -> bool:
        ours, until = self._ours(nonce), self._ends(self.asking.now())
        here = [each for each in self.servers if each.wanted()]
        releasing = {each: each.release(name, ours) for each in here}
        away = [each for each in self.servers if each not in here]
        self._owe(name, ours, self.longest, away)
        try:
            found = await self._ask(releasing, until, self._answered)
        except BaseException:
            self._owe(name, ours, self.longest, here)
            raise
        silent = [each for each, answer in found.items() if isinstance(answer, Exception)]
        self._owe(name, ours, self.longest, silent)
        yes, no = _count(found, True), _count(found, False)
        if yes + no < self.most:
            trouble = self._trouble(found)
            # L6  What some have let go of, or do behind us, is no loss when it is asked for again.
            raise NoReply(str(trouble)) if isinstance(trouble, Unreachable) else trouble
        self._tries.forget(nonce)
        return yes > 0 and len(self.servers) - no >= self.most

    # ---- looks and orders

    async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
        found = await self._majority(lambda each: each.look(names, prefix))
        by_name: dict[str, list[State]] = {}
        for states in found:
            for state in states:
                by_name.setdefault(state.name, []).append(state)
        order = sorted(by_name) if names is None else [name for name in names if name in by_name]
        return tuple(self._state(by_name[name], len(found)) for name in order)

    def _state(self, states: list[State], heard: int) -> State:
        """What those servers say of one name that know it. A damaged one has said nothing."""
        damaged = [state for state in states if state.damage]
        heard -= len(damaged)
        if damaged and heard < self.most:
            return damaged[0]
        merged = self._merged([state.holders for state in states], len(self.servers) - heard)
        tokens = [state.token for state in states if state.token is not None]
        line = max((state.waiters for state in states), key=len)
        inside = {holder.nonce for _, holder in merged}
        waiters = tuple(dict.fromkeys(plain(each) for each in line if plain(each) not in inside))
        holders = tuple(holder for _, holder in merged)
        return State(states[0].name, max(tokens, default=None), 1, holders, waiters)

    async def order(self, order: Order) -> State | None:
        if order.verb in ("keep", "forget"):
            raise InvalidArgument(f"a quorum has not {CAPABILITIES['kept']}: {LACKS['kept']}")
        found = await self._majority(lambda each: each.order(order))
        known = [state for state in found if state is not None]
        return self._state(known, len(found)) if known else None

    async def _majority(self, make: Callable[[Member], Coroutine[Any, Any, T]]) -> list[T]:
        """What a majority has answered, or more. Raises Unreachable, NoReply."""
        until = self._ends(self.asking.now())
        here = await self._counting(until)
        found = await self._ask({each: make(each) for each in here}, until, self._answered)
        answers = [answer for answer in found.values() if not isinstance(answer, Exception)]
        if len(answers) < self.most:
            raise self._trouble(found)
        return answers

    async def ground(self) -> tuple[str, ...]:
        try:
            await self._counting(self._ends(self.asking.now()))
        except FAILURES:
            pass  # each says why
        return sentences(self)

    def close(self) -> None:
        """Give back connections that nobody uses. The next question opens one again."""
        for each in self.servers:
            each.close()

    # ---- asking them

    def _ours(self, nonce: str) -> str:
        """The nonce at the servers: of each try its own."""
        number = self._tries.number(nonce, self.asking.now())
        return f"{nonce}~{number}" if number else nonce

    def _next_try(self, request: Request) -> None:
        self._tries.next(request.nonce, request.ttl, self.asking.now())

    def _ends(self, began: float) -> float:
        return min(self._until, began + self.traits.limit * (1 - 1 / SHARE))

    async def _counting(self, until: float) -> list[Member]:
        """Those that count, a majority at the least. Raises Unreachable, InvalidArgument."""
        here = [each for each in self.servers if each.wanted()]
        if len(here) < len(self.servers):
            here = await self.asking.gathered(self.servers, self.most, until)
        for each in self.servers:
            if isinstance(each.why, InvalidArgument):
                raise each.why
        if sum(each.heard for each in self.servers) >= self.most:
            self.reached()
        if len(here) < self.most:
            raise self._trouble({})
        return here

    async def _ask(
        self,
        asked: Asked,
        until: float,
        settled: Callable[[Found], bool],
        *,
        beat: bool = False,
    ) -> Found:
        """What each has answered. `beat`: renewals, which never wait for other requests."""
        found = await self.asking.together(asked, until, settled, beat=beat)
        for server, answer in found.items():
            if isinstance(answer, Unreachable | NoReply) and not isinstance(answer, Unable):
                server.failed(answer)
            elif isinstance(answer, InvalidArgument):
                raise answer
        return found

    def _owe(self, name: str, nonce: str, ttl: float, servers: Iterable[Member]) -> None:
        """L6  Tell them as soon as may be that this nonce is given up."""
        until = self.asking.now() + ttl
        for each in servers:
            each.owe(name, nonce, until)

    def _trouble(self, found: Found) -> Exception:
        """Why too few have answered: each server by itself."""
        whys = {each: each.why for each in self.servers if each.why is not None}
        whys |= {each: answer for each, answer in found.items() if isinstance(answer, Exception)}
        unsafe = [why for why in whys.values() if isinstance(why, UnsafeGround)]
        if len(unsafe) > len(self.servers) - self.most:
            return unsafe[0]
        good = len(self.servers) - len(whys)
        damaged = [why for why in whys.values() if isinstance(why, CorruptRecord)]
        if damaged and good + len(damaged) >= self.most:  # nobody is away: it is to be removed
            return damaged[0]
        told = "; ".join(str(why) for why in whys.values())
        text = f"{good} of {len(self.servers)} servers count, and {self.most} are needed: {told}"
        if any(isinstance(why, NoReply) for why in found.values()):
            return NoReply(text)
        unable = sum(isinstance(why, Unable) for why in whys.values())
        return (Unable if unable > len(self.servers) - self.most else Unreachable)(text)


def _count(found: Found, answer: bool) -> int:
    return sum(each is answer for each in found.values())


def nothing() -> None:
    """Nobody is to be told."""


def plain(nonce: str) -> str:
    """The nonce of the engine, of whichever try."""
    return nonce.partition("~")[0]


def _shown(holder: StoreHolder) -> StoreHolder:
    nonce = plain(holder.nonce)
    return replace(holder, nonce=nonce, version=f"{nonce}:{holder.renewals}")


def too_long(ttl: float, longest: float) -> InvalidArgument:
    return InvalidArgument(
        f"ttl={ttl:g} s is longer than longest_ttl, {longest:g} s: a server that was started anew "
        "is absent for so long, and no lease may outlast that. Leases are renewed: take a shorter "
        "ttl, or set up the quorum with a greater longest_ttl"
    )


# ------------------------------------------------------------------------------------------------
# What such leases stand on.

CLOCKS = (
    "each server ends leases by its own clock: where one steps forward, its part of a lease ends"
    " early, and a lease that has no part to spare with it"
)
MEMORY = (
    "a server that was started anew or emptied does not count for {longest:g} s, the longest ttl,"
    " by its own clock: whatever it has forgotten is over by then"
)
TOKENS = (
    "tokens grow by proof while no server forgets; where one did, unless the clocks of the servers"
    " lie further apart than {longest:g} s: bump() then"
)


def sentences(quorum: Quorum) -> tuple[str, ...]:
    """What a quorum promises, and how its servers are."""
    count = len(quorum.servers)
    borne = count - quorum.most
    many = f"{count} independent servers: {quorum.most} give a lease, {borne} may be away"
    if count % 2 == 0:
        many += f"; {count - 1} would bear as many"
    words = {"longest": quorum.longest, "most": quorum.most}
    away = (str(each.why) for each in quorum.servers if each.why is not None)
    hearing = {each.hearing for each in quorum.servers}
    return (
        many,
        CLOCKS,
        MEMORY.format(**words),
        TOKENS.format(**words),
        f"wake-ups: {'; '.join(sorted(hearing))}",
        *away,
    )
