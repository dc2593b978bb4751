"""A lock of redis.asyncio whose tasks are all cancelled, as at the end of `asyncio.run`."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio

from ground import needs
from lifehold.compat.redis_lock import Lock
from lifehold.compat.redis_lock import asyncio as tasks_lock
from lifehold.compat.redis_lock.asyncio import Lock as AsyncLock
from lifehold.compat.redis_lock.protocol import LockKey
from lifehold.ops.redis_locks import side_keys
from patience import SOON

pytestmark = needs("redis")
LINE = side_keys(b"job").line


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as made:
        yield made


def run(redis_url, work):
    """`asyncio.run` of it; the client is closed last, when all that was cancelled has ended."""

    async def closed(aclient):
        try:
            await asyncio.Event().wait()
        finally:
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)
            await aclient.aclose()

    async def main():
        aclient = redis.asyncio.Redis.from_url(redis_url)
        keep.append(asyncio.create_task(closed(aclient)))
        await asyncio.sleep(0)
        await work(aclient)

    keep = []
    asyncio.run(main())


async def swept(times=1):
    """The program cancels all tasks, so often."""
    mine = {each for each in asyncio.all_tasks() if "closed" in repr(each.get_coro())}
    for _ in range(times):
        for each in asyncio.all_tasks() - mine - {asyncio.current_task()}:
            each.cancel()
        for _ in range(2):
            await asyncio.sleep(0)


async def under_way(what):
    async with asyncio.timeout(SOON):
        while not what():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.001)


def is_free(client):
    lock = Lock(client, "job", timeout=60)
    return not client.exists("job") and lock.acquire(blocking=False)


@pytest.fixture
def undone(monkeypatch):
    """The undos that have begun; each gives every other task its turns first."""
    real, begun = LockKey._undo, []

    async def slow(self, ask):
        begun.append(ask)
        for _ in range(10):
            await asyncio.sleep(0)
        await real(self, ask)

    monkeypatch.setattr(LockKey, "_undo", slow)
    return begun


@pytest.mark.parametrize("sweeps", [0, 1, 2])
@pytest.mark.parametrize("before", [True, False], ids=["cancelled before", "cancelled then"])
def test_what_a_cancelled_acquire_was_granted_is_given_back(
    redis_url, client, undone, monkeypatch, sweeps, before
):
    granted, attempt = [], LockKey.attempt

    async def unheard(self, *given):
        granted.append(await attempt(self, *given))
        await asyncio.Event().wait()

    async def work(aclient):
        task = asyncio.create_task(AsyncLock(aclient, "job", timeout=60).acquire())
        await under_way(lambda: granted)
        if before:
            task.cancel()
            await under_way(lambda: undone)
        await swept(sweeps)
        tasks.append(task)

    tasks = []
    with monkeypatch.context() as patched:
        patched.setattr(LockKey, "attempt", unheard)
        run(redis_url, work)
    assert tasks[0].cancelled()
    assert is_free(client)


@pytest.mark.parametrize("sweeps", [0, 1, 2])
def test_a_waiter_leaves_the_line(redis_url, client, sweeps):
    held = Lock(client, "job", timeout=60)
    held.acquire()

    async def work(aclient):
        tasks.append(asyncio.create_task(AsyncLock(aclient, "job", timeout=60).acquire()))
        await under_way(lambda: client.zcard(LINE))
        await swept(sweeps)

    tasks = []
    run(redis_url, work)
    assert tasks[0].cancelled()
    assert not client.zcard(LINE)
    held.release()
    assert is_free(client)


@pytest.mark.parametrize("sweeps", [0, 1, 2, 3])
def test_a_block_that_is_cancelled_again_while_it_ends_frees_the_lock(redis_url, client, sweeps):
    async def work(aclient):
        held = asyncio.Event()

        async def holds():
            async with AsyncLock(aclient, "job", timeout=60):
                held.set()
                await asyncio.Event().wait()

        tasks.append(asyncio.create_task(holds()))
        await held.wait()
        await swept(sweeps)

    tasks = []
    run(redis_url, work)
    assert tasks[0].cancelled()
    assert is_free(client)


def test_a_block_that_is_cancelled_as_it_ends_leaves_the_next_grant_of_its_object(redis_url):
    """The release was carried out, and another task was granted the lock by the same object."""

    async def work(aclient):
        lock, freed = AsyncLock(aclient, "job", timeout=60), asyncio.Event()
        evalsha = aclient.evalsha

        async def unheard(*words, **options):
            await evalsha(*words, **options)
            aclient.evalsha = evalsha
            freed.set()
            await asyncio.Event().wait()

        async def holds():
            async with lock:
                aclient.evalsha = unheard

        task = asyncio.create_task(holds())
        await freed.wait()
        assert await lock.acquire(blocking=False)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await lock.owned()
        await lock.release()

    run(redis_url, work)


async def unanswered(aclient):
    """An acquire that the server carries out, and of which no answer comes."""
    evalsha = aclient.evalsha

    async def lost(*words, **options):
        await evalsha(*words, **options)
        aclient.evalsha = evalsha
        raise redis.TimeoutError("no answer")

    aclient.evalsha = lost
    with pytest.raises(redis.TimeoutError):
        await AsyncLock(aclient, "job", timeout=60).acquire()


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("sweeps", [0, 1, 2])
def test_an_acquire_without_an_answer_is_undone_though_the_program_goes_on(
    redis_url, client, sweeps
):
    async def work(aclient):
        await unanswered(aclient)
        await asyncio.sleep(0)
        await swept(sweeps)

    run(redis_url, work)
    assert is_free(client)


def test_an_undo_that_no_server_answers_is_not_tried_again_after_the_end(redis_url, monkeypatch):
    tried = []

    async def dead(self, ask):
        tried.append(ask)
        await asyncio.sleep(0)
        raise redis.ConnectionError("nobody is there")

    monkeypatch.setattr(LockKey, "_undo", dead)
    run(redis_url, unanswered)
    assert len(tried) == 1


def test_a_server_that_never_answers_is_not_waited_for_without_an_end(
    redis_url, client, monkeypatch
):
    """By a client that waits for ever, and whose task cannot be cancelled any more."""
    monkeypatch.setattr(tasks_lock, "ANSWERED", 0.05)

    async def work(aclient):
        async def silent(*_, **__):
            await asyncio.Event().wait()

        evalsha = aclient.evalsha
        lock = AsyncLock(aclient, "job", timeout=60)
        aclient.evalsha = silent
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        aclient.evalsha = evalsha  # and what was tried in vain is tried again behind
        await under_way(lambda: client.keys("*given-up*"))

    run(redis_url, work)
