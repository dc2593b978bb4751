"""ESTALE of a file that another client has removed: it is gone, so the path is looked at again.

Played on a file system that says so once, or always.
"""

from __future__ import annotations

import errno
import os
from functools import partial

import pytest

from ground import needs
from lifehold.core.deadline import Terms
from lifehold.core.errors import SystemRefused
from lifehold.core.grant import Grant
from lifehold.local.files import HOST, Files
from lifehold.local.ground import MountInfo
from lifehold.local.handles import Descriptors
from lifehold.local.link import LinkLock
from lifehold.local.soft import SoftLock
from lifehold.local.soft_readwrite import SoftReadWrite
from lifehold.runtime.blocking import BLOCKING

pytestmark = needs("linux")
TERMS = Terms(ttl=60.0, heartbeat=20.0, margin=6.0)
KINDS = {
    "link": LinkLock, "soft": SoftLock, "soft writer": SoftReadWrite,
    "soft reader": partial(SoftReadWrite, exclusive=False),
}  # fmt: skip


class Removed(Files):
    """Another client removes the file at `path` before `call` has an answer, `times` times."""

    def __init__(self, path, call, times):
        super().__init__()
        self.path, self.times = path, times
        shipped = getattr(HOST, call)

        def stale(fd, *rest):
            try:
                found = self.times and os.fstat(fd).st_ino == os.lstat(path).st_ino
            except FileNotFoundError:
                found = False
            if not found:
                return shipped(fd, *rest)
            self.times -= 1
            if not self.times:
                os.unlink(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        setattr(self, call, stale)


def attempt(kind, files, path):
    place = MountInfo("nfs4", "0:9")
    lock = KINDS[kind](path, BLOCKING, table=Descriptors(files), place=place, terms=TERMS)
    return lock, lock.attempt()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["fstat", "pread"])
def test_a_file_that_was_removed_while_we_look_at_it_is_looked_for_again(kind, call, tmp_path):
    path = str(tmp_path / "lock")
    (tmp_path / "lock").write_text("1\nelsewhere\n")
    lock, answer = attempt(kind, Removed(path, call, 1), path)
    assert isinstance(answer, Grant)
    lock.drop(answer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_always_says_so_is_not_asked_for_ever(kind, tmp_path):
    path = str(tmp_path / "lock")
    (tmp_path / "lock").write_text("1\nelsewhere\n")
    with pytest.raises(SystemRefused, match="file handle"):
        attempt(kind, Removed(path, "fstat", 10**9), path)
