"""What lifehold.compat.filelock calls where a program may listen, and what it leaves open."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from ground import needs
from lifehold.compat.filelock import FileLock, SoftFileLock, StrictSoftFileLock, Timeout

pytestmark = needs("linux")
DEAD = b"2147483646\n%s\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "heard.lock"


@pytest.fixture
def dead(path):
    """A soft lock of a process that is gone."""
    with SoftFileLock(path):
        host = path.read_bytes().split(b"\n")[1]
    path.write_bytes(DEAD % host)
    return path.read_bytes()


def opened(path):
    fds = os.listdir("/proc/self/fd")
    return sum(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in fds)


def test_a_lock_that_is_taken_often_stays_open_and_another_one_does_not(path):
    seen = []
    for _ in range(4):
        with FileLock(path):
            pass
        seen.append(opened(path))
    assert seen == [0, 0, 1, 1]


def test_a_file_that_cannot_be_removed_while_it_is_open_is_removed_then(path, monkeypatch):
    lock, tried, remove = SoftFileLock(path), [], Path.unlink

    def refused_once(self, *args, **kwargs):
        tried.append(self)
        if len(tried) == 1:
            raise PermissionError(13, "in use")
        remove(self, *args, **kwargs)

    lock.acquire()
    monkeypatch.setattr(Path, "unlink", refused_once)
    lock.release()
    assert (len(tried), path.exists()) == (2, False)


def test_nor_is_a_successors_file_that_came_meanwhile(path, monkeypatch):
    lock = SoftFileLock(path)

    def replaced(self, *_args, **_kwargs):
        other = path.with_name("other")
        other.write_text("live")
        other.replace(self)
        raise PermissionError(13, "in use")

    lock.acquire()
    monkeypatch.setattr(Path, "unlink", replaced)
    lock.release()
    assert path.read_text() == "live"


def test_a_dead_holders_file_that_changes_under_the_look_is_left_to_who_changed_it(
    path, dead, monkeypatch
):
    look, read = [], os.read

    def read_and_change(fd, length):
        content = read(fd, length)
        look.append(content)
        path.write_text("live")
        return content

    monkeypatch.setattr(os, "read", read_and_change)
    with pytest.raises(Timeout):
        SoftFileLock(path).acquire(blocking=False)
    monkeypatch.undo()
    assert (look[0], path.read_text()) == (dead, "live")


def test_those_who_ask_for_a_strict_lock_often_do_not_meet_at_every_try(path, monkeypatch):
    windows = []

    def draw(bound):
        windows.append(bound)
        return 0

    monkeypatch.setattr(secrets, "randbelow", draw)
    with StrictSoftFileLock(path), pytest.raises(Timeout):
        StrictSoftFileLock(path).acquire(
            timeout=150, poll_interval=0.002, cancel_check=lambda: len(windows) >= 6
        )
    assert windows == [4001, 8001, 16001, 32001, 50001, 50001]
