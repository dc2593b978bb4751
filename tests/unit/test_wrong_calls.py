"""Every wrong call is answered by a message that names the argument, its value and the cure."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading

import pytest

from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    InvalidArgument,
    LifeholdError,
    Lock,
    ReadWriteLock,
    Semaphore,
    Timeout,
    aconnect,
    connect,
    lock_all,
    once,
)
from lifehold.aio import lock_all as lock_all_async

PATH = "wrong.lock"


def memory():
    return connect("memory://wrong")


def run(coroutine):
    return asyncio.run(coroutine)


async def of_tasks(call):
    return await call(await aconnect("memory://wrong"))


async def awaited(make):
    return await make()


# (the call, what its message names: argument and value, the cure)
WRONG = [
    (lambda: Lock(PATH, timeout=3), "timeout=3", "wait=3"),
    (lambda: Lock(PATH, timeout=-1), "timeout=-1", "wait=None"),
    (lambda: Lock(PATH, acquire_timeout=2), "acquire_timeout=2", "wait=2"),
    (lambda: Lock(PATH, blocking=False), "blocking=False", "try_acquire()"),
    (lambda: Lock(PATH, blocking=True), "blocking=True", "wait=None"),
    (lambda: Lock(PATH, block=False), "block=False", "wait=0"),
    (lambda: Lock(PATH, non_blocking=True), "non_blocking=True", "wait=0"),
    (lambda: Lock(PATH, nowait=True), "nowait=True", "wait=0"),
    (lambda: Lock(PATH, poll_interval=0.1), "poll_interval=0.1", "leave it out"),
    (lambda: Lock(PATH, poll_intervall=0.1), "poll_intervall=0.1", "leave it out"),
    (lambda: Lock(PATH, check_interval=1), "check_interval=1", "woken by an event"),
    (lambda: Lock(PATH, delay=1), "delay=1", "woken by an event"),
    (lambda: Lock(PATH, expire=30), "expire=30", "ttl=30"),
    (lambda: Lock(PATH, px=30), "px=30", "ttl=30"),
    (lambda: Lock(PATH, auto_renewal=True), "auto_renewal=True", "heartbeat="),
    (lambda: Lock(PATH, auto_release_time=9), "auto_release_time=9", "ttl=9"),
    (lambda: Lock(PATH, lifetime=60), "lifetime=60", "never by age"),
    (lambda: Lock(PATH, stale_timeout=60), "stale_timeout=60", "never by age"),
    (lambda: Lock(PATH, thread_local=False), "thread_local=False", "lease.release()"),
    (lambda: Lock(PATH, is_singleton=True), "is_singleton=True", "singleton=True"),
    (lambda: Lock(PATH, fail_when_locked=True), "fail_when_locked=True", "wait=0"),
    (lambda: Lock(PATH, flags=6), "flags=6", "exclusive=False"),
    (lambda: Lock(PATH, id="me"), "id='me'", "label='me'"),
    (lambda: Lock(PATH, redis_client=5), "redis_client=5", "connect(URL)"),
    (lambda: Lock(PATH, wiat=3), "wiat=3", "wait=3"),
    (lambda: Lock(PATH, exclusiv=False), "exclusiv=False", "exclusive=False"),
    (lambda: Lock(PATH, reentrent=True), "reentrent=True", "reentrant=True"),
    (lambda: Lock(PATH, hartbeat=3), "hartbeat=3", "heartbeat=3"),
    (lambda: Lock(PATH, zzz=3), "zzz=3", "its arguments are"),
    (lambda: Lock(PATH, singletn=True), "singletn=True", "singleton=True"),
    (lambda: Lock(lock_file=PATH), "lock_file=", "give it first"),
    (Lock, "path", "Lock('build.lock')"),
    (lambda: Lock(PATH).release(force=True), "force=True", "break_(reason)"),
    (lambda: Lock(PATH).release(zzz=3), "zzz=3", "release() takes no"),
    (lambda: Semaphore(PATH, 2).release(n=2), "n=2", "its own lease"),
    (lambda: ReadWriteLock(PATH).release(force=True), "force=True", "break_(reason)"),
    (lambda: lock_all([PATH]).release(force=True), "force=True", "break_(reason)"),
    (lambda: memory().lock("a").release(force=True), "force=True", "break_(reason)"),
    (lambda: memory().lock("a").acquire(blocking=False), "blocking=False", "try_acquire()"),
    (lambda: memory().lock("a").acquire(timeout=2), "timeout=2", "wait=2"),
    (lambda: memory().semaphore("s", 2).release(raise_on_redis_error=True),
     "raise_on_redis_error=True", "StoreUnavailable"),
    (lambda: run(AsyncLock(PATH).release(force=True)), "force=True", "break_(reason)"),
    (lambda: run(AsyncSemaphore(PATH, 2).release(n=1)), "n=1", "its own lease"),
    (lambda: run(AsyncReadWriteLock(PATH).release(force=True)), "force=True", "break_(reason)"),
    (lambda: run(lock_all_async([PATH]).release(force=True)), "force=True", "break_(reason)"),
    (lambda: run(of_tasks(lambda store: store.lock("a").release(force=True))), "force=True",
     "break_(reason)"),
    (lambda: run(AsyncLock(PATH).acquire(timeout=2)), "timeout=2", "wait=2"),
    (lambda: Lock(PATH, 5), "5", "wait=5"),
    (lambda: Lock(5), "int 5", "os.PathLike of str"),
    (lambda: Lock(None), "None", "os.PathLike of str"),
    (lambda: Lock(b"x"), "b'x'", "os.PathLike of str"),
    (lambda: Lock(""), "empty", "'build.lock'"),
    (lambda: Lock("a\0b"), "NUL", "a\\x00b"),
    (lambda: Lock("folder/"), "folder/", "'folder/lock'"),
    (lambda: Lock("~/x.lock"), "~/x.lock", "expanduser"),
    (lambda: Lock(print), "print", "@Lock('build.lock')"),
    (lambda: Lock(PATH, wait="5"), "wait", "not str '5'"),
    (lambda: Lock(PATH, wait=True), "wait", "None waits until"),
    (lambda: Lock(PATH, wait=-1), "wait", "0 or more"),
    (lambda: Lock(PATH, wait=float("nan")), "wait", "nan"),
    (lambda: Lock(PATH, wait=dt.timedelta(seconds=1)), "wait", "total_seconds()"),
    (lambda: Lock(PATH, kind="kernl"), "kind", "'kernl'"),
    (lambda: Lock(PATH, kind=5), "kind", "int 5"),
    (lambda: Lock(PATH, kind="session"), "session", "postgresql://"),
    (lambda: Lock(PATH, kind="kernel", ttl=5), "ttl", "max_hold=5"),
    (lambda: Lock(PATH, kind="soft", ttl=0), "ttl", "more than 0"),
    (lambda: Lock(PATH, kind="soft", heartbeat=5), "heartbeat", "give ttl="),
    (lambda: Lock(PATH, kind="soft", ttl=5, heartbeat=5), "heartbeats", "ttl=15"),
    (lambda: Lock(PATH, kind="soft", ttl=5, margin=5), "margin", "ttl=50"),
    (lambda: Lock(PATH, strict=True), "strict=True", "kind 'link'"),
    (lambda: Lock(PATH, kind="soft", fair=True), "fair=True", "kernel lock"),
    (lambda: Lock(PATH, mode=8**4), "mode", "0o777"),
    (lambda: Lock(PATH, mode="600"), "mode", "'600'"),
    (lambda: Lock(PATH, mode=0o600, shared=True), "mode=", "not both"),
    (lambda: Lock(PATH, label=5), "label", "int 5"),
    (lambda: Lock(PATH, cleanup=True, record=False), "cleanup=True", "record"),
    (lambda: Lock(PATH, max_hold=0), "max_hold", "more than 0"),
    (lambda: Lock(PATH, reentrant="no"), "reentrant", "True or False"),
    (lambda: Lock(PATH, exclusive=1), "exclusive", "int 1"),
    (lambda: Lock(PATH, cancel=threading.Event()), "cancel", "lifehold.Cancel"),
    (lambda: Lock(PATH, notify=0), "notify", "False"),
    (lambda: Lock(PATH, notify=True), "notify", "True"),
    (lambda: Lock(PATH).acquire(timeout=3), "timeout=3", "wait=3"),
    (lambda: Lock(PATH).acquire(blocking=False), "blocking=False", "try_acquire()"),
    (lambda: Lock(PATH).acquire(False), "wait", "0 is one try"),
    (lambda: Lock(PATH).acquire("5"), "wait", "'5'"),
    (lambda: Lock(PATH)(5), "int 5", "@Lock"),
    (lambda: Lock(PATH)(int), "int", "methods"),
    (lambda: Lock(PATH)(awaited), "awaited", "@AsyncLock"),
    (lambda: AsyncLock(PATH)(run), "run", "@Lock"),
    (lambda: AsyncLock(PATH, timeout=3), "timeout=3", "wait=3"),
    (lambda: AsyncLock(PATH, cancel=threading.Event()), "cancel=", "cancel the task"),
    (lambda: run(awaited(lambda: AsyncLock(PATH).acquire(timeout=1))), "timeout=1", "wait=1"),
    (lambda: AsyncLock(PATH).__enter__(), "AsyncLock", "async with"),
    (lambda: Semaphore(PATH), "permits", "Semaphore('build.lock', 4)"),
    (lambda: Semaphore(PATH, 0), "permits", "0"),
    (lambda: Semaphore(PATH, "4"), "permits", "'4'"),
    (lambda: Semaphore(PATH, value=4), "value=4", "permits=4"),
    (lambda: Semaphore(PATH, 2, timeout=3), "timeout=3", "wait=3"),
    (lambda: Semaphore(PATH, 2, reentrant=True), "reentrant=True", "its arguments"),
    (lambda: AsyncSemaphore(PATH, 2, timeout=3), "timeout=3", "wait=3"),
    (lambda: ReadWriteLock(PATH, timeout=3), "timeout=3", "wait=3"),
    (lambda: ReadWriteLock(PATH, reentrant="x"), "reentrant", "'x'"),
    (lambda: ReadWriteLock(PATH, kind="link"), "kind", "'link'"),
    (lambda: ReadWriteLock(PATH).reading(timeout=3), "timeout=3", "wait=3"),
    (lambda: ReadWriteLock(PATH).writing(blocking=False), "blocking=False", "wait=0"),
    (lambda: ReadWriteLock(PATH).acquire_read(timeout=3), "timeout=3", "wait=3"),
    (lambda: ReadWriteLock(PATH).acquire_write(timeout=3), "timeout=3", "wait=3"),
    (lambda: ReadWriteLock(PATH).__enter__(), "ReadWriteLock", "writing()"),
    (lambda: AsyncReadWriteLock(PATH, timeout=3), "timeout=3", "wait=3"),
    (lambda: AsyncReadWriteLock(PATH).reading(timeout=3), "timeout=3", "wait=3"),
    (lambda: lock_all(PATH), "wrong.lock", "in a list"),
    (lambda: lock_all([]), "one name", ""),
    (lambda: lock_all([PATH, PATH]), "one lock", "once"),
    (lambda: lock_all([PATH], timeout=3), "timeout=3", "wait=3"),
    (lambda: lock_all([PATH], cancel=5), "cancel", "lifehold.Cancel"),
    (lambda: lock_all([Lock(PATH)], label="x"), "label", "its own options"),
    (lambda: lock_all_async([PATH], timeout=3), "timeout=3", "wait=3"),
    (lambda: connect("x"), "'x'", "file:///var/lib/jobs"),
    (lambda: connect("file:///tmp/x", timeout=3), "timeout=3", "wait=3"),
    (lambda: connect("file:///tmp/x").lock("a", timeout=3), "timeout=3", "wait=3"),
    (lambda: memory().lock("a", timeout=3), "timeout=3", "wait=3"),
    (lambda: memory().lock("a", expire=3), "expire=3", "ttl=3"),
    (lambda: memory().lock("a", lable="x"), "lable='x'", "label='x'"),
    (lambda: memory().lock("a", reentrant=5), "reentrant", "int 5"),
    (lambda: memory().lock("a", notify=0), "notify", "False"),
    (lambda: memory().read_write("a", timeout=3), "timeout=3", "wait=3"),
    (lambda: memory().semaphore("a", 2, timeout=3), "timeout=3", "wait=3"),
    (lambda: memory().semaphore("a", 0), "permits", "0"),
    (lambda: run(of_tasks(lambda store: awaited(lambda: store.lock("a", timeout=3)))),
     "timeout=3", "wait=3"),
    (lambda: Lock("memory://wrong#a", timeout=3), "timeout=3", "wait=3"),
    (lambda: Lock("memory://wrong#a", cleanup=True), "cleanup", ""),
    (lambda: once("./a", print, timeout=3), "timeout=3", "wait=3"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_call_is_told_by_argument_value_and_cure(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, names, cure = WRONG[number]
    with pytest.raises((InvalidArgument, TypeError)) as caught:
        call()
    text = str(caught.value)
    assert names in text, text
    assert cure in text, text
    assert "LockFace" not in text
    assert "__init__" not in text
    assert not isinstance(caught.value, LifeholdError) or caught.value.code == "invalid_argument"
    assert not [each for each in tmp_path.iterdir() if each.suffix == ".lock"]


@pytest.mark.parametrize("make", [Lock, lambda path: lock_all([path])])
def test_a_lease_names_what_its_release_does_not_take_and_holds_on(make, tmp_path):
    with make(tmp_path / "x.lock") as lease:
        with pytest.raises(InvalidArgument, match=r"^release\(\) takes no force=True: call `lease"):
            lease.release(force=True)
        lease.check()


@pytest.mark.parametrize("make", [AsyncLock, lambda path: lock_all_async([path])])
def test_a_lease_of_tasks_does_so_too(make, tmp_path):
    async def main():
        async with make(tmp_path / "x.lock") as lease:
            with pytest.raises(InvalidArgument, match=r"^release\(\) takes no force=True: call `l"):
                await lease.release(force=True)
            lease.check()

    run(main())


def test_there_are_the_wrong_calls_of_others_and_forty_of_our_own():
    assert len(WRONG) >= 77


def test_what_an_argument_of_another_library_hides_stays_hidden():
    with pytest.raises(TypeError) as caught:
        Lock(PATH, password="s3cret", url="redis://app:s3cret@h/0")
    assert "s3cret" not in str(caught.value)


def test_an_unknown_argument_is_a_type_error_and_one_of_ours():
    with pytest.raises(TypeError) as caught:
        Lock(PATH, timeout=3)
    assert isinstance(caught.value, InvalidArgument)


def test_the_error_of_a_class_of_a_users_is_its_own(tmp_path):
    class Mine(Lock):
        def __init__(self, path, size):
            raise TypeError(f"a size of {size} is too much")

    with pytest.raises(TypeError, match="too much"):
        Mine(tmp_path / "a.lock", 5)


def test_a_wait_for_oneself_says_so_and_how_to_nest(tmp_path):
    lock = Lock(tmp_path / "a.lock")
    with lock, pytest.raises(Timeout, match=r"this thread holds it itself: .*reentrant=True"):
        lock.acquire(wait=0.01)

    async def of_a_task():
        lock = AsyncLock(tmp_path / "a.lock")
        async with lock:
            with pytest.raises(Timeout, match=r"this task holds it itself: .*reentrant=True"):
                await lock.acquire(wait=0.01)

    run(of_a_task())
