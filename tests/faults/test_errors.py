"""An error of the file system in the middle of an acquire leaves nothing that wedges the next one.

Each call of the files seam fails once, in this very process, which lives on and keeps the error.
"""

from __future__ import annotations

import errno
import os

import pytest

from lifehold import LifeholdError, Lock
from lifehold.local.files import HOST
from lifehold.testing.crash import Child

CALLS = "open fstat lstat pread pwrite flock link link_fd unlink listdir".split()
WAIT = 1.0  # seconds; of kind `link` the next one has to settle for 0.05


def take(path, kind):
    with Lock(path, kind=kind, wait=WAIT) as lease:
        lease.check()
        return lease.token


def fails_at(monkeypatch, call, turn, code=errno.EIO):
    """From now on the call fails, once, at its turn; whether it did."""
    real, seen = getattr(HOST, call), []

    def failing(*args, **named):
        seen.append(args)
        if len(seen) == turn:
            raise OSError(code, os.strerror(code), args[0] if args else None)
        return real(*args, **named)

    monkeypatch.setattr(HOST, call, failing)
    return lambda: len(seen) >= turn


@pytest.mark.parametrize("kind", ["kernel", "soft", "link", "generation"])
@pytest.mark.parametrize("call", CALLS)
def test_one_error_of_a_file_call_wedges_nobody(tmp_path, monkeypatch, kind, call):
    path, turn, kept = str(tmp_path / "lock"), 0, []
    Lock(path, kind=kind).acquire().release()
    while True:
        turn += 1
        with monkeypatch.context() as patch:
            failed = fails_at(patch, call, turn)
            lease = None
            try:
                lease = Lock(path, kind=kind, wait=0).acquire()
                lease.release()
            except LifeholdError as error:
                kept.append(error)  # with its frames
        if not failed():
            break
        with Child(take, path, kind) as child:
            end = child.end()
        assert end.well, f"{call} number {turn} failed, and then: {end.error}"
        del lease
    assert turn < 40


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOENT], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["fstat", "pread", "link"])
def test_a_record_removed_under_our_hands_is_looked_for_anew(tmp_path, monkeypatch, call, code):
    """Over NFS an open file is gone with its name: another client has swept what was below."""
    lock, turn = Lock(tmp_path / "lock", kind="generation", wait=0), 0
    lock.acquire().release()
    failed = True
    while failed:
        turn += 1
        with monkeypatch.context() as patch:
            was_made = fails_at(patch, call, turn, code)
            lease = lock.acquire()
        failed = was_made()
        lease.release()
    assert turn > 1
