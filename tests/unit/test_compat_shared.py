"""Locks of lifehold.compat.filelock that several threads, or tasks, have in common."""

from __future__ import annotations

import asyncio
import copy
import errno
import gc
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller

import pytest

from lifehold import LeaseLost, NotHeld
from lifehold.compat.filelock import (
    AsyncFileLock,
    AsyncSoftFileLease,
    AsyncSoftFileLock,
    BaseAsyncFileLock,
    BaseFileLock,
    FileLock,
    SoftFileLease,
    SoftFileLock,
    StrictSoftFileLock,
    Timeout,
)

PATIENCE = 60  # seconds; an event comes long before


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


def acquiring(lock):
    """A thread that waits for the lock, and has begun to."""
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    while lock._context.hold.moving != "acquire":
        time.sleep(0.001)
    return thread


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", [FileLock, SoftFileLock])
def test_a_release_of_what_is_not_held_leaves_the_waiting_thread_its_lock(path, kind, force):
    shared, back = kind(path, thread_local=False), threading.Event()

    def in_vain():
        try:
            with pytest.raises(Timeout):
                shared.acquire(timeout=0)
        finally:
            shared.release(force)
            back.set()

    with kind(path):
        waiter, other = acquiring(shared), threading.Thread(target=in_vain)
        other.start()
        came = back.wait(PATIENCE)
    waiter.join()
    other.join()
    try:
        assert came, "the release waited for another thread's acquire"
        assert shared.is_locked
        with pytest.raises(Timeout):
            kind(path).acquire(timeout=0)
    finally:
        shared.release()


class Halts:
    """Of a lock whose release stops on its way, until it is told to go on."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.letting_go, self.go_on, self.tried = (threading.Event() for _ in range(3))
        self.free = True

    def _acquire(self):
        self.tried.set()
        if self.free:
            self._context.lock_file_fd = -1

    def _release(self):
        self.letting_go.set()
        assert self.go_on.wait(PATIENCE)
        self._context.lock_file_fd, self.free = None, False


class Halting(Halts, BaseFileLock):
    pass


class AsyncHalting(Halts, BaseAsyncFileLock):
    pass


class Gate:
    """The gate of a lock, at which one thread comes late: the next acquire goes before it."""

    def __init__(self, lock, passed):
        self.gate, self.passed, self.came = lock._gate, passed, threading.Event()
        self.release = self.gate.release
        lock._gate = self

    def acquire(self, *given, **options):
        if threading.current_thread().name == "late":
            self.came.set()
            assert self.passed.wait(PATIENCE)
        return self.gate.acquire(*given, **options)


def test_a_release_that_comes_during_another_leaves_the_next_hold_alone(path):
    shared = Halting(path, thread_local=False)
    shared.acquire()
    shared.tried.clear()
    gate = Gate(shared, shared.tried)
    first = threading.Thread(target=shared.release)
    first.start()
    assert shared.letting_go.wait(PATIENCE)
    late = threading.Thread(target=shared.release, name="late")
    late.start()
    assert gate.came.wait(PATIENCE)
    waiter = threading.Thread(target=shared.acquire)
    waiter.start()
    shared.go_on.set()
    first.join()
    late.join(PATIENCE)
    came = not late.is_alive()
    shared.free = True
    waiter.join()
    late.join()
    assert came, "the release waited for another thread's acquire"
    assert shared.lock_counter == 1
    shared.release()


@pytest.mark.filterwarnings("ignore::lifehold.compat.filelock.SoftFileLockLifetimeWarning")
@pytest.mark.parametrize("options", [{"lifetime": 600}, {"executor": True}])
def test_a_task_that_acquires_during_a_release_holds_the_lock(path, options):
    async def main(executor):
        lock = AsyncSoftFileLock(path, **options | ({"executor": executor} if executor else {}))

        async def second():
            async with lock:
                assert lock.is_locked
                with pytest.raises(Timeout):
                    await asyncio.to_thread(SoftFileLock(path).acquire, timeout=0)

        for _ in range(20):
            await lock.acquire()
            await asyncio.gather(lock.release(), second())
            assert not lock.is_locked

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main(pool if "executor" in options else None))


async def letting_go(lock):
    """A task that lets go of the lock, and is in the middle of it."""
    task = asyncio.create_task(lock.release())
    assert await asyncio.to_thread(lock.letting_go.wait, PATIENCE)
    return task


async def in_line(lock, count=1):
    """Until so many tasks wait for their turn at the lock."""
    turn = lock._context.hold.turn
    while len(turn._waiting) < count:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.001)


def test_an_acquire_waits_for_the_release_that_runs(path):
    async def main():
        lock = AsyncHalting(path)
        await lock.acquire()
        first = await letting_go(lock)
        with pytest.raises(Timeout):
            await lock.acquire(timeout=0)
        second = asyncio.create_task(lock.acquire())
        await in_line(lock)
        lock.go_on.set()
        await first
        lock.free = True
        await second
        assert (lock.is_locked, lock.lock_counter) == (True, 1)
        await lock.release()

    asyncio.run(main())


@pytest.mark.parametrize("whom", ["release", "acquire"])
def test_who_is_cancelled_at_a_release_leaves_the_lock_free(path, whom):
    async def main():
        lock = AsyncHalting(path)
        await lock.acquire()
        tasks = {"release": await letting_go(lock)}
        tasks["acquire"] = asyncio.create_task(lock.acquire())
        await in_line(lock)
        tasks[whom].cancel()
        await asyncio.sleep(0)
        lock.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await tasks.pop(whom)
        lock.free = True
        for task in tasks.values():
            await task
        if whom == "release":
            assert lock.lock_counter == 1
            await lock.release()
        lock.free = True
        async with lock:
            assert lock.lock_counter == 1
        assert not lock.is_locked

    asyncio.run(main())


def test_a_release_that_is_cancelled_before_its_turn_is_done_all_the_same(path):
    async def main():
        begun, go_on = threading.Event(), threading.Event()

        def first(fd):
            begun.set()
            assert go_on.wait(PATIENCE)

        lock = AsyncFileLock(path, on_acquired=first)
        acquirer = asyncio.create_task(lock.acquire())
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        release = asyncio.create_task(lock.release())
        await in_line(lock)
        release.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await acquirer
        with pytest.raises(asyncio.CancelledError):
            await release
        assert not lock.is_locked
        with FileLock(path, timeout=0):
            pass

    asyncio.run(main())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [FileLock, SoftFileLock, StrictSoftFileLock])
def test_a_held_lock_refuses_to_be_copied_and_stays_held(path, kind, way, shared):
    with kind(path, thread_local=not shared) as lock:
        descriptor = lock._context.lock_file_fd
        with pytest.raises(TypeError):
            way(lock)
        gc.collect()
        os.fstat(descriptor)
        with pytest.raises(Timeout):
            kind(path).acquire(timeout=0)
    assert not lock.is_locked


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [FileLock, AsyncFileLock, AsyncSoftFileLock])
def test_a_lock_that_is_not_held_refuses_to_be_copied_too(path, kind, way):
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        way(kind(path))


def test_a_subclass_may_say_itself_how_it_is_pickled(path):
    again = pickle.loads(pickle.dumps(Remade(path)))
    with again:
        assert again.lock_file == path


class Remade(FileLock):
    def __reduce__(self):
        return Remade, (self.lock_file,)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_what_holds_the_lock_refuses_to_be_copied(path, way):
    with FileLock(path) as lock:
        hold = lock._context.hold
        descriptor = hold.fd
        for each in (hold, hold.grant.handle[0]):
            with pytest.raises(TypeError, match="cannot be copied"):
                way([each] if way is copy.deepcopy else each)
        gc.collect()
        os.fstat(descriptor)
        lock.lease.check()


async def in_vain(lock, how, **options):
    """An acquire that tries again and again, and ends by `how`."""
    acquirer = asyncio.create_task(lock.acquire(timeout=0.03, **options))
    if how == "cancelled":
        while not lock._context.hold.turn:  # noqa: ASYNC110 - no event tells of its first try
            await asyncio.sleep(0)
        acquirer.cancel()
    with pytest.raises((Timeout, asyncio.CancelledError)):
        await acquirer


@pytest.mark.parametrize("how", ["in time", "cancelled"])
@pytest.mark.parametrize("kind", [AsyncFileLock, AsyncSoftFileLock])
def test_an_acquire_in_vain_forgets_where_its_path_led(tmp_path, monkeypatch, kind, how):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    async def main():
        lock = kind("a.lock", poll_interval=0.001)
        async with kind("a.lock"):
            await in_vain(lock, how)
        monkeypatch.chdir(tmp_path / "two")
        async with lock:
            assert os.access("a.lock", os.F_OK)
            assert lock._context.hold.path == str(tmp_path / "two" / "a.lock")

    monkeypatch.chdir(tmp_path / "one")
    asyncio.run(main())


def test_an_acquire_that_goes_on_keeps_where_its_path_led(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    async def main():
        lock, other = AsyncSoftFileLock("a.lock", poll_interval=0.001), AsyncSoftFileLock("a.lock")
        await other.acquire()
        acquirer = asyncio.create_task(lock.acquire())
        while not lock._context.hold.turn:  # noqa: ASYNC110 - no event tells of its first try
            await asyncio.sleep(0)
        monkeypatch.chdir(tmp_path / "two")
        await other.release()
        await acquirer
        assert lock._context.hold.path == str(tmp_path / "one" / "a.lock")
        await lock.release()

    monkeypatch.chdir(tmp_path / "one")
    asyncio.run(main())


@pytest.mark.parametrize("how", ["in time", "cancelled"])
def test_a_lease_that_was_not_got_has_no_token(path, how):
    async def main():
        lease = AsyncSoftFileLease(path, poll_interval=0.001)
        with SoftFileLease(path):
            await in_vain(lease, how)
            assert lease.token is None
        async with lease:
            assert lease.token
        assert lease.token is None

    asyncio.run(main())


KINDS = [FileLock, SoftFileLock, SoftFileLease, StrictSoftFileLock]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_lease_is_the_end_of_the_hold(path, kind, shared):
    lock = kind(path, thread_local=not shared)
    for end in (methodcaller("release"), methodcaller("__exit__", None, None, None)):
        lock.acquire()
        with lock:  # however often it is held
            lease = lock.lease
            end(lease)
            assert (lock.is_locked, lock.lock_counter, lock.lease) == (False, 0, None)
            with pytest.raises(NotHeld):
                lease.release()
            with kind(path, timeout=0), pytest.raises(Timeout):
                lock.acquire(timeout=0)
        with lock:
            lock.lease.check()
            with pytest.raises(Timeout):
                kind(path).acquire(timeout=0)


def test_a_lease_that_was_lost_says_so_at_its_end(path):
    lock = FileLock(path)
    lock.acquire()
    os.unlink(path)
    with pytest.raises(LeaseLost):
        lock.lease.release()
    assert not lock.is_locked
    lock.release()
    with lock:
        lock.lease.check()


def test_a_lease_that_the_system_keeps_is_held_as_its_lock_is(path):
    class Refusing(FileLock):
        refuses = True

        def _release(self):
            if self.refuses:
                raise OSError(errno.EIO, "no")
            super()._release()

    lock = Refusing(path)
    lock.acquire()
    with pytest.raises(OSError, match="no"), lock.lease:
        pass
    assert lock.is_locked
    with pytest.raises(Timeout):
        FileLock(path).acquire(timeout=0)
    lock.refuses = False
    lock.lease.release()
    assert not lock.is_locked
    with FileLock(path, timeout=0):
        pass


def test_the_lease_of_an_earlier_hold_ends_nothing(path):
    lock = FileLock(path)
    with lock:
        earlier = lock.lease
    with lock:
        with pytest.raises(NotHeld):
            earlier.release()
        lock.lease.check()


def test_a_task_may_end_the_lease_too(path):
    async def main():
        async with AsyncFileLock(path) as lock:
            lock.lease.release()
            assert not lock.is_locked
            async with AsyncFileLock(path, timeout=0):
                with pytest.raises(Timeout):
                    await lock.acquire(timeout=0)
        async with lock:
            lock.lease.check()

    asyncio.run(main())


def test_a_lock_whose_lease_was_asked_for_ends_with_its_last_name(path):
    lock = FileLock(path)
    lock.acquire()
    assert lock.lease.held
    gc.disable()
    try:
        del lock  # with no help of the collector
        with FileLock(path, timeout=0):
            pass
    finally:
        gc.enable()
