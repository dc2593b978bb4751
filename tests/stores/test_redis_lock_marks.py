"""redis-py's lock, replaced: a mark stays only of a request that may still be on its way."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio

from ground import needs
from lifehold.compat import redis_lock
from lifehold.compat.redis_lock import BlockingClient, Lock
from lifehold.compat.redis_lock.asyncio import AsyncioClient
from lifehold.compat.redis_lock.asyncio import Lock as AsyncLock
from lifehold.ops.redis_locks import side_keys
from patience import SOON

pytestmark = needs("redis")
LINE = side_keys(b"job").line


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as made:
        yield made


def marks(client):
    return client.keys(side_keys(b"job").given_up + b":*")


def test_a_wait_that_is_interrupted_between_two_looks_leaves_no_mark(client, monkeypatch):
    async def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BlockingClient, "heard", interrupted)
    with Lock(client, "job", timeout=60) as held:
        with pytest.raises(KeyboardInterrupt):
            Lock(client, "job", timeout=60).acquire()
        assert not client.zcard(LINE)
        assert not marks(client)
        assert held.owned()


def test_a_request_that_has_no_answer_leaves_a_mark_though_earlier_ones_had(client, monkeypatch):
    evalsha = client.evalsha

    def unanswered(*words, **options):
        client.evalsha = evalsha
        evalsha(*words, **options)
        raise redis.TimeoutError("no answer")

    async def looks_in_vain(*_):
        client.evalsha = unanswered
        return True

    monkeypatch.setattr(BlockingClient, "heard", looks_in_vain)
    monkeypatch.setattr(redis_lock.heartbeat, "apart", lambda work: work())
    with Lock(client, "job", timeout=60) as held:
        with pytest.raises(redis.TimeoutError):
            Lock(client, "job", timeout=60).acquire()
        assert not client.zcard(LINE)
        assert len(marks(client)) == 1
        assert held.owned()


@pytest.mark.parametrize("answered", [True, False])
def test_a_cancelled_wait_leaves_a_mark_of_a_request_without_an_answer_alone(
    redis_url, client, monkeypatch, answered
):
    waits = asyncio.Event()

    async def for_ever(*_, **__):
        waits.set()
        await asyncio.sleep(SOON)

    async def main():
        async with redis.asyncio.Redis.from_url(redis_url) as aclient:
            evalsha = aclient.evalsha

            async def looks_in_vain(*_):
                aclient.evalsha = for_ever
                return True

            monkeypatch.setattr(AsyncioClient, "heard", for_ever if answered else looks_in_vain)
            async with AsyncLock(aclient, "job", timeout=60):
                task = asyncio.create_task(AsyncLock(aclient, "job", timeout=60).acquire())
                await waits.wait()
                aclient.evalsha = evalsha
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not client.zcard(LINE)
                assert len(marks(client)) == (0 if answered else 1)

    asyncio.run(main())
