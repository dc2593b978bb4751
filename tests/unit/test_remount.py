"""A program that lives longer than a mount: what was remembered of the ground does not outlive it.

The number of a device is given to the next mount, and a lock object may be older than the mount at
its path. What proves a death on the one proves nothing on the other (L2).
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from lifehold import Lock, UnsafeGround
from lifehold.local import ground
from lifehold.local.ground import MountInfo

DISK, SERVER = MountInfo("tmpfs", "0:43"), MountInfo("nfs4", "0:43")


@pytest.fixture
def mounts(monkeypatch, tmp_path):
    """What is mounted at a path, as the system tells it, and a clock that stands."""
    said = SimpleNamespace(place=DISK, id=1, at=0.0, path=str(tmp_path / "build.lock"), looks=0)
    real = os.fstatvfs

    def place_of(fd):
        said.looks += 1
        return said.place

    def fstatvfs(fd):
        found = real(fd)
        return SimpleNamespace(
            f_fsid=said.id, f_bsize=found.f_bsize, f_frsize=found.f_frsize,
            f_namemax=found.f_namemax,
        )  # fmt: skip

    monkeypatch.setattr(ground, "place_of", place_of)
    monkeypatch.setattr(ground, "place_of_path", lambda path: said.place)
    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    monkeypatch.setattr(ground, "clock", SimpleNamespace(now=lambda: said.at))
    monkeypatch.setattr(ground, "_of_devices", {})
    monkeypatch.setattr(ground, "_of_folders", {})
    return said


@pytest.mark.parametrize("kind", ["soft", "generation", "directory"])
def test_a_lock_without_a_ttl_is_refused_once_a_server_is_mounted_at_its_path(mounts, kind):
    lock = Lock(mounts.path, kind=kind)
    lock.acquire(0).release()
    mounts.place, mounts.id = SERVER, 2
    for each in (lock, Lock(mounts.path, kind=kind)):
        with pytest.raises(UnsafeGround, match="ttl"):
            each.acquire(0)


@pytest.mark.parametrize("kind", ["generation", "directory"])
def test_a_lock_is_proven_again_once_the_server_at_its_path_has_gone(mounts, kind):
    mounts.place = SERVER
    lock = Lock(mounts.path, kind=kind)
    with pytest.raises(UnsafeGround, match="ttl"):
        lock.acquire(0)
    mounts.place, mounts.id, mounts.at = DISK, 2, mounts.at + ground.MOMENT
    Lock(mounts.path, kind=kind).acquire(0).release()


def test_whether_a_path_is_far_is_asked_anew(mounts):
    assert not ground.is_far(mounts.path)
    mounts.place, mounts.at = SERVER, ground.MOMENT
    assert ground.is_far(mounts.path)


def test_within_a_moment_the_mounts_are_read_once(mounts):
    lock = Lock(mounts.path, kind="soft")
    for _ in range(20):
        lock.acquire(0).release()
    assert mounts.looks == 1
