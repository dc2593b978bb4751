"""The one thread that keeps appointments."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lifehold.runtime import heartbeat
from lifehold.runtime.clock import now
from lifehold.testing.stage import footprint


@pytest.fixture
def kept():
    return []


def test_appointments_are_kept_in_the_order_of_their_instants(kept):
    done, start = threading.Event(), now() + 0.02
    heartbeat.at(start + 0.03, lambda: (kept.append("c"), done.set()))
    heartbeat.at(start + 0.01, lambda: kept.append("a"))
    heartbeat.at(start + 0.02, lambda: kept.append("b"))
    assert done.wait(60)
    assert kept == ["a", "b", "c"]
    assert now() >= start + 0.03


def test_what_is_due_at_one_instant_comes_in_the_order_it_was_made(kept):
    done, instant = threading.Event(), now() + 0.02
    for number in range(20):
        heartbeat.at(instant, lambda number=number: kept.append(number))
    heartbeat.at(instant, done.set)
    assert done.wait(60)
    assert kept == list(range(20))


def test_an_instant_in_the_past_is_kept_at_once():
    done = threading.Event()
    heartbeat.at(now() - 100, done.set)
    assert done.wait(60)


def test_a_struck_appointment_is_not_kept_and_may_be_struck_twice(kept):
    done, start = threading.Event(), now()
    strike = heartbeat.at(start + 0.01, lambda: kept.append("struck"))
    heartbeat.at(start + 0.02, done.set)
    strike()
    strike()
    assert done.wait(60)
    strike()
    assert kept == []


def test_an_earlier_appointment_is_not_kept_late():
    early, late = threading.Event(), heartbeat.at(now() + 3600, lambda: None)
    began = now()
    heartbeat.at(began + 0.01, early.set)
    assert early.wait(60)
    assert now() - began < 50
    late()


def test_an_appointment_may_make_the_next_one(kept):
    done = threading.Event()

    def beat():
        kept.append(1)
        if len(kept) == 5:
            done.set()
        else:
            heartbeat.at(now() + 0.001, beat)

    heartbeat.at(now(), beat)
    assert done.wait(60)


def test_the_thread_ends_with_the_last_appointment(monkeypatch):
    monkeypatch.setattr(heartbeat, "_diary", heartbeat._TimerQueue())  # nobody else's appointments
    before = footprint()[0]
    strikes = [heartbeat.at(now() + 60 + number, lambda: None) for number in range(5)]
    for strike in strikes:
        strike()
    for _ in range(15_000):
        if not heartbeat._diary.running and footprint()[0] <= before:
            break
        threading.Event().wait(0.002)
    assert not heartbeat._diary.running
    done = threading.Event()
    heartbeat.at(now(), done.set)
    assert done.wait(60)


def test_many_threads_share_one_heartbeat():
    left, mutex, done = [400], threading.Lock(), threading.Event()

    def tick():
        with mutex:
            left[0] -= 1
            if not left[0]:
                done.set()

    def make(_):
        for number in range(100):
            heartbeat.at(now() + number % 7 * 0.001, tick)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    assert done.wait(60)


@pytest.mark.parametrize("raised", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_an_appointment_that_raises_does_not_end_the_others(monkeypatch, raised):
    done, reported = threading.Event(), []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_value))
    monkeypatch.setattr("threading.excepthook", lambda args: reported.append(args.exc_value))

    def refuse():
        raise raised

    heartbeat.at(now() + 0.01, refuse)
    heartbeat.at(now() + 0.02, done.set)
    assert done.wait(60)
    assert [type(error) for error in reported] == [raised]
