"""A file server may be slow: the async face calls it from helper threads, undoing late grants."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from lifehold import AsyncLock, Lock, NotHeld
from lifehold.local import ground
from lifehold.local.ground import Place, place_of_path
from lifehold.local.kernel import KernelLock


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(ground, "place_of_path", lambda path: Place("nfs4", "0:50"))
    ground._of_folders.clear()
    yield
    ground._of_folders.clear()


def calls_of(monkeypatch, name, pause=0.0):
    threads, plain = [], getattr(KernelLock, name)

    def watched(self, *arguments):
        threads.append(threading.get_ident())
        time.sleep(pause)
        return plain(self, *arguments)

    monkeypatch.setattr(KernelLock, name, watched)
    return threads


def test_a_far_lock_is_taken_and_released_outside_the_loop(far, monkeypatch, tmp_path):
    tried, dropped = calls_of(monkeypatch, "attempt"), calls_of(monkeypatch, "drop")

    async def play():
        async with AsyncLock(tmp_path / "a", kind="kernel") as lease:
            assert lease.token
        with pytest.raises(NotHeld):
            await lease.release()

    asyncio.run(play())
    assert len(tried) == 1
    assert threading.get_ident() not in tried + dropped


def test_a_near_lock_is_taken_by_the_loop_itself(monkeypatch, tmp_path):
    tried = calls_of(monkeypatch, "attempt")

    async def play():
        async with AsyncLock(tmp_path / "a", kind="kernel"):
            pass

    asyncio.run(play())
    assert tried == [threading.get_ident()]


def test_a_grant_that_comes_after_the_cancellation_is_undone(far, monkeypatch, tmp_path):
    calls_of(monkeypatch, "attempt", pause=0.05)
    dropped = calls_of(monkeypatch, "drop")

    async def play():
        task = asyncio.create_task(AsyncLock(tmp_path / "a", kind="kernel").acquire())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    with Lock(tmp_path / "a", kind="kernel", wait=5):
        assert dropped


def test_a_cancelled_release_is_finished_all_the_same(far, monkeypatch, tmp_path):
    calls_of(monkeypatch, "drop", pause=0.05)

    async def play():
        lease = await AsyncLock(tmp_path / "a", kind="kernel").acquire()
        task = asyncio.create_task(lease.release())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    Lock(tmp_path / "a", kind="kernel", wait=0).acquire().release()


def test_the_mount_that_covers_a_path_is_found_by_its_name_alone(tmp_path):
    assert place_of_path("/proc/self/status").kind == "proc"
    assert place_of_path("/no/such/folder").kind == place_of_path("/").kind != ""
    assert not place_of_path(str(tmp_path)).far
