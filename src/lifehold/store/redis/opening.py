"""A URL of Redis, or a client of the caller's, becomes a store."""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.mask import printable
from ...runtime import fork
from ..site import Opener, Site
from .backend import LIMIT, Redis
from .connect import RedisUrl
from .groups import SENTINEL, ClusterPool, Hosts, Sentinels
from .publish import PublishedWakeups
from .scripts import scripts
from .wire import TASK, RedisPool, awaits_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from urllib import parse

    from ...core.ports import Runtime
    from ...runtime import eventloop
    from .scripts import RedisScript
else:
    eventloop = fork.later("lifehold.runtime.eventloop", globals())
    parse = fork.later("urllib.parse", globals())

CONNECTIONS = 8  # of one process, besides one for renewals and one that listens


def from_query(url: str, option: str) -> str | None:
    """An option of ours behind the ? of a URL, where redis-py has the like."""
    given = parse.parse_qs(parse.urlsplit(url).query)
    return given.get(option, [None])[0]


def limits(url: str, timeout: object, connections: object) -> tuple[float, int]:
    """Seconds for one answer, and how many connections. Raises InvalidArgument."""
    try:
        if timeout is None:
            timeout = float(from_query(url, "socket_timeout") or LIMIT)
        if connections is None:
            connections = int(from_query(url, "max_connections") or CONNECTIONS)
    except ValueError as error:
        timeout = f"{error}"
    if not isinstance(timeout, int | float) or not 0.05 <= timeout <= 3600:
        raise InvalidArgument(f"timeout must be seconds from 0.05 to 3600, not {timeout!r}")
    if type(connections) is not int or not 1 <= connections <= 1000:
        raise InvalidArgument(f"connections must be from 1 to 1000, not {connections!r}")
    return float(timeout), connections


def _replicas(url: str, replicas: object) -> int:
    """How many replicas confirm each grant. Raises InvalidArgument."""
    if replicas is None:
        given = from_query(url, "replicas") or "0"
        replicas = int(given) if given.isdecimal() else given
    if type(replicas) is not int or not 0 <= replicas <= 100:
        raise InvalidArgument(f"replicas must be from 0 to 100, not {replicas!r}")
    return replicas


def opened(
    url: str,
    *,
    client: object = None,
    timeout: object = None,
    connections: object = None,
    replicas: object = None,
) -> Site:
    """`redis://`, `rediss://` (TLS), `unix://`, as redis-py reads them.

    `client`: a redis.Redis or RedisCluster of the caller's, also of redis.asyncio or by a
    Sentinel's master_for, which says where the server is and how it is opened; the connections are
    our own. `timeout`: seconds for one answer, 10 unless given; `connections`: at most so many, 8
    unless given, and two. `replicas`: so many confirm each grant (WAIT), 0 unless given.
    Raises InvalidArgument.
    """
    copies = _replicas(url, replicas)
    hosts = None if client is None else Hosts.of_client(client)
    if hosts is not None:
        return _together(hosts, copies, *limits(url, timeout, connections))
    limit, most = limits(url, timeout, connections)
    plan = RedisUrl(url, limit, client=client)
    plan.replicas = copies
    wakeups = PublishedWakeups(plan, hands=not copies)
    link, beats = RedisPool(plan, most), RedisPool(plan, 2)
    return _site(plan, wakeups, link, beats, scripts())


def together(
    url: str, *, timeout: object = None, connections: object = None, replicas: object = None
) -> Site:
    """`redis+sentinel://`, `redis+cluster://`: servers that stand together (groups.py).

    `connections` are of each node. Raises InvalidArgument.
    """
    copies = _replicas(url, replicas)
    return _together(Hosts.of(url), copies, *limits(url, timeout, connections))


def _together(hosts: Hosts, copies: int, limit: float, most: int) -> Site:
    plan, known = RedisUrl(hosts.server(*hosts.hosts[0]), limit), scripts()
    plan.url, plan.replicas = hosts.shown, copies
    if hosts.scheme == SENTINEL:
        sentinels = Sentinels(hosts, limit)
        plan.locate, plan.forget = sentinels.primary, sentinels.forget
        plan.place = f"service {hosts.service!r}"
        plan.about = (
            f"sentinels say who is the primary of {hosts.service!r}, for each new connection; one "
            "that was cut off may grant on until they have replaced it"
        )
        wakeups = PublishedWakeups(plan, hands=not copies)
        link, beats = RedisPool(plan, most), RedisPool(plan, 2)
        return _site(plan, wakeups, link, beats, known)
    nodes, beat = ClusterPool(hosts, plan, most, known), ClusterPool(hosts, plan, 2, known)
    plan.locate, plan.place = nodes.somewhere, f"the cluster of {printable(hosts.listed)}"
    plan.about = (
        "a cluster: all of a name is in one slot, at one primary; while a slot moves its names "
        "wait, and their leases last; calls go over the cluster's bus"
    )
    return _site(plan, PublishedWakeups(plan, hands=False), nodes, beat, known)


def _site(
    plan: RedisUrl,
    wakeups: PublishedWakeups,
    link: RedisPool | ClusterPool,
    beats: RedisPool | ClusterPool,
    known: dict[str, RedisScript],
) -> Site:
    beats.strict = False  # who holds a lease keeps it
    threads = Redis(plan, link, beats, wakeups, known)
    tasks = threads.by(TASK)

    def swift(runtime: Runtime) -> Redis | None:
        if runtime is not eventloop.EVENT_LOOP or eventloop.nobody_runs():
            return None
        return tasks if awaits_sockets() else None

    return Site(plan.url, threads, wakeups, swift)


site, group = Opener(opened), Opener(together)
