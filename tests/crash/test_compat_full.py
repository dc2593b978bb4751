"""The faces on a full disk: who needs no room goes on, who does says so, and nothing is left."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from crash.terrain import file_system, fill
from ground import needs
from lifehold import SystemRefused
from lifehold.compat import liblockfile, lockfolder
from lifehold.compat.filelock import (
    FileLock,
    MarkerSoftFileLock,
    ReadWriteLock,
    SoftFileLease,
    SoftFileLock,
    SoftReadWriteLock,
    StrictSoftFileLock,
)
from lifehold.compat.liblockfile import L_TMPWRITE

pytestmark = needs("linux", "root")
SOFT = [SoftFileLock, MarkerSoftFileLock, SoftFileLease, StrictSoftFileLock]


@pytest.fixture
def full(tmp_path):
    """A folder in which there is no block left."""
    with file_system("tmpfs", 1, tmp_path) as folder:
        for each in ("bids", "s.lock.filelock/claims", "s.lock.rw/gen", "s.lock.rw/holders"):
            os.makedirs(folder / each)
        fill(folder)
        yield folder


def files(folder):
    return sorted(name for _, _, names in os.walk(folder) for name in names if name != "filler")


def test_a_file_lock_needs_no_room_for_its_record(full):
    path = full / "a.lock"
    holder, waiter, got = FileLock(path), FileLock(path, timeout=30), []

    def wait():
        with waiter:
            got.append(waiter.is_locked)

    holder.acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.2)
    assert not got
    assert holder.lease.token is None
    holder.release()
    thread.join()
    assert got == [True]


def test_nor_does_a_reader_writer_lock(full):
    lock = ReadWriteLock(full / "a.db", is_singleton=False)
    with lock.write_lock():
        assert "a.db" in files(full)
    lock.close()
    assert files(full) == ["a.db"]  # and the link to it is gone


@pytest.mark.parametrize("kind", SOFT)
def test_a_soft_lock_names_itself_and_leaves_nothing(full, kind):
    lock = kind(full / "s.lock")
    with pytest.raises(OSError, match=r"No space left on device: '.*/s\.lock'") as caught:
        lock.acquire(timeout=5)
    assert caught.value.errno == errno.ENOSPC
    assert not lock.is_locked
    assert not files(full)


def test_a_soft_reader_writer_lock_names_itself_and_leaves_nothing(full):
    lock = SoftReadWriteLock(full / "s.lock", is_singleton=False)
    with pytest.raises(OSError, match=r"No space left on device: '.*/s\.lock'"):
        lock.acquire_write(timeout=5)
    lock.close()
    assert not files(full)


def test_a_dot_lock_and_a_bid_say_it_too(full):
    status = liblockfile.lockfile_create(full / "d.lock", 0)
    assert (status, status.errno) == (L_TMPWRITE, errno.ENOSPC)
    with pytest.raises(SystemRefused, match="free some space"):
        lockfolder.lock(full / "bids")
    assert not files(full)
