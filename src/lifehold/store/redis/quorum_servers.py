"""The servers of a quorum, one by one and asked at once, and how a quorum is opened.

Promise: a server takes part in a step only while its marker is of its very run and terms; one that
is away, or absent, is looked at by a thread of its own as long as somebody misses it, and is told
there what was given up (L6). What they decide together is in quorum.py.
"""

from __future__ import annotations

from ...core.backend import Unreachable
from ...core.deadline import NEVER, Backoff
from ...core.errors import InvalidArgument
from ...core.mask import printable
from ...core.value import replace
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import ThreadWakeup, finish
from ..site import Opener, Site
from .backend import Redis
from .connect import RedisUrl, shared_url
from .groups import QUORUM, Hosts
from .opening import from_query, limits
from .publish import PublishedWakeups
from .quorum import FAILURES, SHARE, Absent, Quorum, nothing, plain
from .scripts import MARKER, keys, quorum_scripts
from .wire import GRACE, SHARED, RedisPool, RedisRefused, together

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...core.backend import Given, Refused, Request
    from .quorum import Asked, Found, Member
    from .wire import Command
else:
    threading = fork.later("threading", globals())

LEAST = 3  # servers: with two, none may fail
MOST = 15
LONGEST = 60.0  # seconds of ttl, at most, unless the caller says otherwise
MEND = Backoff(0.05, 2.0)  # seconds between two looks at a server that is away
LOOK = 0.25  # seconds between two looks at one that is absent
WANTED = 10.0  # seconds for which such a server is looked at after somebody has missed it
OWED = 10_000  # nonces that a server is still to be told of, at most
MIXED = "the servers of a quorum"


# ------------------------------------------------------------------------------------------------
# How the servers are asked.


class Asking:
    """The clock, and how servers are asked at once. `rounds`: at most so many at a time."""

    def __init__(self, rounds: int = 8) -> None:
        self._rounds = rounds
        self._begin()

    def _begin(self) -> None:
        self._generation = fork.here()
        self._gate = threading.BoundedSemaphore(self._rounds)
        self.waiting: list[ThreadWakeup] = []

    now = staticmethod(clock.now)

    async def pause(self, seconds: float) -> None:
        clock.pause(seconds)

    async def together(
        self,
        asked: Asked,
        until: float,
        settled: Callable[[Found], bool],
        *,
        beat: bool = False,
    ) -> Found:
        """What each has answered. Once it is `settled` the others have a moment left."""
        if self._generation != fork.here():
            self._begin()
        gate, free = self._gate, False
        try:
            if not beat:
                free = gate.acquire(timeout=max(0.0, min(until - clock.now(), 1e6)))
                if not free:
                    raise Unreachable("all connections were in use: allow more (connections=)")
            return together(asked, until, settled, FAILURES)
        finally:
            for question in asked.values():
                question.close()
            if free:
                gate.release()

    async def gathered(self, servers: Sequence[Member], most: int, until: float) -> list[Member]:
        """Those that count, once each that is away was looked at, or enough are here."""
        if self._generation != fork.here():
            self._begin()
        wakeup = ThreadWakeup()
        self.waiting.append(wakeup)
        try:
            began = clock.now()
            looks = {each: each.looks for each in servers if not each.wanted()}
            while True:
                here = [each for each in servers if each.counts]
                first = [each for each in looks if each.looks == 0]
                unseen = [each for each in looks if each.looks == looks[each] and not each.counts]
                now = clock.now()
                ends = until if len(here) < most else min(until, began + GRACE)
                if now >= ends or not (first if len(here) >= most else unseen):
                    return here
                wakeup.wait(ends - now)
        finally:
            self.waiting.remove(wakeup)

    def ring(self) -> None:
        """A server has been looked at."""
        for wakeup in list(self.waiting):
            wakeup.ring()


# ------------------------------------------------------------------------------------------------
# One server.


class ServerUrl(RedisUrl):
    """One server of a quorum."""

    def refused(self, error: RedisRefused, key: str) -> Exception:
        if error.code == "ABSENT":
            return Absent(f"{self.place}: it was started anew or emptied, and has forgotten")
        return super().refused(error, key)


class ServerWakeups(PublishedWakeups):
    """Who is called at one server: of whichever try."""

    def told(self, text: str) -> None:
        super().told(plain(text))


class QuorumServer(Redis):
    """One server. `terms`: what all clients agree on; `waiting`: rung when it was looked at.

    `counts`: whether it may be asked; `why`: the reason for which it may not; `heard`: whether it
    has answered at all; `looks`: how often it was looked at while it was away.
    """

    def __init__(self, plan: ServerUrl, most: int, terms: str, longest: float) -> None:
        link, beats = RedisPool(plan, most), RedisPool(plan, 3)
        beats.strict = False  # who holds a lease keeps it
        self.published, self.longest = ServerWakeups(plan, hands=False), longest
        super().__init__(plan, link, beats, self.published, quorum_scripts(terms), SHARED)
        self.place, self.run, self.terms = plan.place, "", terms
        self.family: Sequence[QuorumServer] = ()
        self.ring: Callable[[], object] = nothing
        self._begin()

    def _begin(self) -> None:
        self._generation = fork.here()
        self.counts, self.heard, self.looks = False, False, 0
        self.why: Exception | None = Unreachable(f"{self.place}: it was not asked yet")
        self._wanted_at, self._mends = -NEVER, False
        self._owed: dict[tuple[str, str], float] = {}

    def _command(self, how: str, verb: str, name: str, given: Sequence[str | float]) -> Command:
        script, where = self._scripts[verb], (*keys(name), MARKER)
        return (how, script.sha if how == "EVALSHA" else script.text, len(where), *where, *given)

    async def acquire(self, request: Request) -> Given | Refused:
        wakeup = self.published.channel if request.wakeup else ""
        return await super().acquire(replace(request, wakeup=wakeup))

    async def confirm(self, name: str, nonce: str, token: int, since: float) -> bool:
        """Whether the nonce holds the name here, whose token is now that one at the least.

        `since`: UTC seconds, for people, the same at each server.
        """
        return bool(await self._call("confirm", name, nonce, str(token), since))

    async def undo(self, name: str, nonce: str) -> bool:
        """The nonce is given up, and is not let in any more. Whether it was in."""
        return bool(await self._call("undo", name, nonce))

    # ---- whether it counts

    @property
    def hearing(self) -> str:
        """How its wake-ups are heard."""
        return self.published.state

    def wanted(self) -> bool:
        """Whether it counts. One that does not is looked at from now on."""
        if self._generation != fork.here():
            self._begin()
        if not self.counts:
            self._wanted_at = clock.now()
            self._mend()
        return self.counts

    def failed(self, error: Exception) -> None:
        """It gave no answer, or has forgotten: it does not count until it was looked at."""
        self.counts, self.why = False, error
        self.wanted()

    def owe(self, name: str, nonce: str, until: float) -> None:
        """Undo a nonce behind the caller, until an instant."""
        self._owed[name, nonce] = until
        if len(self._owed) > OWED:
            self._owed.pop(next(iter(self._owed)), None)
        self._mend()

    def _mend(self) -> None:
        with fork.gate:
            starts, self._mends = not self._mends, True
        if starts:
            try:
                heartbeat.thread(self._mending)
            except RuntimeError:  # no thread to be had: the next one tries again
                self._mends = False

    def _mending(self) -> None:
        """The thread that looks at it until it counts, and tells it what it is owed."""
        generation, tries = self._generation, MEND.pauses()
        while generation == fork.generation:
            pause = 0.0
            try:
                if not self.counts:
                    left = self._admitted()
                    pause = min(left, LOOK)
                self._pay()
            except FAILURES as error:
                self.counts, self.why = False, error
                pause = next(tries)
            except Exception as error:  # noqa: BLE001 - told by ground()
                self.counts, self.why = False, Unreachable(f"{self.place}: {error!r}")
                pause = next(tries)
            self.looks += 1
            self.ring()
            if pause:
                clock.pause(pause)
            with fork.gate:
                wanted = not self.counts and clock.now() < self._wanted_at + WANTED
                if not self._owed and not wanted:
                    self._mends = False
                    return

    def _admitted(self) -> float:
        """Seconds after which it counts; 0 when it does. Raises what keeps it."""
        command: Command = ("EVAL", self._scripts["admit"].text, 1, MARKER, self.longest)
        (reply,) = finish(self._beats.ask([command]))
        self.plan.refuse_evicting()
        self._refuse_grouped()
        if isinstance(reply, RedisRefused):
            if reply.code == "TERMS":
                raise InvalidArgument(
                    f"{self.place}: it was set up as one of {str(reply)[6:]}, not {self.terms}: "
                    "all programs must name the same servers and longest_ttl. To change them end "
                    f"all programs, then redis-cli DEL {MARKER} at each server"
                )
            raise self.plan.refused(reply, MARKER)
        self.run, left = reply[0].decode(), float(reply[1])
        for other in self.family:
            if other is not self and other.run == self.run:
                raise InvalidArgument(
                    f"{self.place} and {other.place} are one server: {MIXED} must be independent"
                )
        self.heard = True
        if not left:
            self.counts, self.why = True, None
            return 0.0
        self.why = Absent(
            f"{self.place}: it is new, was started anew or was emptied, and counts in {left:.0f} s"
        )
        return max(left, 0.01)

    def _refuse_grouped(self) -> None:
        mode = self.plan.facts.get("redis_mode", "standalone")
        if mode != "standalone":
            raise InvalidArgument(f"{self.place}: it is a {mode}: {MIXED} stand alone")

    def _pay(self) -> None:
        """Undo what is owed. Raises what keeps it."""
        for (name, nonce), until in list(self._owed.items()):
            if until > clock.now():
                script = self._scripts["undo"]
                where = keys(name)
                command: Command = ("EVAL", script.text, len(where), *where, nonce)
                (reply,) = finish(self._beats.ask([command]))
                if isinstance(reply, RedisRefused):
                    raise self.plan.refused(reply, where[0])
            if self._owed.get((name, nonce)) == until:
                del self._owed[name, nonce]


class QuorumWakeups:
    """The waiters of this process, at each server."""

    def __init__(self, servers: Sequence[QuorumServer]) -> None:
        self._servers = servers

    def listen(self, nonce: str, wake: Callable[..., object]) -> str:
        """Ring when any server calls for `nonce`."""
        for each in self._servers:
            each.published.listen(nonce, wake)
        return nonce

    def forget(self, nonce: str) -> None:
        """No more."""
        for each in self._servers:
            each.published.forget(nonce)


# ------------------------------------------------------------------------------------------------
# How a quorum is opened.


def opened(
    url: str,
    *,
    quorum: tuple[str, ...] | None = None,
    longest_ttl: object = None,
    timeout: object = None,
    connections: object = None,
) -> Site:
    """`redis+quorum://HOST,HOST,HOST/0`, or `connect(quorum=[URL, URL, URL])`.

    `longest_ttl`: seconds, of any lease here; a server that has forgotten is absent for so long.
    Raises InvalidArgument.
    """
    hosts = Hosts.of(url) if quorum is None else None
    if hosts is not None:
        given = from_query(url, "longest_ttl")
        longest_ttl = given if longest_ttl is None else longest_ttl
    longest = _longest(longest_ttl)
    limit, most = limits(url, timeout, connections)
    urls = [hosts.server(*each) for each in hosts.hosts] if hosts else list(quorum or ())
    _refuse_urls(urls)
    terms = f"{len(urls)} servers with longest_ttl={longest:g}"
    plans = [ServerUrl(each, max(limit / SHARE, 0.05)) for each in urls]
    places = [plan.place for plan in plans]
    for place in places:
        if places.count(place) > 1:
            raise InvalidArgument(f"{place} is named twice: {MIXED} must be independent")
    servers = [QuorumServer(plan, most, terms, longest) for plan in plans]
    asking = Asking(most)
    made = Quorum(servers, limit, longest, asking)
    for each in servers:
        each.family, each.ring = servers, asking.ring
    shown = hosts.shown if hosts else shared_url(QUORUM, plans)
    if longest != LONGEST:  # who types it means this quorum
        shown += f"{'&' if '?' in shown else '?'}longest_ttl={longest:g}"
    site = Site(shown, made, QuorumWakeups(servers))
    made.reached = lambda: setattr(site, "reached", True)
    return site


def _longest(given: object) -> float:
    number: Any = given
    try:
        longest = LONGEST if given is None else float(number)
    except (TypeError, ValueError):
        longest = 0.0
    if isinstance(given, bool) or not 0.1 <= longest <= 86400:
        raise InvalidArgument(f"longest_ttl must be seconds from 0.1 to 86400, not {given!r}")
    return longest


def _refuse_urls(urls: Sequence[object]) -> None:
    """Raises InvalidArgument."""
    if not LEAST <= len(urls) <= MOST:
        raise InvalidArgument(
            f"a quorum is of {LEAST} to {MOST} servers, not {len(urls)}: with fewer none may fail"
        )
    for each in urls:
        scheme = each.partition("://")[0] if isinstance(each, str) else ""
        if scheme not in ("redis", "rediss", "unix"):
            raise InvalidArgument(
                f"{MIXED} are named by redis://, rediss:// or unix://, not {printable(scheme)!r}: "
                "each must decide alone"
            )


quorum_site = Opener(opened)
