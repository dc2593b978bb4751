"""Uses that would lock less than they seem to are refused, with the remedy."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest

from ground import needs
from lifehold import (
    AsyncLock,
    Cancel,
    InvalidArgument,
    LeaseLost,
    Lock,
    SystemRefused,
    UnsafeGround,
)
from lifehold.runtime import heartbeat, native


def test_a_blocking_lock_refuses_to_decorate_a_coroutine_function(tmp_path):
    async def work(): ...

    with pytest.raises(InvalidArgument, match="use @AsyncLock"):
        Lock(tmp_path / "a")(work)


def test_a_partial_of_a_coroutine_function_is_one_too(tmp_path):
    async def work(): ...

    with pytest.raises(InvalidArgument, match="use @AsyncLock"):
        Lock(tmp_path / "a")(functools.partial(work))
    AsyncLock(tmp_path / "a")(functools.partial(work))


def test_a_mock_is_decorated_as_it_stands(tmp_path):
    work = mock.Mock(return_value=5)
    assert Lock(tmp_path / "a")(work)() == 5


@pytest.mark.parametrize("kind", [Lock, AsyncLock])
def test_no_lock_decorates_a_generator_function(tmp_path, kind):
    def one():
        yield

    async def other():
        yield

    for function in (one, other):
        with pytest.raises(InvalidArgument, match="inside of it"):
            kind(tmp_path / "a")(function)


@pytest.mark.parametrize("path", [["a"], {}, 3, b"a", None])
def test_what_is_no_path_is_refused_in_our_words(path):
    with pytest.raises(InvalidArgument, match="path must be"):
        Lock(path)


def test_an_async_lock_refuses_to_decorate_a_plain_function(tmp_path):
    with pytest.raises(InvalidArgument, match="use @Lock"):
        AsyncLock(tmp_path / "a")(lambda: None)


def test_an_async_lock_refuses_a_cancel_token(tmp_path):
    with pytest.raises(InvalidArgument, match="cancel the task"):
        AsyncLock(tmp_path / "a", cancel=Cancel())


@needs("root")
def test_cleanup_refuses_a_file_that_may_only_be_read(request):
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    request.addfinalizer(lambda: shutil.rmtree(folder))
    data = folder / "data"
    data.write_text("root's own")
    os.chown(folder, 65534, 65534)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            with pytest.raises(UnsafeGround, match="only be read"):
                Lock(data, cleanup=True).acquire(0)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert data.read_text() == "root's own"


@needs("root")
def test_a_dead_link_lock_of_another_user_is_told_as_that(request):
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o777)
    Lock(folder / "warm", kind="link").acquire(0).release()

    def as_user(uid, act):
        child = os.fork()
        if child == 0:
            try:
                os.setgid(uid)
                os.setuid(uid)
                act()
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def dies():
        Lock(folder / "a", kind="link").acquire(0)
        os.kill(os.getpid(), signal.SIGKILL)

    def is_told():
        with pytest.raises(PermissionError, match="shared=True"):
            Lock(folder / "a", kind="link").acquire(0)

    assert as_user(65534, dies) == -signal.SIGKILL
    assert as_user(65533, is_told) == 0


def test_max_hold_frees_the_lock_also_when_check_saw_the_deadline_first(tmp_path):
    lease = Lock(tmp_path / "a", max_hold=0.01).acquire()
    while lease.held:
        pass
    assert lease.lost.is_set()
    Lock(tmp_path / "a").acquire(60).release()


def test_a_shared_lock_without_record_says_why_it_has_no_token(tmp_path):
    with Lock(tmp_path / "a", record=False, exclusive=False) as lease:
        assert lease.token is None
        assert lease.token_reason == "record=False"


def test_the_first_lock_of_a_file_keeps_no_atime(tmp_path):
    path = tmp_path / "a"
    with Lock(path):
        pass
    before = path.stat().st_atime_ns
    time.sleep(0.02)
    with Lock(path):
        pass
    assert path.stat().st_atime_ns == before


def test_no_thread_for_max_hold_leaves_nothing_held(tmp_path, monkeypatch):
    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    lock = Lock(tmp_path / "a", max_hold=60)
    queue = heartbeat._TimerQueue()  # its thread does not run yet
    monkeypatch.setattr(heartbeat, "_diary", queue)
    monkeypatch.setattr(native, "start_new_thread", no_thread)
    with pytest.raises(SystemRefused, match="no thread to keep max_hold"):
        lock.acquire()
    with pytest.raises(SystemRefused, match=r"\(ulimit -u\)$"):  # it has a ttl of its own
        Lock(tmp_path / "b", kind="link").acquire()
    assert not heartbeat._diary.entries
    monkeypatch.undo()
    with Lock(tmp_path / "a", wait=0):
        pass


def test_nothing_remains_of_a_lease_that_has_ended(tmp_path):
    released = Lock(tmp_path / "a", max_hold=60).acquire()
    released.release()
    assert released.remaining() == 0.0
    lost = Lock(tmp_path / "a", max_hold=60).acquire()
    (tmp_path / "a").unlink()
    assert not lost.held
    assert lost.remaining() == 0.0
    with pytest.raises(LeaseLost):
        lost.release()
