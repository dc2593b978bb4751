"""`ReadWriteLock` of lifehold.compat.filelock: what it does with SQLite, in one process."""

from __future__ import annotations

import gc
import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from ground import needs
from lifehold.compat.filelock import ReadWriteLock, Timeout, readwrite
from lifehold.compat.filelock.sqlite_file import SqliteDescriptor

pytestmark = needs("linux")
OTHER = """
import sys
from lifehold.compat.filelock import ReadWriteLock, Timeout
lock = ReadWriteLock(sys.argv[1], is_singleton=False)
for line in sys.stdin:
    try:
        eval(line)
    except Timeout:
        print("Timeout", flush=True)
    else:
        print("done", flush=True)
"""


@pytest.fixture(params=["kernel", "sqlite"])
def waiting(request, monkeypatch):
    """Who wakes a waiter: the kernel, or SQLite, which asks again, as on other systems."""
    if request.param == "sqlite":
        monkeypatch.setattr(readwrite, "possible", False)
        monkeypatch.setattr(SqliteDescriptor.foreign, "__defaults__", (False,))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shared.db")


@pytest.fixture
def open_folder(tmp_path):
    """A folder in which other accounts may create names."""
    tmp_path.chmod(0o777)
    return tmp_path


@pytest.fixture
def other(path):
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, path],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:

        def says(call):
            process.stdin.write(call + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield says
        process.stdin.close()


def new(path):
    return ReadWriteLock(path, is_singleton=False)


def links(folder):
    return [name for name in os.listdir(folder) if name.startswith(".filelock-")]


def opened(folder):
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [name for name in found if name.startswith(str(folder))]


@pytest.mark.parametrize("side", ["acquire_read", "acquire_write"])
def test_a_waiter_of_either_side_follows_a_writer(path, waiting, side):
    holder, waiter, got = new(path), new(path), threading.Event()

    def wait():
        getattr(waiter, side)(timeout=60)
        got.set()
        waiter.release()

    holder.acquire_write()
    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.wait(0.2)
    holder.release()
    assert got.wait(60)
    thread.join()


def test_a_writer_waits_for_all_readers_and_tells_who_they_are(path, waiting):
    reader, writer = new(path), new(path)
    with reader.read_lock():
        with pytest.raises(Timeout) as caught:
            writer.acquire_write(timeout=0.1)
        assert caught.value.holder.owner.pid == os.getpid()
    with writer.write_lock(timeout=60):
        pass


def test_who_gives_up_or_is_dropped_frees_nothing_of_this_process(path, other, waiting):
    """Closing a file drops the locks that the process has on it, whoever else has some too."""
    assert other("lock.acquire_read(timeout=60)") == "done"
    with new(path).read_lock():
        for _ in range(3):
            contender = new(path)
            with pytest.raises(Timeout):
                contender.acquire_write(timeout=0.02)
            contender.close()
            del contender
        gc.collect()
        assert other("lock.release()") == "done"
        assert other("lock.acquire_write(timeout=0.1)") == "Timeout"
    assert other("lock.acquire_write(timeout=60)") == "done"


def test_what_was_kept_open_for_a_lock_is_closed_after_it(path, tmp_path):
    holder = new(path)
    with holder.read_lock():
        for _ in range(3):
            with pytest.raises(Timeout):
                new(path).acquire_write(timeout=0.02)
    holder.close()
    gc.collect()
    assert opened(tmp_path) == []


def test_who_locks_once_or_twice_leaves_nothing_open_and_who_locks_often_does(path, tmp_path):
    lock = new(path)
    seen = []
    for _ in range(4):
        with lock.read_lock():
            pass
        seen.append(bool(opened(tmp_path)))
    assert seen == [False, False, True, True]
    lock.close()
    assert opened(tmp_path) == []


def test_connections_are_kept_but_not_more_than_some(tmp_path, monkeypatch):
    monkeypatch.setattr(readwrite, "KEEP", 2)
    locks = [new(tmp_path / f"{number}.db") for number in range(4)]
    for lock in locks * 3:
        with lock.write_lock():
            pass
    assert {os.path.basename(name) for name in opened(tmp_path)} == {"2.db", "3.db"}
    for lock in locks:  # those that were closed open anew
        with lock.read_lock():
            pass


def test_a_database_that_was_replaced_between_two_holds_is_opened_anew(path):
    lock = new(path)
    for _ in range(3):
        with lock.write_lock():
            pass
    os.unlink(path)
    with lock.write_lock():
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()


def test_where_others_may_create_names_there_is_a_link_for_as_long_as_the_hold(open_folder):
    path = open_folder / "shared.db"
    lock = new(path)
    with lock.write_lock():
        (name,) = links(open_folder)
        assert stat.S_IMODE((open_folder / name).stat().st_mode) == 0o700
        assert path.stat().st_nlink == 2
    assert (links(open_folder), path.stat().st_nlink) == ([], 1)
    with lock.read_lock(), pytest.raises(Timeout):
        new(path).acquire_write(timeout=0)


def test_a_schema_that_is_no_locks_is_refused(path):
    with sqlite3.connect(path) as database:
        names = ", ".join(f"column_{number}" for number in range(1500))
        database.execute(f"CREATE TABLE large ({names})")
    database.close()
    with pytest.raises(ValueError, match="too large"):
        new(path).acquire_read(timeout=0)


def test_without_sqlite_there_is_none(tmp_path):
    code = (
        "import sys; sys.modules['sqlite3'] = None\n"
        "from lifehold.compat.filelock import AsyncReadWriteLock, FileLock, ReadWriteLock\n"
        "print(ReadWriteLock, AsyncReadWriteLock)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "None None\n"
