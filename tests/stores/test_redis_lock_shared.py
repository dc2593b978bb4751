"""redis-py's lock, replaced: one object in many hands. Whose grant is over ends no other's.

Between the server's answer and the end of a call another thread, or task, may be granted the lock.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

from ground import needs
from lifehold.compat import redis_lock
from lifehold.compat.redis_lock import Lock
from lifehold.compat.redis_lock.asyncio import Lock as AsyncLock
from patience import SOON

pytestmark = needs("redis")


class Slow:
    """A client whose next answer lets something else happen before it comes."""

    def __init__(self, client):
        self._client, self.meanwhile = client, None

    def __getattr__(self, name):
        return getattr(self._client, name)

    def evalsha(self, *words, **options):
        found, meanwhile = self._client.evalsha(*words, **options), self.meanwhile
        self.meanwhile = None
        if meanwhile is not None:
            meanwhile()
        return found


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as made:
        yield Slow(made)


def elsewhere(*works):
    """To do them in another thread, to their end."""

    def done():
        thread = threading.Thread(target=lambda: got.extend(work() for work in works))
        thread.start()
        thread.join(SOON)
        assert len(got) == len(works), "it has not ended, or it raised"

    got = []
    return done


def granted(lock):
    """Another acquire of it, which is granted."""
    return lambda: lock.acquire(blocking=False) or pytest.fail("it was not granted")


def is_whole(client, lock, name="job"):
    """All that was granted last is in hand: it holds, is renewed, and can be released."""
    assert lock.owned()
    assert lock.nonce is not None
    assert 0 < lock.remaining() <= 600
    lock.check()
    if lock.auto_renew:
        kept = lock.local.kept._kept
        assert kept.grant.nonce == f"{lock.nonce}-{lock.token}"
        assert not kept.over
    lock.release()
    assert not client.exists(name)
    assert lock.local.token is None
    with pytest.raises(LockError, match="already unlocked"):
        lock.release()


@pytest.mark.parametrize("auto_renew", [False, True])
def test_who_is_granted_it_while_it_is_released_holds_it(client, auto_renew):
    lock = Lock(client, "job", timeout=600, thread_local=False, auto_renew=auto_renew)
    lock.acquire()
    client.meanwhile = elsewhere(granted(lock))
    lock.release()
    is_whole(client, lock)


@pytest.mark.parametrize("name", ["jobs}7", "job"])
def test_who_is_granted_it_by_the_same_value_holds_it(client, name):
    """Of a name with nothing beside it the server tells no grant from another by its nonce."""
    lock = Lock(client, name, timeout=600, thread_local=False)
    lock.acquire(token="me")
    client.meanwhile = elsewhere(lambda: lock.acquire(blocking=False, token="me"))
    lock.release()
    is_whole(client, lock, name)


@pytest.mark.parametrize("auto_renew", [False, True])
@pytest.mark.parametrize("prolong", [Lock.reacquire, lambda lock: lock.extend(60)])
def test_who_is_granted_it_while_it_is_prolonged_holds_it(client, prolong, auto_renew):
    lock = Lock(client, "job", timeout=600, thread_local=False, auto_renew=auto_renew)
    lock.acquire()
    client.meanwhile = elsewhere(lambda: lock.release() or True, granted(lock))
    assert prolong(lock)
    is_whole(client, lock)


@pytest.mark.parametrize("auto_renew", [False, True])
def test_what_was_prolonged_in_another_thread_is_released_whole(client, auto_renew):
    lock = Lock(client, "job", timeout=600, thread_local=False, auto_renew=auto_renew)
    lock.acquire()
    client.meanwhile = elsewhere(lambda: lock._prolonged(lock._mine()) or True)
    lock.release()
    assert lock.local.token is None
    assert not client.exists("job")


def test_a_release_that_comes_too_late_stops_no_renewal_of_the_next_holder(client, monkeypatch):
    lock = Lock(client, "job", timeout=600, thread_local=False, auto_renew=True)
    lock.acquire()
    encoded = lock._encoded

    def late(text):
        monkeypatch.undo()
        client.delete("job")
        elsewhere(granted(lock))()
        return encoded(text)

    monkeypatch.setattr(lock, "_encoded", late)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    is_whole(client, lock)


def test_renewals_are_those_of_the_grant_in_hand(client, monkeypatch):
    """Handed on before its own renewals had begun."""
    lock = Lock(client, "job", timeout=600, thread_local=False, auto_renew=True)
    begun = redis_lock.RenewedLease

    def late(*given):
        monkeypatch.undo()
        elsewhere(lambda: lock.release() or True, granted(lock))()
        return begun(*given)

    monkeypatch.setattr(redis_lock, "RenewedLease", late)
    lock.acquire()
    is_whole(client, lock)


def test_an_acquire_that_is_interrupted_drops_no_grant_but_its_own(client, monkeypatch):
    lock = Lock(client, "job", timeout=600, thread_local=False)
    begin = lock._begin

    def interrupted(*given):
        monkeypatch.undo()
        begin(*given)
        elsewhere(lambda: lock.release() or True, granted(lock))()
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    is_whole(client, lock)


# ---- asyncio: all tasks of a loop share what an object holds


def slowly(aclient):
    """The next answer has come, and is told when it may be."""
    evalsha, came, told = aclient.evalsha, asyncio.Event(), asyncio.Event()

    async def slow(*words, **options):
        found = await evalsha(*words, **options)  # raises while the server knows no script
        aclient.evalsha = evalsha
        came.set()
        await told.wait()
        return found

    aclient.evalsha = slow
    return came, told


@pytest.mark.parametrize("auto_renew", [False, True])
@pytest.mark.parametrize("what", ["release", "reacquire", "extend"])
def test_which_task_is_granted_it_meanwhile_holds_it(redis_url, what, auto_renew):
    async def main():
        async with redis.asyncio.Redis.from_url(redis_url) as aclient:
            lock = AsyncLock(aclient, "job", timeout=600, auto_renew=auto_renew)
            await lock.acquire()
            came, told = slowly(aclient)
            given = [60] if what == "extend" else []

            async def call():
                return await getattr(lock, what)(*given)

            task = asyncio.create_task(call())
            await asyncio.wait_for(came.wait(), SOON)
            if what != "release":
                await lock.release()
            assert await lock.acquire(blocking=False)
            told.set()
            await task
            assert await lock.owned()
            assert lock.nonce is not None
            assert 0 < lock.remaining() <= 600
            lock.check()
            if auto_renew:
                assert lock.local.kept._kept.grant.nonce == f"{lock.nonce}-{lock.token}"
                assert not lock.local.kept._kept.over
            await lock.release()
            assert not await aclient.exists("job")
            assert lock.local.token is None

    asyncio.run(main())


# ---- copies of an object, and attributes that are set anew


@pytest.mark.parametrize("auto_renew", [False, True])
@pytest.mark.parametrize("thread_local", [False, True])
def test_a_copy_holds_what_its_original_does_as_of_redis_py(client, thread_local, auto_renew):
    lock = Lock(client, "job", timeout=600, thread_local=thread_local, auto_renew=auto_renew)
    lock.acquire()
    other = copy.copy(lock)
    assert not other.acquire(blocking=False)
    del lock
    gc.collect()
    is_whole(client, other)
    for made in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            made(Lock(redis.Redis(), "job"))


def test_a_name_that_is_set_anew_is_locked_as_by_redis_py(client):
    mould = Lock(client, "mould", timeout=600)
    lock = copy.copy(mould)
    lock.name = "job"
    lock.acquire()
    assert client.exists("job")
    assert not redis.lock.Lock(client, "job").acquire(blocking=False)
    is_whole(client, lock)
    assert not client.exists("mould")


@pytest.mark.parametrize("auto_renew", [False, True])
def test_what_is_held_is_released_though_another_name_was_set(client, auto_renew):
    lock = Lock(client, "job", timeout=600, auto_renew=auto_renew)
    lock.acquire()
    lock.name = "other"
    assert lock.extend(60)
    assert client.pttl("job") > 600_000
    lock.release()
    assert not client.exists("job")


def test_what_is_renewed_ends_by_the_timeout_that_the_key_was_given(client):
    """L8  Set anew before the acquire: the key ends by it, and so does the holder."""
    lock = Lock(client, "job", timeout=600, auto_renew=True)
    lock.timeout = 60
    lock.acquire()
    assert lock.remaining() <= 60
    assert lock.local.kept._kept.verify() is None
    assert lock.remaining() <= 60
    lock.release()
    lock.timeout = None
    lock.acquire()
    assert lock.remaining() is None
    assert client.pttl("job") == -1
    lock.release()


def test_attributes_of_a_lock_of_asyncio_that_are_set_anew_count(redis_url):
    async def main():
        async with redis.asyncio.Redis.from_url(redis_url) as aclient:
            lock = AsyncLock(aclient, "mould", timeout=600, auto_renew=True)
            lock.name, lock.timeout = "job", 60
            await lock.acquire()
            assert await aclient.exists("job")
            assert await lock.owned()
            assert lock.remaining() <= 60
            lock.name = "other"
            assert await lock.reacquire()
            await lock.release()
            assert not await aclient.exists("job")

    asyncio.run(main())
