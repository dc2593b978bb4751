"""Beside the real filelock's SoftFileLock on one path: what excludes, and in which direction."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ground import needs, reason
from lifehold import Lock, Timeout, WouldBlock
from soak import mixed

pytestmark = needs("linux")
VERSION = "4.2.11"

PEER = """
import sys, filelock
lock = filelock.SoftFileLock(sys.argv[1])
try:
    lock.acquire(timeout=float(sys.argv[2]))
except filelock.Timeout:
    print("timeout", flush=True)
else:
    print("in", flush=True)
    sys.stdin.read()
    lock.release()
"""
KINDS = ["soft", "link"]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with filelock, from a package index."""
    folder = tmp_path_factory.mktemp("filelock")
    if mixed.fetch(VERSION, folder):
        pytest.skip(reason(f"filelock {VERSION} from a package index", "it gives none"))
    return folder


@pytest.fixture
def peer(package):
    """Start a process that asks for a SoftFileLock, and holds it until its input ends."""
    started = []
    environment = os.environ | {"PYTHONPATH": str(package)}

    def start(path, patience):
        process = subprocess.Popen(
            [sys.executable, "-c", PEER, path, str(patience)], text=True, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", KINDS)
def test_it_waits_for_ours_and_does_not_remove_it_after_its_two_seconds(tmp_path, kind, peer):
    path = str(tmp_path / "job.lock")
    with Lock(path, kind=kind) as lease:
        asks = peer(path, 3.0)  # what it cannot read it removes when unchanged for 2 s
        assert asks.stdout.readline() == "timeout\n"
        lease.check()
    asks = peer(path, 5)
    assert asks.stdout.readline() == "in\n"


@pytest.mark.parametrize("kind", KINDS)
def test_ours_waits_for_it_and_takes_over_from_a_dead_one_at_once(tmp_path, kind, peer):
    path = str(tmp_path / "job.lock")
    holds = peer(path, 0)
    assert holds.stdout.readline() == "in\n"
    with pytest.raises(WouldBlock) as caught:
        Lock(path, kind=kind).acquire(0)
    assert caught.value.holder.owner.pid == holds.pid
    holds.communicate("")
    Lock(path, kind=kind).acquire(60).release()
    assert not os.path.lexists(path)
    holds = peer(path, 0)
    assert holds.stdout.readline() == "in\n"
    holds.kill()
    holds.wait()
    with Lock(path, kind=kind, wait=5) as lease:
        lease.check()


def test_a_generation_folder_is_refused_by_it_and_its_file_by_ours(tmp_path, peer):
    path = str(tmp_path / "job.lock")
    with Lock(path, kind="generation") as lease:
        asks = peer(path, 0.1)
        assert asks.stdout.readline() == ""  # IsADirectoryError
        lease.check()
    other = str(tmp_path / "other.lock")
    holds = peer(other, 0)
    assert holds.stdout.readline() == "in\n"
    with pytest.raises(Exception, match="is a file"):
        Lock(other, kind="generation").acquire(0)


def test_a_file_of_theirs_on_another_host_is_waited_for(tmp_path):
    path = tmp_path / "job.lock"
    path.write_text("4000000\nelsewhere\n77\n")
    for kind in KINDS:
        with pytest.raises(Timeout):
            Lock(path, kind=kind).acquire(0.05)
