"""`lifehold clear`: what it says, what it ends with, and what the log keeps."""

from __future__ import annotations

import json
import os
import shlex

import pytest

from ground import needs, require
from lifehold.runtime import process

pytestmark = needs("linux", "proc")


@pytest.fixture
def gone():
    require("all processes")
    pid = 4_190_000
    while process.look(pid).exists:
        pid -= 1
    return pid


def test_a_dry_run_explains_each_and_the_clear_notes_who_and_why(lifehold, gone):
    folder = lifehold.folder / "app" / "run"
    folder.mkdir(parents=True)
    (folder / "server.pid").write_text(f"{gone}\n")
    (folder / "mine.pid").write_text(f"{os.getpid()}\n")
    (folder / "SingletonLock").symlink_to("elsewhere-12")
    dry = lifehold("clear", "--dry-run", "-R", "app")
    assert dry.returncode == 1
    assert f"would remove  {folder}/server.pid (pidfile)" in dry.stdout
    assert f"no process {gone} any more" in dry.stdout
    assert "mine.pid" not in dry.stdout  # it is held, and nothing is wrong with that
    done = lifehold("clear", "-R", "app")
    assert done.returncode == 1  # one is suspect
    assert sorted(each.name for each in folder.iterdir()) == ["SingletonLock", "mine.pid"]
    assert "all the same:  lifehold clear --force " in done.stdout
    log = lifehold("log")
    assert log.returncode == 0
    (line,) = log.stdout.splitlines()[1:]
    assert f"{folder}/server.pid" in log.stdout
    assert " clear " in line
    assert json.loads(lifehold("log", "--json").stdout)["entries"][0]["holder_pid"] == gone
    assert f"no process {gone} any more" in lifehold("log", "./app/run/server.pid").stdout


def test_the_remedy_of_a_dotlockfile_without_a_number_frees_it_as_printed(lifehold):
    path = lifehold.folder / "my box.lock"
    path.write_text("0\n")
    os.utime(path, (1, 1))
    (line,) = json.loads(lifehold("who", "--json", f"{path}").stdout)["locks"][0]["remedy"]
    for command in line.partition(":  ")[2].split(" && "):
        done = lifehold(*shlex.split(command)[1:])
        assert (done.returncode, done.stderr) == (0, "")
    assert not path.exists()


def test_the_printed_word_removes_that_one_lock(lifehold):
    path = lifehold.folder / "SingletonLock"
    path.symlink_to("elsewhere-12")
    told = lifehold("clear", "./SingletonLock").stdout
    command = next(
        line.partition("lifehold ")[2] for line in told.splitlines() if "--force" in line
    )
    done = lifehold(*command.split())
    assert (done.returncode, done.stdout.split()[0]) == (0, "removed")
    assert not path.is_symlink()


def test_a_held_lock_and_the_file_of_a_kernel_lock_stay(lifehold):
    lifehold.holder("job")
    done = lifehold("clear", "job")
    assert done.returncode == 0
    assert done.stdout.startswith("kept  ")
    assert "it would let a second holder in" in done.stdout
    assert (lifehold.folder / "job.lock").exists()
    assert lifehold("clear", "--force", "x", ".").returncode == 64
    assert lifehold("clear", "/no/such/folder/x").returncode == 0


def test_the_answer_for_programs_has_each_outcome_with_its_lock(lifehold, gone):
    (lifehold.folder / "a.pid").write_text(f"{gone}\n")
    (found,) = json.loads(lifehold("clear", "--json", "./a.pid").stdout)["outcomes"]
    assert (found["action"], found["lock"]["family"]) == ("removed", "pidfile")


def test_a_clear_that_cannot_be_noted_removes_nothing(lifehold, gone):
    (lifehold.folder / "a.pid").write_text(f"{gone}\n")
    (lifehold.folder / ".cleared.history").mkdir()
    done = lifehold("clear", "./a.pid")
    assert done.returncode == 71
    assert "audit log" in done.stderr
    assert (lifehold.folder / "a.pid").exists()
