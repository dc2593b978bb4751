"""What `lock_all(...).acquire()` answers is a block too, as every other lease is."""

from __future__ import annotations

import asyncio
import functools
import inspect
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
