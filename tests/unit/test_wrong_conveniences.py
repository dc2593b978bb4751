"""Wrong calls of the conveniences and the compat faces: argument, value and cure are named."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import pickle
import socket

import pytest

from ground import needs
from lifehold import (
    AsyncLock,
    InvalidArgument,
    Lock,
    ReadWriteLock,
    Semaphore,
    clear,
    connect,
    lock_all,
    locked_file,
    look,
)
from lifehold.aio import lock_all as lock_all_async
from lifehold.compat import portalocker

pytestmark = needs("linux")
TEMPLATE = "user-{a}.lock"


class Strange:
    def fileno(self):
        return "x"


def entered(*given, **options):
    with locked_file(*given, **options):
        pytest.fail("entered")


def of_open(**options):
    with open("data.txt") as file:
        return Lock.on_file(file, **options)


def wrapped():
    async def coroutine():
        pass

    @functools.wraps(coroutine)
    def plain():
        return coroutine()

    return plain


def of_socket():
    with socket.socket() as end:
        Lock.on_file(end)


def taken(url):
    connect(url).lock("a").acquire(0)


# (the call, what its message names, the cure)
WRONG = [
    (lambda: locked_file("data.txt", "rw"), "mode", "r+"),
    (lambda: locked_file("data.txt", 5), "5", "r+"),
    (lambda: locked_file("data.txt", "w", fsync=False), "fsync=False", "durable=False"),
    (lambda: locked_file("data.txt", "w", exclusive=True), "exclusive=True", "arguments are"),
    (lambda: locked_file("data.txt", "r", timeout=3), "locked_file() takes no timeout=3", "wait=3"),
    (lambda: locked_file("data.txt", "r", wait="5"), "wait", "number of seconds"),
    (lambda: locked_file(None), "path", "str"),
    (lambda: locked_file(3), "path", "int 3"),
    (lambda: locked_file(""), "path", "build.lock"),
    (lambda: entered("data.txt", encoding="klingon"), "klingon", "cannot be opened as text"),
    (lambda: entered("data.txt", newline="x"), "newline", "cannot be opened as text"),
    (lambda: entered("w.txt", "w", encoding="klingon"), "klingon", "cannot be opened as text"),
    (lambda: entered("redis://h/0#x", "w"), "redis://h/0#x", "path without a scheme"),
    (lambda: Lock.on_file(999), "999", "not open"),
    (lambda: Lock.on_file("data.txt"), "data.txt", "locked_file(path)"),
    (lambda: Lock.on_file(Strange()), "fileno()", "'x'"),
    (of_socket, "socket", "lock a regular file"),
    (lambda: of_open(timeout=3), "on_file() takes no timeout=3", "wait=3"),
    (lambda: of_open(kind="soft"), "kind='soft'", "exclusive, max_hold"),
    (lambda: of_open(exclusive="no"), "exclusive", "True or False"),
    (lambda: Semaphore.on_file(5), "Semaphore", "Lock.on_file()"),
    (lambda: Lock("a.lock").attempt(wait=3), "attempt() takes no wait=3", "acquire(wait=SECONDS)"),
    (lambda: Lock("a.lock").try_acquire(timeout=3), "timeout=3", "acquire(wait=SECONDS)"),
    (lambda: Lock.per("x.lock"), "x.lock", "user-{user_id}"),
    (lambda: Lock.per("{a.b}"), "{a.b}", "plain name"),
    (lambda: Lock.per("{a"), "{a", "{{"),
    (lambda: Lock.per(pathlib.Path(TEMPLATE)), "PosixPath", "must be a str"),
    (lambda: Lock.per(TEMPLATE).of(b=1), TEMPLATE, "needs a="),
    (lambda: Lock.per(TEMPLATE).of(a=1.5), "a must be", "give its id"),
    (lambda: Lock.per(TEMPLATE).of(a="x" * 300), "a make a name", "key or a digest"),
    (lambda: Lock.per(TEMPLATE).acquire(), "template", "of(NAME=VALUE)"),
    (lambda: Semaphore.per(TEMPLATE), "permits", "4"),
    (lambda: ReadWriteLock.per(TEMPLATE)(print), "reads or writes", "@that.reading()"),
    (lambda: connect("memory://w").per("{a}", timeout=3), "timeout=3", "wait=3"),
    (lambda: connect("memory://w").semaphore_per("{a}", "4"), "permits", "'4'"),
    (lambda: connect("/var/lib/x"), "/var/lib/x", "file:///var/lib/jobs"),
    (lambda: connect("mongodb://h/x"), "mongodb", "redis"),
    (lambda: connect("file:///tmp/q", poll_interval=3), "poll_interval=3", "leave it out"),
    (lambda: connect("memory://w#n"), "#", "lock()"),
    (lambda: Lock("a.lock", singleton="no"), "singleton", "not str 'no'"),
    (lambda: Lock("a.lock", singleton=None), "singleton", "True or False"),
    (lambda: ReadWriteLock("a.lock", singleton=1), "singleton", "True or False"),
    (lambda: Lock.per("{a}.lock").of(a=10**5000), "a is too long", "4300"),
    (lambda: Lock.per("{self}.lock").of(self=object()), "self must be", "give its id"),
    (lambda: ReadWriteLock.per(TEMPLATE).reading(timeout=3), "reading() takes no", "wait=3"),
    (lambda: ReadWriteLock.per(TEMPLATE).writing("3"), "wait", "not str '3'"),
    (lambda: ReadWriteLock("a.lock").try_acquire(), "ReadWriteLock", "try_acquire_write()"),
    (lambda: ReadWriteLock("a.lock").acquire(), "ReadWriteLock", "acquire_read()"),
    (lambda: ReadWriteLock("a.lock").try_acquire_read(blocking=False), "blocking=False", "one try"),
    (lambda: ReadWriteLock("a.lock").attempt_write(timeout=3), "timeout=3", "one try"),
    (lambda: lock_all(["a.lock"]).acquire(timeout=3), "acquire() takes no timeout=3", "wait=3"),
    (lambda: lock_all(["a.lock"]).acquire(blocking=False), "blocking=False", "try_acquire()"),
    (lambda: lock_all(["a.lock"]).try_acquire(wait=3), "try_acquire() takes no wait=3", "one try"),
    (lambda: lock_all(["a.lock"]).attempt(wait=3), "attempt() takes no wait=3", "one try"),
    (lambda: lock_all_async(["a.lock"]).attempt(wait=3), "attempt() takes no wait=3", "one try"),
    (lambda: pickle.dumps(of_open()), "open in this process", "hand on the path"),
    (lambda: AsyncLock("a.lock")(wrapped()), "'coroutine'", "below the decorator that wraps it"),
    (lambda: clear("a.lock", force=True), "force=True", "lifehold clear --force"),
    (lambda: look(None), "path", "str"),
    (lambda: clear("data.txt", dry_run="no"), "dry_run", "True or False"),
    (lambda: portalocker.Lock("data.txt", timeout="5").acquire(), "timeout", "str '5'"),
    (lambda: portalocker.lock("data.txt", portalocker.LOCK_EX), "data.txt", "Lock(path)"),
]  # fmt: skip
REDIS = [
    (lambda: taken("redis://h/x"), "redis://h/x", "a database is a number"),
    (lambda: taken("redis://h:99999/0"), "99999", "Port out of range"),
    (lambda: taken("unix://"), "unix://", "unix:///run/redis.sock"),
    (lambda: taken("redis://h/0?foo=1"), "foo", "no such option"),
    (lambda: taken("redis://h/0?socket_timeout=abc"), "abc", "seconds from 0.05"),
]


@pytest.mark.parametrize("number", range(len(WRONG) + len(REDIS)))
def test_a_wrong_call_is_told_by_argument_value_and_cure(number, tmp_path, monkeypatch):
    if number >= len(WRONG) and importlib.util.find_spec("redis") is None:
        pytest.skip("redis is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("kept")
    call, names, cure = [*WRONG, *REDIS][number]
    with pytest.raises((InvalidArgument, TypeError)) as caught:
        call()
    assert names in str(caught.value)
    assert cure in str(caught.value)
    assert (tmp_path / "data.txt").read_text() == "kept"
    assert not Lock("data.txt.lock").locked()


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_cannot_be_opened_as_text_is_closed_once(mode, tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("kept")
    failed = []
    real = os.close

    def close(fd):
        try:
            real(fd)
        except OSError as error:
            failed.append(error)
            raise

    monkeypatch.setattr(os, "close", close)
    with pytest.raises(InvalidArgument, match="klingon"):
        entered(path, mode, encoding="klingon")
    assert not failed
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".lock"] == ["data.txt"]


@pytest.mark.parametrize("what", ["a folder", "read only"])
def test_a_folder_and_a_descriptor_for_reading_alone_are_locked(what, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("kept")
    fd = os.open(tmp_path if what == "a folder" else path, os.O_RDONLY)
    try:
        with Lock.on_file(fd) as lease:
            assert lease.held
            other = os.open(tmp_path if what == "a folder" else path, os.O_RDONLY)
            try:
                assert Lock.on_file(other).try_acquire() is None
            finally:
                os.close(other)
    finally:
        os.close(fd)
