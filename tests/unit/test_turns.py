"""Tasks of one loop that ask again as soon as they have let go all get their turns."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from ground import needs
from lifehold import AsyncLock, AsyncReadWriteLock
from lifehold.compat import filelock
from lifehold.local.refusals import JUST_RELEASED

pytestmark = needs("linux")
TURNS = 60  # of one task, in which each other must have had one

LOCKS = {
    kind: lambda path, kind=kind: AsyncLock(path, kind=kind, notify=False)
    for kind in ("kernel", "soft", "link", "directory", "folder")
} | {
    "generation": lambda path: AsyncLock(path, kind="generation", ttl=60, notify=False),
    "soft writers": lambda path: AsyncReadWriteLock(path, kind="soft", ttl=60).writing(),
    "AsyncSoftFileLock": filelock.AsyncSoftFileLock,
    "AsyncSoftFileLease": filelock.AsyncSoftFileLease,
    "AsyncStrictSoftFileLock": filelock.AsyncStrictSoftFileLock,
}


async def work(make, path, turns, me, over):
    while not over.is_set():
        async with make(path):
            turns[me] += 1
            if turns[me] >= TURNS:
                over.set()
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", LOCKS)
def test_no_task_that_lets_go_and_asks_again_keeps_the_others_out(tmp_path, kind):
    turns = [0, 0, 0]

    async def main():
        over = asyncio.Event()
        path = str(tmp_path / "jobs.lock")
        await asyncio.gather(*(work(LOCKS[kind], path, turns, me, over) for me in range(3)))

    asyncio.run(main())
    assert min(turns) > 1


@pytest.mark.large
@pytest.mark.parametrize("kind", LOCKS)
def test_no_task_of_trio_keeps_the_others_out(tmp_path, kind):
    trio = pytest.importorskip("trio")
    if kind.startswith("Async"):
        pytest.skip("filelock's classes are asyncio's")
    turns = [0, 0, 0]

    async def work(me, scope):
        while True:
            async with LOCKS[kind](str(tmp_path / "jobs.lock")):
                turns[me] += 1
                if turns[me] >= TURNS:
                    scope.cancel()
                await trio.sleep(0.001)

    async def main():
        async with trio.open_nursery() as nursery:
            for me in range(3):
                nursery.start_soon(work, me, nursery.cancel_scope)

    trio.run(main)
    assert min(turns) > 1


class Result:
    """What a job made."""


def test_a_block_that_ends_with_its_lease_unlost_leaves_nothing_in_it(tmp_path):
    async def job(lease, made):
        with lease.cancel_on_loss():
            result = Result()
            made.append(weakref.ref(result))
            return result

    async def main():
        made = []
        async with AsyncLock(tmp_path / "a.lock") as lease:
            for _ in range(20):
                await asyncio.create_task(job(lease, made))
            gc.collect()
            assert [ref() for ref in made[:-1]] == [None] * 19  # the last is at hand still
            assert lease.lost._callbacks == []
            assert lease.lost._watch is None

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["SoftFileLock", "MarkerSoftFileLock", "SoftFileLease", "StrictSoftFileLock"]
)
def test_of_a_lock_that_was_just_released_it_is_not_said_that_nobody_left_a_trace(tmp_path, name):
    lock = getattr(filelock, name)(str(tmp_path / "a.lock"))
    with lock:
        pass
    assert lock._kernel.inspect(held=True).evidence == JUST_RELEASED
    assert lock._kernel.inspect() is None
