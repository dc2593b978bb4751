"""The native lock of lifehold.compat.filelock: filelock's behaviour, and what ours adds."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest

from lifehold import Lock
from lifehold.compat.filelock import BaseFileLock, FileLock, Timeout, lock_descriptor
from lifehold.compat.filelock import unlock_descriptor as unlock


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


def test_it_counts_and_is_its_own_block(path):
    lock = FileLock(path)
    with lock as same:
        assert same is lock
        assert lock.is_locked
        with lock.acquire() as again:
            assert again is lock
            assert lock.lock_counter == 2
        assert lock.lock_counter == 1
    assert (lock.is_locked, lock.lock_counter) == (False, 0)
    lock.release()  # unheld: nothing


def test_a_timeout_names_the_holder(path):
    with FileLock(path), pytest.raises(Timeout) as caught:
        FileLock(path).acquire(timeout=0.01)
    error = caught.value
    assert error.lock_file == path
    assert error.holder.owner.pid == os.getpid()
    assert str(error) == f"The file lock '{path}' could not be acquired."  # filelock's very line
    assert f"pid {os.getpid()}" in "".join(traceback.format_exception(error))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.holder) == (str(error), error.holder)
    assert again.__notes__ == error.__notes__
    assert isinstance(error, TimeoutError)


def test_the_token_grows_and_the_lease_lives_as_long_as_the_hold(path):
    lock = FileLock(path)
    assert lock.lease is None
    tokens = []
    for _ in range(3):
        with lock:
            tokens.append(lock.lease.token)
            lock.lease.check()
    assert tokens == sorted(set(tokens))
    assert lock.lease is None


def test_asking_for_the_lease_does_not_end_the_hold(path):
    with FileLock(path) as lock:
        assert lock.lease.token
        gc.collect()
        with pytest.raises(Timeout):
            FileLock(path, blocking=False).acquire()


def test_it_excludes_our_own_lock_on_the_file(path):
    with FileLock(path), pytest.raises(TimeoutError):
        Lock(path).acquire(wait=0.01)


def test_a_wait_for_oneself_is_an_error(path):
    with FileLock(path), pytest.raises(RuntimeError, match="Deadlock"):
        FileLock(path).acquire()


def test_each_thread_has_its_own_hold(path):
    lock, seen = FileLock(path), []
    with lock:
        thread = threading.Thread(target=lambda: seen.append(lock.is_locked))
        thread.start()
        thread.join()
    assert seen == [False]


def test_a_shared_object_is_held_for_all_threads(path):
    lock, seen = FileLock(path, thread_local=False), []
    with lock:
        thread = threading.Thread(target=lambda: (lock.acquire(), seen.append(lock.lock_counter)))
        thread.start()
        thread.join()
        assert seen == [2]
        lock.release()
    assert not lock.is_locked


def test_the_hold_of_a_thread_that_has_ended_is_still_held_until_forced(path):
    lock = FileLock(path)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    with pytest.raises(Timeout):
        FileLock(path).acquire(timeout=0)
    lock.release(force=True)
    with FileLock(path, timeout=0):
        pass


def test_a_dropped_object_lets_go(path):
    FileLock(path).acquire()
    gc.collect()
    with FileLock(path, timeout=0):
        pass


def test_a_waiter_is_let_in_by_the_release(path):
    lock, got = FileLock(path), []
    lock.acquire()

    def wait():
        with FileLock(path):
            got.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    while "->" not in Path("/proc/locks").read_text():
        time.sleep(0.001)
    lock.release()
    thread.join(60)
    assert got == [True]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_cancel_check_ends_the_wait(path):
    asked = []
    with FileLock(path), pytest.raises(Timeout):
        FileLock(path).acquire(timeout=150, cancel_check=lambda: asked.append(1) or len(asked) > 2)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [("timeout", "1", TypeError), ("timeout", True, TypeError), ("timeout", 10**400, ValueError),
     ("poll_interval", -1, ValueError), ("poll_interval", float("nan"), ValueError),
     ("blocking", 1, TypeError), ("mode", 0o400, ValueError), ("mode", 0o1600, ValueError),
     ("lifetime", -1, ValueError), ("context_error_policy", "x", ValueError),
     ("close_error_policy", "x", ValueError), ("unknown", 1, TypeError)],
)  # fmt: skip
def test_a_wrong_option_is_named(path, option, value, kind):
    with pytest.raises(kind, match=option):
        FileLock(path, **{option: value})


def test_a_singleton_is_one_object_per_file_with_the_same_options(path, tmp_path):
    one = FileLock(path, is_singleton=True)
    assert FileLock(f"{tmp_path}/./a.lock", is_singleton=True) is one
    with pytest.raises(ValueError, match="differing arguments"):
        FileLock(path, is_singleton=True, timeout=3)


def test_a_callback_gets_the_descriptor_and_the_file_is_its_own(path):
    with FileLock(path, on_acquired=lambda fd: os.write(fd, b"mine")):
        assert Path(path).read_bytes() == b"mine"


def test_what_a_callback_raises_lets_go(path):
    def refuse(fd):
        raise LookupError(fd)

    with pytest.raises(LookupError):
        FileLock(path, on_acquired=refuse).acquire()
    with FileLock(path, timeout=0):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_of_two_errors_the_policy_decides(path):
    class Refusing(BaseFileLock):
        def _acquire(self):
            self._context.lock_file_fd = 1

        def _release(self):
            self._context.lock_file_fd = None
            raise OSError(5, "no")

    with pytest.raises(OSError, match="no"), Refusing(path):
        raise LookupError
    with pytest.raises(ExceptionGroup), Refusing(path, context_error_policy="group"):
        raise LookupError


def test_a_lock_of_ones_own_is_polled_for(path):
    tries = []

    class Third(BaseFileLock):
        def _acquire(self):
            tries.append(1)
            self._context.lock_file_fd = 1 if len(tries) == 3 else None

        def _release(self):
            self._context.lock_file_fd = None

    with Third(path, poll_interval=0.001):
        assert len(tries) == 3


def test_a_forked_child_holds_nothing_and_is_told_so(path):
    lock = FileLock(path)
    with lock:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            code = 1
            try:
                lock.release()
                free = lock.is_locked, lock.lock_counter
                lock.acquire()
            except RuntimeError as error:
                code = 0 if free == (False, 0) and "inherited across fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)


@pytest.mark.parametrize("what", ["folder", "link", "fifo"])
def test_what_is_no_file_is_refused(tmp_path, what):
    path = tmp_path / what
    {"folder": path.mkdir, "link": lambda: path.symlink_to("x"), "fifo": lambda: os.mkfifo(path)}[
        what
    ]()
    with pytest.raises(OSError, match=what):
        FileLock(path).acquire()
    assert not (tmp_path / "x").exists()


def test_a_working_folder_may_change_while_it_is_held(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    lock = FileLock("a.lock")
    with lock:
        monkeypatch.chdir(tmp_path / "two")
        with FileLock("a.lock", timeout=0):
            pass
    with FileLock(tmp_path / "one" / "a.lock", timeout=0):
        pass


def test_an_open_file_is_locked(path):
    with open(path, "w") as file:
        assert lock_descriptor(file.fileno())
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)
        with open(path) as other:
            assert not lock_descriptor(other.fileno(), blocking=False)
        unlock(file.fileno())
        with FileLock(path, timeout=0):
            pass
