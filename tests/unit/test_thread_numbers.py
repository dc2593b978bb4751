"""The number that an ended thread leaves to the next one makes that one no holder (L9)."""

from __future__ import annotations

import threading
from _thread import get_ident
from contextlib import suppress

import pytest

from lifehold import Lock, NotHeld, SelfDeadlock, WouldBlock


def after_another(first, second):
    """What `second` returns or raises in a thread with the number of the ended one of `first`."""
    numbers, answers = [], []

    def begin():
        numbers.append(get_ident())
        first()

    def go_on():
        if get_ident() == numbers[0]:
            try:
                answers.append(second())
            except Exception as error:
                answers.append(error)

    for work in (begin, *[go_on] * 100):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if answers:
            return answers[0]
    pytest.skip("this system gives no thread the number of another")


@pytest.fixture
def held():
    """The lease of the first thread, released whatever comes."""
    leases = []
    yield leases
    for lease in leases:
        with suppress(NotHeld):
            lease.release()


def test_a_thread_does_not_enter_again_what_an_ended_thread_holds(tmp_path, held):
    lock = Lock(tmp_path / "a.lock", reentrant=True)
    answer = after_another(lambda: held.append(lock.acquire()), lambda: lock.acquire(wait=0))
    assert isinstance(answer, WouldBlock)


def test_a_wait_for_a_lease_of_an_ended_thread_is_no_wait_for_oneself(tmp_path, held):
    lock = Lock(tmp_path / "a.lock")

    def wait():
        threading.Timer(0.2, held[0].release).start()
        return lock.acquire()

    answer = after_another(lambda: held.append(lock.acquire()), wait)
    assert not isinstance(answer, SelfDeadlock)
    answer.release()
