"""flock(2) in a helper thread: interrupted at once, and one side owns the outcome (L6)."""

from __future__ import annotations

import errno
import fcntl
import operator
import os
import random
import signal
import threading
import time

import pytest

from ground import needs
from lifehold import Lock, SystemRefused, WouldBlock
from lifehold.runtime import flock_wait, fork
from lifehold.runtime.flock_wait import FlockThread, refused
from lifehold.testing.stage import footprint
from patience import until

pytestmark = needs("linux")


def settled(before):
    """Threads and descriptors are as few as before, once what lets go has ended."""
    until(lambda: all(map(operator.le, footprint(), before)))


class Slot:
    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.closed = 0
        self.generation = fork.here()

    def close(self):
        self.closed += 1
        if self.closed == 1:
            os.close(self.fd)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "build.lock")


@pytest.fixture
def holder(path):
    slot = Slot(path)
    fcntl.flock(slot.fd, fcntl.LOCK_EX)
    yield slot
    slot.close()


def waiting(path, rung=None):
    waiter = FlockThread(Slot(path), fcntl.LOCK_EX, (rung or threading.Event()).set)
    waiter.start()
    return waiter


def test_a_wait_that_is_left_holds_nothing_and_its_thread_ends(path, holder):
    before = footprint()
    for pause in (0, 0, 0.001, 0.01):
        waiter = waiting(path)
        time.sleep(pause)
        began = time.monotonic()
        assert not waiter.leave()
        assert time.monotonic() - began < 30
        assert waiter.slot.closed == 1
    settled(before)
    fcntl.flock(holder.fd, fcntl.LOCK_UN)
    Lock(path).acquire(0).release()


def test_a_lock_that_comes_rings_and_is_the_callers(path, holder):
    rung = threading.Event()
    waiter = waiting(path, rung)
    assert not rung.wait(0.02)
    assert not waiter.over
    fcntl.flock(holder.fd, fcntl.LOCK_UN)
    assert rung.wait(60)
    assert waiter.over
    assert waiter.error == 0
    assert waiter.leave()  # it came first: the slot is ours to close
    assert waiter.slot.closed == 0
    with pytest.raises(WouldBlock):
        Lock(path).acquire(0)
    waiter.undo()
    Lock(path).acquire(0).release()


def test_leave_and_release_at_one_instant_leave_one_owner(path):
    draw, outcomes = random.Random(7), set()
    for _ in range(150):
        held = Slot(path)
        fcntl.flock(held.fd, fcntl.LOCK_EX)
        waiter = waiting(path)
        time.sleep(draw.random() * 0.0004)
        thread = threading.Thread(target=held.close)
        thread.start()
        came = waiter.leave()
        thread.join()
        outcomes.add(came)
        if came:
            with pytest.raises(WouldBlock):
                Lock(path).acquire(0)
            waiter.undo()
        assert waiter.slot.closed == 1
        Lock(path).acquire(0).release()
    assert outcomes


def test_a_kernel_that_does_not_answer_is_left_and_its_late_grant_undone(path, monkeypatch):
    """A dead file server: flock(2) is not interruptible there."""
    let, entered = threading.Event(), threading.Event()

    class Libc:
        alone = False

        def flock(self, fd, operation):
            entered.set()
            let.wait(60)
            return 0

        def get_errno(self):
            return 0

    monkeypatch.setattr(flock_wait, "_arm", Libc)
    waiter = waiting(path)
    entered.wait(60)
    began = time.monotonic()
    assert not waiter.leave()
    assert 0.05 < time.monotonic() - began < 50
    assert waiter.slot.closed == 0  # the thread still works with it
    let.set()
    for _ in range(15_000):
        if waiter.slot.closed:
            break
        time.sleep(0.002)
    assert waiter.slot.closed == 1


def test_an_error_of_flock_is_given_to_the_caller(path, monkeypatch):
    class Libc:
        alone = False

        def flock(self, fd, operation):
            return -1

        def get_errno(self):
            return errno.ENOLCK

    monkeypatch.setattr(flock_wait, "_arm", Libc)
    rung = threading.Event()
    waiter = waiting(path, rung)
    assert rung.wait(60)
    assert refused(waiter).errno == errno.ENOLCK
    assert not waiter.leave()
    assert waiter.slot.closed == 1


def test_the_face_says_why_flock_refused_a_waiter(path, holder, monkeypatch):
    class Libc:
        alone = False

        def flock(self, fd, operation):
            return -1

        def get_errno(self):
            return errno.ENOLCK

    monkeypatch.setattr(flock_wait, "_arm", Libc)
    before = footprint()
    with pytest.raises(SystemRefused, match="no room for locks") as caught:
        Lock(path).acquire(5)
    assert caught.value.errno == errno.ENOLCK
    settled(before)


def test_no_thread_to_be_had_is_an_error_and_nothing_is_held(path, holder, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(flock_wait.native, "start_new_thread", refuse)
    before = footprint()
    with pytest.raises(SystemRefused, match="no thread to wait in"):
        Lock(path).acquire(5)
    settled(before)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
def test_whatever_the_program_does_with_the_signal_a_wait_ends_in_time(path, holder, handler):
    usual = signal.signal(signal.SIGURG, handler)
    try:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            Lock(path).acquire(0.03)
        assert time.monotonic() - began < 30
        if callable(handler):
            assert signal.getsignal(signal.SIGURG) is handler  # it stays
    finally:
        signal.signal(signal.SIGURG, usual or signal.SIG_DFL)


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt, InterruptedError, ValueError])
def test_a_raising_signal_handler_leaves_the_wait_with_nothing_held(path, holder, error):
    def handler(*_):
        raise error("the program's own")

    usual = signal.signal(signal.SIGALRM, handler)
    before = footprint()
    try:
        for _ in range(5):
            with pytest.raises(error) as caught:  # noqa: PT012 - it may come at once
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                Lock(path).acquire(60)
            assert type(caught.value) is error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    settled(before)
    fcntl.flock(holder.fd, fcntl.LOCK_UN)
    Lock(path).acquire(0).release()


def test_waiting_in_flock_is_possible_on_unix_only(monkeypatch):
    assert flock_wait.possible()
    monkeypatch.setattr("sys.platform", "win32")
    assert not flock_wait.possible()
