"""Of an SQLite database the writer is named, and a reader that keeps nobody out keeps it free."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ground import needs
from lifehold.ops import clear, inventory
from lifehold.ops.answer import FREE, HELD
from lifehold.ops.who import who

pytestmark = needs("linux", "proc", "all processes")
SOURCE = Path(__file__).parents[2] / "src"
TEXT = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
for each in sys.argv[2:]:
    db.execute(each).fetchall()
print("in", flush=True)
input()
"""
READ = ("begin", "select * from t")
WRITE, COMMIT = ("begin immediate", "insert into t values (1)"), ("begin exclusive",)
IDLE = ("select * from t",)


@pytest.fixture(params=["wal", "delete"])
def mode(request):
    return request.param


@pytest.fixture
def path(tmp_path, mode):
    found = tmp_path / "x.db"
    with closing(sqlite3.connect(found)) as db:
        db.execute(f"pragma journal_mode={mode}")
        db.execute("create table t (x)")
    return str(found)


@pytest.fixture
def opened(path):
    """Starts processes that do something with the database, and go on doing it."""
    started = []

    def start(*words):
        child = subprocess.Popen(
            [sys.executable, "-c", TEXT, path, *words], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(child)
        assert child.stdout.readline() == "in\n"
        return child.pid

    yield start
    for child in started:
        child.communicate("\n")


def test_the_writer_is_named_whoever_came_last(path, opened, mode):
    first, writer, last = opened(*READ), opened(*WRITE), opened(*READ)
    answer = who(path, path)
    assert (answer.state, answer.family) == (HELD, "sqlite")
    assert answer.holder.pid_here == writer
    assert f"pid {writer} writes" in answer.note
    assert f"{first}" in answer.note
    assert f"{last}" in answer.note
    others = {each.pid_here for each in answer.others}
    assert others == (set() if mode == "wal" else {first, last})


def test_a_reader_holds_it_only_where_it_keeps_a_writer_out(path, opened, mode):
    reader, idle = opened(*READ), opened(*IDLE)
    answer = who(path, path)
    assert answer.state == (FREE if mode == "wal" else HELD)
    assert f"pid {reader} reads" in answer.note
    assert (f"pid {idle} has it open, idle" in answer.note) == (mode == "wal")
    if mode == "wal":
        assert "x.db-wal has " in answer.note


def test_an_exclusive_writer_is_told_as_one(path, opened, mode):
    writer = opened(*COMMIT)
    answer = who(path, path)
    assert (answer.state, answer.holder.pid_here) == (HELD, writer)
    words = "it writes" if mode == "wal" else "it writes, and keeps readers out"
    assert answer.holder.evidence.endswith(words)


@pytest.mark.parametrize("mode", ["delete"], indirect=True)
def test_the_first_writer_of_a_new_database_is_told_as_one(path, opened):
    os.truncate(path, 0)
    writer = opened(*COMMIT)
    answer = who(path, path)
    assert (answer.state, answer.holder.pid_here, answer.family) == (HELD, writer, "sqlite")
    assert "rollback mode" in answer.holder.lock
    assert os.path.getsize(path) == 0


@pytest.mark.parametrize("mode", ["wal"], indirect=True)
def test_a_database_and_its_shared_memory_are_one_lock(path, opened):
    writer = opened(*WRITE)
    assert who("s", f"{path}-shm").holder.pid_here == writer
    (found,) = inventory.of_folder(os.path.dirname(path))
    assert (found.path, found.state, found.holder.pid_here) == (path, HELD, writer)
    assert clear.clear(path).action == clear.KEPT


def waits(path, seconds):
    words = [sys.executable, "-m", "lifehold", "wait", "-w", seconds, path]
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)


def test_wait_ends_with_the_writer_and_heeds_no_idle_connection(path, opened, mode, eventually):
    opened(*(READ if mode == "wal" else IDLE))
    with waits(path, "0") as early:
        assert early.wait(90) == 0
    words = [sys.executable, "-c", TEXT, path, *WRITE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "in\n"
        with waits(path, "0") as late:
            assert late.wait(90) == 75
            assert str(child.pid) in late.stderr.read()
        with waits(path, "60") as waiter:
            eventually(lambda: "x.db" in str(descriptors(waiter.pid)), "it waits")
            child.stdin.write("\n")
            child.stdin.flush()
            assert waiter.wait(60) == 0


def descriptors(pid):
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except OSError:
            continue
    return found


@needs("root", "unshare")
def test_a_writer_outside_our_pid_namespace_is_not_overlooked(path, opened):
    opened(*WRITE)
    words = ["unshare", "--pid", "--fork", "--mount-proc"]
    words += [sys.executable, "-m", "lifehold", "who", "--json", path]
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    found = json.loads(done.stdout)["locks"][0]
    assert (found["state"], found["holder"]["owner"]) == ("held", None)


def test_our_own_connection_keeps_its_locks_while_we_ask(path, mode):
    """To close any descriptor of a file drops the fcntl locks of the process on it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for each in WRITE:
            db.execute(each)
        for asked in (path, f"{path}-shm", f"{path}-wal"):
            if os.path.exists(asked):
                who(asked, asked)
        words = [sys.executable, "-c", TEXT, path, "pragma busy_timeout=10", *WRITE]
        done = subprocess.run(words, capture_output=True, text=True, input="\n", check=False)
        assert "database is locked" in done.stderr
