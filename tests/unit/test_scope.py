"""A block that is cancelled when its lease is lost, in asyncio and trio."""

from __future__ import annotations

import asyncio
import os

import pytest

from ground import needs
from lifehold import AsyncLock, InvalidArgument, LeaseLost
from lifehold.testing.faces import FACES


def run(face, play):
    FACES[face]().run(play)


async def pause(face, seconds):
    if face == "asyncio":
        await asyncio.sleep(seconds)
    else:
        import trio

        await trio.sleep(seconds)


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=needs("package:trio"))])
def face(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "build.lock")


def test_the_block_is_cancelled_at_the_loss_and_raises_it(face, path):
    async def play():
        done = []

        async def cancelled(lease):
            with lease.cancel_on_loss():
                os.unlink(path)
                await pause(face, 20)
                done.append("the body went on")

        async def body():
            async with AsyncLock(path, kind="soft") as lease:
                with pytest.raises(LeaseLost):
                    await cancelled(lease)
                done.append("what stands outside is run")
                await pause(face, 0)  # and is not cancelled

        with pytest.raises(LeaseLost):
            await body()
        assert done == ["what stands outside is run"]

    run(face, play)


def test_a_block_that_ends_in_time_is_not_touched(face, path):
    async def play():
        async with AsyncLock(path, kind="soft", ttl=30) as lease:
            with lease.cancel_on_loss():
                await pause(face, 0.01)
            await pause(face, 0)
        assert not lease.lost.is_set()

    run(face, play)


def test_a_block_outside_of_any_task_is_refused_and_told_where_it_belongs(face, path):
    async def take():
        taken.append(await AsyncLock(path, kind="soft").acquire())

    taken = []
    run(face, take)
    lease = taken[0]
    with pytest.raises(InvalidArgument, match="in the task that is to be cancelled"):
        lease.cancel_on_loss().__enter__()
    asyncio.run(lease.release())


def test_a_block_in_a_callback_of_the_loop_is_refused_too(path):
    async def play():
        lease, raised = await AsyncLock(path, kind="soft").acquire(), []

        def callback(over):
            try:
                with lease.cancel_on_loss():
                    pass
            except Exception as error:
                raised.append(error)
            finally:
                over.set_result(None)

        over = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(callback, over)
        await over
        assert isinstance(raised[0], InvalidArgument)
        await lease.release()

    asyncio.run(play())


def test_an_error_of_the_block_goes_on(face, path):
    async def play():
        async with AsyncLock(path, kind="soft") as lease:
            with pytest.raises(KeyError, match="its own"), lease.cancel_on_loss():
                raise KeyError("its own")

    run(face, play)


def test_a_cancellation_from_outside_stays_what_it_is(path):
    async def hold():
        async with AsyncLock(path, kind="soft") as lease:
            with lease.cancel_on_loss():
                await asyncio.sleep(20)

    async def play():
        task = asyncio.create_task(hold())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert not os.path.exists(path)


def test_a_lease_that_is_lost_already_cancels_the_first_await(face, path):
    async def body():
        async with AsyncLock(path, kind="soft") as lease:
            os.unlink(path)
            assert not lease.held
            with lease.cancel_on_loss():
                await pause(face, 20)

    async def play():
        with pytest.raises(LeaseLost):
            await body()

    run(face, play)
