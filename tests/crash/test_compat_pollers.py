"""Beside programs that poll a lock file: each side gets its turns, and nobody else pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ground import needs
from lifehold.compat.filelock import (
    FileLock,
    ReadWriteLock,
    SoftFileLock,
    SoftReadWriteLock,
    StrictSoftFileLock,
    pollers,
    strict_claims,
)
from lifehold.runtime import watch_table

# Another program: a line in, one thing done, a line out.
OTHER = """
import fcntl, os, sqlite3, sys
path = sys.argv[1]
held = None
def claimed(state):
    return f"{path}.filelock/claims/{state}-v1-{'5' * 32}.claim"
for line in sys.stdin:
    word = line.strip()
    if word == "look":
        os.close(os.open(path, os.O_RDWR))
    elif word == "take":
        held = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_EX)
    elif word == "leave":
        os.close(held)
    elif word == "make":
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, f"{os.getpid()}\\n{os.uname().nodename}\\n".encode())
        os.close(fd)
    elif word == "remove":
        os.unlink(path)
    elif word == "claim":
        host = os.uname().nodename.encode().hex()
        with open(f"{path}.new", "w") as file:
            file.write(f"filelock-strict-v1\\n{'5' * 32}\\n{os.getpid()}\\n{host}\\n\\n")
        os.rename(f"{path}.new", claimed("intent"))  # it is whole as soon as it is there
        os.link(claimed("intent"), claimed("held"))
    elif word == "withdraw":
        os.unlink(claimed("held"))
        os.unlink(claimed("intent"))
    elif word == "begin":
        held = sqlite3.connect(path, isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
    elif word == "rollback":
        held.close()
    elif word == "write":
        import filelock, threading
        held = filelock.SoftReadWriteLock(path, is_singleton=False, poll_interval=0.02)
        held.acquire_write()
    elif word == "release":
        held.release(force=True)  # of another thread
    elif word == "wait":
        waits = threading.Thread(target=held.acquire_write)
        waits.start()
    elif word == "come in":
        waits.join()
    print("done", flush=True)
"""


class Other:
    """A process that uses the file as filelock does, step by step."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OTHER, path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def does(self, word: str) -> None:
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


@pytest.fixture
def other(path):
    made = Other(path)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def nobody_expected(monkeypatch):
    monkeypatch.setattr(pollers, "QUIET", 300.0)
    monkeypatch.setattr(pollers, "WINDOW", 300.0)
    for path in list(pollers.expected):  # of other tests in this process
        pollers.forget(path)
    yield
    for path in list(pollers.expected):
        pollers.forget(path)


def behind(lock, other, take: str, leave: str) -> None:
    """One acquire of ours that waits behind the other program."""
    other.does(take)
    taken = threading.Thread(target=lambda: (acquire(lock), lock.release()))
    taken.start()
    while not pollers.expected:
        taken.join(0.005)
    other.does(leave)
    taken.join()
    pollers.expected[lock.lock_file].asked()()  # our own opens of that wait are behind us


def acquire(lock) -> None:
    (getattr(lock, "acquire_write", None) or lock.acquire)()


class Acquire:
    """An acquire and release of ours in a thread."""

    def __init__(self, lock) -> None:
        self.got = threading.Event()
        self._thread = threading.Thread(
            target=lambda: (acquire(lock), self.got.set(), lock.release())
        )
        self._thread.start()

    def waits(self) -> bool:
        """Whether it has not got it yet. Fails when it never will."""
        assert self.got.is_set() or self._thread.is_alive()
        return not self.got.is_set()

    def join(self) -> None:
        self._thread.join()


def test_an_acquire_lets_a_polling_program_look_once(path, other):
    lock = FileLock(path)
    behind(lock, other, "take", "leave")
    other.does("look")  # while somebody else could hold the lock: no turn yet
    got = threading.Event()
    ours = threading.Thread(target=lambda: (lock.acquire(), got.set(), lock.release()))
    ours.start()
    assert not got.wait(0.3)  # it leaves the lock to the program that polls
    other.does("look")
    ours.join()
    assert got.is_set()


def test_a_soft_lock_is_left_to_a_program_that_has_just_held_it(path, other):
    lock = SoftFileLock(path)
    behind(lock, other, "make", "remove")
    got = threading.Event()
    ours = threading.Thread(target=lambda: (lock.acquire(), got.set(), lock.release()))
    ours.start()
    assert not got.wait(0.3)
    while not got.is_set():  # ours asks every few milliseconds, and may miss a short hold
        other.does("make")
        got.wait(0.1)
        other.does("remove")
        got.wait(0.1)
    ours.join()


def test_who_was_kept_waiting_for_long_has_as_much_time_of_its_own(path, other, monkeypatch):
    monkeypatch.setattr(pollers, "FREE", 300.0)
    lock = SoftFileLock(path)
    other.does("make")
    ours = Acquire(lock)
    while path not in pollers.expected:  # from here on it waits behind the other program
        ours.got.wait(0.005)
    assert not ours.got.wait(0.3)
    monkeypatch.setattr(pollers, "WINDOW", 0.1)  # which is less than it has waited
    other.does("remove")
    ours.join()
    found = pollers.expected[path]
    monkeypatch.setattr(pollers, "WINDOW", 300.0)
    assert found.free_until > found.since
    found.free_until += 300.0
    assert not found.due()
    with lock:  # at once
        pass
    found.free_until = 0.0
    assert found.due()


def test_a_strict_lock_is_left_to_a_program_that_has_just_held_it(path, other):
    lock = StrictSoftFileLock(path)
    with lock:  # its folders are there now
        pass
    behind(lock, other, "claim", "withdraw")
    ours = Acquire(lock)
    assert not ours.got.wait(0.3)
    while ours.waits():
        other.does("claim")
        ours.got.wait(0.1)
        other.does("withdraw")
        ours.got.wait(0.1)
    ours.join()


def test_a_strict_lock_of_ours_alone_expects_nobody(path):
    one = StrictSoftFileLock(path, thread_local=False)
    another = StrictSoftFileLock(path, thread_local=False)
    one.acquire()
    ours = Acquire(another)
    assert not ours.got.wait(0.2)
    one.release()
    ours.join()
    assert not pollers.expected


def test_a_claim_of_ours_is_told_from_another_programs():
    tokens = {strict_claims.new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert strict_claims.parts_of(strict_claims.claim_name("held", token)) == ("held", token)
        assert strict_claims.is_of_ours(token)
        assert not strict_claims.is_of_ours(token[::-1])
    assert not strict_claims.is_of_ours("5" * 32)


def test_a_database_is_left_to_a_program_that_has_just_opened_it(path, other):
    lock = ReadWriteLock(path, is_singleton=False)
    behind(lock, other, "begin", "rollback")
    other.does("look")  # while somebody else could hold the lock: no turn yet
    ours = Acquire(lock)
    assert not ours.got.wait(0.3)
    other.does("look")
    ours.join()
    assert ours.got.is_set()


def test_a_database_of_ours_alone_expects_nobody(path):
    one, another = (ReadWriteLock(path, is_singleton=False) for _ in range(2))
    for _ in range(4):
        one.acquire_write()
        ours = Acquire(another)
        while path not in pollers.expected:
            ours.got.wait(0.005)
        one.release()
        ours.join()
        assert not pollers.expected[path].due()


@needs("filelock 4")
def test_a_soft_reader_writer_lock_is_left_to_a_program_that_waits_for_it(path, other):
    lock = SoftReadWriteLock(path, is_singleton=False)
    behind(lock, other, "write", "release")
    lock.acquire_write()  # nobody waits: no turn
    other.does("wait")
    while pollers.expected[path].asked()():
        pass  # until its record is there
    lock.release()
    ours = Acquire(lock)  # it comes back at once
    other.does("come in")
    assert not ours.got.is_set()
    other.does("release")
    ours.join()


@needs("filelock 4")
def test_who_waits_for_a_soft_reader_writer_lock_is_not_forgotten(path, other, monkeypatch):
    lock = SoftReadWriteLock(path, is_singleton=False)
    behind(lock, other, "write", "release")
    found = pollers.expected[path]
    lock.acquire_write()
    other.does("wait")
    while found.asked()():
        pass  # until its record is there
    monkeypatch.setattr(pollers, "QUIET", 0.0)
    assert not found.over()
    monkeypatch.setattr(pollers, "QUIET", 1.0)
    found.since -= 2.0  # it has had no turn for so long
    assert found.due()
    lock.release()
    other.does("come in")
    other.does("release")
    monkeypatch.setattr(pollers, "QUIET", 0.0)
    assert found.over()


@needs("filelock 4")
def test_each_side_of_a_soft_reader_writer_lock_has_as_many_turns(path, other):
    lock = SoftReadWriteLock(path, is_singleton=False)
    behind(lock, other, "write", "release")
    found = pollers.expected[path]
    found.free_until = found.since + 1e6
    assert found.due()  # one of theirs, one of ours
    for token in "abcb":
        found.saw(token)
    found.came()
    found.free_until = found.since + 1e6
    assert [found.due() for _ in range(3)] == [False, False, True]


def test_a_soft_reader_writer_lock_of_ours_alone_expects_nobody(path):
    one, another = (SoftReadWriteLock(path, is_singleton=False) for _ in range(2))
    one.acquire_write()
    ours = Acquire(another)
    assert not ours.got.wait(0.2)
    one.release()
    ours.join()
    assert not pollers.expected


def test_a_caller_without_patience_does_not_wait_for_a_poller(path, other):
    lock = FileLock(path)
    behind(lock, other, "take", "leave")
    other.does("look")
    with lock.acquire(blocking=False):
        pass
    with lock.acquire(timeout=0):
        pass
    with lock.acquire(timeout=0.05):
        pass


def test_nobody_is_expected_any_more_when_nobody_has_looked(path, other, monkeypatch):
    lock = FileLock(path)
    behind(lock, other, "take", "leave")
    assert path in pollers.expected
    monkeypatch.setattr(pollers, "QUIET", 0.0)
    with lock:
        pass
    assert not pollers.expected


def test_ours_alone_expect_nobody(path):
    """Two objects of ours that contend are no reason to leave the lock alone."""
    one, another = FileLock(path, thread_local=False), FileLock(path, thread_local=False)
    for _ in range(3):
        one.acquire()
        waiting = threading.Thread(target=another.acquire)
        waiting.start()
        while path not in pollers.expected:
            waiting.join(0.005)
        one.release()
        waiting.join()
        assert not pollers.expected[path].due()
        another.release()


def test_a_forked_child_expects_nobody(path, other):
    lock = FileLock(path)
    behind(lock, other, "take", "leave")
    pid = os.fork()
    if not pid:
        os._exit(1 if pollers.expected else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pollers.expected


def test_a_watch_that_is_forgotten_while_another_thread_reads_it_is_closed_behind_that(path):
    """Its number could be another descriptor's by then: what that one has to tell would be lost."""
    Path(path).touch()
    watch = pollers.OpenWatch(path, 1.0)
    inotify, told = watch._opens, []
    read, fd = inotify.read, inotify.fd

    def meanwhile():
        watch.close()
        told.append(watch_table.is_ours(fd, "inotify"))  # not yet
        return read()

    inotify.read = meanwhile
    assert watch.looked() is False
    assert told == [True]
    assert not watch_table.is_ours(fd, "inotify")
    assert watch.looked() is False  # and who comes later reads nothing


def test_threads_that_begin_to_wait_forget_what_is_over_together(tmp_path, monkeypatch):
    """Several find at once that nobody polls a file any more, and each closes its watch."""
    monkeypatch.setattr(pollers, "QUIET", 0.0)
    errors = []

    def begin(number):
        try:
            for turn in range(300):
                name = str(tmp_path / f"{number}.{turn % 5}")
                Path(name).touch()
                pollers.expect(name)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in list(pollers.expected):
        pollers.forget(name)
    assert errors == []
