"""L6 An event loop that is closed while a task waits: the task's place in the line goes with it."""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import signal
import time
import warnings

import pytest

from ground import needs
from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Lock,
    ReadWriteLock,
    Semaphore,
)
from lifehold.aio import lock_all
from lifehold.runtime.eventloop import EVENT_LOOP

pytestmark = needs("linux")  # it counts threads and descriptors in /proc


def plain(**options):
    def made(at):
        return Lock(at, **options).acquire, Lock(at, **options).acquire, AsyncLock(at, **options)

    return made


def reader(at):
    return Lock(at).acquire, Lock(at).acquire, AsyncLock(at, shared=True)


def slots(at):
    one = Semaphore(at, 1)
    return one.acquire, one.acquire, AsyncSemaphore(at, 1)


def two_slots(at):
    two = Semaphore(at, 2)

    def hold(wait=...):
        return Both(two.acquire(wait), two.acquire(wait))

    return hold, hold, AsyncSemaphore(at, 2)


class Both:
    def __init__(self, *leases):
        self.leases = leases

    def release(self):
        for lease in self.leases:
            lease.release()


class Side:
    def __init__(self, acquire):
        self.acquire = acquire


def side(kind, name):
    def made(at):
        one, other = ReadWriteLock(at, kind=kind), AsyncReadWriteLock(at, kind=kind)
        hold = one.acquire_write
        return hold, hold, Side(getattr(other, f"acquire_{name}"))

    return made


def store(url):
    def made(at):
        where = url.format(at)
        return Lock(where).acquire, Lock(where).acquire, AsyncLock(where)

    return made


def several(at):
    def hold(wait=...):
        return Both(Lock(f"{at}-1").acquire(wait), Lock(f"{at}-2").acquire(wait))

    def only_last(wait=...):
        return Lock(f"{at}-2").acquire(wait)

    return only_last, hold, lock_all([AsyncLock(f"{at}-1"), AsyncLock(f"{at}-2")])


KINDS = {
    "kernel": plain(kind="kernel"),
    "fair": plain(kind="kernel", fair=True),
    "shared": reader,
    "semaphore": slots,
    "two slots": two_slots,
    "soft": plain(kind="soft"),
    "soft with a ttl": plain(kind="soft", ttl=30),
    "link": plain(kind="link"),
    "generation": plain(kind="generation"),
    "directory": plain(kind="directory"),
    "folder": plain(kind="folder"),
    "read": side("kernel", "read"),
    "write": side("kernel", "write"),
    "soft read": side("soft", "read"),
    "soft write": side("soft", "write"),
    "SQLite store": store("sqlite:///{}.db#a"),
    "memory store": store("memory:///{}#a"),
    "several": several,
}
all_kinds = pytest.mark.parametrize("kind", KINDS)
kept = pytest.mark.parametrize("keeps", [True, False], ids=["kept", "dropped"])


def soon(what, seconds=60.0):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def threads():
    return len(os.listdir("/proc/self/task"))


def descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # that of the look itself
    return sorted(found)


def waiting(loop, work, seconds=0.15):
    """A task of `loop` that waits by now."""

    async def begin():
        task = asyncio.ensure_future(work())
        await asyncio.sleep(seconds)
        assert not task.done()
        return task

    return loop.run_until_complete(begin())


def silent(loop):
    """A task that is dropped unfinished is told by asyncio: it is what these tests do."""
    loop.set_exception_handler(lambda *_: None)
    return loop


def cancelled(asker):
    """One wait that ends as it should: what it leaves behind for a while is there already."""
    loop = asyncio.new_event_loop()
    task = waiting(loop, asker.acquire)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


@all_kinds
@kept
@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
def test_a_closed_loop_leaves_no_place_in_line(tmp_path, kind, keeps, woken):
    hold, again, asker = KINDS[kind](str(tmp_path / "a"))
    held = hold()
    cancelled(asker)
    before = threads(), descriptors()
    loop = silent(asyncio.new_event_loop())
    task = waiting(loop, asker.acquire)
    if woken:  # it was let in, or called, and the loop was closed before it came to know
        held.release()
        assert soon(lambda: loop._ready)
    if not keeps:
        task = None
    loop.close()
    loop = None if not keeps else loop
    gc.collect()
    if not woken:
        held.release()
    for _ in range(2):
        began = time.monotonic()
        again(60).release()
        assert time.monotonic() - began < 12  # a place in line dies after 15 s
    if keeps:
        assert not task.done()
    assert soon(lambda: threads() <= before[0]), (threads(), before[0])
    assert soon(lambda: len(descriptors()) <= len(before[1])), (descriptors(), before[1])


@pytest.mark.parametrize("kind", ["kernel", "folder", "SQLite store"])
def test_a_child_that_closes_its_copy_of_the_loop_takes_no_place_from_its_parent(tmp_path, kind):
    hold, _, asker = KINDS[kind](str(tmp_path / "a"))
    # An epoll is shared with a child: asyncio itself would take the parent's wakeup out of it.
    held, loop = hold(), asyncio.SelectorEventLoop(selectors.SelectSelector())
    task = waiting(loop, asker.acquire)
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(20)
            loop.close()
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    held.release()

    async def end():
        await (await asyncio.wait_for(task, 60)).release()

    loop.run_until_complete(end())
    loop.close()


def by_itself(asker):
    return asker.acquire()


def in_a_timeout(asker):
    return asyncio.wait_for(asker.acquire(), 60)


async def in_a_block(asker):
    async with asker:
        pass


async def in_a_generator(asker):
    async def steps():
        async with asker:
            yield 1

    async for _ in steps():
        pass


class Wrapped:
    def __init__(self, asker):
        self.asker = asker

    def __await__(self):
        return self.asker.acquire().__await__()


async def in_an_awaitable(asker):
    await Wrapped(asker)


@pytest.mark.parametrize(
    "way", [by_itself, in_a_timeout, in_a_block, in_a_generator, in_an_awaitable]
)
def test_the_wait_is_found_however_the_program_awaits_it(tmp_path, way):
    path, loop = tmp_path / "a", silent(asyncio.new_event_loop())
    held = Lock(path).acquire()
    task = waiting(loop, lambda: way(AsyncLock(path)))
    loop.close()
    held.release()
    Lock(path).acquire(60).release()
    Lock(path).acquire(60).release()
    assert not task.done()


def test_the_programs_own_frames_are_left_to_the_garbage_collector(tmp_path):
    outer, inner, ended = tmp_path / "outer", tmp_path / "inner", []
    held, loop = Lock(inner).acquire(), silent(asyncio.new_event_loop())

    @AsyncLock(outer)
    async def work():
        try:
            async with AsyncLock(inner):
                pass
        finally:
            ended.append(1)

    task = waiting(loop, work)
    loop.close()
    held.release()
    Lock(inner).acquire(60).release()
    assert not ended  # the task is kept, and with it what it holds
    assert Lock(outer).locked()
    del task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # which goes first, the lease or its frame
        gc.collect()
    assert ended == [1]
    Lock(outer).acquire(60).release()


def test_a_call_in_a_thread_is_undone_when_its_loop_is_closed():
    loop, go, undone = silent(asyncio.new_event_loop()), [], []

    def call():
        assert soon(lambda: go)
        return "late"

    task = waiting(loop, lambda: EVENT_LOOP.in_thread(call, undone.append), 0.02)
    shielded = waiting(
        loop, lambda: EVENT_LOOP.shield(EVENT_LOOP.in_thread(call, undone.append)), 0.02
    )
    loop.close()
    go.append(1)
    assert soon(lambda: undone == ["late", "late"])
    assert not task.done()
    assert not shielded.done()


def test_a_wait_leaves_no_timer_in_the_loop(tmp_path):
    async def main():
        held = Lock(tmp_path / "a").acquire()
        task = asyncio.ensure_future(AsyncLock(tmp_path / "a").acquire())
        await asyncio.sleep(0.05)
        held.release()
        await (await task).release()
        await EVENT_LOOP.shield(EVENT_LOOP.in_thread(int, lambda _: None))
        return [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]

    assert asyncio.run(main()) == []


class Opaque:
    """A timer to which there is no weak reference."""

    __slots__ = ("cancel",)

    def __init__(self, handle):
        self.cancel = handle.cancel


class Other(asyncio.SelectorEventLoop):
    def call_later(self, *args, **more):
        return Opaque(super().call_later(*args, **more))


def test_a_loop_that_does_not_tell_of_its_end_is_seen_by_the_next_ring(tmp_path):
    held, loop = Lock(tmp_path / "a").acquire(), silent(Other())
    task = waiting(loop, AsyncLock(tmp_path / "a").acquire)
    loop.close()
    held.release()
    for _ in range(2):
        Lock(tmp_path / "a").acquire(60).release()
    assert not task.done()
