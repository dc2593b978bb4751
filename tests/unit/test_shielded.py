"""A step of a task of asyncio that has begun goes to its end, whoever cancels meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lifehold import Lock, aonce, once
from lifehold.aio import locked_file
from lifehold.data_file import FileDraft
from lifehold.recipes.once import OnceAttempt
from lifehold.runtime.eventloop import EVENT_LOOP
from patience import SOON


class Call:
    """A call in a thread that ends when it is told to."""

    def __init__(self):
        self.begun, self.let, self.told = threading.Event(), threading.Event(), []

    def __call__(self):
        self.begun.set()
        assert self.let.wait(SOON)
        self.told.append("call")

    async def under_way(self):
        async with asyncio.timeout(SOON):
            while not self.begun.is_set():  # noqa: ASYNC110 - it happens in a thread
                await asyncio.sleep(0.001)


async def cancelled_too(call):
    """It is cancelled with all others, and only then the call ends."""
    try:
        await asyncio.Event().wait()
    finally:
        call.let.set()


def at_the_end_of_run(call, work):
    """`asyncio.run` is left while the call in `work` is under way."""

    async def main():
        tasks.extend(asyncio.ensure_future(each) for each in (work(), cancelled_too(call)))
        await call.under_way()

    tasks = []
    asyncio.run(main())
    return tasks[0]


def by_a_sweep(call, work):
    """The program cancels all tasks that there are, as many do in a signal handler."""

    def sweep(but):
        for each in asyncio.all_tasks() - {but}:
            each.cancel()

    async def main():
        tasks.extend(asyncio.ensure_future(each) for each in (work(), cancelled_too(call)))
        await call.under_way()
        asyncio.get_running_loop().call_soon(sweep, asyncio.current_task())
        await asyncio.wait(tasks)

    tasks = []
    asyncio.run(main())
    return tasks[0]


everybody = pytest.mark.parametrize("cancel", [at_the_end_of_run, by_a_sweep])


@everybody
@pytest.mark.parametrize("factory", [False, True], ids=["plain", "own task factory"])
def test_a_step_goes_to_its_end_when_every_task_is_cancelled(cancel, factory):
    call = Call()

    async def step():
        await EVENT_LOOP.in_thread(call, lambda _: None)
        call.told.append("step")

    async def work():
        if factory:
            loop = asyncio.get_running_loop()
            loop.set_task_factory(lambda loop, work, **more: asyncio.Task(work, loop=loop, **more))
        try:
            await EVENT_LOOP.shield(step())
        finally:
            call.told.append("task")

    assert cancel(call, work).cancelled()
    assert call.told == ["call", "step", "task"]


@everybody
def test_a_run_whose_result_is_being_published_is_the_only_one(cancel, tmp_path, monkeypatch):
    call, path, real, ran = Call(), tmp_path / "a", OnceAttempt.returned, []

    def slow(self, given):
        if given == "first":
            call()
        return real(self, given)

    monkeypatch.setattr(OnceAttempt, "returned", slow)

    async def fetch():
        ran.append(1)
        return "first"

    assert cancel(call, lambda: aonce(path, fetch)).cancelled()
    assert once(path, lambda: ran.append(2) or "second") == "first"
    assert ran == [1]


@everybody
def test_a_file_is_opened_to_the_end_under_its_lock(cancel, tmp_path, monkeypatch):
    call, path, real, free = Call(), tmp_path / "a", FileDraft._sweep, []

    def slow(self):
        call()
        lease = Lock(f"{path}.lock").try_acquire()
        free.append(lease)
        if lease is not None:
            lease.release()
        real(self)

    monkeypatch.setattr(FileDraft, "_sweep", slow)

    async def work():
        async with locked_file(path, "w"):
            raise AssertionError("who was cancelled does not enter")

    assert cancel(call, work).cancelled()
    assert free == [None]
    assert not path.exists()
    Lock(f"{path}.lock").acquire(0).release()


def test_a_file_whose_block_ends_with_the_loop_is_written_and_let_go(tmp_path):
    path = tmp_path / "a"
    block = locked_file(path, "w")

    async def main():
        stop, open_now = asyncio.Event(), asyncio.Event()

        async def work():
            async with block as file:
                file.write("new")
                open_now.set()
                await stop.wait()

        tasks.append(asyncio.ensure_future(work()))
        await open_now.wait()
        stop.set()  # and the block ends in the turn of the loop that cancels it

    tasks = []
    asyncio.run(main())
    Lock(f"{path}.lock").acquire(0).release()
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".new"] == []

    async def again():
        async with block as file:
            file.write("again")

    asyncio.run(again())
    assert path.read_text(encoding="utf-8") == "again"


def test_what_a_step_begins_itself_may_cancel_it():
    async def late():
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    async def fails():
        raise KeyError("own")

    async def group():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())
            await asyncio.Event().wait()

    async def main():
        with pytest.raises(TimeoutError):
            await EVENT_LOOP.shield(late())
        with pytest.raises(TimeoutError):
            await EVENT_LOOP.shield(EVENT_LOOP.shield(late()))
        with pytest.raises(ExceptionGroup) as raised:
            await EVENT_LOOP.shield(group())
        assert isinstance(raised.value.exceptions[0], KeyError)

    asyncio.run(asyncio.wait_for(main(), SOON))
