"""Thousands of leases in one process: renewed together, a thousand to a request, none lost."""

from __future__ import annotations

import threading
import time

import pytest

from ground import require
from lifehold import connect

SOON = 120.0
BEAT = 2.0  # seconds between renewals: often, and far from the end of a lease on a busy machine
MANY = {"memory": 10_000, "sqlite": 2_000, "postgres": 2_000, "redis": 2_000}


@pytest.fixture(params=MANY)
def url(request, tmp_path):
    if request.param == "redis":
        require("redis")
        return request.getfixturevalue("redis_url")
    if request.param != "postgres":
        return f"{request.param}://{'/' if request.param == 'sqlite' else ''}{tmp_path}/leases"
    require("postgres")
    return request.getfixturevalue("pg_url")


def counted(store):
    """How often it is asked to renew from now on, and with how many leases each time."""
    backend, asked = store._site.backend, []
    renew = backend.renew

    async def count(many):
        asked.append(len(many))
        return await renew(many)

    backend.renew, backend.within = count, lambda _: backend
    return asked


def taken(store, count, ttl, threads=4):
    """So many leases."""
    leases, mutex = [], threading.Lock()

    def take(numbers):
        mine = [
            store.lock(f"many/{number}", wait=0, ttl=ttl, heartbeat=BEAT).acquire()
            for number in numbers
        ]
        with mutex:
            leases.extend(mine)

    working = [threading.Thread(target=take, args=(range(at, count, threads),))
               for at in range(threads)]  # fmt: skip
    for each in working:
        each.start()
    for each in working:
        each.join()
    return leases


def held_through(store, count, ttl):
    """All of them renewed twice, counted: the sizes of the requests."""
    asked = counted(store)
    leases = taken(store, count, ttl)
    assert len(leases) == count
    until = time.monotonic() + SOON
    while min(holder.renewals for state in store.states("many/") for holder in state.holders) < 2:
        assert time.monotonic() < until
        time.sleep(0.2)
    sizes = list(asked)
    for lease in leases:
        lease.check()
    held = sum(len(state.holders) for state in store.states("many/"))
    for lease in leases:
        lease.release()
    assert held == count
    return sizes


def test_all_leases_of_a_process_are_renewed_in_few_requests_and_none_is_lost(url, request):
    count = MANY[request.node.callspec.params["url"]]
    sizes = held_through(connect(url), count, 60.0)
    assert max(sizes) <= 1000
    assert sum(sizes) / len(sizes) > 200  # where each came alone it would be 1


@pytest.mark.soak
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_ten_thousand_leases_of_a_process(url):
    sizes = held_through(connect(url), 10_000, 60.0)
    assert max(sizes) <= 1000
    assert sum(sizes) / len(sizes) > 200
    print(len(sizes), "requests of", sorted(sizes)[-20:])


def test_a_short_lease_does_not_say_how_long_the_renewal_of_a_long_one_may_take(tmp_path):
    """Each request waits half of the shortest heartbeat in it."""
    store = connect(f"memory:///{tmp_path}/a")
    lengths = {"long": 60, "short": 2, "near": 4}
    leases = [store.lock(name, ttl=ttl).acquire() for name, ttl in lengths.items()]
    due = dict(zip([lease._kept for lease in leases], lengths, strict=True))
    alike = [[name for name, _ in some] for some in store._site.joint._alike(due)]
    assert alike == [["short", "near"], ["long"]]
    for lease in leases:
        lease.release()
