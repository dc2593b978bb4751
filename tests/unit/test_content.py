"""What the kernel lock does with content that it finds in its file."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from lifehold import CorruptRecord, Lock, UnsafeGround, WouldBlock
from lifehold.local import record as form
from lifehold.local.files import HOST
from lifehold.runtime.process import here


@pytest.fixture
def path(tmp_path):
    return tmp_path / "build.lock"


def filled(path, content: bytes) -> bytes:
    path.write_bytes(content)
    return content


def record(path, token: int = 5, ino: int | None = None) -> bytes:
    path.touch()
    parts = form.parts(path.stat().st_ino if ino is None else ino, "ab" * 8, here())
    return filled(path, form.numbered(parts, token, 1))


NINES = 99_999_999_999_999_999_999


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 1024])
def test_an_empty_file_gets_a_record(path, content):
    filled(path, content)
    with Lock(path) as lease:
        assert form.parse(path.read_bytes()).token == lease.token


@pytest.mark.parametrize(
    "content", [b"4127\n", b"#!/bin/sh\nexit\n", b" ", b"x" * 5000, b"\0" * 1025]
)
def test_the_data_of_others_is_locked_and_never_changed(path, content):
    filled(path, content)
    with Lock(path) as lease:
        assert lease.token is None
        assert "somebody else's data" in lease.token_reason
        with pytest.raises(WouldBlock):
            Lock(path).acquire(0)
        lease.check()
        assert lease.held
    assert path.read_bytes() == content


@pytest.mark.parametrize("ino", [None, 1], ids=["own", "copied"])
def test_the_token_continues_from_the_one_that_is_stored(path, ino):
    future = 2**62
    record(path, token=future, ino=ino)
    with Lock(path) as lease:
        assert lease.token == future + 1


@pytest.mark.parametrize("ino", [None, 1], ids=["own", "copied"])
@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "shared"])
def test_a_poisoned_record_is_corrupt_and_nothing_is_held(path, ino, exclusive):
    content = record(path, token=NINES, ino=ino)
    with pytest.raises(CorruptRecord, match="begin anew") as caught:
        Lock(path, exclusive=exclusive).acquire()
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content
    Lock(path, record=False).acquire(0).release()
    remedy = str(caught.value).partition("begin anew: ")[2]
    assert remedy == f"truncate -s 0 {path}"
    subprocess.run(["sh", "-c", remedy], check=True)
    Lock(path, exclusive=exclusive).acquire(0).release()


def test_the_greater_token_of_a_torn_record_counts(path):
    future = 2**62
    content = record(path, token=future)
    filled(path, content.replace(b"%20d" % future, b"%20d" % 7, 1))
    with Lock(path) as lease:
        assert lease.token > 7
    filled(path, content.replace(b"%20d" % future, b"  broken            "[:20], 1))
    with Lock(path) as lease:
        assert lease.token == future + 1


def test_a_newer_record_means_held_until_it_is_gone(path):
    content = filled(path, b'{"lifehold":2,"what":"ever"}\n')
    for wait in (0, 0.05):
        with pytest.raises(Exception, match="version 2, written by a newer lifehold") as caught:
            Lock(path).acquire(wait)
        assert caught.value.code in ("would_block", "timeout")
        holder = caught.value.holder  # nobody is seen to hold it, and nothing of it is believed
        assert (holder.alive, holder.owner) == ("unknown", None)
        assert "newer lifehold" in holder.evidence
    assert path.read_bytes() == content
    path.write_bytes(b"")
    Lock(path).acquire(0).release()


def test_a_newer_record_means_held_for_readers_too(path):
    filled(path, b'{"lifehold":2,"what":"ever"}\n')
    with pytest.raises(WouldBlock, match="version 2, written by a newer lifehold"):
        Lock(path, exclusive=False).acquire(0)


def test_a_file_that_was_emptied_while_held_gets_its_record_back(path):
    with Lock(path) as lease:
        os.truncate(path, 0)
        lease.check()
        found = form.parse(path.read_bytes())
        assert (found.token, found.nonce) == (lease.token, lease.nonce)


def test_cleanup_refuses_a_file_that_is_not_its_own(path):
    for content in (b"data", b"\0\0"):
        filled(path, content)
        with pytest.raises(UnsafeGround, match="cleanup=True would unlink"):
            Lock(path, cleanup=True).acquire()
        assert path.read_bytes() == content
        Lock(path, record=False).acquire(0).release()


def test_cleanup_unlinks_the_file_at_release(path):
    with Lock(path, cleanup=True):
        assert path.exists()
    assert not path.exists()


def test_a_file_that_can_only_be_read_is_locked_without_a_token(path):
    content = record(path)
    path.chmod(0o444)
    if os.geteuid() == 0:
        pytest.skip("needs user: this is root")
    with Lock(path) as lease:
        assert "only be read" in lease.token_reason
    assert path.read_bytes() == content


def test_a_reader_carries_the_token_of_the_last_writer(path):
    with Lock(path, exclusive=False) as reader:
        assert reader.token is None
        assert "no exclusive holder" in reader.token_reason
    with Lock(path) as writer:
        pass
    with Lock(path, exclusive=False) as reader:
        assert reader.token == writer.token


def test_a_full_disk_does_not_make_a_check_fail(path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Lock(path) as lease:
        path.write_bytes(b"")
        monkeypatch.setattr(HOST, "pwrite", full)
        lease.check()
        assert lease.held
        monkeypatch.undo()
        lease.check()
        assert form.parse(path.read_bytes()).token == lease.token
