"""`ReadWriteLock` of lifehold.compat.filelock: deaths and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from ground import needs
from lifehold.compat.filelock import ReadWriteLock

pytestmark = needs("linux")
HOLDER = """
import sys
from lifehold.compat.filelock import ReadWriteLock
lock = ReadWriteLock(sys.argv[1], is_singleton=False)
lock.acquire_write()
print("held", flush=True)
sys.stdin.read()
"""
FORKS = """
import os, sqlite3, sys, threading, warnings
warnings.simplefilter("ignore")
from lifehold.compat.filelock import ReadWriteLock, Timeout
from lifehold.core import acquire
acquire.FIRST_NOTICE = 600.0  # a busy machine is told nothing
path = sys.argv[1]
new = lambda: ReadWriteLock(path, is_singleton=False)

def child(play):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        sys.exit(play())
    except Exception as error:
        print(error, flush=True)
        sys.exit(1)
"""


def forks(path, script, *, status=0):
    run = subprocess.run(
        [sys.executable, "-c", FORKS + textwrap.dedent(script), str(path)],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (status, "")
    return run.stdout


def test_a_killed_writers_link_is_swept_by_who_comes_next(tmp_path):
    tmp_path.chmod(0o777)
    path = tmp_path / "shared.db"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    assert len(os.listdir(tmp_path)) == 2
    with ReadWriteLock(path, is_singleton=False).write_lock(timeout=30):
        assert path.stat().st_nlink == 2
    assert os.listdir(tmp_path) == ["shared.db"]


def test_a_holder_that_ends_leaves_no_link(tmp_path):
    tmp_path.chmod(0o777)
    path = tmp_path / "shared.db"
    subprocess.run([sys.executable, "-c", HOLDER, str(path)], input=b"", check=True)
    assert os.listdir(tmp_path) == ["shared.db"]


def test_a_child_may_not_lock_what_was_locked_at_the_fork_and_frees_nothing(tmp_path):
    said = forks(
        tmp_path / "a.db",
        """
        lock = new()
        lock.acquire_read()
        print(child(new))
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            other.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            print(error)
        """,
    )
    assert "was active across fork()" in said
    assert said.endswith("1\ndatabase is locked\n")


def test_a_child_of_a_parent_that_holds_nothing_locks_for_itself(tmp_path):
    forks(
        tmp_path / "a.db",
        """
        lock = new()
        with lock.write_lock():
            pass
        ready, done = os.pipe(), os.pipe()

        def play():
            with new().write_lock(timeout=0):
                os.write(ready[1], b"1")
                os.read(done[0], 1)

        def look():
            os.read(ready[0], 1)
            try:
                lock.acquire_read(timeout=0)
            except Timeout:
                seen.append(True)
            os.write(done[1], b"1")

        seen = []
        thread = threading.Thread(target=look)
        thread.start()
        status = child(play)
        thread.join()
        sys.exit(0 if seen and not status else 1)
        """,
    )


def test_a_child_that_is_forked_in_the_middle_of_a_call_of_sqlite_ends(tmp_path):
    said = forks(
        tmp_path / "a.db",
        """
        armed = [True]

        def hook(event, _):
            if event == "sqlite3.connect" and armed:
                armed.clear()
                print(child(lambda: 0))

        sys.addaudithook(hook)
        with new().write_lock():
            pass
        """,
    )
    assert said == "70\n"


@pytest.mark.parametrize("asks", ["kernel", "sqlite"])
def test_a_fork_does_not_wait_for_a_waiter(tmp_path, asks):
    said = forks(
        tmp_path / "a.db",
        f"""
        from lifehold.compat.filelock import readwrite
        readwrite.possible = {asks == "kernel"}
        lock, other = new(), new()
        lock.acquire_write()
        thread = threading.Thread(target=other.acquire_write)
        thread.start()
        thread.join(0.2)
        print([child(lambda: 0) for _ in range(3)])
        lock.release()
        thread.join()
        """,
    )
    assert said == "[0, 0, 0]\n"
