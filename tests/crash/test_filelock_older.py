"""The classes of the filelock face beside those of filelock 3, on one path."""

from __future__ import annotations

import importlib

import pytest

from crash.test_compat_sides import Peer
from ground import needs, reason
from lifehold.compat import filelock as ours

pytestmark = needs("filelock 3", "linux")
SHARED = {
    "FileLock": {},
    "SoftFileLock": {},
    "SoftFileLease": {"lease_duration": 30.0},
    "StrictSoftFileLock": {},
    "ReadWriteLock": {"is_singleton": False},
}


def there(name):
    """Only where that release has the class."""
    if not hasattr(importlib.import_module("filelock"), name):
        pytest.skip(reason("filelock 3", f"this one has no {name}"))


@pytest.fixture
def start():
    started = []

    def begin(*args):
        started.append(Peer(*args))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


@pytest.mark.parametrize("name", SHARED)
def test_a_holder_of_either_release_keeps_the_other_out(tmp_path, start, name):
    there(name)
    take = "lock.acquire_write" if "Write" in name else "lock.acquire"
    sides = [start(module, name, tmp_path / "a", SHARED[name])
             for module in (ours.__name__, "filelock")]  # fmt: skip
    for holder, contender in (sides, sides[::-1], sides):
        assert holder.says(f"{take}(timeout=60)") == "done"
        assert contender.says(f"{take}(timeout=0.1)") == "Timeout"
        assert holder.says("lock.release()") == "done"


def test_a_soft_reader_writer_lock_of_the_older_layout_is_refused(tmp_path, start):
    there("SoftReadWriteLock")
    options = {"is_singleton": False}
    mine, other = (start(module, "SoftReadWriteLock", tmp_path / "a", options)
                   for module in (ours.__name__, "filelock"))  # fmt: skip
    for side in ("read", "write"):
        assert other.says(f"lock.acquire_{side}(timeout=60)") == "done"
        assert mine.says("lock.acquire_write(timeout=5)") == "SoftFileLockProtocolError"
        assert other.says("lock.release()") == "done"
        assert mine.says("lock.acquire_write(timeout=60)") == "done"
        assert mine.says("lock.release()") == "done"
