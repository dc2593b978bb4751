"""Each `with` block ends the lease that it took, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import threading

import pytest

from ground import needs
from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    InvalidArgument,
    LeaseLost,
    Lock,
    NotAcquired,
    NotHeld,
    ReadWriteLock,
    Semaphore,
    aconnect,
    connect,
    lock_all,
)
from lifehold.aio import lock_all as lock_all_async

pytestmark = needs("linux")


def shared(path):
    return Lock(path, exclusive=False)


def of_store(path):
    return connect(f"memory:///{path}").semaphore("gpu", 3)


def all_shared(path):
    return lock_all([path], exclusive=False)


MANY = {
    "semaphore": lambda path: Semaphore(path, 3),
    "shared": shared,
    "of a store": of_store,
    "lock_all": all_shared,
}


@pytest.fixture(params=MANY)
def many(request, tmp_path):
    """An object that one thread may hold more than once."""
    return MANY[request.param](str(tmp_path / "gpu.lock"))


def job(lock):
    with lock as lease:
        while True:
            yield lease


def test_a_generator_that_ends_first_frees_its_own_lease(many):
    first, second = job(many), job(many)
    one, two = next(first), next(second)
    first.close()
    assert not one.held
    assert two.held
    second.close()
    assert not two.held


def test_exit_stacks_free_their_own_leases_in_any_order(many):
    with contextlib.ExitStack() as outer:
        one = outer.enter_context(many)
        inner = contextlib.ExitStack()
        two, three = inner.enter_context(many), outer.enter_context(many)
        inner.close()
        assert one.held
        assert not two.held
        assert three.held
    assert not one.held
    assert not three.held


@needs("package:greenlet")
def test_greenlets_free_their_own_leases_in_any_order(many):
    greenlet = importlib.import_module("greenlet")
    leases = []

    def run():
        with many as lease:
            leases.append(lease)
            greenlet.getcurrent().parent.switch()

    first, second = greenlet.greenlet(run), greenlet.greenlet(run)
    first.switch()
    second.switch()
    first.switch()
    assert [lease.held for lease in leases] == [False, True]
    second.switch()
    assert not leases[1].held


def test_a_block_leaves_alone_what_was_acquired_inside_of_it(many):
    with many as outer:
        inner = many.acquire()
    assert not outer.held
    assert inner.held
    inner.release()


def test_a_block_that_was_released_by_hand_frees_nothing_else(tmp_path):
    lock = Semaphore(tmp_path / "gpu.lock", 3)
    first, second = job(lock), job(lock)
    next(first).release()
    two = next(second)
    first.close()
    assert two.held
    second.close()


def test_a_block_ends_in_another_thread_than_it_began_in(many):
    running = job(many)
    lease = next(running)
    ended = threading.Thread(target=running.close)
    ended.start()
    ended.join()
    assert not lease.held


def test_the_end_of_a_lost_block_frees_nothing_of_the_next_one(tmp_path):
    path = tmp_path / "a.lock"
    lock = Lock(path)
    first, second = job(lock), job(lock)
    one = next(first)
    path.unlink()
    two = next(second)
    first.close()
    with pytest.raises(LeaseLost):
        one.check()
    assert two.held
    second.close()
    assert not two.held


class Helper:
    """Code of others that enters and leaves what it was given."""

    def __init__(self, lock):
        self.lock = lock

    def __enter__(self):
        return self.lock.__enter__()

    def __exit__(self, *error):
        return self.lock.__exit__(*error)


def test_a_helper_that_enters_for_others_frees_what_it_took(many):
    with Helper(many) as lease:
        by_hand = many.acquire()
    assert not lease.held
    assert by_hand.held
    by_hand.release()


def test_a_bare_entry_inside_of_a_block_leaves_the_lease_of_the_block(many):
    with many as outer:
        with Helper(many) as inner:
            assert inner.held
        assert not inner.held
        assert outer.held
    assert not outer.held


@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_a_bare_entry_that_is_refused_leaves_the_lease_of_the_block(kind, tmp_path):
    writing = ReadWriteLock(tmp_path / "a.lock", kind=kind, wait=0).writing()
    with writing as outer:
        with pytest.raises(NotAcquired):
            Helper(writing).__enter__()
        assert outer.held
    assert not outer.held


@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_a_block_of_a_shape_that_is_dropped_unended_lets_go(kind, tmp_path):
    lock = ReadWriteLock(tmp_path / "a.lock", kind=kind, wait=0)

    def enter_and_drop():
        lock.writing().__enter__()
        gc.collect()

    with pytest.warns(ResourceWarning, match="dropped without release"):
        enter_and_drop()
    with lock.writing() as lease:
        assert lease.held


@pytest.mark.parametrize("shape", ["semaphore", "shared", "of a store"])
def test_a_second_entry_that_cannot_be_told_apart_is_refused_with_the_cure(shape, tmp_path):
    lock = MANY[shape](str(tmp_path / "gpu.lock"))
    with Helper(lock) as lease:
        with pytest.raises(InvalidArgument, match=r"with lock\.acquire\(\) as lease:"):
            Helper(lock).__enter__()
        assert lease.held
        with lock as inner:
            pass
        assert not inner.held
        assert lease.held
    assert not lease.held


def test_a_condition_variable_may_let_the_lock_go_inside_of_its_block(tmp_path):
    class Owned(Lock):
        def _is_owned(self):
            return self.lease is not None

    lock = Owned(tmp_path / "a.lock")
    condition = threading.Condition(lock)
    with condition:
        condition.wait(0.001)
        assert lock.lease.held
    with lock:
        lock.release()
        lock.acquire()
    Lock(tmp_path / "a.lock").acquire(0).release()


def test_whoever_only_looks_a_block_up_begins_none(tmp_path):
    lock = Semaphore(tmp_path / "gpu.lock", 2)
    assert hasattr(lock, "__exit__")
    assert isinstance(lock, contextlib.AbstractContextManager)
    end = lock.__exit__  # looked up before, and not of the block that comes
    with lock as lease:
        assert lease.held
    assert not lease.held
    by_hand = lock.acquire()
    end(None, None, None)
    assert not by_hand.held


@pytest.mark.parametrize("make", [Lock, lambda path: Semaphore(path, 1)])
def test_who_holds_nothing_frees_nothing(make, tmp_path):
    lock = make(str(tmp_path / "a.lock"))
    lease, told = lock.acquire(), []

    def other():
        try:
            lock.acquire(wait=0)
        except NotAcquired:
            told.append(lock.lease)
        try:
            lock.release()
        except NotHeld as error:
            told.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert told[0] is None
    assert isinstance(told[1], NotHeld)
    assert lease.held
    lock.release()
    assert not lease.held


# ---- the same for tasks


async def async_job(lock):
    async with lock as lease:
        while True:
            yield lease


async def made_async(shape, path):
    if shape == "of a store":
        return (await aconnect(f"memory:///{path}-a")).semaphore("gpu", 3)
    return {
        "semaphore": lambda: AsyncSemaphore(path, 3),
        "shared": lambda: AsyncLock(path, exclusive=False),
        "lock_all": lambda: lock_all_async([path], exclusive=False),
    }[shape]()


@pytest.mark.parametrize("shape", MANY)
def test_async_blocks_free_their_own_leases_in_any_order(shape, tmp_path):
    async def run():
        lock = await made_async(shape, str(tmp_path / "gpu.lock"))
        first, second = async_job(lock), async_job(lock)
        one, two = await anext(first), await anext(second)
        await first.aclose()
        assert not one.held
        assert two.held
        await second.aclose()
        assert not two.held
        async with contextlib.AsyncExitStack() as outer:
            one = await outer.enter_async_context(lock)
            inner = contextlib.AsyncExitStack()
            two = await inner.enter_async_context(lock)
            three = await outer.enter_async_context(lock)
            await inner.aclose()
            assert [each.held for each in (one, two, three)] == [True, False, True]
        async with lock as outer_lease:
            async with lock as inner_lease:
                by_hand = await lock.acquire()
            assert not inner_lease.held
            assert outer_lease.held
        assert not outer_lease.held
        assert by_hand.held
        await by_hand.release()

    asyncio.run(run())


def test_blocks_of_tasks_free_their_own_leases(tmp_path):
    lock = AsyncSemaphore(tmp_path / "gpu.lock", 3)

    class Slow(AsyncSemaphore):
        async def __aenter__(self):
            await asyncio.sleep(0)  # another task looks its own end up meanwhile
            return await super().__aenter__()

    async def run(lock, ends, leases):
        async with lock as lease:
            leases.append(lease)
            await ends.wait()
        assert not lease.held

    async def main():
        for each in (lock, Slow(tmp_path / "slow.lock", 3)):
            ends, leases = [asyncio.Event() for _ in range(2)], []
            tasks = [asyncio.create_task(run(each, end, leases)) for end in ends]
            for _ in range(10):
                await asyncio.sleep(0)
            ends[0].set()
            await tasks[0]
            assert [lease.held for lease in leases] == [False, True]
            ends[1].set()
            await tasks[1]

    asyncio.run(main())


def test_a_task_that_holds_nothing_frees_nothing(tmp_path):
    async def main():
        lock = AsyncLock(tmp_path / "a.lock")
        lease = await lock.acquire()

        async def other():
            assert lock.lease is None
            with pytest.raises(NotHeld):
                await lock.release()

        await asyncio.create_task(other())
        assert lease.held
        await lock.release()
        assert not lease.held

    asyncio.run(main())


def test_one_block_object_of_a_reader_serves_two_threads(tmp_path):
    reading = ReadWriteLock(tmp_path / "a.lock").reading()
    first, leases = job(reading), []
    one = next(first)

    def other():
        with reading as lease:
            leases.append(lease)
            first.close()
            assert lease.held

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert not one.held
    assert not leases[0].held


def test_one_block_object_of_a_reader_serves_two_tasks(tmp_path):
    async def main():
        reading = AsyncReadWriteLock(tmp_path / "a.lock").reading()
        first, leases = async_job(reading), []
        one = await anext(first)

        async def other():
            async with reading as lease:
                leases.append(lease)
                await first.aclose()
                assert lease.held

        await asyncio.create_task(other())
        assert not one.held
        assert not leases[0].held

    asyncio.run(main())


def test_a_block_of_several_ends_its_own_hold_alone(tmp_path):
    """A reentrant lock that outer blocks hold too is counted down once."""
    lock = Lock(tmp_path / "a.lock", reentrant=True)
    other = Lock(tmp_path / "a.lock", wait=0)
    with lock as outer:
        with lock:
            with lock_all([lock]):
                pass
            assert outer.held
        assert outer.held
        with pytest.raises(NotAcquired):
            other.acquire()
        with lock_all([lock]):
            pass
        assert outer.held
    assert not outer.held
    other.acquire().release()


def test_an_async_block_of_several_ends_its_own_hold_alone(tmp_path):
    async def run():
        lock = AsyncLock(tmp_path / "a.lock", reentrant=True)
        async with lock as outer:
            async with lock, lock_all_async([lock]):
                pass
            assert outer.held
        assert not outer.held
        Lock(tmp_path / "a.lock", wait=0).acquire().release()

    asyncio.run(run())


def test_one_object_that_is_named_twice_is_refused_at_the_call(tmp_path):
    lock = Lock(tmp_path / "a.lock", reentrant=True)
    with pytest.raises(InvalidArgument, match="are one lock"):
        lock_all([lock, lock])
