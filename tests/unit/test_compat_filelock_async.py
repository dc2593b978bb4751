"""lifehold.compat.filelock for tasks: filelock's behaviour, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import lifehold.compat.filelock as face
from ground import needs
from lifehold import AsyncLock, LeaseLost
from lifehold.compat.filelock import AsyncFileLock, BaseAsyncFileLock, FileLock, Timeout
from patience import SOON


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


def free(path):
    with FileLock(path, timeout=0):
        return True


async def held_up(path):
    """A task that waits for the lock, and has begun to."""
    waiter = asyncio.create_task(AsyncFileLock(path).acquire())
    await asyncio.sleep(0.05)
    assert not waiter.done()
    return waiter


def test_it_is_a_block_and_counts(path):
    async def main():
        lock = AsyncFileLock(path)
        async with lock as same:
            assert same is lock
            async with await lock.acquire() as again:
                assert again is lock
                assert lock.lock_counter == 2
            assert lock.lease.token > 0
        assert (lock.is_locked, lock.lock_counter) == (False, 0)
        await lock.release()  # unheld: nothing

    asyncio.run(main())


def test_it_excludes_the_blocking_lock_and_names_the_holder(path):
    async def main():
        with FileLock(path):
            with pytest.raises(Timeout) as caught:
                await AsyncFileLock(path).acquire(timeout=0.02)
            assert caught.value.holder.owner.pid == os.getpid()
            with pytest.raises(Timeout):
                await AsyncFileLock(path, blocking=False).acquire()

    asyncio.run(main())


def test_a_waiter_is_woken_by_the_release(path):
    async def main():
        lock = AsyncFileLock(path)
        await lock.acquire()
        waiter = await held_up(path)
        await lock.release()
        proxy = await asyncio.wait_for(waiter, 60)
        assert proxy.lock.is_locked
        await proxy.lock.release()
        assert free(path)

    asyncio.run(main())


def test_a_cancelled_waiter_leaves_no_lock(path):
    async def main():
        async with AsyncFileLock(path):
            waiter = await held_up(path)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        assert free(path)

    asyncio.run(main())


def test_a_task_cancelled_in_the_callback_leaves_no_lock(path):
    async def main():
        loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), []

        def callback(fd):
            loop.call_soon_threadsafe(begun.set)
            while not go_on:
                os.fstat(fd)  # open until the callback is done

        task = asyncio.create_task(AsyncFileLock(path, on_acquired=callback).acquire())
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.append(True)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert free(path)

    asyncio.run(main())


def test_two_tasks_of_one_object_share_the_hold(path):
    async def main():
        lock = AsyncFileLock(path)
        other = FileLock(path)
        other.acquire()
        tasks = [asyncio.create_task(lock.acquire()) for _ in range(3)]
        await asyncio.sleep(0.05)
        other.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert lock.lock_counter == 3
        for _ in tasks:
            await lock.release()
        assert free(path)

    asyncio.run(main())


def test_a_wait_for_what_this_task_holds_is_an_error_and_for_another_task_is_not(path):
    async def main():
        async with AsyncFileLock(path):
            with pytest.raises(RuntimeError, match="Deadlock"):
                await AsyncFileLock(path).acquire()
            waiter = await held_up(path)
        await (await asyncio.wait_for(waiter, 60)).lock.release()

    asyncio.run(main())


def test_a_question_of_the_caller_ends_the_wait(path):
    async def main():
        asked = []
        with FileLock(path), pytest.raises(Timeout):
            await AsyncFileLock(path).acquire(
                cancel_check=lambda: len(asked) == 3 or asked.append(1)
            )
        assert len(asked) == 3

    asyncio.run(main())


def test_what_a_subclass_brings_runs_in_the_executor_it_gave(path):
    import threading

    async def main():
        ran = []

        class Brought(BaseAsyncFileLock):
            def _acquire(self):
                ran.append(threading.current_thread().name)
                self._context.lock_file_fd = 1

            def _release(self):
                ran.append(threading.current_thread().name)
                self._context.lock_file_fd = None

        with ThreadPoolExecutor(1, thread_name_prefix="given") as executor:
            lock = Brought(path, executor=executor)
            async with lock:
                assert lock.is_locked
        assert ran == ["given_0", "given_0"]

    asyncio.run(main())


def test_a_plain_with_is_refused(path):
    with pytest.raises(NotImplementedError, match="async with"), AsyncFileLock(path):
        pass


def test_per_thread_holds_need_the_callers_own_thread(path):
    with pytest.raises(ValueError, match="run_in_executor"):
        AsyncFileLock(path, thread_local=True)


def test_the_module_is_there_under_both_names(path):
    assert face.asyncio.AsyncFileLock is AsyncFileLock is face.AsyncUnixFileLock
    assert dir(face.asyncio) == sorted(face.asyncio.__all__)


class Steps(BaseAsyncFileLock):
    """A program's own: how it takes and lets go is for a test to say."""

    async def _acquire(self):
        self._context.lock_file_fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT)

    async def _release(self):
        os.close(self._context.lock_file_fd)
        self._context.lock_file_fd = None


def test_the_steps_of_a_program_end_when_what_they_hold_is_lost(path, tmp_path):
    class Mine(Steps):
        async def _acquire(self):
            async with AsyncLock(tmp_path / "inner") as lease:
                with lease.cancel_on_loss():
                    os.unlink(tmp_path / "inner")
                    await asyncio.Event().wait()

    async def main():
        async with asyncio.timeout(SOON):
            await Mine(path).acquire(timeout=0)

    with pytest.raises(LeaseLost):
        asyncio.run(main())


@pytest.mark.parametrize("by", ["its own step", "its executor"])
def test_a_program_ends_though_a_step_of_its_own_waits_for_a_task(path, by):
    class Mine(Steps):
        async def _release(self):
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                await super()._release()

    async def main():
        lock = Mine(path) if by == "its own step" else AsyncFileLock(path, executor=pool)
        await lock.acquire()
        if by == "its executor":
            pool.submit(lambda: (begun.set(), let.wait(SOON)))
        task = asyncio.create_task(lock.release())
        while not begun.is_set():  # noqa: ASYNC110 - of a thread, too
            await asyncio.sleep(0.001)
        assert not task.done()

    begun, let, pool = threading.Event(), threading.Event(), ThreadPoolExecutor(1)
    started = time.monotonic()
    asyncio.run(main())
    ended_by_itself = time.monotonic() - started < SOON / 2
    let.set()
    pool.shutdown()
    assert ended_by_itself


@needs("package:trio")
def test_trio_runs_it_too(path):
    import trio

    async def main():
        lock = AsyncFileLock(path)
        async with lock:
            with trio.move_on_after(0.05) as scope:
                await AsyncFileLock(path).acquire(timeout=60)
            assert scope.cancelled_caught
        assert free(path)

    trio.run(main)
