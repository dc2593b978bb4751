"""`postgresql://host/database`: leases between all hosts that reach one PostgreSQL.

Promise: what store/rules.py says of one name, by the server's clock, in one round trip and one
transaction each; who waits is let in by who leaves, or called, and told by NOTIFY. The rules are in
sql.py and sql.py, connections in wire.py, errors in messages.py, waking in notify.py.

How it could fail, and what keeps it. An answer that is lost: the nonce finds the same grant again
(L6). A server that is paused or gone: the request ends by its limit, the lease by its deadline
(L8). A failover to a standby that had not yet received the last grants: their tokens are behind
those of the standby's clock, unless that clock is behind too (`.ground()` says so; `bump`).
"""

from __future__ import annotations

from ...core.backend import Given, NoReply, Refused, State, StoreHolder, Traits, Unreachable
from ...core.deadline import NEVER
from ...core.errors import CorruptRecord, InvalidArgument, LifeholdError
from ...core.fence import LARGEST
from ...core.owner import Owner, owner_of
from ...core.value import as_dict
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import finish
from ..rules import (
    INSTANT,
    NUMBER,
    ONE_OR_MORE,
    SECONDS,
    TOKEN,
    WORD,
    fitting,
    no_state,
)
from .connect import PostgresUrl, call, ending, too_new
from .messages import migrate_command, place
from .sql import LAST, VERSION
from .wire import ConnectionPool

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from collections.abc import Callable, Sequence
    from typing import Any, TypeGuard

    from ...core.backend import Kept, Order, Renewal, Request
    from .notify import NotifyWakeups
else:
    json = fork.later("json", globals())

LIMIT = 10.0  # seconds for one answer
PAGES = 4  # the version since which a page is one call
MANY = 1000  # names to a request, at most
PAGE = """SELECT {what} FROM {at}lifehold_lease l, (SELECT {at}lifehold_now() AS now) t
    WHERE l.name > $2 AND l.name >= $1 AND l.name < $1 || {last} ORDER BY l.name LIMIT $3
""".replace("{last}", LAST)
WHOLE = "{at}lifehold_1_state(l, t.now)"
BARE = "json_build_array(l.name, l.token, l.capacity, NULL, NULL)"
NAMED = """SELECT {at}lifehold_1_state(l, t.now),
    (SELECT json_build_array(k.token, k.text) FROM {at}lifehold_kept k WHERE k.name = l.name)
    FROM {at}lifehold_lease l, (SELECT {at}lifehold_now() AS now) t WHERE l.name = ANY ($1)"""
RENEW = "$1::text[], $2::text[], $3::float8[]"
# For this one statement: what others keep locked is not waited for to the end (milliseconds in $4).
RENEW_SOON = RENEW.replace(
    "$3::float8[]",
    "CASE WHEN set_config('lock_timeout', $4, true) IS NOT NULL THEN $3::float8[] END",
)
SHARE = 8  # of the time for all renewals, the part for which their first statement waits for a lock
BRIEF = 0.005  # seconds for which each later one does
OF_A_ROW = ("22", "23", "55P03", "XX")  # SQLSTATE, or its class: one row alone may have caused it


class Postgres:
    """The backend over one pool. `beats`: the pool for renewals, which nobody else may fill."""

    def __init__(self, plan: PostgresUrl, link: Any, beats: Any, wakeups: NotifyWakeups) -> None:
        self._plan, self._link, self._beats, self._wakes = plan, link, beats, wakeups
        self._owner: tuple[Owner, str] | None = None
        self.traits, self._until = Traits(limit=plan.limit), NEVER
        if plan.late is None:
            plan.late = LateRequests(plan, beats)

    def within(self, until: float) -> Postgres:
        """The same, for a question whose answer is of use until that instant."""
        made = Postgres(self._plan, self._link, self._beats, self._wakes)
        made._until = until
        return made

    async def _call(self, name: str, *given: object, first: bool = False) -> tuple[Any, ...]:
        prepared = self._link.prepared
        found = await self._link.ask(
            lambda: self._plan.statement(name, len(given), prepared),
            given,
            self._until,
            first=first,
        )
        return self._only(found)

    def _only(self, found: list[tuple[object, ...]]) -> tuple[Any, ...]:
        if not found:  # L12
            raise too_new(self._plan)
        return found[0]

    async def acquire(self, request: Request) -> Given | Refused:
        r = request
        given = (
            r.name,
            r.nonce,
            r.ttl,
            r.delay,
            self._written(r.owner),
            r.capacity,
            r.weight,
            r.shared,
            r.wait,
            r.fair,
            r.patience,
            _wakeup(r.wakeup, r.handoff_id),
            r.gone,
        )
        over = self._plan.late.sent(r.nonce)  # L6  it may come behind its own release
        try:
            row = await self._call("1_acquire", *given)
        except Unreachable as error:
            over()
            raise _beyond(r.name, error) from error.__cause__
        over()
        is_in, token, slot, acquired_at, now, over, holders, ahead, look_in, capacity = row
        if is_in:
            try:
                gone = _store_holder(over) if over else None
            except ValueError:  # L13  it was no holder of ours; the grant is
                gone = None
            return Given(token, slot, acquired_at, now, gone)
        try:
            seen = tuple(_store_holder(one) for one in holders or ())
        except ValueError as error:
            raise no_state(r.name, error) from error
        return Refused(seen, ahead, look_in, capacity)

    async def renew(self, many: Sequence[Renewal]) -> tuple[float | None, tuple[Kept, ...]]:
        """Those that change no weight go in one statement, which locks no row of a name.

        A row that is locked or damaged makes it fail for all: it is said again in halves, as long
        as there is time, so that such a row costs its own lease alone. What was said once waits no
        longer for a lock than BRIEF, since each locked row makes several halves fail.
        """
        if len(many) == 1 and many[0].weight is not None:
            one = many[0]
            now, kept = await self._call(
                "1_lighten", one.name, one.nonce, one.ttl, one.weight, first=True
            )
            return now, tuple(kept)
        if any(one.weight is not None for one in many):
            raise InvalidArgument("a renewal that changes a weight goes alone")
        until, there = min(self._until, clock.now() + self._plan.limit), None
        found: list[Kept] = [False] * len(many)
        parts: list[tuple[int, int, Unreachable | None]] = [(0, len(many), None)]
        for begin, end, failed in parts:  # they grow meanwhile
            try:
                if failed is not None and clock.now() >= until:
                    raise failed
                wait = BRIEF
                if failed is None:
                    wait = (until - clock.now()) / SHARE if len(many) > 1 else NEVER
                there, found[begin:end] = await self._prolonged(many[begin:end], until, wait)
            except (Unreachable, NoReply) as error:
                if end - begin > 1 and clock.now() < until and _is_of_a_row(error):
                    half = (begin + end) // 2
                    parts += [(begin, half, error), (half, end, error)]
                elif begin == 0 and end == len(many):
                    raise
                else:
                    found[begin:end] = [error] * (end - begin)
        return there, tuple(found)

    async def _prolonged(
        self, many: Sequence[Renewal], until: float, wait: float
    ) -> tuple[float, list[bool]]:
        """By one statement, which waits so long for a lock: the server's clock, and who is in."""
        given: list[object] = [[one.name for one in many], [one.nonce for one in many]]
        given.append([float(one.ttl) for one in many])
        if wait < NEVER:
            given.append(str(max(1, int(wait * 1000))))
        how = RENEW_SOON if wait < NEVER else RENEW
        answer = await self._beats.ask(
            lambda: (call(self._plan, "1_renew", how), False), given, until
        )
        now, kept = self._only(answer)
        return now, list(kept or ())

    async def release(self, name: str, nonce: str) -> bool:
        (was_in,) = await self._call("1_release", name, nonce, first=True)
        self._plan.late.released(name, nonce)
        return bool(was_in)

    async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
        if names is None:
            return await self._all(prefix)
        found = await self.read(NAMED, (list(names),))
        states = {one[0]: _state([*one, kept]) for one, kept in found}
        wanted = [states[name] for name in names if name in states and name.startswith(prefix)]
        for state in wanted:
            if state.damage:
                raise CorruptRecord(state.damage, name=state.name)
        return tuple(wanted)

    async def _all(self, prefix: str) -> tuple[State, ...]:
        found: list[State] = []
        while True:
            some = await self.page(prefix, found[-1].name if found else "", MANY)
            found += some
            if len(some) < MANY:
                return tuple(found)

    async def page(
        self, prefix: str, after: str, most: int, *, bare: bool = False
    ) -> tuple[State, ...]:
        """The next states behind a name, in order; `bare`: of each only name, token, capacity."""
        query = PAGE.replace("{what}", BARE if bare else WHOLE)
        if not bare and self._plan.version >= PAGES:
            query = "SELECT p.* FROM {at}lifehold_4_page($1, $2, $3) p"
        found = await self.read(query, (prefix, after, most))
        return tuple(_state(one) for (one,) in found)

    async def prune(self, after: str, idle: float, most: int) -> tuple[str | None, int]:
        """Forget those of the next names that nobody has used for `idle` seconds (PRUNE)."""
        try:
            ((now,),) = await self.read("SELECT {at}lifehold_now()", ())
            upto, gone = await self._call("4_prune", after, now - idle, most)
        except Unreachable as error:
            if _sqlstate(error) != "42501":
                raise
            raise Unreachable(
                f"{place(self._plan.known)}: only the owner of the tables forgets names, since "
                "their tokens go with them: use its role"
            ) from error
        return upto, int(gone)

    async def order(self, order: Order) -> State | None:
        if not -LARGEST <= order.least <= LARGEST:
            raise InvalidArgument(f"a token is at most {LARGEST}, not {order.least}")
        given = (order.verb, order.name, order.reason, order.by, order.least, order.text)
        try:
            if order.nonce:
                text = ending(self._plan)
                asked = (*given, order.nonce)
                found = await self._link.ask(lambda: (text, False), asked, self._until)
                before: Any = found[0][0] if found else None
            else:
                (before,) = await self._call("1_order", *given)
        except Unreachable as error:
            raise _beyond(order.name, error) from error.__cause__
        return _state(before) if before else None

    async def ground(self) -> tuple[str, ...]:
        (row,) = await self.read(QUESTION, ())
        return sentences(row, self._plan.known, self._plan.pooled, self._wakes.state)

    async def read(self, query: str, given: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """A question that changes nothing is asked again when its answer was lost, in its time."""
        until = min(self._until, clock.now() + self.traits.limit)
        while True:
            try:
                found: list[tuple[object, ...]] = await self._link.ask(
                    lambda: (self._at(query), False), given, until
                )
                return found
            except NoReply:
                if clock.now() >= until:
                    raise

    def _at(self, query: str) -> str:
        schema = self._plan.schema
        return query.replace("{at}", schema).replace("{name}", schema.replace("'", "''"))

    def close(self) -> None:
        """Give back connections that nobody uses. The next question opens one again."""
        for link in (self._link, self._beats):
            if isinstance(link, ConnectionPool):
                link.close()

    def _written(self, owner: Owner) -> str:
        known = self._owner
        if known is None or known[0] != owner:
            text = json.dumps(
                {key: item for key, item in as_dict(owner).items() if item not in (None, "")}
            )
            known = self._owner = owner, text
        return known[1]


def _sqlstate(error: BaseException) -> str:
    return str(getattr(error.__cause__, "sqlstate", ""))


def _is_of_a_row(error: Exception) -> TypeGuard[Unreachable]:
    """Whether the server undid a statement, perhaps because of one of its rows alone."""
    return isinstance(error, Unreachable) and _sqlstate(error).startswith(OF_A_ROW)


def _beyond(name: str, error: Unreachable) -> Exception:
    """What a refusal of a step means: there is no token behind one that no step has given (L13)."""
    if _sqlstate(error) != "22003":
        return error
    return no_state(name, ValueError("its last token is beyond the range"))


def _wakeup(wakeup: str, handoff_id: str) -> str:
    """The channel alone; or channel, listener and word, where all are there (sql.py)."""
    channel, _, listener = wakeup.partition(" ")
    return f"{wakeup} {handoff_id}" if handoff_id and listener else channel


HELD = {  # what a step has written of a holder: json has NaN and infinity of a column as text
    "nonce": WORD,
    "token": TOKEN,
    "weight": ONE_OR_MORE,
    "slot": NUMBER,
    "ttl": SECONDS,
    "ends_in": INSTANT,
    "acquired_at": INSTANT,
    "renewals": NUMBER,
    "owner": WORD,
    "delay": SECONDS,
}


def _store_holder(one: list[Any]) -> StoreHolder:
    """One holder. Raises ValueError for what no step has written."""
    for (what, allowed), found in zip(HELD.items(), one, strict=True):
        fitting(what, found, allowed)
    nonce, token, weight, slot, ttl, ends_in, acquired_at, renewals, owner, delay = one
    return StoreHolder(
        nonce,
        token,
        weight,
        slot,
        ttl,
        ends_in,
        f"{nonce}:{renewals}",
        acquired_at,
        renewals,
        _read_owner(owner),
        delay,
    )


def _read_owner(text: str) -> Owner | None:
    """L12  What a newer version wrote besides is not for us."""
    return owner_of(lambda: json.loads(text))


def _state(one: list[Any]) -> State:
    name, token, capacity, holders, nonces, *kept = one
    left = (kept[0][0], kept[0][1]) if kept and kept[0] and kept[0][0] is not None else None
    try:
        fitting("token", token, TOKEN)
        holders = tuple(map(_store_holder, holders or ()))
    except ValueError as error:  # L13  it costs its own name alone
        return State(name, None, 1, damage=no_state(name, error).text)
    return State(name, token, capacity, holders, tuple(nonces or ()), left)


# ------------------------------------------------------------------------------------------------
# Requests that may still be on their way when what they take is given back already.
#
# Promise: what such a request takes is given back too. A connection that was given up may still
# carry it, as across a network that was cut: then it comes behind the release, which went another
# way. So the release is said again, until TCP has given up what was sent (connect.py: 20 s). How it
# could fail: a pooler or tunnel keeps the request for longer. Then the lease runs out by itself.


AGAIN = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds from one release to the next
LONGEST_LOOK = 1.0  # seconds of one sleep: another may be due before
USELESS = 30.0  # seconds behind its time at which a release is not said any more
DOUBTED = 10_000  # nonces that are kept in mind


class LateRequests:
    """Those of one store. `beats`: the connections by which it is told."""

    def __init__(self, plan: PostgresUrl, beats: Any) -> None:
        self._plan, self._beats = plan, beats
        self._begin()

    def _begin(self) -> None:
        self._generation = fork.here()
        self._doubted: dict[str, None] = {}  # nonces whose request has had no answer
        self._due: list[tuple[float, str, str, int]] = []  # when, name, nonce, how often before
        self._works = False

    def sent(self, nonce: str) -> Callable[[], object]:
        """A request is on its way, until it is over: what is returned tells that, if anybody can.

        Also its caller may have gone and given it back meanwhile, as another thread does for trio.
        """
        if self._generation != fork.here():
            self._begin()
        doubted = self._doubted
        if nonce in doubted:  # an earlier one is on its way
            return lambda: None
        doubted[nonce] = None
        if len(doubted) > DOUBTED:  # those of long ago have no request on its way
            doubted.pop(next(iter(doubted)), None)
        return lambda: doubted.pop(nonce, None)

    def released(self, name: str, nonce: str) -> None:
        """It was given back. To be said again, if a request may come behind that."""
        if nonce not in self._doubted or self._generation != fork.here():
            return
        self._doubted.pop(nonce, None)
        self._due.append((clock.now() + AGAIN[0], name, nonce, 0))
        starts = False
        try:
            with fork.gate:
                starts, self._works = not self._works, True
            if starts:
                heartbeat.thread(self._work)
        except BaseException as error:  # no thread to be had, or a signal handler has raised
            if starts:
                self._works = False
            if not isinstance(error, RuntimeError):
                raise

    def _work(self) -> None:
        try:
            self._say()
        except BaseException:
            self._works = False  # else nobody would say any more
            raise

    def _say(self) -> None:
        generation = self._generation
        while True:
            with fork.gate:
                if not self._due or generation != fork.generation:
                    self._works = False
                    return
            due, name, nonce, before = first = min(self._due)
            if (left := due - clock.now()) > 0:
                clock.pause(min(left, LONGEST_LOOK))
                continue
            self._due.remove(first)
            if left > -USELESS:
                self._release(name, nonce)
            if before + 1 < len(AGAIN):
                self._due.append((clock.now() + AGAIN[before + 1], name, nonce, before + 1))

    def _release(self, name: str, nonce: str) -> None:
        try:
            query = lambda: (call(self._plan, "1_release", "$1, $2"), False)  # noqa: E731
            finish(self._beats.ask(query, (name, nonce)))
        except (Unreachable, NoReply, LifeholdError):
            pass  # the next one may get through; else the lease runs out by itself


# ------------------------------------------------------------------------------------------------
# What the leases of a PostgreSQL stand on, in sentences.


QUESTION = """
SELECT current_setting('server_version'), current_setting('fsync') = 'on',
    current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
    (SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names'),
    (SELECT version FROM {at}lifehold_schema)
"""

CLOCK = (
    "leases run by the server's clock: a step forward ends them early by as much, a step back"
    " prolongs them; hosts' clocks are never compared"
)


def sentences(
    row: tuple[Any, ...], known: dict[str, Any], pooled: bool, listening: str
) -> tuple[str, ...]:
    """What the server answered, in words. `known`: host, database and so on."""
    version, fsync, pages, commit, standbys, names, schema = row
    told = [
        f"PostgreSQL {version}, schema {schema}: one primary decides, in one transaction each",
        CLOCK,
    ]
    lost = (
        "a token can repeat only when grants were lost and the clock of the server is behind the"
        " one that gave them: then bump(name)"
    )
    if names and commit in ("on", "remote_apply", "remote_write"):
        told.append(f"a standby has each grant before its holder ({names}, {commit}); {lost}")
    elif standbys:
        told.append(
            f"{standbys} asynchronous standby{'s' if standbys != 1 else ''}: a failover may lose"
            f" the last grants, so two may hold one name until the older ttl is over; {lost}"
        )
    else:
        told.append(
            "no standby is connected: a standby promoted later, or a backup restored, may have lost"
            f" grants; {lost}"
        )
    if not fsync or not pages or commit == "off":
        what = "fsync" if not fsync else "full_page_writes" if not pages else "synchronous_commit"
        told.append(f"{what} is off: a crash of the server may forget grants that are in use")
    if schema < VERSION:
        told.append(
            f"its tables are of version {schema}, which is slower. This brings them up: "
            f"{migrate_command(known)}"
        )
    if pooled:
        told.append(
            "a pooler stands between: leases are kept, waiters are not called and look every 1 to"
            " 5 s; for calls, and for kind='session', connect to the server itself"
        )
    else:
        told.append(f"waiters are called by NOTIFY ({listening})")
    return tuple(told)
