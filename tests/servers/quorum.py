"""A quorum of private Redis servers, and stores over it.

    with quorum.started(3) as servers:
        store = quorum.long_ago(servers)        # nobody has to wait for the longest ttl

The longest ttl is an hour here, so a server that has forgotten does not count until a test says so.
"""

from __future__ import annotations

import contextlib

from lifehold import connect
from servers import redis

HOUR = 3600.0  # seconds
MARKER = "lifehold:quorum"


@contextlib.contextmanager
def started(count, **options):
    """So many servers, each with a memory of its own."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(redis.started(**options)) for _ in range(count)]


def store_of(servers, base=0, **options):
    """The store over them; another `connections` makes another client."""
    given = {"longest_ttl": HOUR, "timeout": 8} | options
    return connect(quorum=[f"redis://127.0.0.1:{each.port}/{base}" for each in servers], **given)


def members(store):
    return store._site.backend.servers


def ready(store, count=None):
    """The same store, once so many of its servers count; all, unless said otherwise."""
    least = len(members(store)) if count is None else count

    def counting():
        return sum([each.wanted() for each in members(store)]) >= least

    redis.until(f"{least} servers count", counting)
    return store


def marked(server, base=0):
    """Whether it has a marker of this run."""
    with server.client(db=base) as client:
        return client.hget(MARKER, "run") == server.info("server")["run_id"]


def age(server, base=0):
    """Its marker is as old as the longest ttl: what it has forgotten is over."""
    with server.client(db=base) as client:
        redis.until("it has its marker", lambda: marked(server, base))
        client.hset(MARKER, "since", 0)


def long_ago(servers, base=0, **options):
    """The store over servers that were set up long ago."""
    store = store_of(servers, base, **options)
    for each in members(store):
        each.wanted()
    for each in servers:
        age(each, base)
    return ready(store)
