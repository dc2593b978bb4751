"""Semaphore and AsyncSemaphore: what a program sees of them."""

from __future__ import annotations

import asyncio
import fcntl
import operator
import os
import threading
import time
from pathlib import Path

import pytest

import lifehold
from lifehold import AsyncSemaphore, Lock, ReadWriteLock, Semaphore, Timeout, WouldBlock


def in_thread(call):
    """What `call` answers or raises in another thread."""
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found, "the thread hangs"
    return found[0]


def counts():
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "gpu.lock")


def test_each_holder_has_a_slot_of_its_own_and_one_too_many_is_refused(path):
    gate = Semaphore(path, 3)
    leases = [gate.acquire(0) for _ in range(3)]
    assert sorted(lease.slot for lease in leases) == [0, 1, 2]
    assert {lease.fences for lease in leases} == {f"{path}#{n}" for n in range(3)}
    with pytest.raises(lifehold.WouldBlock, match="--slots 0,1,2 "):
        Semaphore(path, 3).acquire(0)
    leases[1].release()
    again = gate.acquire(0)
    assert again.slot == leases[1].slot
    assert again.token > leases[1].token
    for lease in (leases[0], again, leases[2]):
        lease.release()


def test_the_token_of_a_slot_only_grows(path):
    gate, last = Semaphore(path, 2), {}
    for _ in range(20):
        with gate as one, gate as other:
            for lease in (one, other):
                assert lease.token > last.get(lease.slot, 0)
                last[lease.slot] = lease.token
    assert set(last) == {0, 1}


def test_who_waits_is_served_in_order_and_a_newcomer_does_not_pass(path):
    gate, served, standing = Semaphore(path, 2), [], []
    first, second = gate.acquire(), gate.acquire()

    def wait(number):
        with Semaphore(path, 2) as lease:
            served.append(number)
            assert lease.slot in (0, 1)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
        standing.append(thread)
        time.sleep(0.05)  # they come one after the other; in any order the claim below holds
    late = in_thread(lambda: Semaphore(path, 2).acquire(0))
    assert "wait" in str(late)
    first.release()
    for thread in threads:
        thread.join(60)
    second.release()
    assert served == [0, 1, 2]


def test_a_wait_that_ends_leaves_no_thread_no_descriptor_and_no_permit(path):
    gate, cancel = Semaphore(path, 2), lifehold.Cancel()
    leases = [gate.acquire(0), gate.acquire(0)]
    in_thread(lambda: gate.acquire(0.05))
    before = counts()
    assert type(in_thread(lambda: gate.acquire(0.05))) is lifehold.Timeout
    timer = threading.Timer(0.05, cancel.cancel)
    timer.start()
    assert type(in_thread(lambda: gate.acquire(cancel=cancel))) is lifehold.AcquireCancelled
    timer.join()
    until = time.monotonic() + 60  # a thread that has let go may still be ending
    while any(map(operator.gt, counts(), before)):
        assert time.monotonic() < until, (counts(), before)
        time.sleep(0.001)
    for lease in leases:
        lease.release()
    assert not gate.locked()
    with gate as one, gate as other:
        assert {one.slot, other.slot} == {0, 1}


def test_another_number_of_permits_is_refused_while_it_is_held_and_named(path):
    with Semaphore(path, 4):
        for number in (1, 3, 5):
            with pytest.raises(lifehold.InvalidArgument, match=f"has 4 permits, not {number}"):
                Semaphore(path, number).acquire(0)
        Semaphore(path, 4).acquire(0).release()
    with Semaphore(path, 2) as lease:  # nobody holds or waits: it may change
        assert lease.slot == 0
        with pytest.raises(lifehold.InvalidArgument, match="has 2 permits, not 4"):
            Semaphore(path, 4).acquire(0)


def test_another_number_is_refused_while_somebody_waits(path):
    gate = Semaphore(path, 1)
    with gate:
        waiting = threading.Thread(target=lambda: gate.acquire(60).release())
        waiting.start()
        with pytest.raises(lifehold.LifeholdError):
            Semaphore(path, 2).acquire(0.05)
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize("permits", [0, -1, 513, True, False, 1.0, "4", None])
def test_a_number_that_cannot_be_counted_to_is_named(path, permits):
    for made in (Semaphore, AsyncSemaphore):
        with pytest.raises(lifehold.InvalidArgument, match="permits must be"):
            made(path, permits)


@pytest.mark.parametrize("other", [Lock, ReadWriteLock])
def test_another_kind_of_lock_on_its_path_is_refused_both_ways(tmp_path, other):
    path = str(tmp_path / "one.lock")

    def take(made):
        lock = made(path)
        return lock.acquire_write(0) if made is ReadWriteLock else lock.acquire(0)

    Semaphore(path, 2).acquire(0).release()
    with pytest.raises(lifehold.UnsafeGround, match="semaphore"):
        take(other)
    os.unlink(path)
    take(other).release()
    with pytest.raises(lifehold.UnsafeGround, match="no semaphore"):
        Semaphore(path, 2).acquire(0)


def test_a_file_of_other_data_is_left_alone(tmp_path):
    path = tmp_path / "data"
    path.write_text("name,amount\n")
    with pytest.raises(lifehold.UnsafeGround, match="no semaphore"):
        Semaphore(path, 2).acquire(0)
    assert path.read_text() == "name,amount\n"


def test_a_damaged_number_is_told_and_nothing_is_held(path):
    Semaphore(path, 2).acquire().release()
    with open(path, "r+b") as file:
        content = file.read()
        file.seek(0)
        file.write(content.replace(b"     2", b"  zwei"))
    with pytest.raises(lifehold.CorruptRecord, match="remove the file"):
        Semaphore(path, 2).acquire(0)
    os.unlink(path)
    Semaphore(path, 2).acquire(0).release()


@pytest.mark.parametrize("number", [0, 513, 999999])
def test_a_number_that_nobody_can_have_written_makes_no_slots(path, number):
    Semaphore(path, 2).acquire().release()
    content = Path(path).read_bytes()
    Path(path).write_bytes(content.replace(b"%6d}" % 2, b"%6d}" % number))
    before = sorted(os.listdir(os.path.dirname(path)))
    with pytest.raises(lifehold.CorruptRecord, match="cannot be read"):
        Semaphore(path, 2).acquire(0)
    assert sorted(os.listdir(os.path.dirname(path))) == before


def test_a_slot_whose_file_goes_is_lost(path):
    lease = Semaphore(path, 2).acquire()
    os.unlink(lease.path)
    with pytest.raises(lifehold.LeaseLost):
        lease.check()
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


def test_who_holds_every_permit_itself_is_refused_and_not_left_to_hang(path):
    gate = Semaphore(path, 2)
    with gate:
        with gate, pytest.raises(lifehold.SelfDeadlock, match="all of its permits"):
            gate.acquire()
        gate.acquire(0).release()


def test_a_slot_that_is_held_too_long_is_free_again(path):
    lease = Semaphore(path, 1, max_hold=0.05).acquire()
    assert lease.lost.wait(60)
    assert in_thread(lambda: Semaphore(path, 1).acquire(60).release()) is None


def test_the_holder_in_the_error_is_one_that_holds(path):
    with Semaphore(path, 1, label="training"):
        error = in_thread(lambda: Semaphore(path, 1).acquire(0))
    assert error.holder.owner.label == "training"


def test_tasks_share_the_permits_and_a_cancelled_one_leaves_nothing(path):
    before = len(os.listdir("/proc/self/task"))

    async def main():
        gate, most, inside = AsyncSemaphore(path, 3), 0, 0

        async def work():
            nonlocal most, inside
            async with gate as lease:
                assert 0 <= lease.slot < 3
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(30)))
        assert most == 3
        held = [await gate.acquire(0) for _ in range(3)]
        waiting = [asyncio.create_task(gate.acquire()) for _ in range(4)]
        await asyncio.sleep(0.05)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for lease in held:
            await lease.release()
        again = [await gate.acquire(0) for _ in range(3)]
        for lease in again:
            await lease.release()

    asyncio.run(main())
    until = time.monotonic() + 60  # a thread that has let go of its lock may still be ending
    while len(os.listdir("/proc/self/task")) > before:
        assert time.monotonic() < until, "threads are left"
        time.sleep(0.001)


def test_the_slots_lie_beside_the_file_and_are_called_by_number(tmp_path):
    Semaphore(tmp_path / "a.lock", 1).acquire().release()
    Semaphore(tmp_path / "b", 1).acquire().release()
    assert sorted(os.listdir(tmp_path)) == ["a#0.lock", "a.lock", "b", "b#0"]


def test_modes_of_new_files_are_as_asked(tmp_path):
    Semaphore(tmp_path / "a", 1, shared=True).acquire().release()
    Semaphore(tmp_path / "b", 1, mode=0o600).acquire().release()
    modes = {name: os.stat(tmp_path / name).st_mode & 0o777 for name in ("a", "a#0", "b", "b#0")}
    assert modes == {"a": 0o666, "a#0": 0o666, "b": 0o600, "b#0": 0o600}


def test_who_meets_a_slow_maker_of_the_file_waits_for_it(path):
    """Nothing is decided by how long it takes somebody to write the first number."""
    Path(path).touch()
    maker = os.open(path, os.O_RDWR)
    fcntl.flock(maker, fcntl.LOCK_EX)
    try:
        with pytest.raises(WouldBlock):
            Semaphore(path, 2).acquire(wait=0)
        with pytest.raises(Timeout):
            Semaphore(path, 2).acquire(wait=0.2)
        came = []
        waiter = threading.Thread(target=lambda: came.append(Semaphore(path, 2).acquire(wait=30)))
        waiter.start()
    finally:
        os.close(maker)
    waiter.join(90)
    assert came[0].held
    came[0].release()
