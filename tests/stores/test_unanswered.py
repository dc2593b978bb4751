"""What no answer came to, and what may come late: nothing is believed that is not so."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import lifehold
from badstore import lock_of, sides_of, state_of, store_of
from crash.bytecodes import every_bytecode
from lifehold.core.acquire import Ask
from lifehold.core.backend import NoReply, Request
from lifehold.core.deadline import terms
from lifehold.lock import fill
from lifehold.runtime.blocking import BLOCKING, finish
from lifehold.runtime.eventloop import EVENT_LOOP
from lifehold.store.engine import StoreLock
from lifehold.store.memory import Memory


def test_a_downgrade_whose_answer_is_lost_is_asked_for_again():
    site, backend, memory = store_of({2: "lost"})
    with sides_of(site).writing() as lease:
        lease.downgrade()
        assert backend.asked == ["acquire", "renew", "renew"]
        assert not lease.exclusive
        assert [held.weight for held in state_of(memory).holders] == [1]
    assert not state_of(memory).holders


@pytest.mark.parametrize("wrong", ["lost", "unsent"])
def test_without_any_answer_to_a_downgrade_the_lease_is_a_readers(wrong):
    site, backend, memory = store_of({2: wrong, 3: wrong})
    lease = sides_of(site).acquire_write()
    with pytest.raises(lifehold.StoreUnavailable, match="counts as a reader's from here on"):
        lease.downgrade()
    assert not lease.exclusive  # another may read by now
    lease.check()
    with pytest.raises(lifehold.InvalidArgument, match="nothing to downgrade"):
        lease.downgrade()
    lease.release()
    assert not state_of(memory).holders
    assert backend.asked[-1] == "release"


def test_nor_is_it_a_writers_where_tasks_asked():
    memory = Memory()
    site, backend, _ = store_of(None, memory)

    async def main():
        async with sides_of(site, tasks=True).writing() as lease:
            backend.wrong = {backend.count + 1: "lost", backend.count + 2: "lost"}
            with pytest.raises(lifehold.StoreUnavailable, match="counts as a reader's"):
                await lease.downgrade()
            assert not lease.exclusive
            with sides_of(store_of(None, memory)[0]).reading(0):
                pass

    asyncio.run(main())
    assert not state_of(memory).holders


def test_a_downgrade_of_what_was_broken_is_a_loss():
    site, backend, _ = store_of()
    lease = sides_of(site).acquire_write()
    site.break_("x", "hung")
    backend.wrong = {3: "lost"}
    with pytest.raises(lifehold.LeaseLost, match="let it go"):
        lease.downgrade()
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


def test_who_asks_again_after_an_undone_try_has_a_new_mark():
    """A late copy of the release of the old one must not end the new grant."""
    site, backend, memory = store_of()
    with lock_of(site):
        pass
    backend.wrong = {3: "lost", 4: "lost"}
    lease = lock_of(site, wait=30).acquire()
    assert backend.asked[2:5] == ["acquire", "acquire", "release"]
    name, undone = backend.given[4]
    assert not finish(memory.release(name, undone))
    lease.verify()
    lease.release()
    assert not state_of(memory).holders


def test_sqlite_lets_who_asks_again_after_an_undone_try_come_in(tmp_path, monkeypatch):
    """It refuses a mark for ever that was given up before it had come."""
    from lifehold.stores import connect

    store = connect(f"sqlite:///{tmp_path}/locks.db")
    with store.lock("x"):
        pass
    backend, tries = store._site.backend, []
    store._site.take_free = None
    acquire = type(backend).acquire

    async def lost(self, request):
        tries.append(request.nonce)
        if len(tries) <= 2:
            raise NoReply("the disk failed while the step was committed")
        return await acquire(self, request)

    monkeypatch.setattr(type(backend), "acquire", lost)
    with store.lock("x", wait=5):
        assert tries[0] == tries[1] != tries[2]


@pytest.mark.parametrize("order", ["break", "bump"])
def test_an_order_without_an_answer_may_have_been_carried_out_and_that_is_said(order):
    site, backend, memory = store_of()
    lease = lock_of(site).acquire()
    backend.wrong = {2: "lost", 3: "unsent"}
    with pytest.raises(lifehold.StoreUnavailable, match="may have been carried out"):
        site.order(order, "x", "hung")
    assert state_of(memory).token > lease.token
    with pytest.raises(lifehold.StoreUnavailable, match="was not reached"):
        site.order(order, "x", "hung")
    backend.wrong = {}
    if order == "break":
        with pytest.raises(lifehold.LeaseLost):
            lease.release()
    else:
        lease.release()


def tasks_lock(site):
    """A lock for tasks."""
    made = StoreLock(site, "x", EVENT_LOOP, terms(30.0))
    lock = object.__new__(lifehold.AsyncLock)
    fill(lock, made.path, made, None, None, None, False)
    return lock


def nobody_is_in(memory):
    until = time.monotonic() + 60
    while state_of(memory).holders or state_of(memory).waiters:
        assert time.monotonic() < until
        time.sleep(0.001)


def let_in_unheard(memory, meanwhile):
    """A store whose lock goes to who asks in line, and the answer is lost, as are two requests."""
    holder = lock_of(store_of(memory=memory)[0]).acquire()
    site, backend, _ = store_of(None, memory)
    acquire = memory.acquire

    async def lost(request):
        if not request.wait:
            return await acquire(request)
        holder.release()
        await acquire(request)
        assert [each.nonce for each in state_of(memory).holders] == [request.nonce]
        backend.wrong = {backend.count + 1: "unsent", backend.count + 2: "unsent"}
        meanwhile()
        raise NoReply("connection reset")

    memory.acquire = lost
    return site, backend


def told_and_undone(caught, backend, memory):
    nobody_is_in(memory)
    assert backend.asked == ["acquire"] * 2 + ["release"] * 3
    assert {nonce for _, nonce in backend.given[2:]} == {caught.value.nonce}


def test_a_wait_that_is_cancelled_between_two_tries_tells_its_doubt_and_is_undone():
    memory, cancel = Memory(), lifehold.Cancel()
    site, backend = let_in_unheard(memory, cancel.cancel)
    with pytest.raises(lifehold.StoreUnavailable, match="treat it as unknown") as caught:
        lock_of(site).acquire(60, cancel=cancel)
    told_and_undone(caught, backend, memory)


def test_so_does_a_wait_whose_patience_ends_between_two_tries():
    memory = Memory()
    patience = 0.05

    def past_the_deadline():
        time.sleep(2 * patience)
        lock._mechanism.now = lambda: 0.0  # the wait saw it coming, the one who waits sees it past

    site, backend = let_in_unheard(memory, past_the_deadline)
    lock = lock_of(site)
    with pytest.raises(lifehold.StoreUnavailable, match="treat it as unknown") as caught:
        lock.acquire(patience)
    told_and_undone(caught, backend, memory)


def test_the_doubt_of_a_first_turn_is_told_when_the_last_request_fails():
    site, _, _ = store_of({1: "unsent"})
    site.reached = True
    ask = Ask("x", 0.0)
    ask.slot = site.waiter()
    ask.slot.doubted = "of the first"
    with pytest.raises(lifehold.StoreUnavailable) as caught:
        finish(StoreLock(site, "x", BLOCKING, terms(30.0)).wait(ask, 0.0))
    assert caught.value.nonce == "of the first"


def test_a_task_that_is_cancelled_between_two_tries_is_undone_until_that_is_confirmed():
    memory = Memory()

    async def main():
        loop = asyncio.get_running_loop()
        site, backend = let_in_unheard(memory, lambda: loop.call_soon_threadsafe(task.cancel))
        task = asyncio.ensure_future(tasks_lock(site).acquire(60))
        with pytest.raises(asyncio.CancelledError):
            await task
        return backend

    backend = asyncio.run(main())
    nobody_is_in(memory)
    assert backend.asked == ["acquire"] * 2 + ["release"] * 3


def test_ctrl_c_while_an_unknown_outcome_is_undone_leaves_nothing():
    site, _, memory = store_of({1: "lost", 2: "lost", 3: "interrupted"})
    with pytest.raises(KeyboardInterrupt):
        lock_of(site, ttl=3600.0).acquire()
    nobody_is_in(memory)


def test_ctrl_c_while_a_place_is_given_up_leaves_no_grant_that_has_just_come():
    site, backend, memory = store_of({2: "interrupted"})
    mechanism = StoreLock(site, "x", BLOCKING, terms(3600.0))
    waiter = site.waiter()
    finish(backend.acquire(Request("x", waiter.nonce, 3600.0, site.owner(""))))  # unasked, heard
    with pytest.raises(KeyboardInterrupt):
        finish(mechanism._too_late(waiter, 0.0))
    nobody_is_in(memory)


def test_what_is_to_be_undone_is_noted_for_good_at_whatever_moment_that_comes(monkeypatch):
    started, wrong, sites, noted = [], [], [], []
    monkeypatch.setattr("lifehold.runtime.heartbeat.apart", started.append)

    def undo_the_first():
        del started[:], sites[:], noted[:]
        site, _, memory = store_of()
        sites.append((site, memory))
        for name in ("first", "second"):
            finish(memory.acquire(Request(name, name, 30.0, site.owner(""))))
        site.undo("first", "first", 30.0)
        started.pop()()

    def note_the_second(_):
        for site, _memory in sites:
            site.undo("second", "second", 30.0)
            noted.append("second")

    for run in every_bytecode(note_the_second, undo_the_first):
        if not noted or "site.py" not in run.where:
            continue  # before it begins, or in the store itself
        for thread in started:
            thread()
        for name in ("first", "second"):
            if state_of(sites[0][1], name).holders:
                wrong.append(f"{run.where}: {name}")
    assert not wrong, "\n".join(wrong)


def test_a_wait_that_is_cancelled_in_doubt_says_that_the_outcome_is_unknown():
    memory, cancel = Memory(), lifehold.Cancel()
    holder = lock_of(store_of(memory=memory)[0]).acquire()
    site, backend, _ = store_of(None, memory)
    told = []

    def wait():
        try:
            lock_of(site).acquire(60, cancel=cancel)
        except lifehold.LifeholdError as error:
            told.append(error)

    backend.wrong = dict.fromkeys(range(2, 10_000), "lost")
    thread = threading.Thread(target=wait)
    thread.start()
    while backend.count < 3:
        time.sleep(0.001)
    cancel.cancel()
    thread.join(90)
    assert isinstance(told[0], lifehold.StoreUnavailable)
    assert told[0].nonce
    holder.release()
