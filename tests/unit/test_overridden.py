"""A class of a user's: its own `acquire` and `release` are those of its `with` blocks."""

from __future__ import annotations

import abc
import asyncio
import contextlib

import pytest

from lifehold import AsyncLock, Lock, ReadWriteLock, Semaphore


class Mixin:
    def acquire(self, *given, **options):
        self.told.append("acquire")
        return super().acquire(*given, **options)

    def release(self):
        self.told.append("release")
        super().release()


class Logged(Mixin, Lock):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.told = []


class Again(Logged):
    def acquire(self, *given, **options):
        self.told.append("again")
        return super().acquire(*given, **options)


class Silent(Logged):
    def acquire(self, *given, **options):
        super().acquire(*given, **options)  # and answers nothing


@pytest.mark.parametrize(
    ("kind", "enters"),
    [(Logged, ["acquire"]), (Again, ["again", "acquire"]), (Silent, ["acquire"])],
)
def test_blocks_call_what_a_class_overrides(kind, enters, tmp_path):
    lock = kind(tmp_path / "a.lock")
    with lock:
        assert lock.told == enters
        assert lock.lease.held
    assert lock.told == [*enters, "release"]
    assert lock.lease is None
    lock.told.clear()
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
    assert lock.told == [*enters, "release"]
    lock.told.clear()
    assert lock(lock.locked)()
    assert lock.told == [*enters, "release"]
    lock.told.clear()
    with lock.attempt():
        assert lock.told[: len(enters)] == enters
    assert not lock.locked()


def test_blocks_that_end_out_of_order_end_their_own(tmp_path):
    class Shared(Logged):
        pass

    lock = Shared(tmp_path / "a.lock", exclusive=False)

    def job():
        with lock as lease:
            yield lease

    first, second = job(), job()
    one, two = next(first), next(second)
    first.close()
    assert not one.held
    assert two.held
    second.close()
    assert not two.held


def test_a_body_that_raises_is_what_is_raised_and_the_lock_is_free(tmp_path):
    lock = Logged(tmp_path / "a.lock")
    with pytest.raises(ZeroDivisionError), lock:
        1 / 0  # noqa: B018
    assert lock.told == ["acquire", "release"]
    assert not lock.locked()


def test_an_acquire_that_raises_late_leaves_nothing(tmp_path):
    class Late(Lock):
        def acquire(self, *given, **options):
            super().acquire(*given, **options)
            raise ZeroDivisionError

    lock = Late(tmp_path / "a.lock")
    with pytest.raises(ZeroDivisionError), lock:
        pytest.fail("entered")
    assert not lock.locked()


class Fails(Lock):
    """Its methods raise, before or after they did their work, when they are told to."""

    fails = ""

    def acquire(self, wait=..., **options):
        if self.fails == "acquire first":
            raise ZeroDivisionError
        lease = super().acquire(**options)
        if self.fails == "acquire last":
            raise ZeroDivisionError
        return lease

    def release(self):
        if self.fails == "release first":
            raise ZeroDivisionError
        super().release()
        if self.fails == "release last":
            raise ZeroDivisionError


FAILURES = ["acquire first", "acquire last", "release first", "release last"]


@pytest.mark.parametrize("block", ["with", "attempt"])
@pytest.mark.parametrize("when", FAILURES)
def test_what_raises_inside_leaves_the_outer_block_as_it_was(when, block, tmp_path):
    lock = Fails(tmp_path / "a.lock", reentrant=True, wait=0)
    with lock as lease:
        lock.fails = when
        with pytest.raises(ZeroDivisionError), lock if block == "with" else lock.attempt():
            pass
        lock.fails = ""
        assert lease.held
        assert lease._depth == 0
    assert not lock.locked()


@pytest.mark.parametrize("block", ["with", "attempt"])
@pytest.mark.parametrize("when", FAILURES)
def test_what_raises_leaves_nothing_held(when, block, tmp_path):
    lock = Fails(tmp_path / "a.lock", wait=0)
    lock.fails = when
    with pytest.raises(ZeroDivisionError), lock if block == "with" else lock.attempt():
        pass
    lock.fails = ""
    assert not lock.locked()
    with lock:
        pass


@pytest.mark.parametrize("block", ["with", "attempt"])
@pytest.mark.parametrize("when", FAILURES)
def test_tasks_of_a_class_that_raises_keep_the_outer_block_alone(when, block, tmp_path):
    class OfTasks(AsyncLock):
        fails = ""

        async def acquire(self, wait=..., **options):
            if self.fails == "acquire first":
                raise ZeroDivisionError
            lease = await super().acquire(**options)
            if self.fails == "acquire last":
                raise ZeroDivisionError
            return lease

        async def release(self):
            if self.fails == "release first":
                raise ZeroDivisionError
            await super().release()
            if self.fails == "release last":
                raise ZeroDivisionError

    async def run():
        lock = OfTasks(tmp_path / "a.lock", reentrant=True, wait=0)
        async with lock as lease:
            lock.fails = when
            with pytest.raises(ZeroDivisionError):
                async with lock if block == "with" else lock.attempt():
                    pass
            lock.fails = ""
            assert lease.held
            assert lease._depth == 0
        assert not lock.locked()

    asyncio.run(run())


def test_an_attempt_of_such_a_class_is_let_go_by_its_release(tmp_path):
    class Own(Logged):
        def acquire(self, wait=..., **options):
            return super().acquire()  # with the wait of its own

    lock = Own(tmp_path / "a.lock", wait=0)
    with lock.attempt() as lease:
        assert lease.held
        with Lock(lock.path).attempt() as other:
            assert other is None
    assert lock.told == ["acquire", "release"]
    assert not lock.locked()
    with Lock(lock.path), lock.attempt() as lease:
        assert lease is None


def test_try_acquire_of_a_class_that_answers_nothing_gives_the_lease(tmp_path):
    lock = Silent(tmp_path / "a.lock")
    lease = lock.try_acquire()
    assert lease.held
    lease.release()
    assert not lock.locked()


def test_tasks_of_such_a_class(tmp_path):
    told = []

    class OfTasks(AsyncLock):
        async def acquire(self, *given, **options):
            told.append("acquire")
            return await super().acquire(*given, **options)

        async def release(self):
            told.append("release")
            await super().release()

    async def run():
        lock = OfTasks(tmp_path / "a.lock")
        async with lock as lease:
            assert lease.held
        assert told == ["acquire", "release"]
        assert not lock.locked()

    asyncio.run(run())


@pytest.mark.parametrize("kind", [Lock, AsyncLock, Semaphore, ReadWriteLock])
def test_a_lock_may_be_abstract(kind, tmp_path):
    class Abstract(kind, abc.ABC):
        @abc.abstractmethod
        def name(self): ...

    class Concrete(Abstract):
        def name(self):
            return "x"

    more = (2,) if kind is Semaphore else ()
    assert Concrete(tmp_path / "a.lock", *more).name() == "x"
    with pytest.raises(TypeError, match="abstract"):
        Abstract(tmp_path / "a.lock", *more)


def test_with_on_the_other_face_says_what_to_write(tmp_path):
    with pytest.raises(TypeError, match="async with"), AsyncLock(tmp_path / "a.lock"):
        pytest.fail("entered")
    with pytest.raises(TypeError, match="reading"), ReadWriteLock(tmp_path / "a.lock"):
        pytest.fail("entered")

    async def run():
        async with Lock(tmp_path / "a.lock"):
            pytest.fail("entered")

    with pytest.raises(TypeError, match="AsyncLock"):
        asyncio.run(run())
    assert not hasattr(AsyncLock, "__enter__")
    assert not hasattr(Lock(tmp_path / "a.lock"), "__aenter__")
