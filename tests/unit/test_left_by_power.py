"""What a power failure, or a file server's client that failed, leaves: no holder, and no wedge."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from ground import needs
from lifehold import Lock, WouldBlock
from lifehold.local import record_folders
from lifehold.local.files import HOST

pytestmark = needs("linux")
OWN = ["generation", "directory"]
TTLS = [{}, {"ttl": 30}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def record_of(path):
    return max(path.iterdir())


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("options", TTLS, ids=["no ttl", "ttl"])
@pytest.mark.parametrize("size", [0, 1024])
def test_a_record_that_never_came_to_the_disk_is_left_alone_first_and_not_for_ever(
    kind, options, size, path, monkeypatch
):
    with Lock(path, kind=kind, **options) as lease:
        last, name = lease.token, record_of(path).name
    path.mkdir(exist_ok=True)
    if kind == "directory":
        (path / name).touch()
    record_of(path).write_bytes(b"\0" * size)
    with pytest.raises(WouldBlock):
        Lock(path, kind=kind, **options).acquire(0)
    lock = Lock(path, kind=kind, wait=30, **options)
    monkeypatch.setattr(lock._mechanism.evidence, "grace", 0.3)  # else 120 s
    with lock as lease:
        assert lease.token > last


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("options", TTLS, ids=["no ttl", "ttl"])
def test_an_emptied_record_of_a_living_holder_is_held(kind, options, path):
    with Lock(path, kind=kind, **options):
        record = record_of(path)
        content = record.read_bytes()
        record.write_bytes(b"")
        with pytest.raises(WouldBlock):
            Lock(path, kind=kind, **options).acquire(0)
        record.write_bytes(content)


@pytest.mark.parametrize("kind", ["soft", "link"])
def test_an_empty_file_that_may_be_another_programs_is_left_alone(kind, path):
    path.touch()
    with pytest.raises(WouldBlock, match="left alone"):
        Lock(path, kind=kind).acquire(0)


@pytest.mark.parametrize("name", [".nfs000000000001", ".fuse_hidden0000001b00000001"])
def test_the_remains_of_a_removed_record_hold_nothing(name, path):
    path.mkdir()
    (path / name).touch()
    path.chmod(stat.S_IMODE(path.stat().st_mode) | record_folders.MARK)
    with Lock(path, kind="directory", wait=0) as lease:
        lease.check()


def test_a_sweep_that_fails_loses_no_lock(path, monkeypatch):
    with Lock(path, kind="directory", ttl=30):
        pass

    def failing(fd):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(HOST, "fstat", failing)
    record_folders.sweep(HOST, str(path), 0)


def test_a_folder_of_bids_for_all_is_open_to_all_whatever_the_umask(path):
    before = os.umask(0o077)
    try:
        with Lock(path, kind="folder", shared=True):
            assert stat.S_IMODE(path.stat().st_mode) == 0o777
    finally:
        os.umask(before)
