"""Bytes that are not ours are never changed.

Data files, scripts that lock themselves, reused numbers.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from crash.scene import descriptors, free, raised, until
from ground import needs
from lifehold import LifeholdError, Lock
from lifehold.local.handles import TABLE

RECORD = b'{"lifehold":'
DATA = {
    "text": b"precious data\n",
    "one byte": b"x",
    "binary": bytes(range(1, 256)) * 40,
    "json": b'{"life": "is good"}\n',
    "almost our mark": b'{"lifehold"',
    "a pid": b"4127\n",
    "NULs, then data": b"\0" * 512 + b"partition table",
    "a disk image": b"\0" * 1024 + b"\x7fsuperblock" * 9,
    "more NULs than a record": b"\0" * 4096,
}


@pytest.mark.parametrize("kind", DATA)
def test_a_data_file_is_locked_and_its_bytes_never_change(tmp_path, kind):
    path = tmp_path / "data"
    path.write_bytes(DATA[kind])
    lock = Lock(path)
    for _ in range(2):
        with lock.acquire(0) as lease:
            assert not free(path)
            assert lease.token is None
            assert "somebody else's data" in lease.token_reason
            lease.check()
            assert lock.locked()
        assert path.read_bytes() == DATA[kind]
    assert free(path)


def test_a_huge_sparse_file_is_locked_at_once_and_stays_as_it_is(tmp_path):
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with Lock(path, wait=0) as lease:
        assert lease.token is None
    assert os.stat(path).st_blocks == 0


def test_a_file_of_nothing_but_nuls_of_our_size_is_a_record_the_power_failed_on(tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(b"\0" * 1024)
    with Lock(path, wait=0) as lease:
        assert lease.token > 0


def test_an_emptied_data_file_under_lock_is_not_given_a_record_by_check(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"precious")
    with Lock(path) as lease:
        os.truncate(path, 0)
        lease.check()
        assert path.read_bytes() == b""


@needs("flock")
def test_a_script_that_locks_itself_stays_runnable_and_excludes_us(tmp_path):
    """`flock "$0"`: the lock file is the script."""
    script = tmp_path / "job.sh"
    text = '#!/bin/sh\nexec 9<"$0"\nflock 9\necho locked\nread line\n'
    script.write_text(text)
    script.chmod(0o755)
    with Lock(script) as lease:
        assert lease.token is None
    # Nor is it left open for writing, or it could not be run (ETXTBSY).
    running = subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "locked\n"
    assert "held" in str(raised(Lock(script).acquire, 0))
    running.communicate("\n", 10)
    with Lock(script, wait=5):
        assert script.read_text() == text


def hijack(path, other, flags):
    """Close the lock's descriptor as other code might, and open `other` under its number."""
    (number,) = descriptors(path)
    os.close(number)
    fd = os.open(other, flags)
    if fd != number:
        os.dup2(fd, number)
        os.close(fd)
    return number


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDONLY])
@pytest.mark.parametrize("while_", ["idle", "held", "held and emptied"])
def test_a_number_used_again_for_a_data_file_leaves_the_data_and_the_number_alone(
    tmp_path, flags, while_
):
    path, other = str(tmp_path / "lock"), tmp_path / "data"
    other.write_bytes(b"precious" * 400)
    lock = Lock(path)
    lease = lock.acquire()
    if while_ == "idle":
        lease.release()
    number = hijack(path, other, flags)
    try:
        if while_ != "idle":
            if "emptied" in while_:
                os.truncate(path, 0)
            raised(lease.check)
            raised(lease.release)
        first = raised(lock.acquire, 0)
        assert first is None or isinstance(first, LifeholdError)
        if lock.lease:
            lock.release()
        with lock.acquire(0) as lease:  # at the latest the second one is well
            assert lease.token > 0
        assert other.read_bytes() == b"precious" * 400
        assert os.fstat(number).st_ino == os.stat(other).st_ino  # still open, still theirs
    finally:
        os.close(number)
        TABLE.close_idle()


def test_a_number_used_again_for_a_pipe_is_not_closed(tmp_path):
    path = str(tmp_path / "lock")
    lock = Lock(path)
    lock.acquire().release()
    (number,) = descriptors(path)
    read, write = os.pipe()
    os.dup2(write, number)
    assert "closed by other code" in str(raised(lock.acquire, 0))
    os.write(number, b"still open")
    assert os.read(read, 99) == b"still open"
    lock.acquire(0).release()
    for fd in (read, write, number):
        os.close(fd)
    until(lambda: free(path), 1)
