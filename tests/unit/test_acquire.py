"""The wait loop, its notices and its answers, in virtual time."""

from __future__ import annotations

import fcntl
import logging
import os
import time

import pytest

from lifehold import AsyncLock, Backoff, Cancel, Lock, StoreUnavailable, Timeout, registry
from lifehold.core.acquire import Ask, acquire
from lifehold.core.deadline import LONGEST_GAP, terms
from lifehold.core.grant import Grant, Held, Lost, Unknown
from lifehold.runtime.blocking import finish
from lifehold.testing.clock import VirtualRuntime
from lifehold.testing.dict_lock import MemoryLock, MemoryLocks
from lifehold.testing.stage import heard

HOUR = 3600.0
DUE = [2, 6, 14, 30, 62, 122, 182, 242]  # then every LONGEST_GAP
NOTICES = 8 + (HOUR - 243) // LONGEST_GAP  # of an hour


@pytest.fixture
def runtime():
    return VirtualRuntime()


@pytest.fixture
def locks():
    made = MemoryLocks()
    withdraw = registry.offer("in-memory", made.lock)
    yield made
    withdraw()


def ask(runtime, wait, **more):
    return Ask("x", runtime.now() + wait, **more)


def test_an_hour_of_waiting_is_told_at_growing_intervals_in_no_time(runtime):
    locks, told = MemoryLocks(), []
    holder = locks.lock("x", runtime).attempt()
    began = time.process_time()  # what others run meanwhile does not count
    asked = ask(runtime, HOUR, on_wait=lambda said: told.append((said.waited, said.holder)))
    answer = finish(acquire(locks.lock("x", runtime), runtime, asked))
    assert isinstance(answer, Held)
    assert [round(waited) for waited, _ in told[:8]] == DUE
    assert len(told) == NOTICES
    assert all(who.nonce == holder.nonce for _, who in told)
    assert runtime.now() == asked.deadline
    assert time.process_time() - began < 5


def test_a_release_within_the_hour_ends_the_wait(runtime):
    locks = MemoryLocks()
    mechanism, other = locks.lock("x", runtime), locks.lock("x", runtime)
    grant = mechanism.attempt()
    runtime.after(1800, lambda: mechanism.drop(grant))
    began = runtime.now()
    answer = finish(acquire(other, runtime, ask(runtime, HOUR)))
    assert isinstance(answer, Grant)
    assert 1800 <= runtime.now() - began < 1801
    assert answer.token > grant.token


def test_a_lease_that_is_not_renewed_is_taken_over_after_its_ttl(runtime):
    locks = MemoryLocks()
    holder = MemoryLock(locks, "x", runtime, terms=terms(30))
    grant = holder.attempt()
    assert grant.deadline == runtime.now() + 30 - 3  # L8: a tenth before
    for _ in range(3):
        finish(runtime.sleep(20))
        grant = finish(holder.renew(grant))
        assert isinstance(grant, Grant)
    began = runtime.now()
    answer = finish(
        acquire(MemoryLock(locks, "x", runtime, terms=terms(30)), runtime, ask(runtime, HOUR))
    )
    assert 30 <= runtime.now() - began <= 30.25
    assert answer.token > grant.token
    assert holder.check(grant).gone
    assert isinstance(finish(holder.renew(grant)), Lost)
    assert holder.drop(grant).gone


def test_the_kernel_lock_waits_in_virtual_time_too(runtime, tmp_path, caplog):
    class Patient(Lock):
        __slots__ = ()
        _runtime = runtime

    path = tmp_path / "build.lock"
    held = Lock(path).acquire()
    began = runtime.now()
    with caplog.at_level(logging.WARNING, "lifehold"), heard() as told:
        with pytest.raises(Timeout) as caught:
            Patient(path).acquire(HOUR)
        assert round(caught.value.waited) == HOUR
        runtime.after(100, held.release)
        with Patient(path, wait=HOUR) as lease:
            assert lease.token > held.token
    assert runtime.now() - began == HOUR + 100
    assert [round(event.waited) for event in told[:8]] == DUE
    assert len(caplog.records) == NOTICES + 5  # of the 100 s: 2, 6, 14, 30, 62
    assert f"held by pid {os.getpid()}" in caplog.text
    assert "alive: yes, checked now (kernel witness)" in caplog.text


def test_a_cancel_ends_the_virtual_wait_at_once(runtime):
    locks, cancel = MemoryLocks(), Cancel()
    grant = locks.lock("x", runtime).attempt()
    runtime.after(77, cancel.cancel)
    began, asked = runtime.now(), ask(runtime, HOUR, cancel=cancel)
    assert isinstance(finish(acquire(locks.lock("x", runtime), runtime, asked)), Held)
    assert 77 <= runtime.now() - began <= 77.25
    assert grant.handle


def test_pauses_grow_and_never_pass_the_deadline(runtime):
    locks, slept = MemoryLocks(), []
    locks.lock("x", runtime).attempt().handle[0].generation = -1  # for ever
    usual = runtime.sleep

    async def sleep(seconds):
        slept.append(seconds)
        await usual(seconds)

    runtime.sleep = sleep
    steady = Backoff(0.01, 0.5, jitter=0)
    mechanism = MemoryLock(locks, "x", runtime, backoff=steady)
    began = runtime.now()
    finish(acquire(mechanism, runtime, ask(runtime, 1.5)))
    assert slept[:7] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5]
    assert runtime.now() - began == pytest.approx(1.5)


def test_an_unknown_outcome_ends_the_wait_and_is_said(locks):
    locks.broken = ConnectionError("no route")
    with pytest.raises(StoreUnavailable, match="no route") as caught:
        Lock("x", kind="in-memory").acquire()
    nonces = list(locks.place(os.path.abspath("x")).holders)
    assert nonces == [caught.value.nonce]  # by it the outcome can be found again (L6)


def test_an_unknown_outcome_is_said_by_the_async_face(locks):
    import asyncio

    locks.broken = ConnectionError("no route")
    with pytest.raises(StoreUnavailable, match="treat it as unknown"):
        asyncio.run(AsyncLock("x", kind="in-memory").acquire())


def test_an_unknown_release_is_said_and_not_called_a_loss(locks, monkeypatch):
    lease = Lock("x", kind="in-memory").acquire()
    monkeypatch.setattr(
        MemoryLock, "drop", lambda self, grant: Unknown(grant.nonce, OSError("cut"))
    )
    with pytest.raises(StoreUnavailable, match="cut"):
        lease.release()
    assert not lease.lost.is_set()
    monkeypatch.undo()
    locks.lose(lease.path)
    lease._grant.handle.clear()


def test_an_interrupted_wait_leaves_its_place_in_the_queue(runtime, tmp_path):
    left = []

    class Place:
        def leave(self):
            left.append("left")
            return True  # the lock had come first

        def undo(self):
            left.append("undone")

    class Interrupted(MemoryLock):
        async def wait(self, ask, until):
            ask.place = Place()
            raise KeyboardInterrupt

    locks = MemoryLocks()
    kept = locks.lock("x", runtime).attempt()
    with pytest.raises(KeyboardInterrupt):
        finish(acquire(Interrupted(locks, "x", runtime), runtime, ask(runtime, HOUR)))
    assert left == ["left", "undone"]
    assert kept.handle


def test_a_blocking_port_that_suspends_is_an_error_and_not_a_hang():
    class Suspends:
        def __await__(self):
            yield

    async def wrong():
        await Suspends()

    with pytest.raises(RuntimeError, match="not a port"):
        finish(wrong())


def test_appointments_are_kept_in_order_and_can_be_struck(runtime):
    kept = []
    runtime.after(3, lambda: kept.append("c"))
    runtime.after(1, lambda: kept.append("a"))
    strike = runtime.after(2, lambda: kept.append("b"))
    runtime.after(1, lambda: runtime.after(0.5, lambda: kept.append("a+")))
    strike()
    strike()
    finish(runtime.sleep(10))
    assert kept == ["a", "a+", "c"]
    assert finish(runtime.shield(finish_later(7))) == 7
    assert finish(runtime.in_thread(lambda: 8, print)) == 8


async def finish_later(value):
    return value


def test_virtual_time_tries_the_real_flock(runtime, tmp_path):
    path = tmp_path / "a.lock"
    with path.open("w") as foreign:
        fcntl.flock(foreign, fcntl.LOCK_EX)
        runtime.after(9, lambda: fcntl.flock(foreign, fcntl.LOCK_UN))
        mechanism = registry.maker("kernel")(str(path), runtime)
        began = runtime.now()
        answer = finish(acquire(mechanism, runtime, ask(runtime, HOUR)))
        assert runtime.now() - began == 9
        assert isinstance(answer, Grant)
        mechanism.drop(answer)
