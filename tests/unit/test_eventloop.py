"""The ports of the async face, under asyncio and trio alike."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ground import needs
from lifehold.runtime.eventloop import EVENT_LOOP, current_task, running_trio
from lifehold.testing.faces import CANCELLED, FACES

faces = pytest.mark.parametrize(
    "face", ["asyncio", pytest.param("trio", marks=needs("package:trio"))]
)


class Call:
    """A call in a thread that ends when it is told to."""

    def __init__(self, error=None):
        self.begun, self.let, self.undone = threading.Event(), threading.Event(), []
        self.error = error

    def __call__(self):
        self.begun.set()
        self.let.wait(60)
        if self.error:
            raise self.error
        return "result"

    async def errand(self):
        return await EVENT_LOOP.in_thread(self, self.undone.append)


def soon(what):
    for _ in range(2000):
        if what():
            return True
        time.sleep(0.002)
    return False


@faces
def test_a_call_in_a_thread_leaves_the_loop_free_and_answers(face):
    play, call = FACES[face](), Call()

    async def main():
        worker = play.start(call.errand)
        while not call.begun.is_set():
            await play.sleep(0.001)
        call.let.set()
        assert await worker.result() == "result"

    play.run(main)
    assert call.undone == []


@faces
def test_an_error_in_the_thread_is_raised_in_the_task(face):
    play, call = FACES[face](), Call(KeyError("no"))
    call.let.set()

    async def main():
        with pytest.raises(KeyError):
            await call.errand()

    play.run(main)
    assert call.undone == []


@faces
@pytest.mark.parametrize("error", [None, KeyError("late")])
def test_the_late_result_of_a_cancelled_call_is_undone_once(face, error):
    play, call = FACES[face](), Call(error)

    async def main():
        worker = play.start(call.errand)
        while not call.begun.is_set():
            await play.sleep(0.001)
        worker.cancel()
        assert await worker.result() == CANCELLED

    play.run(main)
    assert call.undone == []
    call.let.set()  # the loop is closed by now
    if error is None:
        assert soon(lambda: call.undone)
    time.sleep(0.01)
    assert call.undone == ([] if error else ["result"])


@faces
def test_result_and_cancel_at_one_instant_have_one_owner(face):
    play, calls = FACES[face](), []

    async def main():
        for number in range(40):
            call = Call()
            calls.append(call)
            worker = play.start(call.errand)
            while not call.begun.is_set():
                await play.sleep(0)
            call.let.set()
            await play.sleep(0.0001 * (number % 4))
            worker.cancel()
            call.got = await worker.result()

    play.run(main)
    for call in calls:
        expected = ["result"] if call.got == CANCELLED else []
        assert soon(lambda call=call, expected=expected: call.undone == expected)


@faces
def test_shielded_work_ends_before_the_cancel_goes_on(face):
    play, done = FACES[face](), []

    async def work():
        await EVENT_LOOP.sleep(0.02)
        done.append(1)
        return "done"

    async def task():
        return await EVENT_LOOP.shield(work())

    async def main():
        worker = play.start(task)
        await play.sleep(0.002)
        worker.cancel()
        await worker.result()
        assert done == [1]
        assert await EVENT_LOOP.shield(work()) == "done"

    play.run(main)


def test_asyncio_work_that_is_shielded_passes_on_its_own_error():
    async def work():
        raise KeyError("own")

    async def main():
        with pytest.raises(KeyError):
            await EVENT_LOOP.shield(work())

    asyncio.run(main())


@faces
def test_each_task_is_told_apart_by_the_library_that_runs_it(face):
    play, seen = FACES[face](), []

    async def note():
        seen.append(current_task())
        assert (running_trio() is not None) == (face == "trio")

    async def main():
        await note()
        await play.start(note).result()

    play.run(main)
    assert None not in seen
    assert len(set(map(id, seen))) == 2
    assert current_task() is None
    assert running_trio() is None
