"""A try that does not raise: None for a lock that is held, and for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import warnings

import pytest

from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    InvalidArgument,
    LifeholdError,
    Lock,
    NotAcquired,
    NotHeld,
    ReadWriteLock,
    SelfDeadlock,
    Semaphore,
    aconnect,
    connect,
    lock_all,
)
from lifehold.aio import lock_all as lock_all_async
from lifehold.core.grant import Unknown
from lifehold.lock import fill
from lifehold.runtime import holder_for_notices

SHAPES = {
    "lock": Lock,
    "soft": lambda path: Lock(path, kind="soft"),
    "semaphore": lambda path: Semaphore(path, 1),
    "lock_all": lambda path: lock_all([path, f"{path}-2"]),
    "memory": lambda path: connect(f"memory:///{path}").lock("a"),
    "files": lambda path: connect(f"file://{path}-folder").lock("a"),
}


def elsewhere(call):
    """What `call()` answers in another thread, or the exception that it raises."""
    got = []

    def run():
        try:
            got.append(call())
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(90)
    return got[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_try_answers_a_lease_or_none(shape, tmp_path):
    lock = SHAPES[shape](str(tmp_path / "a.lock"))
    lease = lock.try_acquire()
    assert lease
    assert lease.held
    assert lock.try_acquire() is None
    assert elsewhere(lock.try_acquire) is None
    lease.release()
    with lock.attempt() as lease:
        assert lease.held
        with lock.attempt() as other:
            assert other is None
        assert lease.held
    assert not lease.held


@pytest.mark.parametrize("shape", SHAPES)
def test_an_attempt_by_hand_ends_what_it_got_and_nothing_else(shape, tmp_path):
    lock = SHAPES[shape](str(tmp_path / "a.lock"))
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lock.attempt())
        assert stack.enter_context(lock.attempt()) is None
    assert not lease.held
    attempt = lock.attempt()
    first = attempt.__enter__()
    assert attempt.__enter__() is None
    attempt.__exit__(None, None, None)
    assert first.held
    attempt.__exit__(None, None, None)
    assert not first.held


class OwnLock(Lock):
    def acquire(self, *given, **options):
        return super().acquire(*given, **options)


class OwnAsyncLock(AsyncLock):
    async def acquire(self, *given, **options):
        return await super().acquire(*given, **options)


CONDITIONS = {
    **{shape: (lambda path, make=make: make(path).attempt()) for shape, make in SHAPES.items()},
    "reading": lambda path: ReadWriteLock(path).attempt_read(),
    "writing": lambda path: ReadWriteLock(path).attempt_write(),
    "own": lambda path: OwnLock(path).attempt(),
    "async": lambda path: AsyncLock(path).attempt(),
    "async own": lambda path: OwnAsyncLock(path).attempt(),
    "async semaphore": lambda path: AsyncSemaphore(path, 1).attempt(),
    "async reading": lambda path: AsyncReadWriteLock(path).attempt_read(),
    "async lock_all": lambda path: lock_all_async([path]).attempt(),
}


@pytest.mark.parametrize("shape", CONDITIONS)
def test_an_attempt_that_is_not_entered_is_no_condition(shape, tmp_path):
    attempt = CONDITIONS[shape](str(tmp_path / "a.lock"))
    block = "async with" if shape.startswith("async") else "with"
    with pytest.raises(InvalidArgument, match=f"`{block} lock.attempt.. as lease:`.*try_acquire"):
        bool(attempt)


def test_a_reader_or_a_writer_that_cannot_come_in_gets_none(tmp_path):
    lock = ReadWriteLock(tmp_path / "a.lock")
    with lock.attempt_read() as lease:
        assert not lease.exclusive
        assert elsewhere(lock.try_acquire_write) is None
        with pytest.raises(SelfDeadlock):  # a bug of this thread, and not of who holds it
            lock.try_acquire_write()
    with lock.attempt_write() as lease:
        assert lease.exclusive
        assert elsewhere(lock.try_acquire_read) is None


@pytest.mark.parametrize("shape", ["lock", "semaphore", "memory", "lock_all"])
def test_a_dropped_lease_warns_at_the_call_and_is_free(shape, tmp_path):
    lock = SHAPES[shape](str(tmp_path / "a.lock"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lock.try_acquire()
        if lock.try_acquire():
            pass
        gc.collect()
    assert {each.category for each in told} == {ResourceWarning}
    assert {each.filename for each in told} == {__file__}
    assert len(told) == (4 if shape == "lock_all" else 2)
    lock.try_acquire().release()


def test_what_was_tried_for_is_this_threads_like_any_other(tmp_path):
    lock = Lock(tmp_path / "a.lock", reentrant=True)
    lease = lock.try_acquire()
    assert lock.lease is lease
    with lock as inner:
        assert inner is lease
    assert lock.try_acquire() is lease
    assert "held" in repr(lock)
    lock.release()
    lock.release()
    assert not lease.held
    with pytest.raises(NotHeld):
        lock.release()


def test_a_try_that_fails_looks_at_nobody(tmp_path, monkeypatch):
    with Lock(tmp_path / "a.lock"):
        monkeypatch.setattr(holder_for_notices, "now", None)
        monkeypatch.setattr("lifehold.lock.look", None)
        assert Lock(tmp_path / "a.lock").try_acquire() is None


class Silent:
    """A mechanism whose storage gives no answer."""

    path, exclusive, terms = "silent://a", True, None

    def attempt(self):
        return Unknown("nonce", OSError("no answer"))


BAD = {
    "a folder": Lock,
    "a folder that is a file": lambda folder: Lock(folder / "file" / "a.lock"),
    "a store that answers nothing": lambda folder: silent(),
}


def silent():
    lock = object.__new__(Lock)
    fill(lock, "a", Silent(), None, None, None, False)
    return lock


@pytest.mark.parametrize("bad", BAD)
def test_all_else_that_goes_wrong_raises(bad, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(LifeholdError) as caught:
        BAD[bad](tmp_path).try_acquire()
    assert not isinstance(caught.value, NotAcquired)
    with pytest.raises(type(caught.value)), BAD[bad](tmp_path).attempt():
        pytest.fail("entered")


async def made(shape, path):
    if shape == "memory":
        return (await aconnect(f"memory:///{path}")).lock("a")
    kinds = {
        "lock": AsyncLock,
        "semaphore": lambda path: AsyncSemaphore(path, 1),
        "lock_all": lambda path: lock_all_async([path]),
    }
    return kinds[shape](path)


@pytest.mark.parametrize("shape", ["lock", "semaphore", "lock_all", "memory"])
def test_a_try_of_a_task_answers_a_lease_or_none(shape, tmp_path):
    async def run():
        lock = await made(shape, str(tmp_path / "a.lock"))
        lease = await lock.try_acquire()
        assert lease.held
        assert await lock.try_acquire() is None
        async with lock.attempt() as other:
            assert other is None
        await lease.release()
        async with lock.attempt() as lease:
            assert lease.held
        assert not lease.held

    asyncio.run(run())


def test_a_task_that_cannot_read_or_write_gets_none(tmp_path):
    async def run():
        lock = AsyncReadWriteLock(tmp_path / "a.lock")
        async with lock.attempt_read() as lease:
            assert not lease.exclusive
            task = asyncio.create_task(lock.try_acquire_write())
            assert await task is None
        lease = await lock.try_acquire_write()
        assert lease.exclusive
        assert await asyncio.create_task(lock.try_acquire_read()) is None
        await lease.release()

    asyncio.run(run())
