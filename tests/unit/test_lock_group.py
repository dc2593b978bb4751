"""What `lock_all(...).acquire()` answers is a block too, as every other lease is."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from threading import Thread

import pytest

from ground import needs
from lifehold import AsyncLock, InvalidArgument, LeaseLost, Lock, lock_all
from lifehold.aio import lock_all as lock_all_async

pytestmark = needs("linux")


@pytest.fixture
def paths(tmp_path):
    return [str(tmp_path / name) for name in ("b.lock", "a.lock")]


def held(paths):
    return [Lock(path).locked() for path in paths]


def test_the_leases_of_all_end_with_their_block(paths):
    with lock_all(paths).acquire() as leases:
        assert held(paths) == [True, True]
        assert paths[0] in repr(leases)
    assert held(paths) == [False, False]


def test_the_leases_of_all_end_with_the_block_of_a_task(paths):
    async def main():
        leases = await lock_all_async(paths).acquire()
        with pytest.raises(TypeError, match="async with"):
            leases.__enter__()
        async with leases as same:
            assert same is leases
            assert held(paths) == [True, True]
        assert held(paths) == [False, False]

    asyncio.run(main())


@pytest.fixture
def robbed(tmp_path):
    """Two names: the first is broken as soon as it is taken, and only then is the second free."""
    first, second = (str(tmp_path / name) for name in ("a.soft", "b.soft"))
    held_by_us = Lock(second, kind="soft").acquire()

    def rob():
        lock = Lock(first, kind="soft")
        while not lock.locked():
            time.sleep(0.001)
        lock.break_("by order")
        held_by_us.release()

    thread = Thread(target=rob)
    thread.start()
    yield [first, second]
    thread.join()
    assert [Lock(path, kind="soft").locked() for path in (first, second)] == [False, False]


def test_nobody_has_all_when_one_was_lost_while_another_was_waited_for(robbed):
    with pytest.raises(LeaseLost, match=r"a\.soft"), lock_all(robbed, kind="soft", wait=20):
        pytest.fail("its body ran without one of them")


def test_no_task_has_all_when_one_was_lost_while_another_was_waited_for(robbed):
    async def main():
        with pytest.raises(LeaseLost, match=r"a\.soft"):
            async with lock_all_async(robbed, kind="soft", wait=20):
                pytest.fail("its body ran without one of them")

    asyncio.run(main())


BLOCKS = {
    "with lock": lambda paths: Lock(paths[0], kind="soft"),
    "with lock.acquire()": lambda paths: Lock(paths[0], kind="soft").acquire(),
    "with lock_all": lambda paths: lock_all(paths, kind="soft"),
    "with lock_all.acquire()": lambda paths: lock_all(paths, kind="soft").acquire(),
}


def lose(paths, then=None):
    """What a block does that is told to give its lock up, and then raises."""
    Lock(paths[0], kind="soft").break_("by order")
    if then is not None:
        raise then


@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_block_raises_is_not_replaced_by_the_loss_of_its_lock(paths, block):
    with pytest.raises(KeyError) as caught, BLOCKS[block](paths):
        lose(paths, KeyError())
    assert "is lost" in caught.value.__notes__[0]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_ends_without_its_lock_says_so(paths, block):
    with pytest.raises(LeaseLost), BLOCKS[block](paths):
        lose(paths)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_forked_child_leaves_the_block_of_its_parent_in_silence(paths, block):
    parent, code = os.getpid(), 1
    try:
        with BLOCKS[block](paths):
            child = os.fork()
            if child:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert Lock(paths[0], kind="soft").locked()
        if not child:
            code = 0
    finally:
        if os.getpid() != parent:
            os._exit(code)
    assert code == 0


def test_a_wrapped_coroutine_function_that_is_marked_is_one(tmp_path):
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is None:
        pytest.skip("needs Python 3.12")

    async def work():
        return Lock(tmp_path / "a.lock").locked()

    @functools.wraps(work)
    def plain():
        return work()

    assert asyncio.run(AsyncLock(tmp_path / "a.lock")(mark(plain))())
    with pytest.raises(InvalidArgument, match="@AsyncLock"):
        Lock(tmp_path / "a.lock")(mark(plain))
