"""A token grows though its counter is lost and the clock set back, as long as its object lives."""

from __future__ import annotations

import os

import pytest

import lifehold
from lifehold.core.grant import Grant
from lifehold.local.directory import DirectoryLock
from lifehold.local.folder import FolderLock
from lifehold.local.generation import GenerationLock
from lifehold.local.handles import TABLE, Descriptors
from lifehold.local.kernel import KernelLock
from lifehold.local.link import LinkLock
from lifehold.local.soft import SoftLock
from lifehold.runtime.blocking import BLOCKING

KINDS = {
    "kernel": KernelLock, "soft": SoftLock, "link": LinkLock, "generation": GenerationLock,
    "directory": DirectoryLock, "folder": FolderLock,
}  # fmt: skip


class SetBack:
    """The calls of the seam; the wall clock is what it was told to be."""

    def __init__(self, now):
        self.now = now

    def clock_ns(self):
        return self.now

    def __getattr__(self, name):
        return getattr(TABLE.files, name)


def lose(path):
    """All that a lock has left behind."""
    for folder, _, names in os.walk(os.path.dirname(path)):
        for name in names:
            os.truncate(os.path.join(folder, name), 0)


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_grows_over_a_clock_that_was_set_back(tmp_path, kind, lost):
    if kind == "generation" and lost:
        pytest.skip("its number is its token's, and an emptied record is waited for")
    if kind == "link" and not lost:
        pytest.skip("the counter goes with the file: its page says so")
    path, seam = str(tmp_path / "build.lock"), SetBack(2_000_000_000_000_000_000)
    ours = KINDS[kind](path, BLOCKING, table=Descriptors(seam))
    first = ours.attempt()
    assert isinstance(first, Grant)
    ours.drop(first)
    seam.now -= 10**18
    if lost:
        ours.table.close_idle()  # a descriptor that is kept remembers too
        lose(path)
    else:
        ours = KINDS[kind](path, BLOCKING, table=Descriptors(seam))
    second = ours.attempt()
    assert isinstance(second, Grant)
    assert second.token > first.token
    ours.drop(second)


@pytest.mark.parametrize("trap", [os.mkfifo, os.mkdir, lambda path: os.symlink("/nowhere", path)])
@pytest.mark.parametrize("kind", ["soft", "link", "directory", "folder"])
def test_what_is_no_file_where_the_counter_belongs_costs_the_token_not_the_lock(
    tmp_path, kind, trap
):
    path = str(tmp_path / "lock")
    trap(path + ".token")
    with lifehold.Lock(path, kind=kind, wait=0) as lease:
        assert lease.token is None
        assert "somebody else's data" in lease.token_reason
    for side in ("read", "write"):
        lock = lifehold.ReadWriteLock(f"{path}.rw", kind="soft", wait=0)
        if side == "read":
            trap(f"{path}.rw.token")
        with getattr(lock, f"acquire_{side}")() as lease:
            assert lease.token is None
