"""Marker locks, leases and strict locks of lifehold.compat.filelock, in one process."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest

from lifehold import LeaseLost
from lifehold.compat import filelock
from lifehold.compat.filelock import (
    AsyncSoftFileLease,
    AsyncStrictSoftFileLock,
    LeaseSettingsMismatch,
    MarkerSoftFileLock,
    SoftFileLease,
    SoftFileLockProtocolError,
    StrictSoftFileLock,
    Timeout,
    pidfile,
    soft_rw_member,
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


def lease(path, **options):
    return SoftFileLease(path, **{"lease_duration": 30.0} | options)


def test_a_marker_names_its_holder_for_both_sides(path):
    with MarkerSoftFileLock(path) as lock:
        own = pidfile.read(pidfile.record(False))
        assert lock.owner == filelock.OwnerRecord(own.pid, own.host, "exclusive", start=own.start)
        assert lock.is_lock_held_by_us
        with pytest.raises(Timeout) as caught:
            MarkerSoftFileLock(path).acquire(timeout=0)
        assert caught.value.holder.owner.pid == os.getpid()
    assert lock.owner is None


def test_a_contract_of_a_later_release_is_never_broken(path, monkeypatch):
    monkeypatch.setattr("lifehold.compat.filelock.soft.MALFORMED", 0.0)
    with open(path, "w") as file:
        file.write("filelock/2\npid=999999\nhost=h\nmode=unheard-of\n")
    with pytest.raises(Timeout):
        MarkerSoftFileLock(path).acquire(timeout=0.05)
    assert MarkerSoftFileLock(path).owner.mode == "unknown"


def test_what_says_no_contract_ages_out(path, monkeypatch):
    monkeypatch.setattr("lifehold.compat.filelock.soft.MALFORMED", 0.0)
    with open(path, "w") as file:
        file.write("filelock/2\npid=1\nhost=h\n")
    with MarkerSoftFileLock(path, timeout=30):
        pass


def test_a_lease_is_known_by_its_token_while_it_is_held(path):
    with lease(path) as lock:
        assert lock.token == lock.owner.token
        assert lock.owner.lease_duration == 30.0
    assert lock.token is None
    assert lock.compromise is None


def test_another_duration_is_an_error_and_not_a_shorter_life(path):
    with lease(path), pytest.raises(LeaseSettingsMismatch, match="30"):
        lease(path, lease_duration=5.0).acquire(timeout=0)


def test_a_silent_lease_is_taken_over_by_our_own_clock_and_its_holder_is_told(path):
    told = threading.Event()
    silent = lease(path, lease_duration=1.2, on_compromise=lambda _: told.set())
    silent.acquire()
    silent._claim.kept.stop()  # a holder that is paused: no touch, and nobody told
    with lease(path, lease_duration=1.2, timeout=30) as heir:
        assert heir.owner.token == heir.token
        with pytest.raises(LeaseLost):
            silent.lease.check()
    silent.release()


def test_a_lease_whose_file_is_gone_says_so_once(path):
    told = []
    done = threading.Event()
    lock = lease(path, lease_duration=3.0, heartbeat_interval=0.02)
    lock._on_compromise = lambda loss: (told.append(loss), done.set())
    lock.acquire()
    os.unlink(path)
    assert done.wait(90)
    assert [each.reason for each in told] == ["marker-missing"]
    assert lock.compromise == told[0]
    with pytest.raises(LeaseLost):
        lock.lease.check()
    lock.release()


def test_a_lease_that_is_dropped_leaves_no_file(path):
    lock = lease(path)
    lock.acquire()
    del lock
    gc.collect()
    assert not os.path.exists(path)


def test_a_lease_for_tasks_is_the_same_lease(path):
    async def hold():
        async with AsyncSoftFileLease(path, lease_duration=30.0) as lock:
            with pytest.raises(Timeout):
                lease(path).acquire(timeout=0)
            return lock.owner.mode

    assert asyncio.run(hold()) == "lease"
    assert not os.path.exists(path)


# ---- strict locks


def test_a_strict_lock_stands_by_two_claims_and_leaves_its_sentinel(path):
    with StrictSoftFileLock(path) as lock:
        assert sorted(claim.state for claim in lock.claims) == ["held", "intent"]
        assert {claim.pid for claim in lock.claims} == {os.getpid()}
        with pytest.raises(Timeout) as caught:
            StrictSoftFileLock(path).acquire(timeout=0)
        assert caught.value.holder.owner.pid == os.getpid()
        lock.lease.check()
    assert lock.claims == ()
    with open(path, "rb") as file:
        assert file.read() == pidfile.STRICT


def test_a_waiter_for_a_strict_lock_is_let_in_when_the_claims_go(path):
    first = StrictSoftFileLock(path, thread_local=False)
    first.acquire()
    threading.Timer(0.05, first.release).start()
    with StrictSoftFileLock(path, timeout=30):
        pass


@pytest.mark.parametrize("content", [b"", b"1\n", b"\xff"])
def test_a_claim_that_nobody_can_read_keeps_everybody_out(path, content):
    StrictSoftFileLock(path).acquire().lock.release()
    name = f"held-v1-{'0' * 32}.claim"
    with open(f"{path}.filelock/claims/{name}", "wb") as file:
        file.write(content)
    with pytest.raises(SoftFileLockProtocolError) as caught:
        StrictSoftFileLock(path).acquire(timeout=0)
    assert caught.value.claim_name == name
    StrictSoftFileLock(path).force_break(name)
    with StrictSoftFileLock(path, timeout=0):
        pass


def test_a_strict_lock_that_was_broken_says_so(path):
    with StrictSoftFileLock(path) as lock:
        for claim in lock.claims:
            lock.force_break(claim.name)
        with pytest.raises(LeaseLost):
            lock.lease.check()


def test_a_soft_locks_owner_and_a_strict_one_keep_each_other_out(path):
    with filelock.SoftFileLock(path):
        assert "soft-lock marker" in StrictSoftFileLock(path).lock_path_occupant
        with pytest.raises(Timeout):
            StrictSoftFileLock(path).acquire(timeout=0)
    with StrictSoftFileLock(path, timeout=0), pytest.raises(Timeout):
        filelock.SoftFileLock(path).acquire(timeout=0)


def test_a_strict_lock_for_tasks_is_the_same_lock(path):
    async def hold():
        async with AsyncStrictSoftFileLock(path):
            with pytest.raises(Timeout):
                StrictSoftFileLock(path).acquire(timeout=0)

    asyncio.run(hold())
    assert StrictSoftFileLock(path).claims == ()


class Slow:
    """A clock of which every look takes a second."""

    def __init__(self):
        self.seconds = 0.0

    def now(self):
        self.seconds += 1.0
        return self.seconds


def test_a_lease_counts_from_before_its_file_could_be_seen(path):
    lock = lease(path)
    made = lock._found(lock._context.hold)
    made.runtime = Slow()
    grant = made.attempt()
    assert grant.handle[0].began == 1.0  # L8  the first look, before the try
    made.drop(grant)
    with lock:
        began = lock._context.hold.grant.handle[0].began
        assert lock._claim.kept.deadline == lock._terms.deadline(began)


def test_a_reader_writer_hold_counts_from_before_its_record_was_sent(path):
    lock = filelock.SoftReadWriteLock(path, is_singleton=False)
    lock._group.runtime = Slow()
    ours = soft_rw_member.Participant(lock._group, "write")
    shipped = ours._step

    def later(*arguments):
        lock._group.runtime.seconds += 5.0  # it is a while before the grant comes
        return shipped(*arguments)

    ours._step = later
    grant = ours.attempt()
    assert ours.written_at == 1.0
    ours.drop(grant)
    with filelock.SoftReadWriteLock(path, is_singleton=False).write_lock():
        pass


def test_and_its_deadline_is_made_of_that(path):
    lock = filelock.SoftReadWriteLock(path, is_singleton=False)
    with lock.write_lock():
        ours, _, kept = lock._hold.grant
        assert kept.deadline == lock._group.terms.deadline(ours.written_at)
