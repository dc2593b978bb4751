"""What programs rely on beyond filelock's public calls: subclasses, options, text, warnings."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import traceback
import typing
from abc import ABC
from contextlib import AbstractContextManager
from unittest import mock

import pytest

import lifehold.compat.filelock as face
from lifehold.compat.filelock import (
    AsyncFileLock,
    BaseFileLock,
    FileLock,
    MarkerSoftFileLock,
    SoftFileLease,
    SoftFileLock,
    StrictSoftFileLock,
    Timeout,
)

SOFT = [SoftFileLock, MarkerSoftFileLock, SoftFileLease]
OWN = [FileLock, *SOFT, StrictSoftFileLock]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


def flock_is_free(path: str) -> bool:
    return subprocess.run(["flock", "-n", path, "true"], check=False).returncode == 0


# ---- a subclass's `_acquire` and `_release` are obeyed


@pytest.mark.parametrize("kind", OWN)
def test_an_overridden_acquire_and_release_are_called(path, kind):
    called = []

    class Counted(kind):
        def _acquire(self):
            called.append("acquire")
            super()._acquire()

        def _release(self):
            called.append("release")
            super()._release()

    lock = Counted(path)
    with lock:
        assert lock.is_locked
        with pytest.raises(Timeout):
            kind(path).acquire(blocking=False)
    assert called == ["acquire", "release"]
    with kind(path).acquire(blocking=False):
        pass


def test_a_subclass_that_locks_otherwise_locks_otherwise_only(path):
    class ByRange(FileLock):
        def _acquire(self):
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
            else:
                self._context.lock_file_fd = fd

        def _release(self):
            fd, self._context.lock_file_fd = self._context.lock_file_fd, None
            os.close(fd)

    probe = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), 6)"
    with ByRange(path):
        assert flock_is_free(path)
        tried = subprocess.run(
            [sys.executable, "-c", probe, path], capture_output=True, check=False
        )
        assert tried.returncode != 0


def test_a_descriptor_that_acquire_brought_is_ended_by_the_kinds_own_release(path):
    class Opened(FileLock):
        def _acquire(self):
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT)
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._context.lock_file_fd = fd

    lock = Opened(path)
    with lock:
        fd = lock._context.lock_file_fd
        assert not flock_is_free(path)
    assert flock_is_free(path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_subclass_that_removes_its_file_at_release_is_not_told_of_a_loss(path, caplog):
    class Cleaning(FileLock):
        def _release(self):
            os.unlink(self.lock_file)
            super()._release()

    with Cleaning(path):
        pass
    assert not os.path.exists(path)
    assert not caplog.records


def test_a_loss_is_told_before_a_subclass_releases(path, caplog):
    class Quiet(FileLock):
        def _release(self):
            super()._release()

    with Quiet(path):
        os.unlink(path)
    assert "was lost" in caplog.text


@pytest.mark.parametrize("kind", [FileLock, SoftFileLock])
def test_a_patched_acquire_is_called(path, kind):
    with mock.patch.object(kind, "_acquire") as patched, pytest.raises(Timeout):
        kind(path).acquire(blocking=False)
    assert patched.called
    lock = kind(path)
    lock._acquire = mock.Mock()
    with pytest.raises(Timeout):
        lock.acquire(blocking=False)
    assert lock._acquire.called


def test_an_async_subclass_is_obeyed_too(path):
    called = []

    class Counted(AsyncFileLock):
        def _acquire(self):
            called.append("acquire")
            super()._acquire()

        def _release(self):
            called.append("release")
            super()._release()

    async def use():
        async with Counted(path):
            assert not flock_is_free(path)

    asyncio.run(use())
    assert called == ["acquire", "release"]
    assert flock_is_free(path)


# ---- classes among other classes


def test_a_lock_may_have_abstract_bases():
    class One(FileLock, ABC):
        pass

    class Two(FileLock, AbstractContextManager):
        pass

    class Unrelated:
        pass

    assert BaseFileLock.register(Unrelated) is Unrelated
    assert isinstance(Unrelated(), BaseFileLock)
    assert One("a").lock_file == Two("a").lock_file == "a"


def test_what_brings_no_lock_cannot_be_made(path):
    class Half(BaseFileLock):
        def _acquire(self):
            pass

    for kind in (BaseFileLock, Half):
        with pytest.raises(TypeError, match="abstract"):
            kind(path)


def test_the_hints_of_the_constructor_can_be_read():
    for kind in (FileLock, SoftFileLock):
        assert "poll_interval" in typing.get_type_hints(kind.__init__)


# ---- singletons


def test_a_singleton_is_compared_with_its_options_of_now(path):
    lock = FileLock(path, is_singleton=True, timeout=1)
    lock.timeout = 5
    assert FileLock(path, is_singleton=True, timeout=5) is lock
    with pytest.raises(ValueError, match="timeout"):
        FileLock(path, is_singleton=True, timeout=1)


def test_a_relative_singleton_locks_in_the_folder_of_now(tmp_path, monkeypatch):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    monkeypatch.chdir(one)
    lock = FileLock("a.lock", is_singleton=True)
    monkeypatch.chdir(other)
    with lock:
        assert not flock_is_free(str(other / "a.lock"))
        assert not (one / "a.lock").exists()
    again = FileLock("a.lock", is_singleton=True)
    with again:
        assert not flock_is_free(str(other / "a.lock"))


# ---- what a callback and an error get


def test_a_callback_gets_the_descriptor_at_its_start(path):
    lock = FileLock(path, on_acquired=lambda fd: os.write(fd, b"pid 1\n"))
    for _ in range(6):
        with lock:
            pass
    with open(path) as file:
        assert file.read() == "pid 1\n"


def test_an_async_callback_gets_the_descriptor_at_its_start(path):
    async def use():
        lock = AsyncFileLock(path, on_acquired=lambda fd: os.write(fd, b"pid 1\n"))
        for _ in range(6):
            async with lock:
                pass

    asyncio.run(use())
    with open(path) as file:
        assert file.read() == "pid 1\n"


def test_a_timeouts_text_is_filelocks_and_looks_for_nobody(path, monkeypatch):
    with FileLock(path):
        with pytest.raises(Timeout) as caught:
            FileLock(path).acquire(timeout=0)
        with monkeypatch.context() as patch:
            patch.setattr("lifehold.compat.filelock.native_mechanism.refusal", None)
            assert str(caught.value) == f"The file lock '{path}' could not be acquired."
        assert f"pid {os.getpid()}" in "".join(traceback.format_exception(caught.value))
    caught.value.add_note("mine")
    assert caught.value.__notes__[1:] == ["mine"]


class Narrow(Timeout):
    """A subclass whose constructor takes the path alone."""

    def __init__(self, lock_file):
        super().__init__(lock_file)


def test_a_narrow_subclass_of_a_timeout_is_unpickled():
    error = Narrow("a.lock")
    error._named = "pid 1 on other"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is Narrow
    assert str(again) == str(error)


# ---- beside other code of the program


@pytest.mark.large
def test_kept_descriptors_leave_room_for_the_program(tmp_path):
    script = """
        import resource
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
        from lifehold.compat.filelock import FileLock
        locks = [FileLock(f"{n}.lock") for n in range(100)]
        for _ in range(5):
            for lock in locks:
                with lock:
                    pass
        files = [open("data", "w") for _ in range(32)]
        print(len(files))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "32"), done.stderr


@pytest.mark.large
def test_an_installed_face_does_not_disturb_a_pytest_that_makes_errors_of_warnings(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_it.py").write_text("def test_it():\n    import filelock\n")
    (tmp_path / "sitecustomize.py").write_text(
        'from lifehold.compat import install\n\ninstall("filelock")\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_every_lazy_name_is_there():
    for name in face.LAZY:
        getattr(face, name)


@pytest.mark.parametrize("kind", ["AsyncReadWriteLock", "AsyncSoftReadWriteLock"])
def test_a_call_that_was_refused_says_nothing_more_when_its_object_goes(
    kind, tmp_path, monkeypatch
):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with pytest.raises(TypeError):
        getattr(face, kind)(str(tmp_path / "a.lock"), bogus=1)
    gc.collect()
    assert not told
