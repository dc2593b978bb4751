"""redis-py's lock, replaced, over a client with few connections: who waits leaves it room."""

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

pytestmark = needs("redis")
WAITERS = 8
IN_VAIN = 10.0  # seconds for which the pool lets a thread wait for a connection, before it raises


@pytest.mark.parametrize("most", [1, 4])
def test_waiting_threads_leave_room_in_the_pool_of_their_client(redis_url, most):
    """As redis-py's own lock does: a holder releases, though many wait through the same client."""
    given = redis.connection.parse_url(redis_url)
    pool = redis.BlockingConnectionPool(max_connections=most, timeout=IN_VAIN, **given)
    client, came = redis.Redis(connection_pool=pool), []

    def wait():
        with client.lock("job", timeout=60, lock_class=Lock):
            came.append(1)

    with Lock(client, "job", timeout=60):
        threads = [threading.Thread(target=wait) for _ in range(WAITERS)]
        for each in threads:
            each.start()
        threads[0].join(1.0)  # all of them have begun to listen, as far as they may
    for each in threads:
        each.join(SOON)
    pool.disconnect()
    assert len(came) == WAITERS


@pytest.mark.parametrize("most", [1, 4])
def test_waiting_tasks_leave_room_in_the_pool_of_their_client(redis_url, most):
    async def main():
        given = redis.asyncio.connection.parse_url(redis_url)
        pool = redis.asyncio.BlockingConnectionPool(max_connections=most, timeout=IN_VAIN, **given)
        async with redis.asyncio.Redis(connection_pool=pool) as client:

            async def wait():
                async with client.lock("job", timeout=60, lock_class=AsyncLock):
                    return True

            async with AsyncLock(client, "job", timeout=60):
                tasks = [asyncio.create_task(wait()) for _ in range(WAITERS)]
                await asyncio.sleep(1.0)
            came = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON)
        await pool.disconnect()
        assert came == [True] * WAITERS

    asyncio.run(main())


def test_as_many_tasks_as_a_pool_that_lets_nobody_wait_has_connections(redis_url):
    """Each of redis-py's own locks needs one at a time, so none of them is refused."""

    async def main():
        client = redis.asyncio.Redis.from_url(redis_url, max_connections=WAITERS + 1)
        async with client:

            async def turns():
                for _ in range(5):
                    async with client.lock("job", timeout=60, lock_class=AsyncLock, sleep=0.01):
                        pass
                return True

            tasks = [asyncio.create_task(turns()) for _ in range(WAITERS + 1)]
            came = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON)
        assert came == [True] * len(tasks)

    asyncio.run(main())


def test_a_waiter_that_has_gone_leaves_its_room_to_the_next_one(redis_url):
    """One may listen in a pool of two: each of these does, after the other."""
    client = redis.Redis.from_url(redis_url, max_connections=2)
    watching = redis.Redis.from_url(redis_url)
    with Lock(client, "job", timeout=60):
        for _ in range(3):
            waiter = threading.Thread(
                target=lambda: Lock(client, "job", timeout=60).acquire(blocking_timeout=1.5)
            )
            waiter.start()
            waiter.join(0.7)
            assert watching.client_list(_type="pubsub"), "nobody listens"
            waiter.join(SOON)
    client.close()
    watching.close()
