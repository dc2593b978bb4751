"""What `who` and `clear` make of processes of other namespaces, as containers have them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ground import needs, require
from lifehold.ops.answer import KEPT, SUSPECT
from lifehold.ops.clear import clear
from lifehold.ops.who import who
from lifehold.runtime import process

pytestmark = needs("linux", "proc", "root", "unshare")

# A process is given the number after the last one.
PID_SPACE = (
    "unshare", "-p", "-f", "--mount-proc", "--kill-child",
    "sh", "-c", 'echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; shift; "$@"; :', "sh",
)  # fmt: skip
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
