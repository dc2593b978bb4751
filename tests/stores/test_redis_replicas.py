"""`replicas=`: a grant that too few replicas have does not count, and nothing is left of it."""

from __future__ import annotations

import asyncio

import pytest

from ground import needs
from lifehold import InvalidArgument, StoreUnavailable, aio, connect
from servers import redis
from servers.proxy import Proxy, redis_replies
from servers.redis import until

pytestmark = needs("redis")
TTL = 120.0  # no lease runs out here


@pytest.fixture(scope="module")
def pair():
    """A primary and its one replica."""
    with redis.started() as primary:
        copy = primary.replica()
        yield primary, copy
        copy.resume()
        copy.kill()


@pytest.fixture
def paused(pair):
    primary, copy = pair
    copy.pause()
    yield primary
    copy.resume()


def left(primary, name):
    """What stands at the server of those who hold or wait."""
    return [kind for kind in ("holders", "line", "waiters", "undone")
            if primary.call("EXISTS", f"lifehold:{{{name}}}:{kind}")]  # fmt: skip


def test_a_grant_is_confirmed_in_the_same_trip_and_is_at_the_replica_then(pair):
    primary, copy = pair
    store = connect(primary.url, replicas=1)
    store.lock("there", ttl=TTL).acquire().release()  # the scripts are known
    with primary.counting() as calls:
        lease = store.lock("there", ttl=TTL).acquire()
    assert (calls["evalsha"], calls["wait"]) == (1, 1)
    assert copy.call("EXISTS", "lifehold:{there}:holders") == 1
    lease.verify()
    lease.release()
    assert "confirmed by 1 of its replicas" in str(store.ground().words)


def test_a_paused_replica_refuses_the_grant_and_nothing_is_left_of_it(paused):
    store = connect(paused.url, replicas=1, timeout=2)
    for wait in (0, 0.5):
        with pytest.raises(StoreUnavailable, match=r"0 of 1 replicas have confirmed it"):
            store.lock("refused", ttl=TTL, wait=wait).acquire()
        assert store.inspect("refused") is None
        assert left(paused, "refused") == []
    with connect(paused.url).lock("refused", ttl=TTL, wait=0):  # who asks for none is not kept out
        pass


def test_more_replicas_than_there_are_refuse_each_grant(pair):
    primary, _ = pair
    store = connect(f"{primary.url}?replicas=2&socket_timeout=2")
    with pytest.raises(StoreUnavailable, match=r"of 2 replicas have confirmed"):
        store.lock("two", ttl=TTL, wait=0).acquire()
    assert left(primary, "two") == []


def test_a_task_is_refused_alike(paused):
    async def main():
        store = await aio.aconnect(paused.url, replicas=1, timeout=2)
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await store.lock("task", ttl=TTL, wait=0).acquire()

    asyncio.run(main())
    assert left(paused, "task") == []


def test_a_renewal_that_no_replica_has_prolongs_nothing_for_its_holder(pair):
    primary, copy = pair
    lease = connect(primary.url, replicas=1).lock("kept", ttl=TTL).acquire()
    ends = lease._kept.deadline
    copy.pause()
    try:
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            lease.verify()
        assert lease._kept.deadline == ends
        lease.check()
    finally:
        copy.resume()
    until("the replica has caught up", lambda: copy.follows() and _verified(lease))
    assert lease._kept.deadline > ends
    lease.release()


def _verified(lease):
    try:
        lease.verify()
    except StoreUnavailable:
        return False
    return True


def test_a_refused_grant_whose_undoing_has_no_answer_is_undone_all_the_same(paused):
    with Proxy(paused.port, redis_replies) as proxy:
        store = connect(f"redis://127.0.0.1:{proxy.port}/0", replicas=1, timeout=2)
        store.inspect("lost")
        proxy.lose(3)  # those of the script and of WAIT come, and not that of the release
        with pytest.raises(StoreUnavailable):
            store.lock("lost", ttl=TTL, wait=0).acquire()
        assert proxy.lost == 1
        proxy.lose()
        until("it is undone", lambda: "holders" not in left(paused, "lost"))


def test_who_is_woken_asks_and_is_confirmed_too(pair):
    """Nobody is let in unasked: that grant would be confirmed to nobody."""
    store = connect(pair[0].url, replicas=1)
    assert not store._site.hands
    assert connect(pair[0].url, replicas=0)._site.wakeups._hands


def test_in_a_cluster_the_replicas_of_each_names_node_count():
    from servers import redis_groups

    with redis_groups.cluster() as group:
        store = connect(group.url, replicas=1)
        leases = [store.lock(f"each/{number}", ttl=TTL).acquire() for number in range(6)]
        for lease in leases:
            lease.verify()
            lease.release()
        store = connect(f"{group.url}?replicas=2", timeout=2)
        with pytest.raises(StoreUnavailable, match="of 2 replicas have confirmed"):
            store.lock("each/1", ttl=TTL, wait=0).acquire()
        assert store.inspect("each/1") is None


@pytest.mark.parametrize("given", [-1, 101, 1.0, "1", True])
def test_a_number_that_makes_no_sense_is_refused(given):
    with pytest.raises(InvalidArgument, match="replicas"):
        connect("redis://127.0.0.1:1", replicas=given)


def test_a_url_whose_number_makes_no_sense_is_refused():
    for url in ("redis://127.0.0.1:1?replicas=x", "redis+cluster://127.0.0.1:1?replicas=-1"):
        with pytest.raises(InvalidArgument, match="replicas"):
            connect(url)
