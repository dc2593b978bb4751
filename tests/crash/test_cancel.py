"""A wait that is given up at any moment.

Granted or not, nothing stays held, no thread, no descriptor.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import threading
import time

import pytest

from crash.scene import descriptors, free, raised, threads, until
from ground import needs
from lifehold import AcquireCancelled, AsyncLock, Cancel, Lock, NotAcquired, Timeout
from lifehold.local.handles import TABLE

ROUNDS = int(os.environ.get("LIFEHOLD_CANCELS", "600"))


@pytest.fixture
def path(tmp_path):
    yield str(tmp_path / "lock")
    TABLE.close_idle()


class Other:
    """A holder that is no lifehold: a description of our own."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY | os.O_CREAT)

    def take(self):
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def let_go(self):
        fcntl.flock(self.fd, fcntl.LOCK_UN)


def clean(path, before):
    until(lambda: threads() <= before, 60, "no thread is left")
    assert free(path)
    assert len(descriptors(path)) <= 1
    assert set(descriptors(path)) <= set(TABLE.open)


def test_a_cancel_token_from_another_thread_ends_the_wait_with_nothing_held(path):
    other, before = Other(path), threads()
    other.take()
    for pause in (0, 0.0001, 0.001, 0.01) * 5:
        cancel = Cancel()
        timer = threading.Timer(pause, cancel.cancel)
        timer.start()
        started = time.monotonic()
        error = raised(Lock(path).acquire, 120, cancel=cancel)
        assert isinstance(error, AcquireCancelled)
        assert time.monotonic() - started < 60
        timer.join()
    other.let_go()
    clean(path, before)


def test_a_release_at_the_very_deadline_leaves_nothing_held(path):
    other, before, granted = Other(path), threads(), 0
    for number in range(ROUNDS):
        other.take()
        cancel = Cancel()
        give_up = cancel.cancel if number % 2 else lambda: None

        def let_go(delay=max(0.0, random.gauss(0.003, 0.0005)), give_up=give_up):
            time.sleep(delay)
            other.let_go()
            give_up()

        releaser = threading.Thread(target=let_go)
        releaser.start()
        try:
            with Lock(path, wait=0.003 if number % 2 == 0 else 5, cancel=cancel):
                granted += 1
        except (Timeout, AcquireCancelled):
            pass
        releaser.join()
        assert free(path), number
    print(f"{granted} of {ROUNDS} granted")
    assert granted > 0
    clean(path, before)


async def async_rounds(path, run_and_cancel, rounds):
    """Cancels at random moments around the instant of the grant."""
    other, granted = Other(path), 0
    lock = AsyncLock(path)

    async def enter():
        nonlocal granted
        async with lock:
            granted += 1

    for number in range(rounds):
        other.take()
        await run_and_cancel(enter, other.let_go, random.random() * 0.002, number % 3)
        other.let_go()
        until(lambda: free(path), 5)
    return granted


def test_an_asyncio_task_cancelled_around_the_grant_leaves_nothing_held(path):
    before = threads()

    async def run_and_cancel(enter, let_go, moment, order):
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(enter())
        loop.call_later(moment, let_go)
        loop.call_later(moment + (random.random() - 0.3) * 0.001 * order, task.cancel)
        await asyncio.wait([task])

    granted = asyncio.run(async_rounds(path, run_and_cancel, ROUNDS // 2))
    print(f"{granted} of {ROUNDS // 2} granted")
    clean(path, before)


@needs("package:trio")
def test_a_trio_scope_cancelled_around_the_grant_leaves_nothing_held(path):
    import trio

    before = threads()

    async def run_and_cancel(enter, let_go, moment, order):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            await trio.sleep(moment)
            if order:
                let_go()
                await trio.sleep(random.random() * 0.0005 * order)
            nursery.cancel_scope.cancel()

    granted = trio.run(async_rounds, path, run_and_cancel, ROUNDS // 4)
    print(f"{granted} of {ROUNDS // 4} granted")
    clean(path, before)


def cancelled_at_step(work, number):
    """Drive a coroutine by hand, a task of its own loop, cancelled before its step `number`."""

    async def main():
        task = asyncio.create_task(work())
        for _ in range(number):
            if task.done():
                break
            await asyncio.sleep(0)
        came = not task.done()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        return came

    return asyncio.run(main())


@pytest.mark.parametrize("held", [False, True])
def test_a_task_cancelled_at_any_of_its_awaits_leaves_nothing_held(path, held):
    other, before = Other(path), threads()

    async def work():
        lock = AsyncLock(path)
        try:
            async with lock:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        except NotAcquired:
            pass

    number = 0
    while True:
        if held:
            other.take()
        came = cancelled_at_step(work, number)
        other.let_go()
        assert free(path), number
        if not came or number >= 40:
            break
        number += 1
    assert number >= 3
    clean(path, before)


def test_many_waits_at_once_are_all_given_up_with_no_thread_left(path):
    other, before = Other(path), threads()
    other.take()

    async def main():
        tasks = [asyncio.create_task(AsyncLock(path).acquire()) for _ in range(60)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in found)

    asyncio.run(main())
    other.let_go()
    clean(path, before)


def test_a_loop_that_ends_during_a_wait_leaves_nothing_held(path):
    other, before = Other(path), threads()
    other.take()

    async def main():
        asyncio.create_task(AsyncLock(path).acquire())  # noqa: RUF006 - left to the end of the loop
        await asyncio.sleep(0.005)

    asyncio.run(main())
    other.let_go()
    clean(path, before)
