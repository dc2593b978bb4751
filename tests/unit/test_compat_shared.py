"""Locks of lifehold.compat.filelock that several threads, or tasks, have in common."""

from __future__ import annotations

import threading
import time

import pytest

from lifehold.compat.filelock import (
    BaseFileLock,
    FileLock,
    SoftFileLock,
    Timeout,
)

PATIENCE = 60  # seconds; an event comes long before


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


def acquiring(lock):
    """A thread that waits for the lock, and has begun to."""
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    while lock._context.hold.moving != "acquire":
        time.sleep(0.001)
    return thread


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", [FileLock, SoftFileLock])
def test_a_release_of_what_is_not_held_leaves_the_waiting_thread_its_lock(path, kind, force):
    shared, back = kind(path, thread_local=False), threading.Event()

    def in_vain():
        try:
            with pytest.raises(Timeout):
                shared.acquire(timeout=0)
        finally:
            shared.release(force)
            back.set()

    with kind(path):
        waiter, other = acquiring(shared), threading.Thread(target=in_vain)
        other.start()
        came = back.wait(PATIENCE)
    waiter.join()
    other.join()
    try:
        assert came, "the release waited for another thread's acquire"
        assert shared.is_locked
        with pytest.raises(Timeout):
            kind(path).acquire(timeout=0)
    finally:
        shared.release()


class Halting(BaseFileLock):
    """A lock whose release stops on its way, until it is told to go on."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.letting_go, self.go_on, self.tried = (threading.Event() for _ in range(3))
        self.free = True

    def _acquire(self):
        self.tried.set()
        if self.free:
            self._context.lock_file_fd = -1

    def _release(self):
        self.letting_go.set()
        assert self.go_on.wait(PATIENCE)
        self._context.lock_file_fd, self.free = None, False


class Gate:
    """The gate of a lock, at which one thread comes late: the next acquire goes before it."""

    def __init__(self, lock, passed):
        self.gate, self.passed, self.came = lock._gate, passed, threading.Event()
        self.release = self.gate.release
        lock._gate = self

    def acquire(self, *given, **options):
        if threading.current_thread().name == "late":
            self.came.set()
            assert self.passed.wait(PATIENCE)
        return self.gate.acquire(*given, **options)


def test_a_release_that_comes_during_another_leaves_the_next_hold_alone(path):
    shared = Halting(path, thread_local=False)
    shared.acquire()
    shared.tried.clear()
    gate = Gate(shared, shared.tried)
    first = threading.Thread(target=shared.release)
    first.start()
    assert shared.letting_go.wait(PATIENCE)
    late = threading.Thread(target=shared.release, name="late")
    late.start()
    assert gate.came.wait(PATIENCE)
    waiter = threading.Thread(target=shared.acquire)
    waiter.start()
    shared.go_on.set()
    first.join()
    late.join(PATIENCE)
    came = not late.is_alive()
    shared.free = True
    waiter.join()
    late.join()
    assert came, "the release waited for another thread's acquire"
    assert shared.lock_counter == 1
    shared.release()
