"""The thread that hears the calls of a distant store (store/listening.py), without a server."""

from __future__ import annotations

import pytest

from lifehold.core.deadline import Backoff
from lifehold.runtime import clock, heartbeat
from lifehold.store import listening

HEARS, FAILS = True, False


class Connections(listening.ListeningThread):
    """One after the other, each of which ends: it had listened, or had not."""

    _prefix = "test:"

    def __init__(self, *each):
        self.left = list(each)
        super().__init__()

    def _serve(self):
        if not self.left:
            return
        if self.left.pop(0):
            self._wake_all(self)
        raise OSError("cut")


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that the thread has made, in the thread of the test."""
    made = []
    monkeypatch.setattr(listening, "AGAIN", Backoff(1, 8, jitter=0))
    monkeypatch.setattr(clock, "pause", made.append)
    monkeypatch.setattr(heartbeat, "thread", lambda keep: None)
    return made


def test_tries_to_connect_start_anew_once_it_had_listened_and_grow_until_then(pauses):
    wakeups = Connections(FAILS, FAILS, FAILS, HEARS, FAILS, HEARS, HEARS)
    wakeups.listen("me", lambda: None)
    wakeups._keep()
    assert pauses == [1, 2, 4, 1, 2, 1, 1]
    assert wakeups.state == "not listening: cut"


def test_each_new_connection_rings_all_who_wait(pauses):
    wakeups, rung = Connections(HEARS, FAILS, HEARS), []
    wakeups.listen("one", lambda: rung.append(1))
    wakeups.listen("two", lambda: rung.append(2))
    wakeups._keep()
    assert rung == [1, 2, 1, 2]


def test_a_thread_that_ends_late_leaves_the_connection_of_the_next_one():
    wakeups, first, second = Connections(), object(), object()
    wakeups._wake_all(first)
    wakeups._wake_all(second)
    wakeups._ended(first)
    assert wakeups._listener is second
    wakeups._ended(second)
    assert wakeups._listener is None


def test_the_thread_stays_a_while_after_its_last_waiter_and_then_ends(
    pauses,
):
    wakeups = Connections()
    wakeups.listen("me", lambda: None)
    assert not wakeups._unwanted(100.0)
    wakeups.forget("me")
    assert not wakeups._unwanted(101.0)
    assert not wakeups._unwanted(101.0 + listening.LINGER)
    wakeups.listen("me", lambda: None)
    assert not wakeups._unwanted(200.0)
    wakeups.forget("me")
    assert not wakeups._unwanted(201.0)
    assert wakeups._unwanted(201.1 + listening.LINGER)
    assert not wakeups._runs


def test_a_lease_that_nobody_wants_any_more_is_given_back_for_a_while(pauses):
    wakeups, undone = Connections(), []
    for nonce in ("now", "late"):
        wakeups.disown(nonce, lambda nonce=nonce: undone.append(nonce))
    wakeups.told("now id 5 0 1.0 2.0")
    wakeups._unwanted(clock.now() + listening.DISOWNED + 1)
    wakeups.told("late id 6 0 1.0 2.0")
    assert undone == ["now"]
