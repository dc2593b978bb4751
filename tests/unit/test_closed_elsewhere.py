"""Other code closes a descriptor of ours, and its number is used again for another file."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest

from lifehold import LeaseLost, Lock, WouldBlock


def number_used_again(lock, other):
    """Use and release a lock; its kept descriptor is closed, its number given to `other`."""
    with lock as lease:
        number = lease.fileno()
    with other.open("w+b") as opened:
        os.dup2(opened.fileno(), number)  # closes ours, whatever other numbers are free
    return os.fdopen(number, "r+b")


@pytest.mark.parametrize("how", [{"record": False}, {"exclusive": False}], ids=["bare", "shared"])
def test_a_lock_of_another_file_is_no_grant(tmp_path, how):
    path = tmp_path / "a.lock"
    lock = Lock(path, **how)
    with number_used_again(lock, tmp_path / "data"), lock, pytest.raises(WouldBlock):
        Lock(path).acquire(0)


def test_a_record_is_never_written_into_an_empty_file_of_others(tmp_path):
    path = tmp_path / "a.lock"
    lock = Lock(path)
    excluded = []

    def use():  # the thread makes a record of its own ready
        with lock:
            try:
                Lock(path).acquire(0)
            except WouldBlock:
                excluded.append(True)

    with number_used_again(lock, tmp_path / "data"):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert (tmp_path / "data").read_bytes() == b""
    assert excluded


def test_a_number_that_is_used_again_for_the_same_file_is_the_later_grants(tmp_path):
    """Its device and inode are as before: who opened it last has it."""
    path = tmp_path / "build.lock"
    first = Lock(path, exclusive=False).acquire(0)
    os.close(first.fileno())
    second = Lock(path, exclusive=False).acquire(0)
    assert not first.held
    with contextlib.suppress(LeaseLost):
        first.release()
    assert second.held
    with pytest.raises(WouldBlock):
        Lock(path).acquire(0)
    second.release()
