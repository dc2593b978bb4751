"""`Lock.per("user-{user_id}")`: equal arguments are one lock, different ones are two."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import pickle
import threading
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import lifehold
from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    InvalidArgument,
    Lock,
    ReadWriteLock,
    Semaphore,
    aconnect,
    connect,
)
from lifehold.per import LONGEST, Template

HOSTILE = [
    "a", "A", "a/b", "/etc/passwd", "..", ".", "...", ".hidden", "a\0b", "a\nb", "a b", "%", "%2F",
    "a%2Fb", "{x}", "a-b", "b-a", "a--b", "-", "é", "e\u0301", "\udc80", "😀", "~", "a" * 200,
    "#", "a#b", "?", "*", "$(x)", ";", "'", "5", "-5", "x.lock",
]  # fmt: skip


@pytest.fixture
def template(tmp_path):
    return f"{tmp_path}/{{a}}-{{b}}.lock"


def test_different_values_are_never_one_name_and_stay_in_their_folder():
    of = Template("locks/{a}-{b}.lock")
    pairs = list(itertools.product(HOSTILE, HOSTILE[:-1]))
    names = {}
    for a, b in pairs:
        if len(a) + len(b) > 200:
            continue
        name = of.filled({"a": a, "b": b})
        assert names.setdefault(name, (a, b)) == (a, b)
        assert name.startswith("locks/")
        assert name.count("/") == 1
        assert name.isprintable()
        assert name.isascii()


def test_a_name_says_its_values_to_people():
    value = uuid.UUID(int=5)
    of = Template("user-{a}.lock")
    assert of.filled({"a": 5}) == of.filled({"a": "5"}) == "user-5.lock"
    assert of.filled({"a": -5}) == "user--5.lock"
    assert of.filled({"a": value}) == f"user-{value}.lock"
    assert of.filled({"a": "a/b"}) == "user-a%2Fb.lock"
    assert Template("{{x}}-{a}").filled({"a": 1}) == "{x}-1"


BAD = ["", "x", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>5}", "{a", "{a}{b}", "{a}x{b}", 5]


@pytest.mark.parametrize("bad", BAD)
def test_a_template_that_tells_nothing_apart_is_refused(bad):
    with pytest.raises(InvalidArgument):
        Lock.per(bad)


@pytest.mark.parametrize("bad", [None, True, 5.0, b"x", "", [1], object(), "x" * (LONGEST + 1)])
def test_a_value_that_names_no_lock_is_refused_and_nothing_runs(bad, tmp_path):
    ran = []

    def record(user_id):
        ran.append(user_id)

    with pytest.raises(InvalidArgument, match="user_id"):
        Lock.per(f"{tmp_path}/{{user_id}}.lock")(record)(bad)
    assert ran == []
    assert list(tmp_path.iterdir()) == []


def test_options_and_parameters_are_checked_when_it_is_decorated(template):
    with pytest.raises(TypeError, match="wait=3"):
        Lock.per(template, timeout=3)
    for function in (lambda a: a, lambda *a, b: a, lambda b, **a: b):
        with pytest.raises(InvalidArgument, match=r"no parameter|many values"):
            Lock.per(template)(function)
    with pytest.raises(InvalidArgument):
        Lock.per(template)(int)

    async def coroutine(a, b):
        pass

    with pytest.raises(InvalidArgument, match=r"AsyncLock\.per"):
        Lock.per(template)(coroutine)
    with pytest.raises(InvalidArgument, match=r"@Lock\.per"):
        AsyncLock.per(template)(lambda a, b: None)
    with pytest.raises(InvalidArgument, match="reading"):
        ReadWriteLock.per(template)(lambda a, b: None)


async def _awaited(a, b):
    pass


@pytest.mark.parametrize(
    ("decorate", "cure"),
    [
        (lambda path: Semaphore.per(path, 1), "@AsyncSemaphore.per"),
        (lambda path: type("Mine", (Lock,), {}).per(path), "@AsyncLock.per"),
        (lambda path: ReadWriteLock.per(path).reading(), "@AsyncReadWriteLock.per"),
        (lambda _: connect("memory:///w").per("{a}"), "`store = await aconnect(URL)`"),
        (lambda _: connect("memory:///w").read_write_per("{a}").writing(), "await aconnect(URL)"),
    ],
)
def test_the_wrong_decorator_of_a_coroutine_function_names_the_right_one(decorate, cure, template):
    with pytest.raises(InvalidArgument) as refused:
        decorate(template)(_awaited)
    assert cure in str(refused.value)
    assert "_awaited" in str(refused.value)


def with_one_more(function):
    """A decorator that fills the first parameter itself."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function("filled", *args, **kwargs)

    return call


def with_one_more_awaited(function):
    @functools.wraps(function)
    async def call(*args, **kwargs):
        return await function("filled", *args, **kwargs)

    return call


def test_what_a_wrapper_may_fill_otherwise_names_no_lock(template):
    @with_one_more
    def plain(db, a, b=None):
        pytest.fail("called")

    @with_one_more_awaited
    async def coroutine(db, a, b=None):
        pytest.fail("called")

    for per, function in (
        (Lock.per(template), plain),
        (Lock.per(template), functools.cache(plain)),
        (Lock.per(template), functools.partial(plain)),
        (AsyncLock.per(template), coroutine),
        (ReadWriteLock.per(template).reading(), plain),
    ):
        with pytest.raises(InvalidArgument, match=r"put @\w+\.per below the decorator"):
            per(function)


def test_a_wrapper_that_names_its_parameters_is_locked_by_what_it_is_given(tmp_path):
    def with_db(function):
        @functools.wraps(function)
        def call(a, *rest):
            return function("db", a, *rest)

        return call

    per = Lock.per(f"{tmp_path}/{{a}}.lock")

    def work(db, a, b):
        return db, a, b, per.of(a="one").locked(), per.of(a="two").locked()

    partly = functools.update_wrapper(functools.partial(work, "db"), work)
    for function in (with_db(work), partly):
        assert per(function)("one", "two") == ("db", "one", "two", True, False)


def test_wrappers_that_hand_all_on_may_stand_below(tmp_path):
    outer, inner = Lock.per(f"{tmp_path}/{{a}}.outer"), Lock.per(f"{tmp_path}/{{b}}.inner")

    @contextlib.contextmanager
    def context():
        yield

    @outer
    @inner
    @Lock(tmp_path / "all.lock")
    @functools.lru_cache
    @context()
    def work(a, b):
        return outer.of(a=a).locked(), inner.of(b=b).locked()

    assert work("one", "two") == (True, True)


def test_a_template_in_with_is_refused(template):
    with pytest.raises(TypeError, match="template"), Lock.per(template):
        pytest.fail("entered")


PLAIN = {
    "lock": lambda path: Lock.per(f"{path}/{{a}}-{{b}}.lock", wait=0),
    "semaphore": lambda path: Semaphore.per(f"{path}/{{a}}-{{b}}.lock", 1, wait=0),
    "files": lambda path: connect(f"file://{path}").per("{a}-{b}", wait=0),
    "memory": lambda path: connect(f"memory:///{path}").per("{a}-{b}", wait=0),
    "permits": lambda path: connect(f"memory:///{path}").semaphore_per("{a}-{b}", 1, wait=0),
    "slots": lambda path: connect(f"file://{path}").semaphore_per("{a}-{b}", 1, wait=0),
    "url": lambda path: Lock.per(f"memory:///{path}#{{a}}-{{b}}", wait=0),
}
SIDES = {
    "writing": lambda path: ReadWriteLock.per(f"{path}/{{a}}-{{b}}.lock", wait=0),
    "writing-files": lambda path: connect(f"file://{path}").read_write_per("{a}-{b}", wait=0),
    "writing-memory": lambda path: connect(f"memory:///{path}").read_write_per("{a}-{b}", wait=0),
}


@pytest.mark.parametrize("shape", [*PLAIN, *SIDES])
def test_calls_exclude_each_other_by_their_arguments(shape, tmp_path):
    if shape in SIDES:
        whole = SIDES[shape](tmp_path)

        @whole.writing()
        def work(a: str, b: int = 2):
            """Does it."""
            with whole.of(a="other", b=b).writing():
                return None if whole.of(a=a, b=b).locked() else "free"

    else:
        per = PLAIN[shape](tmp_path)

        @per
        def work(a: str, b: int = 2):
            """Does it."""
            with per.of(a="other", b=b):
                return per.of(a=a, b=b).try_acquire()

    assert work("a/b") is None
    assert work(b=5, a="x") is None
    assert list(inspect.signature(work).parameters) == ["a", "b"]
    with pytest.raises(TypeError):
        work()


def test_a_reentrant_one_may_call_itself(tmp_path):
    for per in (
        Lock.per(f"{tmp_path}/{{n}}.lock", reentrant=True, wait=0),
        connect(f"memory:///{tmp_path}").per("{n}", reentrant=True, wait=0),
    ):

        @per
        def down(n, depth):
            return down(n, depth - 1) if depth else "done"

        assert down(1, 3) == "done"


def test_tasks_exclude_each_other_by_their_arguments(tmp_path):
    async def run():
        store = await aconnect(f"memory:///{tmp_path}")
        files = await aconnect(f"file://{tmp_path}/files")
        for per in (
            AsyncLock.per(f"{tmp_path}/{{a}}.lock", wait=0),
            AsyncSemaphore.per(f"{tmp_path}/{{a}}.gpu", 1, wait=0),
            store.per("{a}", wait=0),
            store.semaphore_per("{a}-permits", 1, wait=0),
            files.per("{a}", wait=0),
            files.semaphore_per("{a}-permits", 1, wait=0),
        ):

            @per
            async def work(a):
                async with per.of(a="other"):  # noqa: B023
                    return await per.of(a=a).try_acquire()  # noqa: B023

            assert inspect.iscoroutinefunction(work)
            assert await work("x") is None
        for sides in (
            AsyncReadWriteLock.per(f"{tmp_path}/{{a}}.rw", wait=0),
            store.read_write_per("{a}-sides", wait=0),
            files.read_write_per("{a}-sides", wait=0),
        ):

            @sides.reading()
            async def read(a):
                return sides.of(a=a).locked(), sides.of(a="other").locked()  # noqa: B023

            assert await read("x") == (True, False)

    asyncio.run(run())


def test_behind_the_hash_of_a_url_two_pairs_of_values_are_two_locks():
    made = Lock.per("memory:///pairs#{a}-{b}", wait=0)

    @made
    def inner(a, b):
        return "in"

    @made
    def outer(a, b, other):
        return inner(*other)

    assert outer("x-y", "z", ("x", "y-z")) == "in"
    with pytest.raises(lifehold.NotAcquired):
        outer("x-y", "z", ("x-y", "z"))


@pytest.mark.parametrize("make", [Lock.per, Semaphore.per, ReadWriteLock.per, AsyncLock.per])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_relative_template_stays_in_the_folder_it_was_given_in(
    make, reentrant, tmp_path, monkeypatch
):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    more = (2,) if make == Semaphore.per else ()
    options = {"reentrant": True} if reentrant and not more else {}
    monkeypatch.chdir(first)
    per = make("{a}.lock", *more, **options)
    monkeypatch.chdir(second)
    lock = per.of(a=7)
    assert lock.path == str(first / "7.lock")
    assert "'7.lock'" in repr(lock)
    assert pickle.loads(pickle.dumps(lock)).path == lock.path


def test_a_class_that_makes_its_own_path_is_given_the_name_as_it_is(tmp_path):
    class InFolder(Lock):
        def __init__(self, name):
            super().__init__(f"{tmp_path}/{name}")

    assert InFolder.per("{a}.lock").of(a=7).path == f"{tmp_path}/7.lock"


def test_two_first_calls_at_once_are_given_one_reentrant_lock(template, monkeypatch):
    """The first is put aside where it has seen that there is none yet."""
    per = Lock.per(template, reentrant=True)
    aside, done = threading.Event(), threading.Event()
    real = weakref.KeyedRef

    def put_aside(*given):
        if not aside.is_set():
            aside.set()
            done.wait(0.2)  # the other one may have to wait for us
        return real(*given)

    monkeypatch.setattr(weakref, "KeyedRef", put_aside)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(per.of, a=1, b=2)
        assert aside.wait(60)
        second = pool.submit(per.of, a=1, b=2)
        second.add_done_callback(lambda _: done.set())
        assert first.result() is second.result()
