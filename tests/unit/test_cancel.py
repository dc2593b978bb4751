"""The Cancel token: from any thread, at any time, once and for ever."""

from __future__ import annotations

import threading
import time

import pytest

from lifehold import AcquireCancelled, Cancel, Lock
from lifehold.core import events
from lifehold.testing.stage import heard


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "build.lock")


def test_callbacks_are_called_at_cancel_and_at_once_afterwards():
    called, cancel = [], Cancel()
    first, second = (lambda: called.append(1)), (lambda: called.append(2))
    cancel.attach(first)
    cancel.attach(second)
    cancel.detach(second)
    cancel.detach(second)
    assert not cancel.cancelled
    cancel.cancel()
    assert cancel.cancelled
    cancel.attach(second)
    assert called == [1, 2]


def test_a_cancel_ends_the_wait_of_another_thread_at_once(path):
    cancel = Cancel()
    with Lock(path):
        thread_began = time.monotonic()
        threading.Timer(0.03, cancel.cancel).start()
        errors = []

        def wait():
            try:
                Lock(path, cancel=cancel).acquire()
            except AcquireCancelled as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(60)
        assert time.monotonic() - thread_began < 50
    assert errors[0].code == "cancelled"
    assert "the wait was cancelled; it is held" in str(errors[0])
    assert errors[0].holder is not None
    assert not cancel._callbacks


def test_a_token_that_is_cancelled_already_ends_the_wait_before_it_begins(path):
    cancel = Cancel()
    cancel.cancel()
    with Lock(path):
        for wait in (None, 60, 0):
            worker = []

            def ask(wait=wait, worker=worker):
                try:
                    Lock(path).acquire(wait, cancel=cancel)
                except Exception as error:
                    worker.append(type(error).__name__)

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join(60)
            assert worker == ["AcquireCancelled"]


def test_a_free_lock_is_granted_in_spite_of_a_cancelled_token(path):
    cancel = Cancel()
    cancel.cancel()
    Lock(path, cancel=cancel).acquire().release()


def test_a_listener_that_raises_hurts_neither_the_lock_nor_its_neighbours(path, monkeypatch):
    reported = []
    monkeypatch.setattr(
        "sys.unraisablehook", lambda unraisable: reported.append(unraisable.exc_value)
    )
    quiet = events.subscribe(lambda event: 1 / 0)
    try:
        with heard() as told:
            Lock(path).acquire().release()
    finally:
        quiet()
        quiet()  # twice is once
    assert [type(event).__name__ for event in told] == ["Acquired", "Released"]
    assert [type(error) for error in reported] == [ZeroDivisionError] * 2
