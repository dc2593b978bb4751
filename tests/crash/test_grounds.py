"""Each file system that can be made here: exclusion, record, loss, full, read-only."""

from __future__ import annotations

import os
import subprocess

import pytest

from crash.scene import descriptors, free, hold, next_token, raised
from ground import needs, require
from lifehold import LeaseLost, Lock, SystemRefused, WouldBlock
from lifehold.local.handles import TABLE
from lifehold.testing.crash import Child

pytestmark = needs("root", "unshare")
SIZES = {"ext4": 16, "xfs": 320, "btrfs": 120}  # MiB of the image
KINDS = ["ext4", "xfs", "btrfs", "tmpfs", "overlay"]


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=150)


@pytest.fixture
def mounted(tmp_path):
    """Mounts a fresh file system of a kind; unmounts them all at the end."""
    mounts = []

    def mount(kind, *options):
        place = tmp_path / f"{kind}{len(mounts)}"
        place.mkdir()
        if kind in SIZES:
            require(kind)
            image = tmp_path / f"image{len(mounts)}"
            with image.open("wb") as file:
                file.truncate(SIZES[kind] << 20)
            run(f"mkfs.{kind}", "-q", *options, image)
            run("mount", "-o", "loop", image, place)
        elif kind == "overlay":
            below = mount("tmpfs")
            for name in ("lower", "upper", "work"):
                (below / name).mkdir()
            (below / "lower" / "data").write_text("precious")
            layers = f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work"
            run("mount", "-t", "overlay", "-o", layers, "none", place)
        else:
            require("tmpfs")
            run("mount", "-t", "tmpfs", "-o", ",".join(("size=1m", *options)), "none", place)
        mounts.append(place)
        return place

    yield mount
    TABLE.close_idle()
    for place in reversed(mounts):
        run("umount", place)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_excludes_tells_its_holder_and_notices_loss_on(mounted, kind):
    path = str(mounted(kind) / "deep" / "lock")
    with Child(hold, path) as holder:
        token = holder.at("held")
        refused = raised(Lock(path).acquire, 0)
        assert isinstance(refused, WouldBlock)
        assert refused.holder.owner.pid == holder.pid
        assert refused.holder.alive == "alive"
        assert kind in str(refused)
        assert Lock(path).locked()
        holder.kill()
    lease = Lock(path).acquire(60)
    assert lease.token > token
    os.truncate(path, 0)
    lease.check()
    assert os.path.getsize(path) == 1024
    os.unlink(path)
    assert isinstance(raised(lease.check), LeaseLost)
    assert isinstance(raised(lease.release), LeaseLost)
    assert next_token(path, 0) > lease.token


def test_a_file_of_a_lower_layer_is_locked_and_its_bytes_stay(mounted):
    place = mounted("overlay")
    with Lock(place / "data", wait=0) as lease:
        assert lease.token is None
        assert (place / "data").read_text() == "precious"


def fill(place):
    """Take all blocks that are left."""
    fd = os.open(place / "fill", os.O_CREAT | os.O_WRONLY)
    for size in (1 << 20, 4096, 512, 1):
        try:
            while os.write(fd, b"x" * size):
                pass
        except OSError:
            pass
    os.close(fd)


@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "xfs", "btrfs"])
def test_a_disk_without_blocks_refuses_a_new_lock_and_keeps_an_old_one_working(mounted, kind):
    place = mounted(kind)
    old = str(place / "old")
    before = next_token(old)
    fill(place)
    path = place / "new"
    error = raised(Lock(path).acquire, 0)
    if error is None:  # there was room for one record more
        pytest.skip(f"needs a full disk: {kind} still had room")
    assert isinstance(error, SystemRefused)
    assert "free some space" in str(error)
    assert str(path) in str(error)
    assert not path.exists() or (free(path) and path.stat().st_size == 0)
    assert descriptors(path) == []
    if kind != "btrfs":  # it copies on write, so an old record needs room too
        assert next_token(old, 0) > before
    os.unlink(place / "fill")
    assert next_token(str(path), 0) > 0


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_disk_without_inodes_refuses_a_new_lock_and_leaves_nothing(mounted, kind):
    place = mounted(kind, *(["nr_inodes=4"] if kind == "tmpfs" else ["-N", "16"]))
    old = str(place / "old")
    before = next_token(old)
    with pytest.raises(OSError, match="No space"):
        for number in range(100):
            (place / f"f{number}").touch()
    error = raised(Lock(place / "new").acquire, 0)
    assert isinstance(error, SystemRefused)
    assert "inodes" in str(error)
    assert not (place / "new").exists()
    assert isinstance(raised(Lock(place / "deep" / "new").acquire, 0), SystemRefused)
    assert next_token(old, 0) > before


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_file_on_a_read_only_mount_is_locked_with_no_token(mounted, exclusive):
    place = mounted("tmpfs")
    path = str(place / "lock")
    last = next_token(path)
    run("mount", "-o", "remount,ro", place)
    lock = Lock(path, exclusive=exclusive)
    with lock.acquire(0) as lease:
        assert lease.token == (None if exclusive else last)
        assert exclusive == ("only be read" in (lease.token_reason or ""))
        lease.check()
        with Child(hold_briefly, path) as other:
            assert "WouldBlock" in other.end().error
    error = raised(Lock(place / "new").acquire, 0)
    assert isinstance(error, SystemRefused)
    assert "Read-only file system: only a lock file that exists" in str(error)


def hold_briefly(path):
    Lock(path).acquire(0).release()
