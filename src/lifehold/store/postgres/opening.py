"""A URL of PostgreSQL, or a pool of the caller's, becomes a store."""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...runtime import fork
from ...runtime.blocking import ThreadWakeup, finish
from ..site import Opener, Site
from .backend import LIMIT, Postgres
from .connect import LoopBackends, PoolLink, PostgresUrl, one_loop, parts
from .notify import NotifyWakeups
from .wire import ConnectionPool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import session, session_server
else:
    session = fork.later("lifehold.store.postgres.session", globals())
    session_server = fork.later("lifehold.store.postgres.session_server", globals())

CONNECTIONS = 8  # of one process, besides one for renewals and one that listens


def _links(plan: PostgresUrl, most: int) -> ConnectionPool:
    def connect(until: float) -> object:
        return finish(plan.connect("Connection", until))

    return ConnectionPool(connect, ThreadWakeup, plan, most)


def _over(pool: object, limit: float, create: bool | None, owner: str) -> Site:
    """The Site over a pool of the caller's."""
    conninfo, options, awaited = parts(pool)
    plan = PostgresUrl(conninfo, limit, create, options, owner)
    wakeups, beats = NotifyWakeups(plan), _links(plan, 2)
    over = PoolLink(pool, plan, awaited)
    if not awaited:
        return _with_sessions(Site(plan.url, Postgres(plan, over, beats, wakeups), wakeups), plan)
    theirs = Postgres(plan, over, beats, wakeups)
    ours = Postgres(plan, _links(plan, CONNECTIONS), beats, wakeups)
    return _with_sessions(Site(plan.url, ours, wakeups, one_loop(theirs)), plan)


class SessionLocks:
    """kind="session" (session.py), loaded when it is first asked for."""

    def __init__(self, plan: PostgresUrl) -> None:
        self._plan = plan

    def opened(self) -> object:
        return session_server.Sessions(self._plan)

    def lock(self, site: Site, name: object, runtime: Any, lease: Any, **more: Any) -> Any:
        return session.SessionLock(site, name, runtime, lease, **more)

    async def seen(self, backend: object, name: str | None, address: Any) -> tuple[object, ...]:
        return await session_server.seen_by(backend, name, address, self._plan)


def _with_sessions(site: Site, plan: PostgresUrl) -> Site:
    site.session_locks = SessionLocks(plan)
    return site


def opened(
    url: str,
    *,
    pool: object = None,
    timeout: object = LIMIT,
    connections: int = CONNECTIONS,
    create: bool | None = None,
    owner: str = "",
) -> Site:
    """`postgresql://...`, as libpq reads it; environment, service and password files too.

    `pool`: a psycopg_pool.ConnectionPool or AsyncConnectionPool of the caller's, used for all but
    renewals and listening; `timeout`: seconds for one answer; `connections`: at most so many, and
    two; `create`: make the tables when they are not there; None does so and warns;
    `owner`: a role that may own them, besides the user's own and superusers; several with commas
    between. Raises InvalidArgument.
    """
    if not isinstance(timeout, int | float) or not 0.05 <= timeout <= 3600:
        raise InvalidArgument(f"timeout must be seconds from 0.05 to 3600, not {timeout!r}")
    if type(connections) is not int or not 1 <= connections <= 1000:
        raise InvalidArgument(f"connections must be from 1 to 1000, not {connections!r}")
    if create is not None and type(create) is not bool:
        raise InvalidArgument(f"create must be True, False or None, not {create!r}")
    if not isinstance(owner, str):
        raise InvalidArgument(f"owner must be a str, not {type(owner).__name__} {owner!r}")
    if pool is not None:
        return _over(pool, float(timeout), create, owner)
    plan = PostgresUrl(url, float(timeout), create, owner=owner)
    wakeups = NotifyWakeups(plan)
    beats = _links(plan, 2)
    backend = Postgres(plan, _links(plan, connections), beats, wakeups)
    loops = LoopBackends(plan, beats, wakeups, connections, Postgres)
    made = _with_sessions(Site(plan.url, backend, wakeups, loops.swift), plan)
    made.closes.append(loops.close)
    return made


site = Opener(opened, upkeep="lifehold.store.postgres.upkeep")
