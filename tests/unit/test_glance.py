"""The cheaper look at where a path leads, after many acquires, sees what lstat(2) sees."""

import os
import sys

import pytest

from lifehold import InvalidArgument, LeaseLost, Lock
from lifehold.local import files as asked
from lifehold.local.handles import MANY, TABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="statx(2) is Linux's")


def warm(path):
    """A lock that has been taken so often that it glances."""
    lock = Lock(path, wait=0)
    for _ in range(MANY + 1):
        with lock:
            pass
    slot = TABLE.idle[str(path)]
    assert slot.glance is not None, "statx(2) is not there: these tests would show nothing"
    assert slot.glimpsed()
    return lock, slot


def test_a_file_replaced_between_two_acquires_is_not_the_one_that_is_locked(tmp_path):
    lock, before = warm(tmp_path / "l")
    (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").rename(tmp_path / "l")
    with lock as lease:
        slot = lease._grant.handle[0]
        assert slot is not before
        assert slot.ino == (tmp_path / "l").stat().st_ino


def test_a_file_removed_between_two_acquires_is_made_again(tmp_path):
    lock, _ = warm(tmp_path / "l")
    (tmp_path / "l").unlink()
    with lock as lease:
        assert lease._grant.handle[0].ino == (tmp_path / "l").stat().st_ino


def test_a_symlink_in_the_place_of_the_file_is_not_followed(tmp_path):
    lock, _ = warm(tmp_path / "l")
    (tmp_path / "l").rename(tmp_path / "old")
    (tmp_path / "l").symlink_to(tmp_path / "old")
    with pytest.raises(InvalidArgument, match="symbolic link"):
        lock.acquire()


def test_a_long_hold_of_a_file_that_goes_is_told_as_lost(tmp_path):
    lock, _ = warm(tmp_path / "l")
    lease = lock.acquire()
    sum(range(10_000))  # longer than the hold that release() does not look after
    (tmp_path / "l").unlink()
    with pytest.raises(LeaseLost, match="removed"):
        lease.release()


def test_a_look_that_fails_gives_way_to_lstat(tmp_path):
    lock, slot = warm(tmp_path / "l")
    slot.glance = lambda: -1  # as under a filter that does not know statx(2)
    with lock as lease:
        assert lease._grant.handle[0] is slot
    assert slot.glance is None


def test_a_look_at_another_device_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr("lifehold.local.handles.device_of", lambda words: -1)
    lock = Lock(tmp_path / "l")
    for _ in range(MANY + 1):
        with lock:
            pass
    assert TABLE.idle[str(tmp_path / "l")].glance is None


def test_the_device_is_spelt_as_lstat_spells_it(tmp_path):
    call, words = asked.glance(str(tmp_path))
    assert call() == 0
    found = os.lstat(tmp_path)
    assert (words[asked.INODE], asked.device_of(words)) == (found.st_ino, found.st_dev)


def test_a_number_closed_by_other_code_and_given_to_our_next_lock_does_not_unlock_it(tmp_path):
    first, second = Lock(tmp_path / "one"), Lock(tmp_path / "two")
    robbed = first.acquire()
    os.close(robbed.fileno())
    held = second.acquire()
    assert held.fileno() == robbed._grant.handle[0].fd
    with pytest.raises(LeaseLost, match="closed by other code"):
        robbed.check()
    with pytest.raises(LeaseLost, match="closed by other code"):
        robbed.release()
    assert second.locked()
    held.check()
    held.release()
