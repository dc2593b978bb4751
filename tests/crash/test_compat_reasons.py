"""Why a lease of filelock's kinds was lost: the word that filelock itself would say."""

from __future__ import annotations

import shutil

import filelock
import pytest

from lifehold.compat import filelock as ours
from lifehold.testing.crash import Child

HOLDER = """
import importlib, sys, threading
from lifehold.testing.crash import point
module = importlib.import_module(sys.argv[3])
told = threading.Event()
options = {"on_compromise": lambda _: told.set()}
if sys.argv[1] == "lease":
    lock = module.SoftFileLease(sys.argv[2], lease_duration=1.0, **options)
    lock.acquire()
else:
    lock = module.SoftReadWriteLock(
        sys.argv[2], heartbeat_interval=0.3, stale_threshold=1.0, is_singleton=False, **options
    )
    lock.acquire_write()
point("held")
told.wait(90)
point("told", lock.compromise.reason)
"""


def follower(kind, path):
    if kind == "lease":
        lock = ours.SoftFileLease(path, lease_duration=1.0)
        return lock, lock.acquire
    lock = ours.SoftReadWriteLock(
        path, heartbeat_interval=0.3, stale_threshold=1.0, is_singleton=False
    )
    return lock, lock.acquire_write


@pytest.mark.parametrize("module", ["lifehold.compat.filelock", "filelock"])
@pytest.mark.parametrize(("kind", "reason"), [("lease", "owner-changed"), ("sides", "evicted")])
def test_who_was_stopped_and_followed_is_told_why(tmp_path, kind, reason, module):
    path = str(tmp_path / "build.lock")
    with Child.script(HOLDER, kind, path, module) as holder:
        holder.at("held")
        holder.go()
        holder.stop()
        lock, take = follower(kind, path)
        take(timeout=30)
        holder.resume()
        assert holder.at("told") == reason
        lock.release()


@pytest.mark.parametrize("what", ["", "/gen", "/holders"])
@pytest.mark.parametrize("module", [ours, filelock], ids=["ours", "filelock"])
def test_a_side_whose_folder_is_gone_is_released_in_peace(tmp_path, what, module):
    path = tmp_path / "build.lock"
    lock = module.SoftReadWriteLock(path, is_singleton=False)
    lock.acquire_write()
    shutil.rmtree(f"{path}.rw{what}")
    lock.release()
    again = module.SoftReadWriteLock(path, is_singleton=False)
    if what != "/holders":
        again.acquire_write(timeout=60)
        again.release()
