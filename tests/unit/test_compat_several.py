"""lifehold.compat.filelock where more than one thing goes wrong, or a lock is let down half way."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ground import needs
from lifehold.compat.filelock import (
    AsyncFileLock,
    AsyncSoftFileLock,
    BaseAsyncFileLock,
    BaseFileLock,
    FileLock,
    SoftFileLock,
    Timeout,
    waits,
)
from lifehold.compat.filelock import errors as met
from lifehold.local.files import Files
from lifehold.local.handles import open_lock_file


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


class Stuck(BaseAsyncFileLock):
    """Brings a lock that is got, and that the system does not let go of."""

    loose = False

    async def _acquire(self):
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.began.set()
        await self.answer.wait()
        self._context.lock_file_fd = -7

    async def _release(self):
        if not self.loose:
            raise OSError(5, "stuck")
        self._context.lock_file_fd = None


def cancelled_while_it_acquires(path, policy):
    async def main():
        lock = Stuck(path, run_in_executor=False, context_error_policy=policy)
        lock.began = asyncio.Event()
        task = asyncio.create_task(lock.acquire())
        await lock.began.wait()
        task.cancel()
        lock.answer.set()
        try:
            await task
        except BaseException as error:
            found = error
        still = lock.is_locked, lock.lock_counter
        lock.loose = True
        await lock.release()
        return found, still, lock.is_locked

    return asyncio.run(main())


def test_a_cancelled_acquire_that_cannot_be_undone_tells_both(path):
    found, still, after = cancelled_while_it_acquires(path, "chain")
    assert (type(found), str(found)) == (OSError, "[Errno 5] stuck")
    assert isinstance(found.__context__, asyncio.CancelledError)
    assert (still, after) == ((True, 1), False)


def test_or_both_in_one_group(path):
    found, still, after = cancelled_while_it_acquires(path, "group")
    assert [type(each) for each in found.exceptions] == [asyncio.CancelledError, OSError]
    assert (still, after) == ((True, 1), False)


def test_what_the_callback_raises_and_the_rollback_come_together(path):
    class Lock(BaseFileLock):
        def _acquire(self):
            self._context.lock_file_fd = -7

        def _release(self):
            raise OSError(5, "stuck")

    def refuse(fd):
        raise KeyError(fd)

    lock = Lock(path, on_acquired=refuse)
    with pytest.raises(BaseExceptionGroup) as caught:
        lock.acquire()
    assert [type(each) for each in caught.value.exceptions] == [KeyError, OSError]
    assert (lock.is_locked, lock.lock_counter) == (True, 1)  # it is held, and says so
    lock._context.lock_file_fd = None


def test_a_chain_keeps_what_the_later_error_was_caused_by():
    first, later, before = KeyError(1), OSError(2), LookupError(3)
    later.__context__ = before
    found = met.chained(first, later)
    assert found is later
    assert (later.__context__, first.__context__, before.__context__) == (first, before, None)
    assert met.chained(first) is first


def test_a_ring_of_causes_ends():
    first, later = KeyError(1), OSError(2)
    other = ValueError(3)
    first.__context__, other.__context__ = other, first
    later.__context__ = LookupError(4)
    assert met.chained(first, later) is later


def test_a_group_of_the_body_is_not_taken_for_one_of_the_release(path):
    theirs = BaseExceptionGroup(met.RELEASE, [KeyError(1), OSError(2)])
    lock = FileLock(path, context_error_policy="group")
    with pytest.raises(BaseExceptionGroup) as caught:
        met.both_failed(lock, met.BODY, ValueError(0), theirs)
    assert (caught.value.message, caught.value.exceptions[1]) == (met.BODY, theirs)


# ---- executors, and locks that nobody refers to any more


def test_with_an_executor_every_step_is_done_there(path):
    threads = []

    async def main():
        with ThreadPoolExecutor(max_workers=1) as one:
            lock = AsyncFileLock(path, executor=one, on_acquired=lambda _: note())
            attempt, let_go = lock._attempt, lock._let_go
            lock._attempt = lambda hold: note() or attempt(hold)
            lock._let_go = lambda hold: note() or let_go(hold)
            async with lock:
                pass
            assert set(threads) == {one.submit(threading.get_ident).result()}
        with pytest.raises(RuntimeError, match="shut"):
            await lock.acquire()

    def note():
        threads.append(threading.get_ident())

    asyncio.run(main())
    assert len(threads) == 3


@pytest.mark.parametrize("way", ["done", "cancelled"])
def test_a_lock_that_is_dropped_in_a_loop_is_released(path, way):
    async def main():
        lock = AsyncSoftFileLock(path)
        await lock.acquire()
        before = asyncio.all_tasks()
        del lock
        gc.collect()
        [task] = asyncio.all_tasks() - before
        if way == "cancelled":
            task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)  # what is called when it is done

    asyncio.run(main())
    assert not os.path.exists(path)


def test_a_singleton_in_the_middle_of_its_making_is_not_made_again(path):
    class Lock(FileLock):
        def __init__(self, lock_file, *, is_singleton=False):
            super().__init__(lock_file, is_singleton=is_singleton)
            if not seen:
                seen.append(0)
                with pytest.raises(RuntimeError, match="construction is already active"):
                    Lock(path, is_singleton=True)

    seen = []
    assert Lock(path, is_singleton=True) is Lock(path, is_singleton=True)


# ---- forks in the middle


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@needs("fork")
@pytest.mark.parametrize("number", ["new", "of one that was never let go of"])
def test_a_child_has_no_descriptor_of_an_acquire_that_was_under_way(path, monkeypatch, number):
    class Forking(BaseFileLock):
        def _acquire(self):
            self._context.lock_file_fd = fd = os.open(path, os.O_CREAT | os.O_RDWR)
            if number != "new":
                monkeypatch.setitem(waits._open, fd, (0, 0))
            self.child = os.fork()
            if not self.child:
                try:
                    os.fstat(fd)
                except OSError:
                    return  # and acquire() says that it is another process
                os._exit(1)

        def _release(self):
            os.close(self._context.lock_file_fd)
            self._context.lock_file_fd = None

    lock = Forking(path)
    try:
        lock.acquire()
    except RuntimeError as error:
        os._exit(0 if "inherited across fork" in str(error) and not lock.child else 2)
    assert exit_code(lock.child) == 0
    assert lock.is_locked
    lock.release()


@needs("fork")
def test_a_singleton_whose_constructor_forked_is_its_parents(path):
    class Forking(FileLock):
        def __init__(self, lock_file, *, is_singleton=False):
            super().__init__(lock_file, is_singleton=is_singleton)
            children.append(os.fork() if not children else 0)

    children = []
    try:
        lock = Forking(path, is_singleton=True)
    except RuntimeError as error:
        if children[0]:
            raise
        mine = Forking(path, is_singleton=True)
        same = mine is Forking(path, is_singleton=True)
        os._exit(0 if same and "cannot continue after fork" in str(error) else 1)
    assert exit_code(children[0]) == 0
    assert Forking(path, is_singleton=True) is lock


# ---- what the file system does meanwhile


class Sticky(Files):
    """Where another user makes the file just before we do, in a sticky folder."""

    def open(self, path, flags, mode=0o777):
        if flags & os.O_CREAT and not os.path.exists(path):
            os.close(os.open(path, flags, mode))
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return os.open(path, flags, mode)


def test_a_file_that_another_user_has_made_meanwhile_is_opened(path):
    fd, writable = open_lock_file(Sticky(), path, None, False, lambda: False)
    os.close(fd)
    assert writable


@needs("linux")
@pytest.mark.parametrize("wait", [{"blocking": False}, {"timeout": 0.05}])
def test_a_file_that_somebody_has_a_lease_on_counts_as_held(path, wait):
    before = signal.signal(signal.SIGIO, lambda *_: None)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(Timeout):
            FileLock(path).acquire(**wait)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        with FileLock(path, timeout=0):
            pass
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


@pytest.mark.parametrize("kind", [FileLock, SoftFileLock])
@pytest.mark.parametrize("poll", [0.05, 0.01])
def test_a_waiter_whose_folder_was_renamed_does_not_lock_in_a_new_one(tmp_path, kind, poll):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    asked = threading.Event()

    def ask():
        asked.set()
        return False

    with kind(here / "a.lock") as holder, ThreadPoolExecutor(1) as one:
        waiter = kind(here / "a.lock", timeout=30, poll_interval=poll)
        waiting = one.submit(waiter.acquire, cancel_check=ask)
        assert asked.wait(90)
        here.rename(there)
        with pytest.raises(FileNotFoundError):
            waiting.result(30)
        assert holder.is_locked
        assert not here.exists()
        there.rename(here)


@pytest.mark.parametrize("kind", [FileLock, SoftFileLock])
@pytest.mark.parametrize("poll", [0.05, 0.01])
def test_a_folder_renamed_just_before_a_waiter_opens_its_file_is_not_made_again(
    tmp_path, monkeypatch, kind, poll
):
    here, there, asked, real = tmp_path / "here", tmp_path / "there", [], os.open
    here.mkdir()

    def opened(path, *given, **more):
        if asked and not there.exists() and str(path).startswith(str(here)):
            here.rename(there)
        return real(path, *given, **more)

    with kind(here / "a.lock") as holder:
        waiter = kind(here / "a.lock", timeout=30, poll_interval=poll)
        monkeypatch.setattr(os, "open", opened)
        with pytest.raises(FileNotFoundError):
            waiter.acquire(cancel_check=lambda: asked.append(1))
        monkeypatch.undo()
        assert asked
        assert holder.is_locked
        assert not here.exists()
        there.rename(here)
    with kind(here / "new" / "a.lock"):  # nobody waits: it is made
        pass
