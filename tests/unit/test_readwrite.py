"""ReadWriteLock and AsyncReadWriteLock: what a program sees of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import sys
import threading
import time

import pytest

import lifehold
from lifehold import AsyncReadWriteLock, Lock, ReadWriteLock
from lifehold.local.kernel_readwrite import KernelReadWrite
from lifehold.store.engine import StoreLock


def in_thread(call):
    """What `call` answers or raises in another thread."""
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found, "the thread hangs"
    return found[0]


def try_read(path):
    return in_thread(lambda: ReadWriteLock(path).acquire_read(0).release())


def try_write(path):
    return in_thread(lambda: ReadWriteLock(path).acquire_write(0).release())


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "config.lock")


def test_readers_share_it_and_a_writer_is_alone(path):
    lock = ReadWriteLock(path)
    with lock.reading() as lease:
        assert not lease.exclusive
        assert try_read(path) is None
        assert isinstance(try_write(path), lifehold.WouldBlock)
    with lock.writing() as lease:
        assert lease.exclusive
        assert isinstance(try_read(path), lifehold.WouldBlock)
        assert isinstance(try_write(path), lifehold.WouldBlock)
    assert try_write(path) is None


def test_readers_carry_the_token_of_the_last_writer(path):
    lock = ReadWriteLock(path)
    with lock.reading() as lease:
        assert lease.token is None
        assert "no exclusive holder" in lease.token_reason
    tokens = []
    for _ in range(3):
        with lock.writing() as writer:
            tokens.append(writer.token)
        with lock.reading() as reader:
            assert reader.token == writer.token
    assert tokens == sorted(set(tokens))


def test_a_read_in_a_read_is_the_same_lease(path):
    lock = ReadWriteLock(path)
    with lock.reading() as outer:
        with lock.reading() as inner:
            assert inner is outer
        assert outer.held
        assert isinstance(try_write(path), lifehold.WouldBlock)
    assert not outer.held
    assert try_write(path) is None


def test_a_reader_reads_again_by_another_object_while_a_writer_waits(path):
    """Else the two would wait for each other for ever."""
    lock = ReadWriteLock(path)
    granted = threading.Event()

    def write():
        with ReadWriteLock(path).writing(20):
            granted.set()

    with lock.reading():
        writer = threading.Thread(target=write)
        writer.start()
        while not isinstance(try_read(path), lifehold.WouldBlock):
            time.sleep(0.001)  # until the writer stands in line
        with ReadWriteLock(path).reading(0) as again:
            assert again.held
        assert not granted.is_set()
    writer.join(60)
    assert granted.is_set()


@pytest.mark.parametrize("wait", [None, 0, 5])
def test_an_upgrade_is_refused_at_once_and_names_the_remedy(path, wait):
    lock = ReadWriteLock(path)
    with lock.reading() as lease:
        with pytest.raises(lifehold.SelfDeadlock, match="release the read lease") as caught:
            lock.acquire_write(wait)
        assert "a reader does not become the writer" in str(caught.value)
        assert lease.held
    lock.acquire_write(0).release()


@pytest.mark.parametrize(
    ("wait", "same"), [(None, True), (0, True), (5, True), (None, False), (5, False)]
)
def test_a_read_while_writing_is_refused_at_once_and_names_downgrade(path, wait, same):
    lock = ReadWriteLock(path)
    with lock.writing() as lease:
        with pytest.raises(lifehold.SelfDeadlock, match=r"downgrade\(\)"):
            (lock if same else ReadWriteLock(path)).acquire_read(wait)
        assert lease.held


def test_downgrade_lets_readers_in_and_no_writer(path):
    lock = ReadWriteLock(path)
    with lock.writing() as lease:
        token = lease.token
        lease.downgrade()
        assert (lease.exclusive, lease.token, lease.held) == (False, token, True)
        assert try_read(path) is None
        assert isinstance(try_write(path), lifehold.WouldBlock)
        with lock.reading() as again:
            assert again is lease
    assert not lease.held
    assert try_write(path) is None
    with pytest.raises(lifehold.NotHeld):
        lease.release()


def test_downgrade_of_a_reader_or_of_what_was_released_is_refused(path):
    lock = ReadWriteLock(path)
    with lock.reading() as lease, pytest.raises(lifehold.InvalidArgument, match="for reading"):
        lease.downgrade()
    lease = lock.acquire_write()
    lease.release()
    with pytest.raises(lifehold.NotHeld, match="released already"):
        lease.downgrade()
    with ReadWriteLock(path, reentrant=True).writing() as lease:
        again = lease._lock.acquire()
        with pytest.raises(lifehold.InvalidArgument, match="more than once"):
            lease.downgrade()
        again.release()


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted_at(count, call):
    """Whether `call()` came to its line number `count` in the files of a downgrade."""
    left = [count]

    def line(frame, event, _):
        if event == "line":
            left[0] -= 1
            if not left[0]:
                sys.settrace(None)
                raise Interrupt
        return line

    def trace(frame, event, _):
        name = frame.f_code.co_name
        return line if name in ("downgrade", "_share", "moved", "_become_reader") else None

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return left[0] <= 0


@pytest.mark.parametrize("by_hand", [False, True], ids=["block", "by hand"])
def test_an_interrupted_downgrade_is_told_and_leaves_nothing_held(by_hand, path):
    def run():
        if not by_hand:
            with ReadWriteLock(path).writing() as lease:
                lease.downgrade()
            return
        lease = ReadWriteLock(path).acquire_write()
        try:
            lease.downgrade()
        finally:
            with contextlib.suppress(lifehold.NotHeld):  # between the grant and its slot
                lease.release()

    count = 0
    while True:
        count += 1
        try:
            interrupted_at(count, run)
        except Interrupt:
            assert try_write(path) is None, count
        else:
            break
    assert count > 20


def test_after_an_interrupted_downgrade_the_lease_is_a_readers(path, monkeypatch):
    """Others may read by now: who catches the interrupt does not write on."""
    real = KernelReadWrite._share

    def share(self, *given):
        real(self, *given)
        raise Interrupt

    monkeypatch.setattr(KernelReadWrite, "_share", share)
    with ReadWriteLock(path).writing() as lease:
        with pytest.raises(Interrupt):
            lease.downgrade()
        assert (lease.held, lease.exclusive) == (True, False)
        assert try_read(path) is None
    assert try_write(path) is None


def test_after_a_cancelled_downgrade_the_lease_of_a_task_is_a_readers(tmp_path, monkeypatch):
    real = StoreLock.downgrade
    tasks = []

    def downgrade(self, grant):
        found = real(self, grant)
        loop, task = tasks
        loop.call_soon_threadsafe(task.cancel)
        return found

    monkeypatch.setattr(StoreLock, "downgrade", downgrade)

    async def main():
        tasks.extend((asyncio.get_running_loop(), asyncio.current_task()))
        store = await lifehold.aconnect(f"memory:///{tmp_path}")
        async with store.read_write("a").writing() as lease:
            with pytest.raises(asyncio.CancelledError):
                await lease.downgrade()
            asyncio.current_task().uncancel()
            assert (lease.held, lease.exclusive) == (True, False)
            async with asyncio.timeout(30):
                await (await asyncio.create_task(store.read_write("a").acquire_read())).release()
        await (await store.read_write("a").acquire_write(0)).release()

    asyncio.run(main())


def test_a_downgrade_that_the_system_refuses_is_told_as_that(path, monkeypatch):
    def share(self, *given):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(KernelReadWrite, "_share", share)
    with pytest.raises(lifehold.SystemRefused), ReadWriteLock(path).writing() as lease:
        lease.downgrade()
    assert try_write(path) is None


def test_downgrade_of_a_lost_lease_says_lost(path):
    lock = ReadWriteLock(path)
    lease = lock.acquire_write()
    os.unlink(path)
    with pytest.raises(lifehold.LeaseLost):
        lease.downgrade()


def test_a_reentrant_writer_is_let_in_again_and_only_that_one(path):
    lock = ReadWriteLock(path, reentrant=True)
    with lock.writing() as outer, lock.writing() as inner:
        assert inner is outer
        assert isinstance(try_write(path), lifehold.WouldBlock)
    plain = ReadWriteLock(path)
    with plain.writing(), pytest.raises(lifehold.SelfDeadlock, match="reentrant=True"):
        plain.acquire_write()


def test_a_plain_lock_on_the_path_is_a_writer_and_a_shared_one_a_reader(path):
    with ReadWriteLock(path).reading():
        assert isinstance(in_thread(lambda: Lock(path).acquire(0)), lifehold.WouldBlock)
        assert in_thread(lambda: Lock(path, exclusive=False).acquire(0).release()) is None
    with Lock(path):
        assert isinstance(try_read(path), lifehold.WouldBlock)


def test_a_bounded_reader_and_a_bounded_writer_lose_their_leases(path):
    lock = ReadWriteLock(path, max_hold=0.05)
    for acquire in (lock.acquire_read, lock.acquire_write):
        lease = acquire()
        assert lease.lost.wait(60)
        assert in_thread(lambda: ReadWriteLock(path).acquire_write(5).release()) is None
        with pytest.raises(lifehold.LeaseLost, match=r"max_hold|its time"):
            lease.release()


def test_max_hold_goes_on_over_a_downgrade(path):
    lease = ReadWriteLock(path, max_hold=0.1).acquire_write()
    lease.downgrade()
    assert lease.lost.wait(60)
    assert in_thread(lambda: ReadWriteLock(path).acquire_write(5).release()) is None


def test_a_wait_ends_at_its_time_and_by_cancel_and_leaves_nothing(path):
    lock = ReadWriteLock(path)
    cancel = lifehold.Cancel()
    with lock.writing():
        late = in_thread(lambda: ReadWriteLock(path).acquire_read(0.05))
        assert type(late) is lifehold.Timeout
        timer = threading.Timer(0.05, cancel.cancel)
        timer.start()
        ended = in_thread(lambda: ReadWriteLock(path).acquire_write(cancel=cancel))
        assert type(ended) is lifehold.AcquireCancelled
    assert try_write(path) is None


def test_the_error_names_the_writer_and_its_label(path):
    with ReadWriteLock(path, label="nightly import").writing():
        error = try_read(path)
    assert error.holder.owner.label == "nightly import"
    assert error.holder.owner.pid == os.getpid()


def readers_at_once(path, count):
    """So many tasks of one process read; what each got."""

    async def main():
        lock, go = AsyncReadWriteLock(path), asyncio.Event()
        done, all_in = [], asyncio.Event()

        def note(outcome):
            done.append(outcome)
            if len(done) == count:
                all_in.set()

        async def read():
            try:
                async with lock.reading(0):
                    note(True)
                    await go.wait()
            except lifehold.SystemRefused as error:
                note(error)

        tasks = [asyncio.ensure_future(read()) for _ in range(count)]
        await all_in.wait()
        writer = await asyncio.to_thread(try_write, path)
        go.set()
        await asyncio.gather(*tasks)
        return done, writer

    return asyncio.run(main())


@contextlib.contextmanager
def open_files(limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_readers_of_one_process_are_let_in(path):
    ReadWriteLock(path).acquire_write().release()
    with open_files(4096):
        got, writer = readers_at_once(path, 1000)
    assert got == [True] * 1000
    assert isinstance(writer, lifehold.WouldBlock)
    assert try_write(path) is None


def test_more_readers_than_open_files_are_refused_by_name_of_the_limit(path):
    ReadWriteLock(path).acquire_write().release()
    with open_files(300):
        got, _ = readers_at_once(path, 400)
    refused = [each for each in got if each is not True]
    assert 50 < len(refused) < 250
    assert all("ulimit -n" in str(each) for each in refused)
    assert try_write(path) is None


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "link"}, "kind must be one of"), ({"kind": 3}, "kind must be one of"),
        ({"kind": []}, "kind must be one of"),
        ({"ttl": 5, "kind": "kernel"}, "takes no ttl"), ({"mode": 0o7777}, "mode must be"),
        ({"mode": 0o600, "shared": True}, "not both"), ({"label": 3}, "label must be"),
        ({"wait": -1}, "wait must be"), ({"wait": True}, "wait must be"),
        ({"max_hold": 0}, "max_hold must be"),
    ],
)  # fmt: skip
def test_what_no_lock_can_be_made_of_is_named(path, options, word):
    for made in (ReadWriteLock, AsyncReadWriteLock):
        with pytest.raises(lifehold.InvalidArgument, match=word):
            made(path, **options)


@pytest.mark.parametrize("given", ["", "a\0b", 5, None, b"x", "redis://h/0#x", "folder/"])
def test_what_is_no_path_is_named(given):
    with pytest.raises(lifehold.InvalidArgument, match="path"):
        ReadWriteLock(given)


def test_tasks_are_told_apart_and_cancellation_leaves_nothing_held(path):
    async def main():
        lock = AsyncReadWriteLock(path)
        async with lock.reading() as outer, lock.reading() as inner:
            assert inner is outer
            other = await asyncio.create_task(lock.acquire_read(0))
            assert other is not outer
            await other.release()
            with pytest.raises(lifehold.SelfDeadlock, match="this task"):
                await lock.acquire_write(5)
            waiting = asyncio.create_task(lock.acquire_write())
            await asyncio.sleep(0.05)
            async with AsyncReadWriteLock(path).reading(0):
                pass  # the task reads already
            with pytest.raises(lifehold.WouldBlock):
                await asyncio.create_task(lock.acquire_read(0))  # this one came later
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with lock.writing(0) as lease:
            await lease.downgrade()
            assert not lease.exclusive
            assert try_read(path) is None
        assert not lock.locked()

    asyncio.run(main())
    assert try_write(path) is None


def test_a_reader_that_may_only_read_the_file_still_lets_a_writer_through(path):
    lock = ReadWriteLock(path)
    with lock.writing():
        pass
    from lifehold.runtime import flock_wait

    fd = os.open(path, os.O_RDONLY)
    try:
        place = flock_wait.FairTicket(fd, reads=True)
        from lifehold.runtime.flock_wait import _arm

        assert place.come(_arm()) == 0
        assert isinstance(try_write(path), lifehold.WouldBlock)  # seen in line
        assert try_read(path) is None
        place.go(_arm())
        assert try_write(path) is None
    finally:
        os.close(fd)
