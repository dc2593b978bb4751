"""A folder that a symbolic link leads to is the folder, for every lock on files."""

from __future__ import annotations

import pytest

from lifehold import Lock, ReadWriteLock, Semaphore, look, once
from lifehold.local.kinds import KINDS

MADE = {
    **{kind: lambda path, kind=kind: Lock(path, kind=kind, wait=0) for kind in KINDS},
    "leased": lambda path: Lock(path, kind="soft", ttl=60, wait=0),
    "permits": lambda path: Semaphore(path, permits=1, wait=0),
    "readers": lambda path: ReadWriteLock(path, kind="soft", wait=0).writing(),
    "kernel readers": lambda path: ReadWriteLock(path, wait=0).writing(),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_lock_is_taken_in_a_folder_that_a_link_leads_to(tmp_path, make):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    for below in ("", "new/folders/"):
        with make(tmp_path / "linked" / f"{below}x.lock"):
            assert look(tmp_path / "real" / f"{below}x.lock").state == "held"


def test_a_result_is_kept_in_a_folder_that_a_link_leads_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    assert once(str(tmp_path / "linked" / "x"), lambda: 1) == 1
    assert once(str(tmp_path / "real" / "x"), lambda: 2) == 1
