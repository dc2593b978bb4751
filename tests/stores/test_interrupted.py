"""A step, a look or a release that is interrupted, or takes its time, stops nobody else."""

from __future__ import annotations

import asyncio
import atexit
import gc
import subprocess
import sys
import threading
import time

import pytest

import lifehold
from badstore import lock_of, state_of, store_of
from crash.bytecodes import every_bytecode, interrupt
from lifehold.aio import aconnect
from lifehold.core.deadline import terms
from lifehold.lock import Lock, fill
from lifehold.runtime import clock, eventloop, fork, heartbeat, native
from lifehold.runtime.blocking import BLOCKING
from lifehold.runtime.loss import LostSignal
from lifehold.store.engine import StoreLock
from lifehold.store.memory import Memory
from lifehold.store.site import AT_EXIT, Site
from lifehold.stores import connect


def interrupted_store(interruption):
    """A store in memory in the middle of whose next step something happens, once."""
    due = []

    def now():
        if due:
            due.pop()()
        return clock.now()

    memory = Memory(now)
    return Site("memory://", memory, memory), memory, lambda: due.append(interruption)


def in_time(work):
    """Whether `work()` comes to an end, in a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(90)
    return not thread.is_alive()


@pytest.mark.filterwarnings("ignore:lease of .* was dropped:ResourceWarning")
def test_a_lease_that_is_found_to_be_garbage_in_the_middle_of_a_step_is_given_back():
    site, memory, interrupt = interrupted_store(gc.collect)

    def work():
        ring = [lock_of(site, "dropped").acquire()]
        ring.append(ring)
        del ring
        interrupt()
        lock_of(site, "x").acquire().release()

    gc.disable()
    try:
        assert in_time(work)
    finally:
        gc.enable()
    until = time.monotonic() + 60
    while state_of(memory, "dropped").holders:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_signal_handler_that_acquires_in_the_middle_of_a_step_is_refused_and_does_not_hang():
    told = []

    def handler():
        try:
            lock_of(site, "y").acquire(0)
        except lifehold.LifeholdError as error:
            told.append(str(error))

    site, memory, interrupt = interrupted_store(handler)

    def work():
        with lock_of(site, "x"):
            interrupt()
        with lock_of(site, "y", wait=0):
            told.append("held")

    assert in_time(work)
    assert "a signal handler asks in the middle of a step" in told[0]
    assert told[1] == "held"
    assert not state_of(memory).holders


def test_a_store_that_is_closed_in_the_middle_of_a_step_of_the_same_thread_goes_on(tmp_path):
    """By the handler of a signal: what is in use is not closed."""
    store = connect(f"sqlite:///{tmp_path}/locks.db")
    store.inspect("x")

    def work(db):
        store.close()
        return db.execute("SELECT 7").fetchone()

    assert store._site.backend.file.step(work, durable=True) == (7,)
    store.close()
    assert store._site.backend.file._db is None


def test_what_is_undone_behind_is_so_after_an_error_too(monkeypatch):
    """The thread that undoes has ended by an error that nobody knew of."""
    site, backend, memory = store_of()
    failed, told = [], []
    release = backend.release

    async def fails(name, nonce):
        if not failed:
            failed.append(name)
            raise OSError("no such error is foreseen")
        return await release(name, nonce)

    monkeypatch.setattr(heartbeat, "report", told.append)
    backend.release = fails
    lease = lock_of(site, "one").acquire()
    nonce = state_of(memory, "one").holders[0].nonce
    site.undo("one", nonce, 60.0)
    until = time.monotonic() + 60
    while not told:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert failed == ["one"]
    site.undo("two", "of nobody", 60.0)
    while site._undoing:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert not state_of(memory, "one").holders
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


def test_a_program_that_ends_waits_no_longer_for_a_silent_store_than_is_said():
    site, backend, _ = store_of()
    asked = []

    def within(until):
        asked.append(until)
        return backend

    backend.within = within
    leases = [lock_of(site, name).acquire() for name in "ab"]
    atexit.unregister(site._at_exit)
    began = clock.now()
    site._at_exit()
    assert len(asked) == 2
    assert all(began < until <= clock.now() + AT_EXIT for until in asked)
    for lease in leases:
        with pytest.raises(lifehold.LeaseLost):
            lease.release()


def test_who_looks_at_a_lease_while_the_same_thread_tells_its_loss_does_not_wait_for_itself():
    signal = LostSignal(lambda: True)

    def work():
        with fork.gate:  # in the middle of telling
            signal.set("lost")

    assert in_time(work)
    assert signal.is_set()


class SlowToRelease(Memory):
    prompt = False

    def __init__(self):
        super().__init__()
        self.asked, self.may = threading.Event(), threading.Event()

    async def release(self, name, mark):
        self.asked.set()
        self.may.wait(60)
        return await super().release(name, mark)


def held_for(site, max_hold):
    made = StoreLock(site, "x", BLOCKING, terms(30))
    lock = object.__new__(Lock)
    fill(lock, made.path, made, None, None, max_hold, False)
    return lock.acquire()


def beats():
    """Whether the heartbeat thread keeps an appointment."""
    rung = threading.Event()
    heartbeat.at(clock.now(), rung.set)
    return rung.wait(90)


def test_a_store_that_is_slow_at_the_end_of_max_hold_delays_no_renewal():
    memory = SlowToRelease()
    lease = held_for(Site("slow://", memory, memory), 0.01)
    assert memory.asked.wait(90)
    assert beats()
    memory.may.set()
    assert lease.lost.wait(90)
    with pytest.raises(lifehold.LeaseLost, match="max_hold"):
        lease.check()


def test_nor_does_a_callback_that_takes_its_time():
    site, _, memory = store_of()
    called, may = threading.Event(), threading.Event()
    lease = held_for(site, 0.05)
    lease.lost.add_callback(lambda: (called.set(), may.wait(60)))
    assert called.wait(90)
    assert beats()
    may.set()
    assert not state_of(memory).holders
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


def test_a_look_after_max_hold_asks_no_store():
    site, backend, memory = store_of()
    lease = held_for(site, 30.0)
    lease._until = clock.now()  # its alarm has not come to it yet
    asked = backend.count
    with pytest.raises(lifehold.LeaseLost):
        lease.check()
    assert backend.count == asked
    with pytest.raises(lifehold.LeaseLost):
        lease.release()
    assert not state_of(memory).holders


def test_what_is_given_back_at_the_programs_end_is_held_no_more(tmp_path):
    """Another handler of the end may still look at it, and a daemon thread."""
    script = (
        "import atexit, sys; from lifehold import LeaseLost, connect\n"
        "store = connect(sys.argv[1])\n"
        "def later():\n"
        "    try: lease.check()\n"
        "    except LeaseLost as error: print(store.inspect('x'), lease.held, error.reason)\n"
        "atexit.register(later)\n"
        "lease = store.lock('x', ttl=60).acquire()\n"
    )
    url = f"sqlite:///{tmp_path}/locks.db"
    done = subprocess.run(
        [sys.executable, "-c", script, url], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None False given back: its program ends\n"


SHAPES = {
    "lock": lambda store: store.lock("x"),
    "semaphore": lambda store: store.semaphore("x", 2),
    "reading": lambda store: store.read_write("x").reading(),
    "writing": lambda store: store.read_write("x").writing(),
}


def lease_in(block):
    """The handle that is left, None for none."""
    return getattr(block, "_side", block).lease


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    ("shape", "scheme"), [*((each, "memory") for each in SHAPES), ("lock", "sqlite")]
)
def test_an_interrupt_of_a_block_leaves_nothing_or_a_handle(shape, scheme, tmp_path):
    store = connect(f"{scheme}:///{tmp_path}/interrupted-{shape}")
    blocks, wrong = [], []

    def block():
        blocks[:] = [SHAPES[shape](store)]
        with blocks[0]:
            pass

    block()
    gc.collect()
    gc.freeze()  # each interrupt is followed by a collection, which need not look at all of pytest
    for run in every_bytecode(interrupt, block, only_real=True):
        lease = lease_in(blocks[0]) if blocks else None
        end = time.monotonic() + 60
        while seats := store.states("x")[0].holders:  # a thread of its own may be giving it back
            if lease is not None or time.monotonic() > end:
                break
            time.sleep(0.001)
        # At the end of a coroutine CPython looks for no signal, and settrace leaks what it returns.
        if run.where.startswith("blocking.py:None"):
            pass
        elif seats and lease is None:
            wrong.append(f"{run.where}: held without a handle")
        elif seats:
            lease.release()
            if store.states("x")[0].holders:
                wrong.append(f"{run.where}: its handle does not release it")
        run.forget()
        blocks.clear()
        gc.collect()
        store.break_("x", "for the next one")
    assert not wrong, "\n".join(wrong)


def test_without_a_thread_for_a_task_the_limit_is_named_and_nothing_is_held(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/locks.db"

    class NoThreads:
        def __getattr__(self, name):
            return getattr(native, name)

        def start_new_thread(self, *_):
            raise RuntimeError("can't start new thread")

    async def main():
        store = await aconnect(url)
        lease = await store.lock("x").acquire()
        monkeypatch.setattr(eventloop, "native", NoThreads())
        for ask in (lambda: store.lock("y", wait=1).acquire(), lease.release, store.ground):
            with pytest.raises(lifehold.SystemRefused, match="ulimit -u"):
                await ask()

    asyncio.run(main())
    store, until = connect(url), time.monotonic() + 60
    while any(state.holders or state.waiters for state in store.states()):
        assert time.monotonic() < until
        time.sleep(0.001)


def test_of_two_threads_that_take_the_first_leases_both_give_them_back_at_the_end(monkeypatch):
    site, _, memory = store_of()
    lazily, others = fork.lazily, []

    def meanwhile(module):
        if module == "weakref" and not others:
            others.append(None)
            others.append(lock_of(site, "other").acquire())
        return lazily(module)

    monkeypatch.setattr(fork, "lazily", meanwhile)
    mine = lock_of(site, "mine").acquire()
    atexit.unregister(site._at_exit)
    site._at_exit()
    for name, lease in (("mine", mine), ("other", others[1])):
        assert not state_of(memory, name).holders
        with pytest.raises(lifehold.LeaseLost):
            lease.release()
