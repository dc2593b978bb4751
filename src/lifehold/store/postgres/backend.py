"""`postgresql://host/database`: leases between all hosts that reach one PostgreSQL.

Promise: what store/ledger.py says of one name, by the server's clock, in one round trip and one
transaction each; who waits is let in by who leaves, or called, and told by NOTIFY. The rules are in
sql.py and line.py, connections in link.py, errors in words.py, waking in bells.py.

How it could fail, and what keeps it. An answer that is lost: the mark finds the same grant again
(L6). A server that is paused or gone: the request ends by its limit, the lease by its deadline
(L8). A failover to a standby that had not yet received the last grants: their tokens are behind
those of the standby's clock, unless that clock is behind too (`.ground()` says so; `bump`).
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.fence import LARGEST
from ...core.owner import Owner
from ...core.storage import Given, NoReply, Refused, Seat, State
from ...core.value import as_dict
from ...runtime import fork
from ...runtime.blocking import Bell, finish
from ..site import Site
from .bells import Bells
from .ground import QUESTION, sentences
from .link import Link
from .loop import Loops, one_loop
from .open import Plan
from .pool import PoolLink, parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...core.storage import Order, Renewal, Request

LIMIT = 10.0  # seconds for one answer
CONNECTIONS = 8  # of one process, besides one for renewals and one that listens
STATES = """SELECT lifehold_1_state(l, t.now) FROM lifehold_lease l,
    (SELECT lifehold_now() AS now) t WHERE """

NAMED = """SELECT lifehold_1_state(l, t.now),
    (SELECT json_build_array(k.token, k.text) FROM lifehold_kept k WHERE k.name = l.name)
    FROM lifehold_lease l, (SELECT lifehold_now() AS now) t WHERE l.name = ANY ($1)"""


class Postgres:
    """The backend over one Link. `beats`: the Link for renewals, which nobody else may fill."""

    def __init__(self, plan: Plan, link: Any, beats: Any, bells: Bells) -> None:
        self._plan, self._link, self._beats, self._bells = plan, link, beats, bells
        self._owner: tuple[Owner, str] | None = None

    async def _call(self, name: str, *given: Any) -> tuple[Any, ...]:
        prepared = self._link.prepared
        found = await self._link.ask(
            lambda: self._plan.statement(name, len(given), prepared), given
        )
        row: tuple[Any, ...] = found[0]
        return row

    async def acquire(self, request: Request) -> Given | Refused:
        r = request
        row = await self._call(
            "acquire", r.name, r.mark, r.ttl, r.delay, self._written(r.owner), r.capacity, r.weight,
            r.shared, r.wait, r.fair, r.patience, _bell(r.bell, r.word), r.gone,
        )  # fmt: skip
        given, token, slot, acquired_at, now, over, seats, ahead, look_in, capacity = row
        if given:
            return Given(token, slot, acquired_at, now, _seat(over) if over else None)
        return Refused(tuple(_seat(one) for one in seats or ()), ahead, look_in, capacity)

    async def renew(self, many: Sequence[Renewal]) -> tuple[float | None, tuple[bool, ...]]:
        """Those that change no weight go in one statement, which locks no row of a name."""
        if len(many) == 1 and many[0].weight is not None:
            one = many[0]
            now, kept = await self._call("lighten", one.name, one.mark, one.ttl, one.weight)
            return now, tuple(kept)
        if any(one.weight is not None for one in many):
            raise InvalidArgument("a renewal that changes a weight goes alone")
        names, marks = [one.name for one in many], [one.mark for one in many]
        ttls = [float(one.ttl) for one in many]
        found = await self._beats.ask(RENEW, (names, marks, ttls))
        now, kept = found[0]
        return now, tuple(kept or ())

    async def release(self, name: str, mark: str) -> bool:
        (was_in,) = await self._call("release", name, mark)
        return bool(was_in)

    async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
        if names is None:
            found = await self.read(STATES + "starts_with(l.name, $1) ORDER BY l.name", (prefix,))
            return tuple(_state(one) for (one,) in found)
        found = await self.read(NAMED, (list(names),))
        states = {one[0]: _state([*one, kept]) for one, kept in found}
        return tuple(states[name] for name in names if name in states and name.startswith(prefix))

    async def order(self, order: Order) -> State | None:
        if not -LARGEST <= order.least <= LARGEST:
            raise InvalidArgument(f"a token is at most {LARGEST}, not {order.least}")
        (before,) = await self._call(
            "order", order.verb, order.name, order.reason, order.by, order.least, order.text
        )
        return _state(before) if before else None

    async def ground(self) -> tuple[str, ...]:
        (row,) = await self.read(QUESTION, ())
        return sentences(row, self._plan.known, self._plan.pooled, self._bells.state)

    async def read(self, query: str, given: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """A question that changes nothing is asked again when its answer was lost."""
        try:
            found: list[tuple[Any, ...]] = await self._link.ask(query, given)
        except NoReply:
            found = await self._link.ask(query, given)
        return found

    def _written(self, owner: Owner) -> str:
        known = self._owner
        if known is None or known[0] != owner:
            json: Any = fork.lazily("json")
            text = json.dumps(
                {key: item for key, item in as_dict(owner).items() if item not in (None, "")}
            )
            known = self._owner = owner, text
        return known[1]


RENEW = "SELECT * FROM lifehold_1_renew($1::text[], $2::text[], $3::float8[])"
FIELDS = frozenset(Owner.__match_args__)


def _bell(bell: str, word: str) -> str:
    """The channel alone; or channel, listener and word, where all are there (line.py)."""
    channel, _, listener = bell.partition(" ")
    return f"{bell} {word}" if word and listener else channel


def _seat(one: list[Any]) -> Seat:
    mark, token, weight, slot, ttl, ends_in, acquired_at, renewals, owner, delay = one
    return Seat(
        mark, token, weight, slot, ttl, ends_in, f"{mark}:{renewals}", acquired_at, renewals,
        _read_owner(owner), delay,
    )  # fmt: skip


def _read_owner(text: str) -> Owner | None:
    """L12  What a newer version wrote besides is not for us."""
    json: Any = fork.lazily("json")
    try:
        known = {key: item for key, item in json.loads(text).items() if key in FIELDS}
        return Owner(**known)
    except (ValueError, TypeError, AttributeError):
        return None


def _state(one: list[Any]) -> State:
    name, token, capacity, seats, marks, *kept = one
    left = (kept[0][0], kept[0][1]) if kept and kept[0] and kept[0][0] is not None else None
    holders = tuple(map(_seat, seats or ()))
    return State(name, token, capacity, holders, tuple(marks or ()), left)


def _links(plan: Plan, most: int) -> Link:
    return Link(lambda: finish(plan.connect("Connection")), Bell, plan.known, plan.limit, most)


def _over(pool: Any, limit: float, create: bool) -> Site:
    """The Site over a pool of the caller's."""
    conninfo, options, awaited = parts(pool)
    plan = Plan(conninfo, limit, create, options)
    bells, beats = Bells(plan), _links(plan, 2)
    over = PoolLink(pool, plan, awaited)
    if not awaited:
        return _with_sessions(Site(plan.url, Postgres(plan, over, beats, bells), bells), plan)
    theirs = Postgres(plan, over, beats, bells)
    ours = Postgres(plan, _links(plan, CONNECTIONS), beats, bells)
    return _with_sessions(Site(plan.url, ours, bells, one_loop(theirs)), plan)


def _with_sessions(site: Site, plan: Plan) -> Site:
    """And kind="session" (session.py), when it is first asked for."""

    def made() -> Any:
        opening: Any = fork.lazily("lifehold.store.postgres.session_open")
        return opening.Sessions(plan)

    def seen(backend: Any, name: str | None, address: Any) -> Any:
        holders: Any = fork.lazily("lifehold.store.postgres.session_holders")
        return holders.seen_by(backend, name, address, plan)

    site.make_sessions, site.sessions_seen = made, seen
    return site


def site(
    url: str, *, pool: Any = None, timeout: Any = LIMIT, connections: int = CONNECTIONS,
    create: bool = True,
) -> Site:  # fmt: skip
    """`postgresql://...`, as libpq reads it; environment, service and password files too.

    `pool`: a psycopg_pool.ConnectionPool or AsyncConnectionPool of the caller's, used for all but
    renewals and listening; `timeout`: seconds for one answer; `connections`: at most so many, and
    two; `create`: make the tables when they are not there. Raises InvalidArgument.
    """
    if not isinstance(timeout, int | float) or not 0.05 <= timeout <= 3600:
        raise InvalidArgument(f"timeout must be seconds from 0.05 to 3600, not {timeout!r}")
    if type(connections) is not int or not 1 <= connections <= 1000:
        raise InvalidArgument(f"connections must be from 1 to 1000, not {connections!r}")
    if pool is not None:
        return _over(pool, float(timeout), create)
    plan = Plan(url, float(timeout), create)
    bells = Bells(plan)
    beats = _links(plan, 2)
    backend = Postgres(plan, _links(plan, connections), beats, bells)
    loops = Loops(plan, beats, bells, connections, Postgres)
    return _with_sessions(Site(plan.url, backend, bells, loops.swift), plan)


site.upkeep = "lifehold.store.postgres.upkeep"  # type: ignore[attr-defined]
