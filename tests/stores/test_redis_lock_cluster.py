"""redis-py's lock, replaced, over a cluster: each node has a pool of connections of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis
import redis.asyncio

from ground import needs
from lifehold.compat.redis_lock import Lock
from lifehold.compat.redis_lock.asyncio import Lock as AsyncLock
from patience import SOON
from servers import redis_groups

pytestmark = needs("redis")
WAITERS = 24  # more than all connections of three nodes
MOST = 4  # connections to one node
NAME = "{jobs}"


@pytest.fixture(scope="module")
def cluster():
    with redis_groups.cluster(replicas=False) as three:
        yield three


@pytest.fixture
def node(cluster):
    """Which has the lock."""
    owner = cluster.owner(cluster.slot(NAME))
    owner.call("FLUSHALL")
    return owner


def subscribed(node):
    """How many listen at it."""
    return len(node.call("PUBSUB", "CHANNELS"))


def test_waiting_threads_leave_room_in_the_pool_of_each_node(cluster, node):
    first = cluster.nodes[0]
    client = redis.RedisCluster(host="127.0.0.1", port=first.port, max_connections=MOST)
    came, failed = [], []

    def wait():
        try:
            with client.lock(NAME, timeout=60, lock_class=Lock):
                came.append(1)
        except Exception as error:
            failed.append(error)

    with Lock(client, NAME, timeout=60):
        threads = [threading.Thread(target=wait) for _ in range(WAITERS)]
        for each in threads:
            each.start()
        threads[0].join(1.0)  # all of them have begun to listen, as far as they may
        assert subscribed(node) == MOST // 2
        assert not any(subscribed(each) for each in cluster.nodes if each is not node)
    for each in threads:
        each.join(SOON)
    client.close()
    assert not failed
    assert len(came) == WAITERS


def test_waiting_tasks_leave_room_in_the_pool_of_each_node(cluster, node):
    async def main():
        port = cluster.nodes[0].port
        async with redis.asyncio.RedisCluster(
            host="127.0.0.1", port=port, max_connections=MOST
        ) as client:

            async def wait():
                async with client.lock(NAME, timeout=60, lock_class=AsyncLock):
                    return True

            async with AsyncLock(client, NAME, timeout=60):
                tasks = [asyncio.create_task(wait()) for _ in range(WAITERS)]
                await asyncio.sleep(1.0)
                assert subscribed(node) == MOST // 2
            came = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON)
        assert came == [True] * WAITERS

    asyncio.run(main())
