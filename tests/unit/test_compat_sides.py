"""The reader/writer locks of lifehold.compat.filelock, in one process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from ground import needs
from lifehold.compat.filelock import (
    AsyncReadWriteLock,
    AsyncSoftReadWriteLock,
    ReadWriteLock,
    SoftFileLockProtocolError,
    SoftReadWriteLock,
    Timeout,
)

pytestmark = needs("linux")
KINDS = [ReadWriteLock, SoftReadWriteLock]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shared")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def pair(request, path):
    return [request.param(path, is_singleton=False) for _ in range(2)]


def test_readers_go_together_and_a_writer_alone(pair):
    one, other = pair
    with one.read_lock(), other.read_lock():
        pass
    with one.read_lock(), pytest.raises(Timeout):
        other.acquire_write(timeout=0.02)
    with one.write_lock(), pytest.raises(Timeout):
        other.acquire_read(timeout=0.02)
    with other.write_lock(timeout=0):
        pass


def test_a_refusal_names_the_holder(pair):
    one, other = pair
    with one.write_lock():
        with pytest.raises(Timeout) as caught:
            other.acquire_write(blocking=False)
        assert caught.value.holder.owner.pid == os.getpid()  # found out when it is asked for
    assert f"pid {os.getpid()}" in caught.value.__notes__[0]


def test_a_waiter_is_let_in_when_the_holder_leaves(pair):
    one, other = pair
    one.acquire_write()
    got = threading.Event()

    def wait():
        with other.write_lock(timeout=30):
            got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    one.release()
    assert got.wait(90)
    waiter.join()


def test_a_waiting_writer_goes_before_new_readers(path):
    reader, writer, late = (SoftReadWriteLock(path, is_singleton=False) for _ in range(3))
    reader.acquire_read()
    done = threading.Event()

    def write():
        with writer.write_lock(timeout=30):
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while True:
        try:
            late.acquire_read(timeout=0)
        except Timeout:
            break
        late.release()
    reader.release()
    thread.join()
    with late.read_lock(timeout=30):
        assert done.is_set()


def test_one_side_in_the_middle_of_the_other_is_refused(pair):
    lock, _ = pair
    with lock.read_lock(), lock.read_lock(), pytest.raises(RuntimeError, match="upgrade"):
        lock.acquire_write()
    with lock.write_lock(), pytest.raises(RuntimeError, match="downgrade"):
        lock.acquire_read()


def test_the_generation_grows_with_every_grant(path):
    lock = SoftReadWriteLock(path, is_singleton=False)
    seen = []
    for _ in range(3):
        with lock.write_lock():
            seen.append(lock.generation)
    assert seen == sorted(set(seen))
    assert lock.generation is None


def test_the_log_is_cut_and_goes_on(path):
    lock = SoftReadWriteLock(path, is_singleton=False)
    for _ in range(80):
        with lock.write_lock():
            last = lock.generation
    assert len(os.listdir(f"{path}.rw/gen")) <= 128 + 3
    with SoftReadWriteLock(path, is_singleton=False).write_lock():
        pass
    assert last > 128


@pytest.mark.parametrize("junk", [b"", b"x" * 99], ids=["empty", "junk"])
def test_a_head_that_a_crash_has_left_half_is_written_anew(path, junk):
    head = Path(f"{path}.rw/gen/HEAD")
    lock = SoftReadWriteLock(path, is_singleton=False)
    for _ in range(2):
        with lock.write_lock():
            pass
    head.write_bytes(junk)
    with lock.write_lock():
        last = lock.generation + 1
    assert f"generation={last}\n".encode() in head.read_bytes()
    with SoftReadWriteLock(path, is_singleton=False).read_lock(timeout=0):
        pass


@pytest.mark.parametrize("name", [".write", ".readers/host.1.a"])
def test_the_layout_of_older_releases_is_refused_where_it_is_in_use(path, name):
    other = Path(f"{path}{name}")
    Path(f"{path}.readers").mkdir()  # a left-over that says nothing
    lock = SoftReadWriteLock(path, is_singleton=False)
    with lock.write_lock():
        other.write_text("")
    with pytest.raises(SoftFileLockProtocolError, match="before 4"):
        lock.acquire_read(timeout=0)
    other.unlink()
    with lock.read_lock(timeout=0):
        pass


def test_who_was_put_out_is_told_and_may_not_go_on(path):
    told = threading.Event()
    lock = SoftReadWriteLock(
        path,
        is_singleton=False,
        heartbeat_interval=0.05,
        stale_threshold=3.0,
        on_compromise=lambda _: told.set(),
    )
    lock.acquire_write()
    for name in os.listdir(f"{path}.rw/holders"):
        os.unlink(f"{path}.rw/holders/{name}")
    assert told.wait(90)
    assert lock.compromise.reason == "evicted"
    with pytest.raises(RuntimeError, match="lost"):
        lock.acquire_write()
    lock.release()
    with lock.write_lock(timeout=30):
        assert lock.compromise is None


def test_sqlite_itself_and_ours_keep_each_other_out(path):
    lock = ReadWriteLock(path, is_singleton=False)
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        with lock.write_lock(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Timeout):
            lock.acquire_read(timeout=0.02)
        probe = sqlite3.connect(path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            probe.execute("BEGIN EXCLUSIVE")  # what ours has closed meanwhile freed nothing
        probe.close()
        other.execute("ROLLBACK")
        with lock.read_lock(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN EXCLUSIVE")
    finally:
        other.close()


def test_an_applications_database_is_refused(path):
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode=WAL")
    other.close()
    with pytest.raises(ValueError, match="WAL"):
        ReadWriteLock(path, is_singleton=False)


@pytest.mark.parametrize("kind", [AsyncReadWriteLock, AsyncSoftReadWriteLock])
def test_tasks_read_together_and_write_alone(path, kind):
    async def play():
        lock = kind(path, is_singleton=False)
        inside, most = 0, 0

        async def work(side):
            nonlocal inside, most
            async with side(timeout=30):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.gather(*(work(lock.read_lock) for _ in range(3)))
        together, most = most, 0
        await asyncio.gather(*(work(lock.write_lock) for _ in range(3)))
        await lock.close()
        return together, most

    assert asyncio.run(play()) == (3, 1)


@pytest.mark.parametrize("kind", [AsyncReadWriteLock, AsyncSoftReadWriteLock])
def test_a_task_that_is_cancelled_while_it_waits_holds_nothing(path, kind):
    async def play():
        lock, other = (kind(path, is_singleton=False) for _ in range(2))
        async with lock.write_lock():
            task = asyncio.ensure_future(other.acquire_write())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with lock.write_lock(timeout=0):
            pass
        await lock.close()
        await other.close()

    asyncio.run(play())
