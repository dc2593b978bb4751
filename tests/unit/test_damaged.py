"""A record that was damaged while it was held keeps nobody out once its lock is released."""

from __future__ import annotations

import os

import pytest

from lifehold import LeaseLost, Lock, ReadWriteLock

TEXT = b"some text of somebody else, 40 bytes long\n"
DAMAGE = {
    "truncated": lambda path: os.truncate(path, 0),
    "overwritten": lambda path: overwrite(path, TEXT),
    "written over and beyond": lambda path: overwrite(path, TEXT * 100),
    "cut": lambda path: os.truncate(path, 100),
}
KINDS = [
    (kind, ttl)
    for kind in ("soft", "link", "generation", "directory", "folder")
    for ttl in (None, 30)
    if (kind, ttl) != ("folder", 30)
]


def overwrite(path, text):
    with open(path, "r+b") as file:
        file.write(text)


def records(path):
    return [str(each) for each in path.iterdir()] if path.is_dir() else [str(path)]


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(("kind", "ttl"), KINDS)
def test_a_damaged_record_blocks_nobody_after_its_release(tmp_path, kind, ttl, how):
    path = tmp_path / "build.lock"
    options = {"kind": kind} | ({"ttl": ttl} if ttl else {})
    lease = Lock(path, **options).acquire(0)
    for each in records(path):
        DAMAGE[how](each)
    try:
        lease.release()
    except LeaseLost:
        assert kind != "link"
    with Lock(path, **options).acquire(0) as other:
        assert other.token > lease.token


@pytest.mark.parametrize("side", ["reading", "writing"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_record_of_a_side_blocks_nobody_after_its_release(tmp_path, side, how):
    path = tmp_path / "build.lock"
    with getattr(ReadWriteLock(path, kind="soft"), side)(wait=0):
        for each in records(path) if path.exists() else records(tmp_path / "build.lock.readers"):
            DAMAGE[how](each)
    with ReadWriteLock(path, kind="soft").writing(wait=0) as lease:
        assert lease.held
