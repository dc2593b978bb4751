"""The lock file is removed, moved, replaced, truncated or copied while held, idle or waited on."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from crash.scene import (
    descriptors,
    free,
    hold,
    next_token,
    raised,
    until,
    waited_for,
    waits_in_the_kernel,
)  # fmt: skip
from ground import needs
from lifehold import InvalidArgument, LeaseLost, Lock, WouldBlock
from lifehold.local.files import Files
from lifehold.local.handles import TABLE, Descriptors
from lifehold.local.kernel import KernelLock
from lifehold.runtime.blocking import BLOCKING
from lifehold.testing.crash import Child


def remove(path):
    os.unlink(path)


def move_away(path):
    os.rename(path, path + ".away")


def replace(path):
    with open(path + ".new", "w"):
        pass
    os.rename(path + ".new", path)


def link_elsewhere(path):
    os.rename(path, path + ".away")
    os.symlink(path + ".away", path)


def pipe_there(path):
    os.unlink(path)
    os.mkfifo(path)


def folder_there(path):
    os.unlink(path)
    os.mkdir(path)


LOST = [remove, move_away, replace, link_elsewhere, pipe_there, folder_there]
REFUSED = {link_elsewhere: "a symbolic link", pipe_there: "a FIFO", folder_there: "a directory"}


def undo(path):
    """Whatever stands there is gone, and an ordinary lock file may come."""
    os.rmdir(path) if os.path.isdir(path) else os.unlink(path)


@pytest.mark.parametrize("change", LOST)
def test_a_lock_whose_file_is_gone_from_the_path_is_lost_and_says_so_at_release(tmp_path, change):
    path = str(tmp_path / "lock")
    lease = Lock(path).acquire()
    change(path)
    assert isinstance(raised(lease.check), LeaseLost)
    assert not lease.held
    assert lease.lost.is_set()
    assert isinstance(raised(lease.release), LeaseLost)
    assert descriptors(path) == []
    if change in REFUSED:
        found = raised(Lock(path).acquire, 0)
        assert isinstance(found, InvalidArgument)
        assert REFUSED[change] in str(found)
        undo(path)
    with Lock(path, wait=0) as after:
        assert after.token > lease.token


@pytest.mark.parametrize("change", LOST)
def test_a_kept_descriptor_of_a_file_that_is_gone_is_not_used(tmp_path, change):
    """Hazard 3: it would make a free lock look held, or lock a file that nobody else sees."""
    path = str(tmp_path / "lock")
    lock = Lock(path)
    lease = lock.acquire()
    lease.release()
    old = os.open(path, os.O_RDONLY)
    change(path)
    with Child(subprocess.run, ["flock", "-n", f"/proc/{os.getpid()}/fd/{old}", "true"]) as other:
        other.end()
    if change in REFUSED:
        assert isinstance(raised(lock.acquire, 0), InvalidArgument)
        undo(path)
    with lock.acquire(0) as after:
        assert after.token > lease.token
        assert os.stat(path).st_ino == os.fstat(descriptors(path)[0]).st_ino
    os.close(old)


@needs("flock")
def test_a_kept_descriptor_whose_old_file_is_held_does_not_make_the_lock_look_held(tmp_path):
    path = str(tmp_path / "lock")
    lock = Lock(path)
    lock.acquire().release()
    move_away(path)
    with Child(hold, path + ".away") as holder:
        holder.at("held")
        lock.acquire(0).release()


@pytest.mark.parametrize("change", LOST)
def test_a_waiter_on_a_file_that_is_gone_moves_over(tmp_path, change):
    path = str(tmp_path / "lock")

    def wait():
        with Lock(path, wait=30) as lease:
            return lease.token

    with Child(hold, path) as holder:
        before = holder.at("held")
        with Child(wait) as waiter:
            until(lambda: waits_in_the_kernel(waiter.pid))
            change(path)
            end = waiter.end(10)  # at its first notice, after 2 s
            if change in REFUSED:
                assert REFUSED[change] in end.error
                undo(path)
            else:
                assert end.value > before
        assert holder.end().error.count("LeaseLost") >= 1


def test_a_file_truncated_while_held_gets_its_record_back_and_is_not_lost(tmp_path):
    path = str(tmp_path / "lock")
    with Lock(path) as lease:
        os.truncate(path, 0)
        lease.check()
        assert Lock(path).holder().token == lease.token
        assert not free(path)
    assert next_token(path) > lease.token


def test_a_file_truncated_between_two_holders_keeps_tokens_growing(tmp_path):
    path = str(tmp_path / "lock")
    last = 0
    for _ in range(5):
        token = next_token(path)
        assert token > last
        last = token
        os.truncate(path, 0)


@needs("flock")
def test_a_script_that_truncates_at_open_hides_the_record_and_not_the_holder(tmp_path):
    """Hazard 11: `9>lock` empties the file when the script begins to wait."""
    path = str(tmp_path / "lock")
    with Lock(path, wait=0) as lease:
        script = subprocess.Popen(["sh", "-c", f"exec 9>{path}; flock 9; echo in"])
        until(lambda: waited_for(path))
        assert os.path.getsize(path) == 0
        holder = Lock(path).holder()
        assert holder.owner.pid == os.getpid()
        assert holder.alive == "alive"
        lease.check()
        assert Lock(path).holder().token == lease.token
    assert script.wait(60) == 0
    assert next_token(path) > lease.token


def test_a_restored_copy_keeps_tokens_growing_though_the_clock_steps_back(tmp_path):
    path, copy = str(tmp_path / "lock"), str(tmp_path / "copy")
    clock = SteppedClock()
    lock = KernelLock(path, BLOCKING, table=Descriptors(clock))
    first = lock.attempt()
    lock.drop(first)
    shutil.copy2(path, copy)
    os.unlink(path)
    os.rename(copy, path)
    clock.now -= 10**12
    second = KernelLock(path, BLOCKING, table=Descriptors(clock)).attempt()
    assert second.token == first.token + 1


def test_a_deleted_file_and_a_clock_stepped_back_repeat_only_what_is_documented(tmp_path):
    """Hazard 10: the counter is gone with the file; only the acquirer's own last token helps."""
    path = str(tmp_path / "lock")
    clock = SteppedClock()
    lock = KernelLock(path, BLOCKING, table=Descriptors(clock))
    first = lock.attempt()
    lock.drop(first)
    os.unlink(path)
    clock.now -= 10**12
    second = lock.attempt()  # this one remembers
    assert second.token == first.token + 1
    lock.drop(second)
    os.unlink(path)
    other = KernelLock(path, BLOCKING, table=Descriptors(clock)).attempt()  # this one cannot
    assert other.token < second.token


def test_a_clock_that_stands_still_or_steps_back_never_repeats_a_token(tmp_path):
    clock = SteppedClock()
    tokens = []
    for number in range(20):
        lock = KernelLock(str(tmp_path / "lock"), BLOCKING, table=Descriptors(clock))
        grant = lock.attempt()
        tokens.append(grant.token)
        lock.drop(grant)
        clock.now -= number % 3 * 10**9
    assert tokens == sorted(set(tokens))


def test_cleanup_never_unlinks_the_file_of_another(tmp_path):
    """L7, also in the first microseconds of a hold, in which release does not look otherwise."""
    path = str(tmp_path / "lock")
    lock = KernelLock(path, BLOCKING, table=Descriptors(SteppedClock()), cleanup=True)
    grant = lock.attempt()
    move_away(path)
    theirs = Lock(path).acquire(0)
    assert lock.drop(grant).gone
    theirs.check()
    theirs.release()


def test_unstable_inode_numbers_end_in_an_error_and_not_in_a_loop(tmp_path):
    """Hazard 12: a file system that tells another number at every look."""

    class Unstable(Files):
        @staticmethod
        def lstat(path):
            found = list(os.lstat(path))
            found[1] += 1
            return os.stat_result(found)

    lock = KernelLock(str(tmp_path / "lock"), BLOCKING, table=Descriptors(Unstable()))
    error = raised(lock.attempt)
    assert "inode numbers are not stable" in str(error)
    assert free(tmp_path / "lock")


class SteppedClock(Files):
    """The operating system, but for a clock that stands still until it is set."""

    def __init__(self):
        super().__init__()
        self.now = 1_700_000_000 * 10**9

    def clock_ns(self):
        return self.now


def test_a_release_that_comes_late_does_not_touch_the_next_owner(tmp_path):
    """Hazard 4: the slot is claimed before the unlock, so a second release finds nothing."""
    path = str(tmp_path / "lock")
    lock = Lock(path)
    first = lock.acquire()
    first.release()
    second = lock.acquire(0)  # very likely the same descriptor
    assert "released already" in str(raised(first.release))
    second.check()
    with Child(hold, path) as other:
        assert "WouldBlock" not in other.passed
        assert isinstance(raised(Lock(path).acquire, 0), WouldBlock)
        second.release()
        other.at("held")


def test_an_idle_descriptor_closed_by_other_code_is_opened_anew(tmp_path):
    path = str(tmp_path / "lock")
    lock = Lock(path)
    lock.acquire().release()
    os.close(descriptors(path)[0])
    lock.acquire(0).release()
    TABLE.close_idle()


def test_a_held_descriptor_closed_by_other_code_is_lost_at_release(tmp_path):
    path = str(tmp_path / "lock")
    lease = Lock(path).acquire()
    os.close(descriptors(path)[0])
    assert isinstance(raised(lease.release), LeaseLost)
    assert free(path)
