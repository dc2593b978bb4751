"""Who waits is woken by what others do, never by what its own looks do."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE

import pytest

from ground import needs
from lifehold import Lock, ReadWriteLock, Timeout
from lifehold.cli import wait
from lifehold.local.files import HOST
from lifehold.local.judge import PAUSE
from lifehold.local.kinds import KINDS
from lifehold.local.soft_readwrite import SoftReadWrite
from lifehold.runtime import change_wait

pytestmark = needs("linux")  # its events
KIND = [kind for kind in KINDS if kind != "kernel"]
MORE = {"folder": 20}  # it is looked at, by lockfolder's own rule


def looks_of(waiter):
    """How often it looked, in a second of waiting for what is held."""
    looks = 0
    attempt = waiter._mechanism.attempt

    def counted():
        nonlocal looks
        looks += 1
        return attempt()

    waiter._mechanism.attempt = counted
    with pytest.raises(Timeout):
        waiter.acquire(1)
    return looks


def most(kind):
    return 2 + len(change_wait.AGAIN) + 2 * len(change_wait.ARMED) + MORE.get(kind, 0)


@pytest.mark.parametrize("used", ["new", "used"])
@pytest.mark.parametrize("kind", KIND)
def test_a_look_of_a_waiter_wakes_no_waiter(tmp_path, kind, used):
    """It looked without a pause, and wrote a record at each look, where it had held it before."""
    path = tmp_path / "jobs.lock"
    waiter = Lock(path, kind=kind)
    if used == "used":
        waiter.acquire().release()
    with Lock(path, kind=kind):
        assert looks_of(waiter) <= most(kind)


@pytest.mark.parametrize("kind", [kind for kind in KIND if kind != "folder"])
def test_nor_where_no_process_can_be_followed(tmp_path, kind):
    """A record that nobody can read, of another PID namespace, of a holder that left a child."""
    path = tmp_path / "jobs.lock"
    lease = Lock(path, kind=kind).acquire()
    record = path if path.is_file() else max(path.iterdir())
    Path(record).write_text("what is this?")
    assert looks_of(Lock(path, kind=kind)) <= most(kind)
    lease._grant.handle.clear()


@pytest.mark.parametrize("ttl", [None, 30])
@pytest.mark.parametrize("waits", ["reader", "writer"])
def test_nor_does_that_of_a_reader_or_a_writer(tmp_path, monkeypatch, waits, ttl):
    """Each look opened a record for writing, and its close woke the waiter that had looked."""
    first, second = (ReadWriteLock(tmp_path / "jobs.lock", kind="soft", ttl=ttl) for _ in "12")
    looks, sleep = 0, SoftReadWrite.wait

    async def counted(side, ask, until):
        nonlocal looks
        looks += 1
        return await sleep(side, ask, until)

    monkeypatch.setattr(SoftReadWrite, "wait", counted)
    of = {"reader": second.acquire_read, "writer": second.acquire_write}
    with ThreadPoolExecutor(1) as other:
        held = other.submit(first.acquire_write if waits == "reader" else first.acquire_read)
    with held.result(), pytest.raises(Timeout):
        of[waits](1)
    assert 0 < looks <= most("soft")


@pytest.mark.parametrize("kind", [*KIND, "readers"])
def test_nor_does_a_look_of_the_command(tmp_path, monkeypatch, kind):
    """`lifehold wait` armed its watch anew at each look, and looked again for that: 70 a second."""
    path, looks = tmp_path / "jobs.lock", 0
    look = wait.who

    def counted(*given, **more):
        nonlocal looks
        looks += 1
        return look(*given, **more)

    monkeypatch.setattr(wait, "who", counted)
    readers = ReadWriteLock(path, kind="soft").acquire_read
    with readers() if kind == "readers" else Lock(path, kind=kind):
        assert wait.wait(["-w", "1", str(path)]) == 75
    assert 0 < looks <= 10


@pytest.mark.parametrize("kind", ["soft", "link", "directory"])
def test_nor_while_somebody_stands_in_the_middle_of_a_takeover(tmp_path, kind):
    """A breaker that is stopped keeps the guard of a dead record."""
    path = tmp_path / "jobs.lock"
    held = f"lease = lifehold.Lock({str(path)!r}, kind={kind!r}).acquire(); print(1); input()"
    command = [sys.executable, "-uc", f"import lifehold; {held}"]
    holder = subprocess.Popen(command, stdin=PIPE, stdout=PIPE)
    assert holder.stdout.readline()
    holder.kill()
    holder.communicate()
    record = os.open(path if path.is_file() else max(path.iterdir()), os.O_RDWR)
    try:
        HOST.guard(record)
        assert looks_of(Lock(path, kind=kind)) <= 1 / PAUSE + most(kind)
    finally:
        os.close(record)
    Lock(path, kind=kind, wait=30).acquire().release()
