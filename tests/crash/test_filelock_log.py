"""kill -9 at every change that the filelock face's SoftReadWriteLock makes: the next one is in."""

from __future__ import annotations

import os

import pytest

from ground import needs
from lifehold.compat.filelock import SoftReadWriteLock
from lifehold.compat.filelock.system_calls import TABLE
from lifehold.testing.crash import Child, point

pytestmark = needs("linux")
CHANGES = os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY


def changes(module, name, real):
    def call(*arguments, **options):
        if name != "open" or arguments[1] & CHANGES:
            point(f"before {name}")
        return real(*arguments, **options)

    setattr(module, name, call)


def in_and_out(path, side):
    """One acquisition, which stands still before each change of the folder."""
    for name in ("open", "link", "unlink", "rename"):
        changes(os, name, getattr(os, name))
    for name in ("pwrite", "truncate", "flock"):
        changes(TABLE.files, name, getattr(TABLE.files, name))
    lock = SoftReadWriteLock(path, is_singleton=False)
    getattr(lock, f"acquire_{side}")()
    point("held", lock.generation)
    lock.release()


def next_generation(path):
    lock = SoftReadWriteLock(path, is_singleton=False)
    with lock.write_lock(timeout=30):
        return lock.generation


def all_points(path, side):
    with Child(in_and_out, path, side) as child:
        while child.step():
            pass
        assert child.end().well, child.end().error
        return child.passed


@pytest.mark.parametrize(("side", "used"), [("write", False), ("write", True), ("read", True)])
def test_a_kill_at_any_change_leaves_the_log_whole_and_the_lock_free(tmp_path, side, used):
    def new(number):
        path = str(tmp_path / f"lock{number}")
        return path, next_generation(path) if used else 0

    points = all_points(new("")[0], side)
    assert {"held", "before link", "before unlink", "before pwrite"} <= set(points)
    for number in range(1, len(points) + 1):
        path, last = new(number)
        with Child(in_and_out, path, side) as child:
            for _ in range(number):
                if child.step() == "held":
                    last = child.value
            child.kill()
        told = f"killed at {child.passed[-1]}, step {number}"
        assert next_generation(path) > last, told
        assert next_generation(path) > last + 1, told  # and the one after that
