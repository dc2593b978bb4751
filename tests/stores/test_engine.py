"""The engine over a store that loses requests and answers, in turn, at every request."""

from __future__ import annotations

import gc
import threading
import time

import pytest

import lifehold
from badstore import lock_of, state_of, store_of
from lifehold.core import events, explain
from lifehold.core.backend import NoReply, Order, Request, Unreachable
from lifehold.core.deadline import terms
from lifehold.core.grant import Lost
from lifehold.lock import Lock, fill
from lifehold.runtime.blocking import BLOCKING, finish
from lifehold.store.engine import StoreLock
from lifehold.store.memory import Memory
from patience import until


def test_acquire_and_release_are_one_request_each():
    site, backend, _ = store_of()
    with lock_of(site):
        assert backend.asked == ["acquire"]
    assert backend.asked == ["acquire", "release"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_lost_answer_is_found_again(number):
    site, backend, memory = store_of({number: "lost"})
    with lock_of(site) as lease:
        assert len(state_of(memory).holders) == 1
        assert state_of(memory).token == lease.token
    assert not state_of(memory).holders
    assert backend.count == 3


def test_two_lost_answers_leave_nothing_held():
    site, backend, memory = store_of({1: "lost", 2: "lost"})
    with pytest.raises(lifehold.StoreUnavailable, match="gave no answer"):
        lock_of(site).acquire()
    assert backend.asked == ["acquire", "acquire", "release"]
    assert not state_of(memory).holders


def test_when_even_the_undoing_gets_no_answer_the_outcome_is_said_to_be_unknown():
    site, _, _ = store_of({"all": "lost"})
    with pytest.raises(lifehold.StoreUnavailable, match="treat it as unknown") as caught:
        lock_of(site).acquire()
    assert caught.value.nonce


def test_a_store_that_is_not_reached_is_said_at_once_and_by_url():
    site, backend, _ = store_of({"all": "unsent"})
    with pytest.raises(lifehold.StoreUnavailable, match=r"test:// was not reached.*no route"):
        lock_of(site, wait=60).acquire()
    assert backend.count == 1


@pytest.mark.parametrize("number", range(2, 6))
@pytest.mark.parametrize("wrong", ["lost", "unsent"])
def test_whatever_fails_in_a_wait_the_waiter_comes_in_and_nothing_stays(number, wrong):
    memory = Memory()
    holder = lock_of(store_of(memory=memory)[0]).acquire()
    site, backend, _ = store_of({number: wrong}, memory)
    got = []

    def wait():
        with lock_of(site, wait=30) as lease:
            got.append(lease.token)

    thread = threading.Thread(target=wait)
    thread.start()
    while not state_of(memory).waiters and backend.count < 2:
        time.sleep(0.001)
    holder.release()
    thread.join(90)
    assert got[0] > holder.token
    found = state_of(memory)
    assert not found.holders
    assert not found.waiters


@pytest.mark.parametrize("wrong", ["lost", "unsent"])
def test_a_store_that_is_away_for_a_moment_is_asked_again_by_who_has_patience(wrong):
    site, backend, memory = store_of()
    with lock_of(site):
        pass
    backend.wrong = dict.fromkeys(range(3, 7), wrong)
    with pytest.raises(lifehold.StoreUnavailable):
        lock_of(site, wait=0).acquire()
    with lock_of(site, wait=60) as lease:
        assert state_of(memory).holders[0].token == lease.token
    assert not state_of(memory).waiters


def test_who_waits_is_told_that_the_store_is_away_or_that_others_come_first():
    site, backend, memory = store_of()
    held = lock_of(site).acquire()
    lock = lock_of(site)
    backend.wrong["all"] = "unsent"
    assert lock._mechanism.attempt().cause is not None
    told = explain.waiting_text("x", lock._mechanism.inspect(held=True), 2.0, 0.0)
    assert "the store does not answer (no route)" in told
    assert lock._mechanism.waiters() is None
    backend.wrong.clear()
    finish(memory.acquire(request_of(held, "one who waits")))
    held.release()
    lock._mechanism.attempt()
    told = explain.waiting_text("x", lock._mechanism.inspect(held=True), 2.0, 0.0)
    assert "kept for one who has waited longer" in told


def request_of(lease, mark):
    """The request of another, who stands in line."""
    mechanism = lease._lock._mechanism
    return Request("x", mark, 30.0, mechanism.site.owner(""), wait=True)


def test_a_wait_that_ends_in_doubt_is_undone():
    memory = Memory()
    holder = lock_of(store_of(memory=memory)[0], ttl=1).acquire()
    site, backend, _ = store_of(None, memory)
    lock = lock_of(site, wait=0.3)
    backend.wrong = dict.fromkeys(range(2, 100), "lost")
    with pytest.raises(lifehold.StoreUnavailable):
        lock.acquire()
    holder.release()
    until(lambda: not state_of(memory).waiters and not state_of(memory).holders)


def test_a_timeout_names_the_holder_and_leaves_the_line():
    site, backend, memory = store_of()
    with lock_of(site) as lease:
        with pytest.raises(lifehold.Timeout, match="it is held") as caught:
            lock_of(site, wait=0.05).acquire()
        assert caught.value.holder.token == lease.token
        assert not state_of(memory).waiters
    assert backend.asked[-1] == "release"


def test_a_release_whose_answer_is_lost_is_confirmed_by_asking_again():
    site, _, memory = store_of({2: "lost"})
    lease = lock_of(site).acquire()
    lease.release()
    assert not state_of(memory).holders


def test_a_release_that_cannot_be_confirmed_says_so():
    site, _, _ = store_of({2: "unsent", 3: "unsent"})
    lease = lock_of(site).acquire()
    with pytest.raises(lifehold.StoreUnavailable, match="may be held in our name still"):
        lease.release()


def test_a_broken_holder_is_told_by_verify_and_by_release():
    site, _, memory = store_of()
    lease = lock_of(site).acquire()
    assert site.break_("x", "hung").token == lease.token
    lease.check()  # no I/O: it cannot know
    with pytest.raises(lifehold.LeaseLost, match="let it go"):
        lease.verify()
    with pytest.raises(lifehold.LeaseLost):
        lease.check()
    with pytest.raises(lifehold.LeaseLost):
        lease.release()
    assert state_of(memory).token > lease.token


@pytest.mark.parametrize("tasks", [False, True], ids=["thread", "task"])
def test_a_lost_lease_is_told_by_release_though_the_first_try_was_not_sent(tasks):
    site, _, memory = store_of({2: "unsent"})
    site.take_free = site.leave_free = None
    lock = StoreLock(site, "x", BLOCKING, terms(30.0))
    grant = lock.attempt()
    finish(memory.order(Order("break", "x", "hung", "somebody")))
    told = finish(lock.release(grant)) if tasks else lock.drop(grant)
    assert isinstance(told, Lost)


@pytest.mark.parametrize("kind", [Unreachable, NoReply])
def test_what_the_one_statement_of_a_release_may_have_done_is_no_loss(kind):
    site, backend, memory = store_of()
    site.take_free = None
    lock = StoreLock(site, "x", BLOCKING, terms(30.0))
    grant = lock.attempt()

    def leave_free(name, nonce):
        finish(memory.release(name, nonce))  # a step of our own, or of one who broke it
        raise kind("an input/output error")

    site.leave_free = leave_free
    told = lock.drop(grant)
    assert backend.asked[-1] == "release"
    assert told is None if kind is NoReply else isinstance(told, Lost)


def test_verify_without_an_answer_says_that_the_lease_may_hold_still():
    site, backend, _ = store_of()
    lease = lock_of(site).acquire()
    backend.wrong["all"] = "unsent"
    with pytest.raises(lifehold.StoreUnavailable, match="s left") as caught:
        lease.verify()
    assert "no route" in str(caught.value.__cause__)
    backend.wrong.clear()
    lease.verify()
    lease.release()


def test_a_store_that_hangs_suspends_the_lease_and_the_first_check_after_it_asks_behind():
    site, backend, _ = store_of()
    told = []
    stop = events.subscribe(told.append)
    try:
        lease = lock_of(site, ttl=0.9).acquire()
        backend.wrong["all"] = "unsent"
        until = time.monotonic() + 60
        while not any(isinstance(one, events.Suspended) for one in told):
            assert time.monotonic() < until
            time.sleep(0.005)
        backend.wrong.clear()
        asked = backend.count
        try:
            lease.check()
            while backend.count == asked:
                assert time.monotonic() < until
                time.sleep(0.005)
            lease.release()
        except lifehold.LeaseLost:  # a machine so slow that the ttl has passed meanwhile
            assert lease.remaining() == 0
    finally:
        stop()


def _drop(drop):
    drop.clear()
    gc.collect()


def test_a_dropped_lease_is_given_back():
    site, _, memory = store_of()
    lease = lock_of(site).acquire()
    drop = [lease]
    del lease
    with pytest.warns(ResourceWarning, match="dropped"):
        _drop(drop)
    assert not state_of(memory).holders


def test_max_hold_frees_it_at_the_store():
    site, _, memory = store_of()
    made = StoreLock(site, "x", BLOCKING, terms(30))
    lock = object.__new__(Lock)
    fill(lock, made.path, made, None, None, 0.05, False)
    lease = lock.acquire()
    assert lease.lost.wait(90)
    assert not state_of(memory).holders
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


def test_a_thousand_leases_are_renewed_in_one_request():
    site, backend, _ = store_of()
    leases = [lock_of(site, f"n{number}", ttl=60).acquire() for number in range(2500)]
    chunk = [(lease._lock._mechanism, lease._grant) for lease in leases]
    for mechanism, _ in chunk:
        assert mechanism.joint is site.joint
    asked = backend.asked.count("renew")
    site.joint._works = True  # so that all wait for the one worker
    for (mechanism, _), lease in zip(chunk, leases, strict=True):
        site.joint.add(mechanism, lease._kept)
    site.joint._work()
    assert backend.asked.count("renew") - asked == 3
    assert all(lease.renewals == 1 for lease in leases)
    for lease in leases:
        lease.release()


def test_leases_taken_one_after_another_are_soon_renewed_together():
    site, backend, _ = store_of()
    leases = []
    for number in range(40):
        leases.append(lock_of(site, f"n{number}", ttl=3.0).acquire())
        time.sleep(0.005)
    until = time.monotonic() + 60
    while not all(lease.renewals >= 2 for lease in leases):
        assert time.monotonic() < until
        time.sleep(0.01)
    renewed = sum(lease.renewals for lease in leases)
    assert backend.asked.count("renew") < renewed / 4
    for lease in leases:
        lease.check()
        lease.release()
    assert not site.joint._all


def test_who_waits_for_a_loss_that_another_thread_is_just_telling_is_told_too():
    site, _, _ = store_of()
    lease = lock_of(site).acquire()
    lease._kept.reason, lease._kept.over = "its ttl has passed", True  # and not told yet
    assert lease.lost.wait(90)
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_goes_wrong_with_one_lease_of_a_store_keeps_no_other_from_being_renewed(monkeypatch):
    site, backend, _ = store_of()
    leases = [lock_of(site, name, ttl=60).acquire() for name in "abc"]

    def no_thread(kept, at):
        if kept is leases[0]._kept:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(type(leases[0]._kept), "again", no_thread)

    def due():
        for lease in leases:
            site.joint.add(lease._lock._mechanism, lease._kept)

    due()
    monkeypatch.setattr(backend, "given", None)  # a bug of a backend, beside all its answers
    due()
    monkeypatch.setattr(backend, "given", [])
    monkeypatch.setattr(type(site.joint), "_join", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        due()
    monkeypatch.undo()
    due()
    assert all(lease.renewals > 1 for lease in leases)
    for lease in leases:
        lease.release()
