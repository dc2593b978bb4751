"""A step of a task of asyncio that has begun goes to its end, whoever cancels meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import selectors
import threading
from types import SimpleNamespace

import pytest

from ground import needs
from lifehold import AsyncLock, LeaseLost, Lock, SystemRefused, UnsafeGround, aonce, events, once
from lifehold.aio import lock_all, locked_file
from lifehold.core.backend import Unreachable
from lifehold.data_file import FileDraft
from lifehold.recipes.once import OnceAttempt
from lifehold.runtime import eventloop
from lifehold.runtime.eventloop import EVENT_LOOP
from lifehold.several_async import AsyncLeaseGroup
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


# ------------------------------------------------------------------------------------------------
# A step that raises while its caller is cancelled: both are told.


async def cancel_me():
    """The caller is cancelled as soon as it waits."""
    asyncio.current_task().cancel()


def outcome(work):
    """What it raises in a task of its own. A task that is over has forgotten its `__cause__`."""

    async def main():
        try:
            await work()
        except BaseException as error:
            return error
        return None

    return asyncio.run(main())


@pytest.mark.parametrize("last", [False, True], ids=["meanwhile", "in its last moment"])
def test_a_cancellation_goes_on_when_the_step_raises(last):
    async def work():
        task = asyncio.current_task()

        async def step():
            if not last:
                task.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            task.cancel()
            raise KeyError("own")

        await EVENT_LOOP.shield(step())

    ended = outcome(work)
    assert isinstance(ended, asyncio.CancelledError)
    assert repr(ended.__cause__) == "KeyError('own')"


def test_a_timeout_around_tries_that_fail_ends():
    async def work():
        async def step():
            await asyncio.sleep(0.02)
            raise KeyError("own")

        async with asyncio.timeout(0.01):
            for _ in range(10):
                with contextlib.suppress(KeyError):
                    await EVENT_LOOP.shield(step())

    assert isinstance(outcome(work), TimeoutError)


def test_a_cancelled_block_of_a_file_changed_by_others_is_cancelled(tmp_path):
    path = tmp_path / "a"

    async def work():
        async with locked_file(path, "w") as file:
            file.write("mine")
            path.write_text("by others", encoding="utf-8")
            await cancel_me()

    ended = outcome(work)
    assert isinstance(ended, asyncio.CancelledError)
    assert isinstance(ended.__cause__, UnsafeGround)
    assert path.read_text(encoding="utf-8") == "by others"


def test_a_cancellation_goes_before_the_loss_of_another_lock(tmp_path, monkeypatch):
    one, two = str(tmp_path / "1"), str(tmp_path / "2")
    real = AsyncLeaseGroup._end

    async def end(self, lease):
        if lease.name == two:
            os.unlink(two)
        else:
            tasks[0].cancel()
        await real(self, lease)

    monkeypatch.setattr(AsyncLeaseGroup, "_end", end)
    tasks = []

    async def work():
        tasks.append(asyncio.current_task())
        async with lock_all([one, two], kind="soft"):
            pass

    ended = outcome(work)
    assert isinstance(ended, asyncio.CancelledError)
    assert isinstance(ended.__cause__, LeaseLost)
    Lock(one, kind="soft").acquire(0).release()


def test_a_result_is_published_though_its_task_is_cancelled_and_no_thread_is_to_be_had(
    tmp_path, monkeypatch
):
    def none(_):
        raise SystemRefused("no thread", errno=errno.EAGAIN, filename="")

    async def fetch():
        monkeypatch.setattr(eventloop, "_begin", none)
        await cancel_me()
        return "first"

    ended = outcome(lambda: aonce(tmp_path / "a", fetch))
    assert isinstance(ended, asyncio.CancelledError)
    assert once(tmp_path / "a", lambda: "second") == "first"


def test_what_a_store_may_have_given_to_a_cancelled_task_is_given_back(tmp_path, monkeypatch):
    mechanism, undone = AsyncLock(f"sqlite://{tmp_path}/s.db#a")._mechanism, []
    waiter = SimpleNamespace(ours=True, nonce="of the wait", stands=True)

    async def work():
        task = asyncio.current_task()

        async def send(*_):
            task.cancel()
            raise Unreachable("silent")

        monkeypatch.setattr(type(mechanism), "_send", send)
        monkeypatch.setattr(type(mechanism), "_disown", lambda *_: None)
        monkeypatch.setattr(type(mechanism.site), "undo", lambda _, *what: undone.append(what[1]))
        await mechanism._abandon(waiter)

    assert isinstance(outcome(work), asyncio.CancelledError)
    assert undone == ["of the wait"]


# ------------------------------------------------------------------------------------------------
# A loop that is closed before a step has begun.


def closed_before_the_step(work):
    """The loop is closed in the turn in which the task comes to the step."""

    async def main():
        stop, inside = asyncio.Event(), asyncio.Event()
        tasks.append(asyncio.ensure_future(work(stop, inside)))
        await inside.wait()
        stop.set()

    loop, tasks = asyncio.new_event_loop(), []
    loop.set_exception_handler(lambda *_: None)  # asyncio tells of a task that was not finished
    loop.run_until_complete(main())
    loop.close()
    return tasks[0]


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_file_whose_block_ends_as_the_loop_is_closed_is_let_go(tmp_path, mode):
    path = tmp_path / "a"
    path.write_text("old", encoding="utf-8")
    block = locked_file(path, mode)

    async def work(stop, inside):
        async with block as file:
            if mode == "w":
                file.write("new")
            inside.set()
            await stop.wait()

    task = closed_before_the_step(work)
    Lock(f"{path}.lock").acquire(0).release()
    assert {each.name for each in tmp_path.iterdir()} == {"a", "a.lock"}
    assert path.read_text(encoding="utf-8") == ("new" if mode == "w" else "old")
    assert not task.done()

    async def again():
        async with block:
            pass

    asyncio.run(again())


def test_a_far_lock_that_is_released_as_the_loop_is_closed_is_let_go(tmp_path):
    lock, heard = AsyncLock(tmp_path / "a"), []
    lock._far = True

    async def work(stop, inside):
        lease = await lock.acquire()
        inside.set()
        await stop.wait()
        await lease.release()

    end = events.subscribe(heard.append)
    task = closed_before_the_step(work)
    end()
    Lock(tmp_path / "a").acquire(0).release()
    assert [type(each).__name__ for each in heard] == ["Acquired", "Released"]
    assert not task.done()


# ------------------------------------------------------------------------------------------------
# A scope of anyio, which cancels its tasks at each turn of the loop.


class Turns(selectors.DefaultSelector):
    """Counts the turns of a loop that has always something to do; `idle` when it has nothing."""

    def __init__(self, idle):
        super().__init__()
        self.idle, self.count, self.busy = idle, False, 0

    def select(self, timeout=None):
        if self.count:
            self.busy += timeout == 0
            if timeout != 0 or self.busy > 1000:
                self.idle()
        return super().select(timeout)


@needs("package:anyio")
def test_the_loop_sleeps_while_a_step_of_a_cancelled_scope_is_under_way():
    import anyio

    call, told = Call(), []
    turns = Turns(call.let.set)

    async def work():
        try:
            await EVENT_LOOP.shield(EVENT_LOOP.in_thread(call, lambda _: None))
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await call.under_way()
            tasks.cancel_scope.cancel()
            turns.count = True
        told.append("over")

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        runner.run(main())
    assert told == ["cancelled", "over"]
    assert call.told == ["call"]
    assert turns.busy < 100


@needs("package:anyio")
def test_a_deadline_of_anyio_and_one_of_asyncio_end_where_they_belong():
    import anyio

    async def step():
        await asyncio.sleep(0.02)

    async def work():
        with anyio.fail_after(0.001):
            async with asyncio.timeout(0.01):
                await EVENT_LOOP.shield(step())

    async def main():
        with pytest.raises(TimeoutError):
            await work()
        assert not asyncio.current_task().cancelling()
        await asyncio.sleep(0)

    asyncio.run(main())


@needs("package:anyio")
def test_a_step_of_a_cancelled_task_ends_with_its_loop_where_anyio_is_loaded():
    import anyio

    assert anyio
    call, undone = Call(), threading.Event()

    async def main():
        task = asyncio.ensure_future(
            EVENT_LOOP.shield(EVENT_LOOP.in_thread(call, lambda _: undone.set()))
        )
        await call.under_way()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # asyncio tells of a task that was not finished
    task = loop.run_until_complete(main())
    loop.close()
    call.let.set()
    assert undone.wait(SOON)
    assert not task.done()
