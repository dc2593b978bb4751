"""What `who` and `clear` make of processes of other namespaces, as containers have them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ground import needs, require
from lifehold.ops.answer import FREE, HELD, KEPT, STALE, SUSPECT
from lifehold.ops.clear import clear
from lifehold.ops.who import who
from lifehold.runtime import process

pytestmark = needs("linux", "proc", "root", "unshare", "tmpfs", "flock")

# A process is given the number after the last one.
NEXT = 'echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; shift; "$@"; :'
PID_SPACE = (*"unshare -p -f --mount-proc --kill-child sh -c".split(), NEXT, "sh")
FIRST_THREAD_ENDED = """
import ctypes, os, sys, threading
def go_on():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    open(sys.argv[1], "w").write("%10d\\n" % os.getpid())
    print(flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)
"""
FOLDER_TOO_DEEP = """
import os, sys
os.chdir(os.path.dirname(sys.argv[1]))
for _ in range(20):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
open(sys.argv[1], "w").write("%10d\\n" % os.getpid())
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def log(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path_factory.mktemp("log")))


@pytest.fixture
def start() -> Iterator[object]:
    """Starts a command that says a line when it is ready, and ends with its stdin."""
    started = []

    def run(*words: object) -> None:
        child = subprocess.Popen(
            [str(each) for each in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(child)
        assert child.stdout.readline() == b"\n"

    yield run
    for child in started:
        child.stdin.close()
        child.stdout.close()
        child.wait()


@pytest.fixture(scope="module")
def gone() -> int:
    """A number that nobody has, here or in another PID namespace."""
    pid = 4_180_000
    while process.look(pid).exists:
        pid -= 1
    return pid


def asked(path: Path):
    return who(str(path), str(path))


@pytest.mark.parametrize("work", [FIRST_THREAD_ENDED, FOLDER_TOO_DEEP], ids=["thread", "folder"])
@pytest.mark.parametrize("name", [".X7-lock", "LCK..ttyS0"])
def test_a_container_s_holder_that_cannot_be_looked_into_is_not_proven_gone(
    name, work, tmp_path, gone, start
):
    require("all processes")
    path = tmp_path / name
    start(*PID_SPACE, gone, sys.executable, "-c", work, path)
    assert int(path.read_text()) == gone
    answer = asked(path)
    assert answer.state == SUSPECT, answer.holder
    assert f"is called {gone} in its own PID namespace" in answer.holder.evidence
    assert clear(str(path)).action == KEPT
    assert int(path.read_text()) == gone


# In a mount namespace of its own, where the folder $1 is another one, or is also called $2.
SHELL = ("unshare", "-m", "sh", "-c")
OTHER_FOLDER = (*SHELL, 'mount -t tmpfs none "$1" && cd "$1" && shift 2 && "$@"', "sh")
SAME_FOLDER = (*SHELL, 'cd "$1" && shift 2 && "$@"', "sh")
OTHER_PATH = (*SHELL, 'mount --bind "$1" "$2" && cd "$2" && shift 2 && "$@"', "sh")
AT_WORK = "print(flush=True); import sys; sys.stdin.read()"
OPENED = (
    f"import os; os.makedirs('.git', exist_ok=True); f = open('.git/index.lock', 'a'); {AT_WORK}"
)
REMOVED = f"""
import fcntl, os
file = open("job.lock", "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.unlink("job.lock")
{AT_WORK}
"""
A_GIT = ("bash", "-c", 'exec -a git "$@"', "bash", sys.executable, "-c", AT_WORK)


@pytest.fixture
def folder(tmp_path):
    """A repository with a lock that a git left."""
    (tmp_path / "app" / ".git").mkdir(parents=True)
    (tmp_path / "app" / ".git" / "index.lock").touch()
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "app"


def in_mounts(start, mounts, folder, *words):
    start(*mounts, folder, folder.parent / "elsewhere", *words)


@pytest.mark.parametrize(
    ("mounts", "state"), [(OTHER_FOLDER, SUSPECT), (SAME_FOLDER, HELD), (OTHER_PATH, HELD)]
)
def test_who_has_the_very_file_open_holds_it_whatever_its_mounts_call_it(
    mounts, state, folder, start
):
    in_mounts(start, mounts, folder, sys.executable, "-c", OPENED)
    answer = asked(folder / ".git" / "index.lock")
    assert answer.state == state, answer.holder
    assert ("has the file open" in answer.holder.evidence) == (state == HELD)


@pytest.mark.parametrize(
    ("mounts", "state"), [(OTHER_FOLDER, SUSPECT), (SAME_FOLDER, HELD), (OTHER_PATH, HELD)]
)
def test_who_works_in_another_folder_of_the_same_path_is_no_holder(mounts, state, folder, start):
    in_mounts(start, mounts, folder, *A_GIT)
    answer = asked(folder / ".git" / "index.lock")
    assert answer.state == state, answer.holder
    assert ("could not be looked into" in answer.holder.evidence) == (state == SUSPECT)


@pytest.mark.parametrize(("mounts", "state"), [(OTHER_FOLDER, SUSPECT), (OTHER_PATH, HELD)])
def test_a_child_of_a_killed_server_may_work_in_a_folder_that_cannot_be_looked_into(
    mounts, state, folder, gone, start
):
    require("all processes")
    path = folder / "postmaster.pid"
    path.write_text(f"{gone}\n{folder}\n1795181314\n5432\n/tmp\n*\n")
    assert asked(path).state == STALE
    in_mounts(start, mounts, folder, *A_GIT[:2], 'exec -a postgres "$@"', *A_GIT[3:])
    assert asked(path).state == state


@pytest.mark.parametrize(("mounts", "state"), [(OTHER_FOLDER, FREE), (SAME_FOLDER, SUSPECT)])
def test_a_lock_removed_from_another_folder_of_the_same_path_is_none_of_ours(
    mounts, state, folder, start
):
    in_mounts(start, mounts, folder, sys.executable, "-c", REMOVED)
    answer = asked(folder / "job.lock")
    assert (answer.state, bool(answer.removed)) == (state, state == SUSPECT)


def test_a_file_whose_name_ends_as_the_kernel_marks_removed_ones_is_another_lock(folder, start):
    start("flock", folder / "z.lock (deleted)", sys.executable, "-c", AT_WORK)
    assert asked(folder / "z.lock").state == FREE
    assert asked(folder / "z.lock (deleted)").state == HELD
