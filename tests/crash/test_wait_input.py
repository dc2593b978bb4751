"""What may become of the path, the process and the system while somebody waits."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from crash.scene import free, hold, threads, until, waited_for
from crash.terrain import NOBODY
from ground import needs
from lifehold import AsyncLock, Lock, SystemRefused
from lifehold.local.handles import TABLE
from lifehold.testing.crash import Child

pytestmark = needs("linux")

WAYS = ["own thread", "fair", "helper", "task"]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr("lifehold.core.acquire.FIRST_NOTICE", 0.05)  # and each next one twice that
    (tmp_path / "folder").mkdir()
    yield str(tmp_path / "folder" / "lock")
    TABLE.close_idle()


def wait(path, way, seconds=60):
    """What a wait comes to: its token, or the kind and the words of its error."""
    if way == "helper":
        from lifehold.runtime import flock_wait

        flock_wait.has_timers = False

    async def task():
        async with AsyncLock(path, wait=seconds) as lease:
            return lease.token

    try:
        if way == "task":
            return asyncio.run(task())
        with Lock(path, wait=seconds, fair=way == "fair") as lease:
            return lease.token
    except Exception as error:
        return [type(error).__name__, str(error), descriptors_of(path)]


def descriptors_of(path):
    where = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(name.startswith(os.path.dirname(path)) for name in where)


def vanish(path):
    shutil.rmtree(os.path.dirname(path))


def other_file(path):
    Path(f"{path}.new").write_text("")
    os.rename(f"{path}.new", path)


def link(path):
    os.unlink(path)
    os.symlink("elsewhere", path)


def folder(path):
    os.unlink(path)
    os.mkdir(path)


def file_for_folder(path):
    vanish(path)
    Path(os.path.dirname(path)).write_text("")


MOVES = {"the folder vanishes": vanish, "another file comes": other_file}
REFUSED = {
    "a link comes": (link, "is a symbolic link"),
    "a folder comes": (folder, "is a directory"),
    "a file comes in place of the folder": (file_for_folder, "is a file, not a folder"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", MOVES)
def test_a_waiter_moves_over_when(path, what, way):
    with Child(hold, path) as holder:
        holder.at("held")
        with Child(wait, path, way) as waiter:
            until(lambda: waited_for(path))
            MOVES[what](path)
            ended = waiter.end()
            assert ended.well, ended.error
            assert ended.value > 0, ended.value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", REFUSED)
def test_a_waiter_is_told_and_holds_nothing_when(path, what, way):
    with Child(hold, path) as holder:
        holder.at("held")
        with Child(wait, path, way) as waiter:
            until(lambda: waited_for(path))
            REFUSED[what][0](path)
            ended = waiter.end()
            assert ended.well, ended.error
            kind, text, left = ended.value
            assert kind == "InvalidArgument"
            assert REFUSED[what][1] in text
            assert left == 0


@pytest.fixture
def path_for_all():
    """Not below tmp_path: any other run of pytest that begins meanwhile closes that to others."""
    with tempfile.TemporaryDirectory(prefix="lifehold-", dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        yield os.path.join(folder, "lock")


@needs("root")
@pytest.mark.parametrize("way", WAYS)
def test_a_waiter_whose_folder_may_not_be_entered_any_more_is_told(path_for_all, way):
    path = path_for_all

    def as_nobody():
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return wait(path, way)

    with Child(hold, path) as holder:
        holder.at("held")
        os.chmod(path, 0o666)
        with Child(as_nobody) as waiter:
            until(lambda: waited_for(path))
            os.chmod(os.path.dirname(path), 0o700)
            ended = waiter.end()
            assert ended.well, ended.error
            kind, text, left = ended.value
            assert (kind, left) == ("NotPermitted", 0)
            assert "Permission denied" in text


@needs("root")
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_may_not_be_read_any_more_is_waited_for_all_the_same(path_for_all, way):
    """It is open: the right to open it is not asked for again."""
    path = path_for_all

    def as_nobody():
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return wait(path, way)

    with Child(hold, path) as holder:
        holder.at("held")
        os.chmod(path, 0o666)
        with Child(as_nobody) as waiter:
            until(lambda: waited_for(path))
            os.chmod(path, 0)
            time.sleep(0.12)
            holder.at("released")
            assert waiter.end().value > 0


# ---- many locks ------------------------------------------------------------------------------


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("needs 3000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("fair", [False, True])
def test_a_thousand_locks_are_waited_for_and_held_by_one_process(tmp_path, many_files, fair):
    paths = [str(tmp_path / str(number)) for number in range(1000)]
    holders = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    for fd in holders:
        fcntl.flock(fd, fcntl.LOCK_EX)
    before = threads()

    async def main():
        tasks = [asyncio.create_task(AsyncLock(path, fair=fair).acquire(60)) for path in paths]
        await asyncio.sleep(0)
        until(lambda: threads() >= before + 1000)
        for fd in holders:
            os.close(fd)
        leases = await asyncio.gather(*tasks)
        assert not any(free(path) for path in paths)
        for lease in leases:
            await lease.release()

    asyncio.run(main())
    until(lambda: threads() <= before, 10)
    assert all(free(path) for path in paths)
    TABLE.close_idle()


def test_a_thousand_waits_for_one_lock_are_all_served(tmp_path, many_files):
    path = str(tmp_path / "lock")
    turns = []

    async def turn():
        async with AsyncLock(path, wait=60):
            turns.append(1)

    async def main():
        async with AsyncLock(path):
            tasks = [asyncio.create_task(turn()) for _ in range(1000)]
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)

    before = threads()
    asyncio.run(main())
    assert len(turns) == 1000
    until(lambda: threads() <= before, 10)
    TABLE.close_idle()


def test_too_few_threads_is_one_clear_error_and_the_others_wait_on(tmp_path, monkeypatch):
    paths = [str(tmp_path / str(number)) for number in range(20)]
    holders = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    for fd in holders:
        fcntl.flock(fd, fcntl.LOCK_EX)
    started = []
    from lifehold.runtime import flock_wait

    real = flock_wait.native.start_new_thread

    def few(*arguments):
        if len(started) >= 12:
            raise RuntimeError("can't start new thread")
        started.append(1)
        return real(*arguments)

    monkeypatch.setattr(flock_wait.native, "start_new_thread", few)

    async def main():
        tasks = [asyncio.create_task(AsyncLock(path).acquire(30)) for path in paths]
        await asyncio.sleep(0.1)
        for fd in holders:
            os.close(fd)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(main())
    refused = [each for each in found if isinstance(each, BaseException)]
    assert len(refused) == 8
    assert all(isinstance(each, SystemRefused) for each in refused)
    assert "ulimit -u" in str(refused[0])
    for lease in found:
        if lease not in refused:
            asyncio.run(lease.release())
    assert all(free(path) for path in paths)
    TABLE.close_idle()


# ---- a process without standard streams --------------------------------------------------------

STORY = """
import asyncio, os, sys, threading
for fd in range(3):
    os.close(fd)
try:
    from lifehold import AsyncLock, Lock
    path = sys.argv[1]
    lease = Lock(path).acquire()
    assert lease.fileno() == 0
    threading.Timer(0.05, lease.release).start()
    Lock(path, fair=True).acquire(60).release()
    async def main():
        held = await AsyncLock(path).acquire()
        waiter = asyncio.ensure_future(AsyncLock(path, fair=True).acquire(60))
        await asyncio.sleep(0.05)
        await held.release()
        await (await waiter).release()
    asyncio.run(main())
    os._exit(42)
except BaseException as error:
    with open(sys.argv[2], "w") as file:
        file.write(repr(error))
    os._exit(1)
"""


def test_a_process_whose_standard_streams_are_closed_waits_and_is_served(path, tmp_path):
    told = tmp_path / "told"
    done = subprocess.run([sys.executable, "-c", STORY, path, str(told)], timeout=150, check=False)
    assert done.returncode == 42, told.read_text()
