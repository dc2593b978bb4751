"""Wrong calls of a lease, and of what locks answer: refused before a body runs without its lock."""

from __future__ import annotations

import asyncio
import functools
import os
import threading

import pytest

import lifehold
from ground import needs
from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Cancel,
    InvalidArgument,
    Lease,
    LifeholdError,
    Lock,
    NotHeld,
    ReadWriteLock,
    Semaphore,
    Timeout,
    WouldBlock,
    aconnect,
    connect,
    lock_all,
    locked_file,
)
from lifehold.aio import lock_all as lock_all_async
from lifehold.aio import locked_file as locked_file_async

PATH = "wrong.lock"
AGAIN = 'is not held: released already; a lease is one grant: use "with lock:" again'


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def said(call, kind=InvalidArgument):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def said_by_task(call, kind=InvalidArgument):
    async def main():
        await call()

    return said(lambda: asyncio.run(main()), kind)


# ---- a lease that has ended


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lock(PATH),
        lambda: Semaphore(PATH, 2),
        lambda: lock_all([PATH]),
        lambda: connect("memory://").lock("wrong"),
    ],
)
def test_a_lease_that_was_released_begins_no_block(make):
    lease = make().acquire()
    lease.release()
    ran = []

    def enter():
        with lease:
            ran.append(1)

    assert AGAIN in said(enter, NotHeld)
    assert not ran


@pytest.mark.parametrize("make", [AsyncLock, lambda path: lock_all_async([path])])
def test_nor_does_one_of_a_task(make):
    ran = []

    async def enter():
        lease = await make(PATH).acquire()
        await lease.release()
        async with lease:
            ran.append(1)

    assert AGAIN in said_by_task(enter, NotHeld)
    assert not ran


def test_nor_does_a_lease_in_a_forked_child():
    lease = Lock(PATH).acquire()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            lease.__enter__()
        except NotHeld as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    told = os.read(read, 1000).decode()
    os.close(read), os.close(write)
    lease.release()
    assert told.endswith("it belongs to the parent process, this one was forked from it")


def test_a_lease_in_force_still_begins_one():
    with Lock(PATH).acquire() as lease:
        lease.check()
    with lock_all([PATH]).acquire() as leases:
        leases.check()


def test_its_descriptor_is_refused_with_the_reason():
    lease = Lock(PATH).acquire()
    lease.release()
    assert said(lease.fileno, NotHeld).endswith("is not held: released already")


def test_no_lease_is_made_by_its_class():
    assert "a lease is made by lock.acquire()" in said(Lease)
    assert "a lease is made by lock.acquire()" in said(lifehold.AsyncLease)


# ---- arguments


def g(): ...


@pytest.mark.parametrize("make", [ReadWriteLock, AsyncReadWriteLock])
@pytest.mark.parametrize("side", ["reading", "writing"])
def test_a_side_that_was_not_called_is_refused_when_it_decorates(make, side):
    told = said(lambda: getattr(make(PATH), side)(g))
    want = "wait must be a number of seconds or None, not function 'g': write "
    assert told == f"{want}@lock.{side}()"
    told = said(lambda: getattr(make.per("x-{n}.lock"), side)(g))
    assert told == f"{want}@that.{side}()"


@pytest.mark.parametrize("wait", [True, -5, "x", float("nan")])
@pytest.mark.parametrize("make", [ReadWriteLock, AsyncReadWriteLock])
def test_what_is_no_patience_is_refused_before_the_block(make, wait):
    assert said(lambda: make(PATH).reading(wait)).startswith("wait must be ")


@pytest.mark.parametrize(
    "call",
    [
        lambda cancel: Lock(PATH, cancel=cancel),
        lambda cancel: Lock(PATH).acquire(cancel=cancel),
        lambda cancel: ReadWriteLock(PATH).reading(cancel=cancel),
        lambda cancel: ReadWriteLock(PATH).acquire_write(cancel=cancel),
    ],
)
def test_what_cannot_end_a_wait_is_refused_at_once(call):
    assert "write cancel=Cancel()" in said(lambda: call(Cancel))
    for given in (5, "stop"):
        assert f"not {given!r}" in said(lambda given=given: call(given))


def test_a_task_is_told_to_be_cancelled_itself():
    for call in (
        lambda: AsyncLock(PATH).acquire(cancel=Cancel()),
        lambda: AsyncReadWriteLock(PATH).acquire_read(cancel=Cancel()),
    ):
        assert "cancel the task that waits instead" in said_by_task(call)


@pytest.mark.parametrize("timeout", [10**400, 10**5000, -(10**5000)], ids=["400", "5000", "-"])
def test_what_no_clock_counts_to_is_refused_as_a_wait_for_a_loss(timeout):
    async def play():
        async with AsyncLock(PATH) as lease:
            await lease.lost.wait(timeout)

    with Lock(PATH) as lease:
        assert "None" in said(lambda: lease.lost.wait(timeout))
    assert "None" in said_by_task(play)


@pytest.mark.parametrize("timeout", [float("nan"), -1, True, "5"])
def test_what_is_no_length_of_a_wait_for_a_loss_is_refused(timeout):
    want = f"timeout must be 0 or more, in seconds, or None, not {timeout!r}"
    with Lock(PATH) as lease:
        assert said(lambda: lease.lost.wait(timeout)) == want

    async def of_a_task():
        async with AsyncLock(PATH) as lease:
            await lease.lost.wait(timeout)

    assert said_by_task(of_a_task) == want


def test_what_a_loss_could_not_call_is_refused_at_once():
    with Lock(PATH) as lease:
        add = lease.lost.add_callback
        assert said(lambda: add(5)) == "callback must be callable without arguments, not int 5"
        for wants in (lambda lease: None, lambda *, lease: None):
            assert "callable without arguments" in said(lambda wants=wants: add(wants))
        for fits in (lambda: None, lambda lease=1: None, lambda *all_, **more: None, [].clear):
            add(fits)


async def stop_work():
    """What nobody would await."""


def stop_in_pieces():
    yield


class Stopping:
    async def stop(self):
        pass

    __call__ = stop


@pytest.mark.parametrize(
    "later",
    [stop_work, functools.partial(stop_work), Stopping().stop, Stopping(), stop_in_pieces],
    ids=["function", "partial", "method", "object", "generator"],
)
def test_what_a_loss_would_only_make_and_not_run_is_refused_at_once(later):
    with Lock(PATH) as lease:
        assert "would never run" in said(lambda: lease.lost.add_callback(later))

    async def of_a_task():
        async with AsyncLock(PATH) as lease:
            lease.lost.add_callback(later)

    assert "would never run" in said_by_task(of_a_task)


# ---- by position


@pytest.mark.parametrize(
    ("call", "want"),
    [
        (lambda: Lock(PATH).acquire(True, 5), "and not 5: write acquire(wait=5); for one try"),
        (lambda: Lock(PATH).acquire(False, 5), "and not 5: write acquire(wait=0)"),
        (lambda: Lock(PATH).acquire(5, 0.1), "and not 0.1: write acquire(wait=5)"),
        (lambda: Semaphore(PATH, 2).acquire(5, 1), "and not 1: write acquire(wait=5)"),
        (lambda: Lock(PATH).try_acquire(5), "try_acquire() takes no 5: it is one try"),
        (lambda: Lock(PATH).attempt(5), "attempt() takes no 5: it is one try"),
        (lambda: Lock(PATH).release(True), "release() takes nothing by position, and not True"),
        (lambda: Semaphore(PATH, 2).release(2), "each lease is let go by itself"),
        (lambda: Lock.on_file(0, 5), "on_file() takes file by position, and not 5"),
        (lambda: ReadWriteLock(PATH).acquire_read(True, 5), "write acquire_read(wait=5)"),
        (lambda: ReadWriteLock(PATH).acquire_write(1, 5), "write acquire_write(wait=1)"),
        (lambda: ReadWriteLock(PATH).reading(5, 3), "write reading(wait=5)"),
        (lambda: ReadWriteLock(PATH).try_acquire_read(5), "acquire_read(wait=SECONDS)"),
        (lambda: ReadWriteLock(PATH).attempt_write(5), "to wait, writing(wait=SECONDS)"),
        (lambda: ReadWriteLock(PATH).acquire_write(blocking=False), "or call try_acquire_write()"),
        (lambda: ReadWriteLock(PATH).acquire_read(blocking=False), "or call try_acquire_read()"),
    ],
)
def test_more_arguments_than_a_call_takes_are_named_with_what_to_write(call, want):
    assert want in said(call, TypeError)


def test_those_of_a_task_as_well():
    for call, want in (
        (lambda: AsyncLock(PATH).acquire(True, 5), "write acquire(wait=5)"),
        (lambda: AsyncLock(PATH).release(True), "and not True"),
        (lambda: AsyncReadWriteLock(PATH).acquire_write(5, 3), "write acquire_write(wait=5)"),
    ):
        assert want in said_by_task(call, TypeError)


# ---- the cure of who holds it itself


def nested(outer, inner, kind=LifeholdError):
    with outer:
        return said(inner, kind)


def test_who_holds_it_itself_is_told_what_helps_there():
    with open("data", "w") as file:
        lock = Lock.on_file(file)
        told = [nested(lock, lock.acquire), nested(lock, lambda: lock.acquire(0.01))]
    told += [
        nested(locked_file("d", "w"), lambda: locked_file("d", "w", wait=0.01).__enter__()),
        nested(locked_file("d", "w"), lambda: locked_file("d", "w").__enter__()),
    ]
    cures = ["pass the lease along"] * 2 + ["hand on the open file"] * 2
    for text, cure in zip(told, cures, strict=True):
        assert f"{cure}\n" in text
        assert "reentrant" not in text
        assert "lifehold run" not in text


def test_who_has_a_slot_or_reads_is_told_so():
    both = Semaphore(PATH, 1)
    told = nested(both, lambda: both.acquire(0), WouldBlock)
    assert "next   this thread has a slot already: give that one back\n" in told
    assert "reentrant" not in told
    one, other = ReadWriteLock("rw.lock"), ReadWriteLock("rw.lock")
    told = nested(one.reading(), lambda: other.acquire_write(0.01), Timeout)
    assert "release the read lease, acquire for writing, and read again" in told
    told = nested(one.writing(), lambda: other.acquire_read(0), WouldBlock)
    assert "`downgrade()`" in told


def test_waiting_is_no_next_step_for_who_holds_it_itself():
    told = nested(Lock(PATH), lambda: Lock(PATH).acquire(0.01), Timeout)
    assert "next   this thread holds it itself: pass the lease along, or use one" in told
    assert "lifehold run" not in told


def test_release_by_another_thread_says_who_has_it_and_what_ends_it():
    lock = Lock(PATH)
    lease = lock.acquire()
    told = []
    thread = threading.Thread(target=lambda: told.append(said(lock.release, NotHeld)))
    thread.start()
    thread.join()
    assert told[0].endswith("another thread holds it: call `lease.release()` of that lease")
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, said(lock.release, NotHeld).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert "the parent process holds it" in os.read(read, 1000).decode()
    os.close(read), os.close(write)
    lease.release()
    assert said(lock.release, NotHeld) == "'wrong.lock' is not held by this thread"


# ---- the other face


@pytest.mark.parametrize(
    ("make", "twin"),
    [
        (lambda: Lock(PATH), "async form, AsyncLock"),
        (lambda: Lock(PATH).attempt(), "async form, AsyncLock"),
        (lambda: Semaphore(PATH, 2), "async form, AsyncSemaphore"),
        (lambda: ReadWriteLock(PATH).reading(), "async form, AsyncReadWriteLock"),
        (lambda: ReadWriteLock(PATH).attempt_read(), "async form, AsyncReadWriteLock"),
        (lambda: lock_all([PATH]), "async form, lifehold.alock_all"),
        (lambda: locked_file("d"), "async form, lifehold.alocked_file"),
        (lambda: connect("memory://").lock("x"), "async form, `await aconnect(URL)`"),
        (lambda: connect("memory://"), "`await aconnect(URL)`"),
    ],
)
def test_async_with_on_what_blocks_names_what_stands_for_it(make, twin):
    async def enter():
        async with make():
            pass

    assert twin in said_by_task(enter, TypeError)
    assert not hasattr(make(), "__aenter__")


@pytest.mark.parametrize(
    ("make", "twin"),
    [
        (lambda: AsyncLock(PATH), "the blocking Lock"),
        (lambda: AsyncSemaphore(PATH, 2), "the blocking Semaphore"),
        (lambda: AsyncReadWriteLock(PATH).writing(), "the blocking ReadWriteLock"),
        (lambda: lock_all_async([PATH]), "the blocking lifehold.lock_all"),
        (lambda: locked_file_async("d"), "the blocking lifehold.locked_file"),
    ],
)
def test_with_on_what_is_awaited_does_so_too(make, twin):
    def enter():
        with make():
            pass

    assert twin in said(enter, TypeError)


def test_a_lease_says_of_which_face_it_is():
    async def plain():
        with Lock(PATH).acquire() as lease:
            async with lease:
                pass

    assert "write `with`; in a coroutine `async with` an AsyncLock" in said_by_task(
        plain, TypeError
    )

    async def of_a_task():
        lease = await AsyncLock("b.lock").acquire()
        try:
            with lease:
                pass
        finally:
            await lease.release()

    assert "write `async with`" in said_by_task(of_a_task, TypeError)

    async def of_a_store():
        with await aconnect("memory://"):
            pass

    assert "the blocking connect(URL)" in said_by_task(of_a_store, TypeError)


def test_what_a_class_has_not_names_the_one_that_has_it():
    assert "on_file() is of Lock alone" in said(lambda: AsyncLock.on_file(0), TypeError)
    assert "@lock.reading() or @lock.writing()" in said(lambda: ReadWriteLock(PATH)(g), TypeError)


# ---- a try that nobody awaits


def test_a_try_that_is_not_awaited_is_no_condition():
    async def main():
        for lock, call in (
            (AsyncLock(PATH), "try_acquire"),
            (AsyncReadWriteLock("rw.lock"), "try_acquire_write"),
            (lock_all_async([PATH]), "try_acquire"),
        ):
            tried = getattr(lock, call)()
            assert f"await it: (await lock.{call}())" in said(lambda tried=tried: bool(tried))
            lease = await tried
            assert lease.held
            await lease.release()

    asyncio.run(main())


async def _was_got(lease):
    assert lease.held
    await lease.release()


def test_it_was_got_for_asyncio():
    async def main():
        lock = AsyncLock(PATH)
        tried = lock.try_acquire()
        assert asyncio.iscoroutine(tried)
        await _was_got(await asyncio.create_task(tried))
        await _was_got((await asyncio.gather(lock.try_acquire()))[0])
        await _was_got(await asyncio.wait_for(lock.try_acquire(), 5))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(lock.try_acquire())
        await _was_got(task.result())
        assert "try_acquire" in repr(task)
        assert asyncio.iscoroutinefunction(lock.try_acquire)

    asyncio.run(main())
    with Lock(PATH):
        assert asyncio.run(AsyncLock(PATH).try_acquire()) is None


@needs("package:trio")
def test_it_is_one_for_trio_and_anyio():
    import anyio
    import trio

    lock = AsyncLock(PATH)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(lock.try_acquire)

    async def of_trio():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.try_acquire)

    with Lock(PATH):
        anyio.run(main)
        anyio.run(main, backend="trio")
        trio.run(of_trio)
        assert trio.run(lock.try_acquire) is None


# ---- members of other libraries' locks


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Lock(PATH), {"is_locked": "call locked()", "extend": "renews itself"}),
        (lambda: Lock(PATH), {"unlock": "call release()", "trylock": "call try_acquire()"}),
        (lambda: Lock(PATH), {"timeout": "give wait=", "lock_file": "read path"}),
        (lambda: AsyncLock(PATH), {"owned": "read lease", "lock": "call acquire()"}),
        (lambda: ReadWriteLock(PATH), {"read_lock": "reading()", "downgrade": "lease.downgrade()"}),
        (lambda: AsyncReadWriteLock(PATH), {"acquire_write_lock": "writing()"}),
        (lambda: Lock(PATH), {"check": "`with lock as lease:`", "token": "then lease.token"}),
        (lambda: Lock(PATH), {"lost": "lease.lost", "remaining": "lease.remaining()"}),
        (lambda: Semaphore(PATH, 1), {"nonce": "then lease.nonce", "held": "lease.held"}),
        (lambda: AsyncLock(PATH), {"check": "`async with lock as lease:`, then lease.check()"}),
        (lambda: ReadWriteLock(PATH), {"check": "`with lock.writing() as lease:`"}),
        (lambda: AsyncReadWriteLock(PATH), {"token": "`async with lock.writing() as lease:`"}),
        (lambda: Lock(PATH).try_acquire(), {"acquire": "of the lock", "attempt": "of the lock"}),
        (Cancel, {"set": "call cancel()", "is_set": "read cancelled"}),
        (lambda: Lock(PATH).try_acquire(), {"locked": "read held", "extend": "see ttl="}),
    ],
)
def test_a_member_of_others_names_ours_and_is_not_there(make, names):
    one = make()
    for name, cure in names.items():
        told = said(lambda name=name: getattr(one, name), AttributeError)
        assert told.startswith(f"{type(one).__name__} has no {name}: ")
        assert cure in told
        assert not hasattr(one, name)
        assert name not in dir(one)
    if isinstance(one, Lease):
        one.release()


def test_a_class_of_a_users_has_such_a_member_when_it_says_so():
    class Mine(Lock):
        timeout = 5

        def is_locked(self):
            return self.locked()

    assert not Mine(PATH).is_locked()
    assert {"timeout", "is_locked"} <= {*dir(Mine(PATH))}
    assert {"check", "held", "token", "locked"} - {*dir(Lock)} == {"check", "held", "token"}
    assert {"check", "held", "token"} <= {*dir(Lease)}
    assert "locked" in dir(Lock)
    assert "is_locked" not in dir(Lock)
