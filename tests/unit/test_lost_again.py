"""A lease that is known to be lost: it lets nobody in again, and keeps nobody from waiting."""

from __future__ import annotations

import asyncio
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ground import needs
from lifehold import (
    AcquireCancelled,
    AsyncLock,
    AsyncReadWriteLock,
    Cancel,
    LeaseLost,
    Lock,
    ReadWriteLock,
    SelfDeadlock,
    Timeout,
    connect,
    lock_all,
)
from lifehold.aio import lock_all as lock_all_async

pytestmark = needs("linux")
KINDS = ["soft", "link", "directory", "folder", "generation"]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "build.lock")


@pytest.fixture
def elsewhere():
    """Another thread, which holds what it acquires."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *given: pool.submit(call, *given).result()


def lost(lease):
    """The same lease, after somebody removed its file and its holder saw that."""
    os.unlink(lease.path)
    assert not lease.held
    assert lease.lost.is_set()
    return lease


def let_go(lease):
    with pytest.raises(LeaseLost):
        lease.release()


async def let_go_of(lease):
    with pytest.raises(LeaseLost):
        await lease.release()


def test_a_reentrant_lock_is_not_entered_again_by_a_lost_lease(path):
    lock = Lock(path, reentrant=True)
    lease = lost(lock.acquire())
    with Lock(path):
        with pytest.raises(LeaseLost, match="others may be in"):
            lock.acquire()
        with pytest.raises(LeaseLost), lock:
            pytest.fail("the body ran beside another holder")
        with pytest.raises(LeaseLost):
            lock.try_acquire()
    let_go(lease)
    with lock as again:  # what was lost is let go of
        assert again is not lease
        assert again.held


def test_the_blocks_around_a_lost_lease_end_as_often_as_they_began(path):
    lock = Lock(path, reentrant=True)
    with ExitStack() as outer:
        lease = outer.enter_context(lock)
        with lock:
            lost(lease)
            with pytest.raises(LeaseLost), lock:
                pytest.fail("the body ran without the lock")
        assert lock.lease is lease
        with pytest.raises(LeaseLost):
            outer.close()
    assert lock.lease is None
    with lock:
        pass


def test_after_max_hold_a_reentrant_lock_is_acquired_anew(path):
    lock = Lock(path, reentrant=True, max_hold=0.01)
    lease = lock.acquire()
    assert lease.lost.wait(60)
    with lock as again:
        assert again is not lease
    let_go(lease)


def test_no_reader_reads_again_by_a_lost_lease(path):
    lock = ReadWriteLock(path)
    lease = lost(lock.acquire_read())
    with ReadWriteLock(path).writing():
        with pytest.raises(LeaseLost):
            lock.acquire_read()
        with pytest.raises(LeaseLost), lock.reading():
            pytest.fail("it read beside a writer")
    let_go(lease)
    with lock.reading():
        pass


def test_no_block_begins_by_a_lost_lease(path):
    lease = lost(Lock(path).acquire())
    with pytest.raises(LeaseLost, match="others may be in"), lease:
        pytest.fail("the body ran without the lock")
    let_go(lease)


def test_no_block_begins_by_leases_of_which_one_is_lost(path):
    leases = lock_all([path, f"{path}.2"]).acquire()
    lost(leases[0])
    with pytest.raises(LeaseLost, match="others may be in"), leases:
        pytest.fail("the body ran without one of the locks")
    let_go(leases)


def test_no_task_is_let_in_again_by_a_lost_lease(path):
    async def main():
        lock = AsyncLock(path, reentrant=True)
        lease = lost(await lock.acquire())
        with pytest.raises(LeaseLost):
            await lock.acquire()
        with pytest.raises(LeaseLost):
            async with lock:
                pytest.fail("the body ran without the lock")
        with pytest.raises(LeaseLost, match="others may be in"):
            async with lease:
                pytest.fail("the body ran without the lock")
        await let_go_of(lease)
        readers = AsyncReadWriteLock(path)
        lease = lost(await readers.acquire_read())
        with pytest.raises(LeaseLost):
            async with readers.reading():
                pytest.fail("it read without the lock")
        await let_go_of(lease)
        leases = await lock_all_async([path, f"{path}.2"]).acquire()
        lost(leases[0])
        with pytest.raises(LeaseLost):
            async with leases:
                pytest.fail("the body ran without one of the locks")
        await let_go_of(leases)

    asyncio.run(main())


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "store"])
def test_after_a_loss_who_asks_again_waits_for_the_other(path, tmp_path, elsewhere, kind, told):
    def lock():
        if kind == "store":
            return connect(f"sqlite:///{tmp_path}/locks.db").lock("build", ttl=30)
        return Lock(path, kind=kind)

    mine = lock()
    lease = mine.acquire()
    elsewhere(lock().break_, "by order")
    other = elsewhere(lock().acquire)
    assert not (told and (verified(lease) if kind == "store" else lease.held))
    if told or kind != "store":  # there the holder's own deadline decides: it asks no store
        stop = Cancel()
        stop.cancel()
        with pytest.raises(AcquireCancelled):
            mine.acquire(cancel=stop)
        with pytest.raises(AcquireCancelled):
            lock().acquire(cancel=stop)
        with pytest.raises(Timeout) as found:
            mine.acquire(wait=0.01)
        assert "itself" not in str(found.value)
    elsewhere(other.release)
    mine.acquire(wait=0).release()
    let_go(lease)


def verified(lease):
    try:
        lease.verify()
    except LeaseLost:
        return False
    return True


@pytest.mark.parametrize("kind", ["kernel", "soft"])
@pytest.mark.parametrize("side", ["acquire_read", "acquire_write"])
def test_after_a_loss_who_asks_to_write_waits_for_the_other(path, elsewhere, kind, side):
    mine = ReadWriteLock(path, kind=kind)
    lease = lost(getattr(mine, side)())
    other = elsewhere(ReadWriteLock(path, kind=kind).acquire_write)
    stop = Cancel()
    stop.cancel()
    with pytest.raises(AcquireCancelled):
        mine.acquire_write(cancel=stop)
    with pytest.raises(Timeout) as found:
        mine.acquire_write(wait=0.01)
    assert "itself" not in str(found.value)
    elsewhere(other.release)
    mine.acquire_write(wait=0).release()
    let_go(lease)


def test_after_a_loss_a_task_that_asks_again_waits_for_the_other(path, elsewhere):
    async def main():
        mine = AsyncLock(path, kind="directory")
        lease = await mine.acquire()
        elsewhere(Lock(path, kind="directory").break_, "by order")
        other = elsewhere(Lock(path, kind="directory").acquire)
        asyncio.get_running_loop().call_soon(other.release)  # once this task waits
        again = await mine.acquire()
        assert again.held
        await again.release()
        await let_go_of(lease)

    asyncio.run(main())


def test_a_lock_that_was_moved_away_and_back_is_no_wait_for_another(path):
    lease = Lock(path).acquire()
    os.rename(path, f"{path}.away")
    assert not lease.held
    os.rename(f"{path}.away", path)
    with pytest.raises(SelfDeadlock):
        Lock(path).acquire()
    let_go(lease)


@pytest.mark.parametrize("told", [True, False])
def test_what_other_code_unlocked_is_locked_anew(path, told):
    with open(path, "w", encoding="utf-8") as file:
        lock = Lock.on_file(file)
        lease = lock.acquire()
        fcntl.flock(file, fcntl.LOCK_UN)
        assert not (told and lease.held)
        again = lock.acquire()
        let_go(lease)
        assert again.held
        again.release()


def test_who_holds_it_still_is_told_of_itself(path):
    with Lock(path, kind="directory"), pytest.raises(SelfDeadlock):
        Lock(path, kind="directory").acquire()


@pytest.mark.parametrize("way", [("real", "linked"), ("linked", "real")])
@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_one_file_by_two_names_is_no_wait_for_oneself(tmp_path, kind, way):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    first, second = (Lock(tmp_path / folder / "x.lock", kind=kind) for folder in way)
    stop = Cancel()
    stop.cancel()
    with first:
        with pytest.raises(SelfDeadlock):
            second.acquire(cancel=stop)
        with pytest.raises(Timeout, match="this thread holds it itself"):
            second.acquire(wait=0.01)


def test_a_reader_writer_lock_by_two_names_is_no_wait_for_oneself(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    first, second = (
        ReadWriteLock(tmp_path / each / "x.lock", kind="soft") for each in ("real", "linked")
    )
    stop = Cancel()
    stop.cancel()
    with first.writing():
        with pytest.raises(SelfDeadlock):
            second.acquire_write(cancel=stop)
        with pytest.raises(SelfDeadlock):
            second.acquire_read(cancel=stop)


def test_files_of_one_name_in_two_folders_are_two_locks(tmp_path, elsewhere):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (tmp_path / folder / "x.lock" for folder in "ab")
    other = elsewhere(Lock(second, kind="directory").acquire)
    stop = Cancel()
    stop.cancel()
    with Lock(first, kind="directory"), pytest.raises(AcquireCancelled):
        Lock(second, kind="directory").acquire(cancel=stop)
    other.release()
