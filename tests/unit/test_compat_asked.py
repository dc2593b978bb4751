"""What lifehold.compat.filelock asks of the system and of a subclass, as filelock does."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import threading

import pytest

from ground import needs
from lifehold import Lock
from lifehold.compat.filelock import FileLock, Timeout

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "asked.lock"


@pytest.fixture
def denied(monkeypatch, path):
    """The file is there, and the system lets nobody open it for writing (root could)."""
    path.touch()
    real = os.open

    def refusing(name, flags, mode=0o777, *, dir_fd=None):
        if os.fspath(name) == str(path) and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return real(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    return path


def test_a_file_that_may_only_be_read_is_refused_and_left_unlocked(denied, monkeypatch):
    with pytest.raises(PermissionError) as caught:
        FileLock(denied).acquire()
    assert caught.value.filename == str(denied)
    assert str(denied) in caught.value.__notes__[0]
    monkeypatch.undo()
    with FileLock(denied, timeout=0):
        pass


def test_it_is_refused_too_while_somebody_holds_it(denied):
    with denied.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(PermissionError):
            FileLock(denied).acquire(timeout=0)


def test_a_program_is_locked_for_reading(denied):
    denied.chmod(0o755)
    with FileLock(denied), pytest.raises(Timeout):
        FileLock(denied).acquire(timeout=0)


def test_lifeholds_own_lock_needs_no_right_to_write(tmp_path):
    path = tmp_path / "own.lock"
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o755)
    with Lock(path) as lease:
        assert lease.token is None


def test_what_was_opened_is_looked_at_once(path, monkeypatch):
    with FileLock(path):  # who we are is read once in a process
        pass
    other, seen, real = path.with_name("other.lock"), [], os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: seen.append(fd) or real(fd))
    with FileLock(other) as lock:
        fd = lock._context.lock_file_fd
    assert seen == [fd]


def test_a_decorated_constructor_is_asked_for_what_it_wraps(path):
    def told(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **kwargs)

        return call

    class Narrow(FileLock):
        @told
        def __init__(self, lock_file, timeout=-1):
            super().__init__(lock_file, timeout)

    with Narrow(path, timeout=1) as lock:
        assert lock.timeout == 1
    with pytest.raises(TypeError, match="does not support non-default lock options: mode"):
        Narrow(path, mode=0o600)


def test_a_constructor_that_is_asked_holds_up_no_other(path, monkeypatch):
    import inspect

    asked, go, real = threading.Event(), threading.Event(), inspect.signature

    class One(FileLock):
        pass

    class Other(FileLock):
        pass

    def slow(function, **options):
        if threading.current_thread() is worker:
            asked.set()
            go.wait(90)
        return real(function, **options)

    worker = threading.Thread(target=One, args=(path,))
    monkeypatch.setattr(inspect, "signature", slow)
    worker.start()
    try:
        assert asked.wait(90)
        assert not Other(path).is_locked
    finally:
        go.set()
        worker.join()
