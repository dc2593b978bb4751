"""`lock_all` where one of its locks is held already: it gives back the level that it took alone."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from ground import needs
from lifehold import AsyncLock, Lock, WouldBlock, lock_all
from lifehold.aio import AsyncLease
from lifehold.aio import lock_all as lock_all_async
from lifehold.lock import Lease

pytestmark = needs("linux")
LEVELS = pytest.mark.parametrize("levels", [1, 2])


@pytest.fixture
def paths(tmp_path):
    return [str(tmp_path / name) for name in ("a.lock", "b.lock", "c.lock")]


def is_free(path):
    """Whether a stranger gets it."""
    lease = Lock(path).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def interrupt(monkeypatch, kind, name, error=KeyboardInterrupt):
    """The next release of the lock `name` is interrupted before its first step."""
    real, left = kind.release, [name]

    def release(lease):
        if left == [lease.name]:
            left.clear()
            raise error
        return real(lease)

    monkeypatch.setattr(kind, "release", release)


@LEVELS
def test_a_block_keeps_its_lock_when_not_all_can_be_had(paths, levels):
    first, second, _ = paths
    lock = Lock(first, reentrant=True)
    with Lock(second), ExitStack() as outer:
        for _ in range(levels):
            lease = outer.enter_context(lock)
        with pytest.raises(WouldBlock):
            lock_all([lock, Lock(second)], wait=0).acquire()
        with pytest.raises(WouldBlock), lock_all([lock, Lock(second)], wait=0):
            pytest.fail("it began without one of them")
        assert lock_all([lock, Lock(second)]).try_acquire() is None
        with lock_all([lock, Lock(second)]).attempt() as none:
            assert none is None
        assert lease.held
        assert lease._depth == levels - 1
        assert not is_free(first)
    assert is_free(first)


@LEVELS
def test_a_block_of_a_task_keeps_its_lock_when_not_all_can_be_had(paths, levels):
    async def main():
        lock = AsyncLock(paths[0], reentrant=True)
        for _ in range(levels):
            lease = await lock.acquire()
        with Lock(paths[1]):
            several = lock_all_async([lock, AsyncLock(paths[1])], wait=0)
            with pytest.raises(WouldBlock):
                await several.acquire()
            with pytest.raises(WouldBlock):
                async with several:
                    pytest.fail("it began without one of them")
            assert await several.try_acquire() is None
            async with several.attempt() as none:
                assert none is None
        assert lease.held
        assert lease._depth == levels - 1
        assert not is_free(paths[0])
        for _ in range(levels):
            await lock.release()
        assert is_free(paths[0])

    asyncio.run(main())


@LEVELS
def test_who_is_interrupted_while_all_are_let_go_keeps_what_the_outer_block_has(
    paths, levels, monkeypatch
):
    lock = Lock(paths[0], reentrant=True)
    names = [lock, *map(Lock, paths[1:])]
    with Lock(paths[2]), ExitStack() as outer:
        for _ in range(levels):
            lease = outer.enter_context(lock)
        interrupt(monkeypatch, Lease, paths[1])
        with pytest.raises(KeyboardInterrupt):
            lock_all(names, wait=0).acquire()
        assert is_free(paths[1])
        assert lease.held
        assert lease._depth == levels - 1
    assert is_free(paths[0])


@LEVELS
def test_a_task_that_is_interrupted_while_all_are_let_go_keeps_what_it_had(
    paths, levels, monkeypatch
):
    async def main():
        lock = AsyncLock(paths[0], reentrant=True)
        for _ in range(levels):
            lease = await lock.acquire()
        with Lock(paths[2]):
            interrupt(monkeypatch, AsyncLease, paths[1], asyncio.CancelledError)
            with pytest.raises(asyncio.CancelledError):
                await lock_all_async([lock, *map(AsyncLock, paths[1:])], wait=0).acquire()
        assert is_free(paths[1])
        assert lease.held
        assert lease._depth == levels - 1
        for _ in range(levels):
            await lock.release()
        assert is_free(paths[0])

    asyncio.run(main())


def left_by_hand(several):
    several.acquire().release()


def left_by_block(several):
    with several:
        pass


@LEVELS
@pytest.mark.parametrize("leave", [left_by_hand, left_by_block])
def test_an_interrupted_release_of_all_keeps_what_the_outer_block_has(
    paths, levels, leave, monkeypatch
):
    lock = Lock(paths[0], reentrant=True)
    with ExitStack() as outer:
        for _ in range(levels):
            lease = outer.enter_context(lock)
        interrupt(monkeypatch, Lease, paths[1])
        with pytest.raises(KeyboardInterrupt):
            leave(lock_all([lock, Lock(paths[1])], wait=0))
        assert is_free(paths[1])
        assert lease.held
        assert lease._depth == levels - 1
    assert is_free(paths[0])


@LEVELS
@pytest.mark.parametrize("by_block", [False, True])
def test_a_task_that_is_cancelled_in_the_release_of_all_keeps_what_it_had(
    paths, levels, by_block, monkeypatch
):
    real, begun, go = AsyncLease.release, asyncio.Event(), asyncio.Event()

    async def release(lease):
        if lease.name == paths[1] and not begun.is_set():
            begun.set()
            await go.wait()
        await real(lease)

    async def use(several):
        if by_block:
            async with several:
                monkeypatch.setattr(AsyncLease, "release", release)
        else:
            leases = await several.acquire()
            monkeypatch.setattr(AsyncLease, "release", release)
            await leases.release()

    async def work(lock):
        for _ in range(levels):
            lease = await lock.acquire()
        with pytest.raises(asyncio.CancelledError):
            await use(lock_all_async([lock, AsyncLock(paths[1])], wait=0))
        assert is_free(paths[1])
        assert lease.held
        assert lease._depth == levels - 1
        for _ in range(levels):
            await lock.release()
        assert is_free(paths[0])

    async def main():
        task = asyncio.ensure_future(work(AsyncLock(paths[0], reentrant=True)))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        await task

    asyncio.run(main())
