"""What `auto` takes on ground that is not a disk of our own, and who asks the probe."""

from __future__ import annotations

import os
import sys

import pytest

from lifehold import InvalidArgument, Lock, UnsafeGround
from lifehold.local import ground, ground_probe, record_lock
from lifehold.local.ground import MountInfo


@pytest.fixture
def lies_on(monkeypatch):
    """Every path lies on this type of file system from now on."""

    def lie(kind):
        monkeypatch.setattr(ground, "place_of_path", lambda path: MountInfo(kind, "0:50"))
        for module in (record_lock, ground_probe):
            monkeypatch.setattr(module, "ground_of", lambda path: MountInfo(kind, "0:50"))
        monkeypatch.setattr(record_lock, "place_at", lambda found: MountInfo(kind, "0:50"))
        ground._of_folders.clear()
        ground_probe._forget()

    yield lie
    ground._of_folders.clear()
    ground_probe._forget()


def kind_of(lock):
    return type(lock._mechanism).__name__


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "newfs", "overlayish"])
def test_auto_takes_a_lease_that_needs_no_flock_where_no_death_can_be_proven(
    lies_on, tmp_path, kind
):
    lies_on(kind)
    lock = Lock(tmp_path / "job")
    assert kind_of(lock) == "GenerationLock"
    with lock as lease:
        assert 0 < lease.remaining() <= 30
        assert f"{kind}" in lock.holder().lock
        assert "unproven" in lock.holder().lock


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", ""])
def test_auto_takes_the_kernel_lock_on_a_disk_and_where_no_type_is_named(lies_on, tmp_path, kind):
    lies_on(kind)
    assert kind_of(Lock(tmp_path / "job")) == "KernelLock"


@pytest.mark.parametrize("kind", ["fuse.lying", "newfs"])
def test_where_link_was_seen_to_fail_it_is_refused_and_asked_once_for_a_mount(
    lies_on, tmp_path, kind, monkeypatch
):
    lies_on(kind)
    asked = []

    def fails(files, room):
        asked.append(room)
        return "the link leads to another inode number than its file"

    monkeypatch.setattr(ground_probe, "_link", fails)
    for name in ("one", "two"):
        with pytest.raises(UnsafeGround, match="another inode number"):
            Lock(tmp_path / name).acquire(0)
    assert len(asked) == 1
    assert os.listdir(tmp_path) == []


def test_a_known_network_file_system_is_not_probed(lies_on, tmp_path, monkeypatch):
    lies_on("nfs4")
    monkeypatch.setattr(ground_probe, "probe", None)
    Lock(tmp_path / "job").acquire(0).release()


def test_to_ask_who_holds_it_probes_nothing(lies_on, tmp_path, monkeypatch):
    lies_on("newfs")
    monkeypatch.setattr(ground_probe, "probe", None)
    assert Lock(tmp_path / "job").holder() is None


@pytest.mark.parametrize("kind", ["soft", "link", "generation"])
def test_on_windows_the_kinds_of_unix_are_refused_in_words(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(InvalidArgument, match="Windows"):
        Lock(tmp_path / "job", kind=kind)
