"""What is decorated runs under the lock from its first line to its last, or is refused."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    InvalidArgument,
    Lock,
    ReadWriteLock,
    Semaphore,
    aconnect,
    connect,
    lock_all,
    once,
)
from lifehold.aio import lock_all as lock_all_async

PLAIN = {
    "lock": Lock,
    "reading": lambda path: ReadWriteLock(path).reading(),
    "writing": lambda path: ReadWriteLock(path).writing(),
    "semaphore": lambda path: Semaphore(path, 2),
    "lock_all": lambda path: lock_all([path]),
    "memory": lambda path: connect(f"memory:///{path}").lock("a"),
    "memory reading": lambda path: connect(f"memory:///{path}").read_write("a").reading(),
}


def is_held(path, shape):
    if shape.startswith("memory"):
        return connect(f"memory:///{path}").inspect("a") is not None
    if shape == "semaphore":
        return Semaphore(path, 2).holder() is not None
    face = ReadWriteLock if shape in ("reading", "writing") else Lock
    return face(path).locked()


def generator():
    yield


async def coroutine():
    return None


async def asynchronous_generator():
    yield


class Called:
    def __init__(self, call):
        self.call = call

    def __call__(self):
        return self.call()


class Generates:
    def __call__(self):
        yield


@pytest.mark.parametrize("shape", PLAIN)
def test_a_function_holds_it_while_it_runs(shape, tmp_path):
    path = str(tmp_path / "a.lock")

    @PLAIN[shape](path)
    def work(first, *, second=2):
        """Does it."""
        return first, second, is_held(path, shape)

    assert work(1, second=3) == (1, 3, True)
    assert not is_held(path, shape)
    assert work.__name__ == "work"
    assert list(inspect.signature(work).parameters) == ["first", "second"]


@pytest.mark.parametrize("shape", PLAIN)
@pytest.mark.parametrize(
    "function",
    [
        generator,
        asynchronous_generator,
        coroutine,
        functools.partial(generator),
        Generates(),
        int,
        5,
        staticmethod(len),
        classmethod(len),
        property(len),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_what_would_not_run_under_it_is_refused_when_it_is_decorated(shape, function, tmp_path):
    with pytest.raises(InvalidArgument):
        PLAIN[shape](str(tmp_path / "a.lock"))(function)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("shape", PLAIN)
@pytest.mark.parametrize("inner", [generator, coroutine, asynchronous_generator])
def test_what_would_run_later_is_refused_when_it_is_answered(shape, inner, tmp_path):
    path = str(tmp_path / "a.lock")

    def plain(*given):
        return inner(*given)

    for function in (plain, Called(inner)):
        with pytest.raises(InvalidArgument, match="free again"):
            PLAIN[shape](path)(function)()
    assert not is_held(path, shape)


class Written(Coroutine):
    """A coroutine that is a class, as some libraries and compilers make them."""

    def __await__(self):
        yield

    def send(self, value):
        raise StopIteration

    def throw(self, *error):
        raise StopIteration


@pytest.mark.parametrize("shape", PLAIN)
def test_work_that_goes_on_when_it_is_answered_is_refused(shape, tmp_path):
    """Two of it would be inside at once."""
    lock, go_on = PLAIN[shape](str(tmp_path / "a.lock")), threading.Event()

    async def main():
        waits, loop = asyncio.Event(), asyncio.get_running_loop()
        task = loop.create_task(waits.wait())
        for answer in (task, asyncio.gather(task), loop.create_future(), Written()):
            with pytest.raises(InvalidArgument, match="free again"):
                lock(lambda answer=answer: answer)()
        waits.set()
        await task
        assert lock(lambda: task)() is task  # it has ended: nothing of it runs later

    asyncio.run(main())
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(InvalidArgument, match="Future that is not done"):
            lock(lambda: pool.submit(go_on.wait, 60))()
        go_on.set()
        done = pool.submit(int)
        assert done.result(60) == 0
        assert lock(lambda: done)() is done
    assert lock(lambda: Written)() is Written  # the class itself runs nothing


class Client:
    """Can be awaited, and is a thing of its own, as a client of redis.asyncio."""

    def __await__(self):
        yield


class Proxy:
    """Says of what class it is by evaluating what it stands for."""

    looks = 0

    @property
    def __class__(self):
        Proxy.looks += 1
        raise RuntimeError("outside of a request")


class Permissive(type):
    def __getattr__(cls, name):
        return 1


class Anything(metaclass=Permissive):
    pass


@pytest.mark.parametrize("shape", PLAIN)
@pytest.mark.parametrize("make", [Client, Proxy, Anything, lambda: Anything])
def test_an_answer_that_runs_nothing_is_handed_on_untouched(shape, make, tmp_path):
    answer, Proxy.looks = make(), 0
    got = PLAIN[shape](str(tmp_path / "a.lock"))(lambda: answer)()
    assert got is answer
    assert Proxy.looks == 0


def test_a_proxy_of_what_is_gone_is_handed_on_untouched(tmp_path):
    def answers():
        return weakref.proxy(Client())

    assert type(Lock(tmp_path / "a.lock")(answers)()) is weakref.ProxyType


@pytest.mark.parametrize("shape", PLAIN)
def test_what_is_refused_goes_on_where_others_have_it(shape, tmp_path):
    """A task that was made of it, or who reads on from a generator."""
    done, numbers = [], iter(())

    async def work():
        done.append("work")

    def starts():
        made = work()
        tasks.append(asyncio.get_running_loop().create_task(made))
        return made

    def reads():
        nonlocal numbers
        numbers = (number for number in (1, 2))
        next(numbers)
        return numbers

    async def main():
        for function in (starts, reads):
            with pytest.raises(InvalidArgument, match="free again"):
                PLAIN[shape](str(tmp_path / "a.lock"))(function)()
        await asyncio.gather(*tasks)

    tasks = []
    asyncio.run(main())
    assert done == ["work"]
    assert list(numbers) == [2]


@contextlib.contextmanager
def session():
    yield


@contextlib.asynccontextmanager
async def asynchronous_session():
    yield


def relayed(function):
    """Wrapped once more: it shows by its answer alone."""

    @functools.wraps(function)
    def relay():
        return function()

    return relay


CONTEXTS = pytest.mark.parametrize(
    ("made", "word"), [(session, "with"), (asynchronous_session, "async with")]
)


@CONTEXTS
@pytest.mark.parametrize("shape", PLAIN)
def test_a_generator_that_became_a_context_manager_is_refused(shape, made, word, tmp_path):
    path = str(tmp_path / "a.lock")
    for function in (made, functools.partial(made)):
        with pytest.raises(InvalidArgument, match=f"`{word}` inside"):
            PLAIN[shape](path)(function)
    with pytest.raises(InvalidArgument, match="free again"):
        PLAIN[shape](path)(relayed(made))()
    assert not is_held(path, shape)


@CONTEXTS
def test_per_once_and_the_async_face_refuse_it_too(made, word, tmp_path):
    for decorate in (
        Lock.per(f"{tmp_path}/{{a}}"),
        AsyncLock.per(f"{tmp_path}/{{a}}"),
        AsyncLock(tmp_path / "a"),
        once(f"{tmp_path}/a"),
    ):
        with pytest.raises(InvalidArgument, match=f"`{word}` inside"):
            decorate(made)


def test_what_runs_through_a_generator_or_in_a_context_is_no_generator(tmp_path):
    path = tmp_path / "a.lock"

    @functools.wraps(generator)
    def listed():
        return [*generator(), Lock(path).locked()]

    @session()
    def inside():
        return Lock(path).locked()

    assert Lock(path)(listed)() == [None, True]
    assert Lock(path)(inside)() is True


def test_once_refuses_generators_too(tmp_path):
    with pytest.raises(InvalidArgument):
        once(f"{tmp_path}/a")(generator)


async def of_tasks(shape, path):
    if shape == "memory":
        return (await aconnect(f"memory:///{path}")).lock("a")
    return {
        "lock": lambda: AsyncLock(path),
        "reading": lambda: AsyncReadWriteLock(path).reading(),
        "writing": lambda: AsyncReadWriteLock(path).writing(),
        "lock_all": lambda: lock_all_async([path]),
    }[shape]()


@pytest.mark.parametrize("shape", ["lock", "reading", "writing", "lock_all", "memory"])
def test_a_coroutine_function_holds_it_while_it_runs(shape, tmp_path):
    path = str(tmp_path / "a.lock")

    async def run():
        block = await of_tasks(shape, path)

        @block
        async def work(value):
            return value, is_held(path, shape)

        assert inspect.iscoroutinefunction(work)
        assert await work(5) == (5, True)
        assert not is_held(path, shape)
        for wrong in (generator, asynchronous_generator, len, int, 5):
            with pytest.raises(InvalidArgument):
                block(wrong)

        @block
        async def later():
            return asynchronous_generator()

        with pytest.raises(InvalidArgument, match="free again"):
            await later()

        @block
        async def starts(work):
            return work

        task = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        with pytest.raises(InvalidArgument, match="Task that is not done"):
            await starts(task)
        await task
        for answer in (task, Client(), Anything(), Proxy()):
            assert await starts(answer) is answer
        with pytest.raises(InvalidArgument, match="a coroutine, Written"):
            await starts(Written())

    asyncio.run(run())


def test_an_inherited_async_call_is_known_for_one(tmp_path):
    class Job:
        async def __call__(self):
            return "done"

    class Nightly(Job):
        pass

    assert asyncio.run(AsyncLock(tmp_path / "a.lock")(Nightly())()) == "done"
    with pytest.raises(InvalidArgument, match="coroutine"):
        Lock(tmp_path / "a.lock")(Nightly())
