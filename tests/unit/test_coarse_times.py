"""kind="link" where files carry times of whole seconds: two beats of one second look alike."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from ground import needs
from lifehold import Lock, UnsafeGround
from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant
from lifehold.local.handles import TABLE, Descriptors
from lifehold.local.link import LinkLock
from lifehold.runtime.blocking import BLOCKING

SHORT, LONG = Terms(1.0, 0.3, 0.1), Terms(30.0, 10.0, 3.0)


class Times:
    """The seam of a file system that cuts times off."""

    def __init__(self, grain):
        self.grain, self.looks = grain, 0

    def __getattr__(self, name):
        return getattr(TABLE.files, name)

    def fstat(self, fd):
        found = TABLE.files.fstat(fd)
        self.looks += 1
        cut = found.st_mtime_ns // self.grain * self.grain
        return _Cut(found, cut)


class _Cut:
    def __init__(self, found, cut):
        self.found, self.st_mtime_ns = found, cut

    def __getitem__(self, number):
        return self.found[number]

    def __getattr__(self, name):
        return getattr(self.found, name)


def lock(path, grain, terms):
    return LinkLock(str(path), BLOCKING, table=Descriptors(Times(grain)), terms=terms)


@pytest.mark.parametrize("dead", [False, True], ids=["free", "after one who died"])
def test_a_short_ttl_is_refused_where_two_beats_look_alike(tmp_path, dead):
    path = tmp_path / "box.lock"
    if dead:
        path.write_bytes(b"2147483646\n")
    with pytest.raises(UnsafeGround, match=r"whole seconds.*ttl=6"):
        lock(path, 10**9, SHORT).attempt()
    assert [each.name for each in tmp_path.iterdir()] == (["box.lock"] if dead else [])
    if dead:
        assert path.read_bytes() == b"2147483646\n"
    got = lock(path, 10**9, LONG).attempt()
    assert isinstance(got, Grant)


def test_a_short_ttl_is_kept_where_times_are_fine(tmp_path):
    ours = lock(tmp_path / "box.lock", 1, SHORT)
    for _ in range(3):
        got = ours.attempt()
        assert isinstance(got, Grant)
        assert ours.drop(got) is None


def test_a_file_made_at_a_full_second_does_not_deceive(tmp_path, monkeypatch):
    ours = lock(tmp_path / "box.lock", 1, SHORT)
    told = iter([10**9])
    monkeypatch.setattr(
        ours.files, "fstat", lambda fd: SimpleNamespace(st_mtime_ns=next(told, 123))
    )
    ours._refuse_coarse(SimpleNamespace(fd=TABLE.files.open(str(tmp_path / "x"), 0o102)))
    assert ours._fine


@needs("ext4")
def test_ext4_with_small_inodes_is_such_a_file_system(tmp_path):
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-I", "128", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        with pytest.raises(UnsafeGround, match="whole seconds"):
            Lock(mount / "box.lock", kind="link", ttl=1.3).acquire(0)
        Lock(mount / "box.lock", kind="link", ttl=6).acquire(0).release()
        Lock(mount / "box.lock", kind="link").acquire(0).release()
    finally:
        subprocess.run(["umount", mount], check=True)
