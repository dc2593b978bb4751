"""A holder that lives and cannot run is told as such, with what lets it go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ground import needs
from lifehold import Lock, Timeout
from lifehold.core import acquire, explain
from lifehold.core.grant import STUCK, TRACED, Holder
from lifehold.core.owner import Owner
from lifehold.ops import inventory
from lifehold.ops.who import who
from lifehold.runtime import process

pytestmark = needs("linux", "proc")
SOURCE = Path(__file__).parents[2] / "src"
KINDS = ("kernel", "soft", "link", "generation", "directory", "folder")
TEXT = (
    "from lifehold import Lock; Lock({!r}, kind={!r}).acquire(); print('in', flush=True); input()"
)


@pytest.fixture
def stopped(tmp_path):
    """Starts a holder and stops it; it ends with the test."""
    started = []

    def start(kind="kernel", text=TEXT):
        path = str(tmp_path / "x.lock")
        words = [sys.executable, "-c", text.format(path, kind)]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "in\n"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        return path, child.pid

    yield start
    for child in started:
        child.send_signal(signal.SIGCONT)
        child.communicate("\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_holder_is_told_with_what_lets_it_go_on(kind, stopped):
    path, pid = stopped(kind)
    with pytest.raises(Timeout) as refused:
        Lock(path, kind=kind, wait=0.01).acquire()
    assert "alive  yes, checked now, but stopped by a signal" in str(refused.value)
    assert f"next   let it go on:  kill -CONT {pid}\n" in str(refused.value)
    for answer in (who(path, path), *inventory.of_folder(os.path.dirname(path))):
        assert (answer.holder.halted, answer.holder.alive) == ("stopped", "alive")
        assert answer.remedy[0] == f"let it go on:  kill -CONT {pid}"


def test_the_lock_of_another_tool_is_told_to_be_held_by_a_stopped_process(stopped, tmp_path):
    text = "import fcntl; f = open({!r}, 'w'); fcntl.{}(f, 2); print('in', flush=True); input()"
    for kind in ("flock", "lockf"):
        path, pid = stopped(kind, text)
        (tmp_path / f"{kind}.pid").write_text(f"{pid}\n")
        for each in (path, str(tmp_path / f"{kind}.pid")):
            assert f"let it go on:  kill -CONT {pid}" in who(each, each).remedy
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def test_the_commands_tell_it_and_the_remedy_works_as_printed(stopped):
    path, pid = stopped()
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    run = [sys.executable, "-m", "lifehold"]
    told = subprocess.run([*run, "who", path], capture_output=True, text=True, env=env, check=False)
    line = next(each for each in told.stdout.splitlines() if "let it go on" in each)
    found = subprocess.run(
        [*run, "who", "--json", path], capture_output=True, text=True, env=env, check=False
    )
    assert json.loads(found.stdout)["locks"][0]["holder"]["halted"] == "stopped"
    told = subprocess.run(
        [*run, "top", "--once", os.path.dirname(path)], capture_output=True, text=True, env=env,
        check=False,
    )  # fmt: skip
    assert told.returncode == 0
    told = subprocess.run(
        [*run, "run", "--wait", "8", path, "true"], capture_output=True, text=True, env=env,
        check=False,
    )  # fmt: skip
    assert told.returncode == 75
    assert told.stderr.count("stopped by a signal") >= 2  # while it waits, and at its end
    subprocess.run(line.partition(":  ")[2], shell=True, check=True)
    until = time.monotonic() + 60
    while process.halted(pid):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert who(path, path).holder.halted == ""


def test_a_waiter_in_a_program_hears_it_in_its_notice(stopped, caplog, monkeypatch):
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 0.2)
    path, pid = stopped()
    with pytest.raises(Timeout):
        Lock(path, wait=4).acquire()
    notice = next(each for each in caplog.records if each.name == "lifehold")
    assert "stopped by a signal" in notice.getMessage()
    assert str(pid) in notice.getMessage()


def test_what_is_stuck_in_the_kernel_or_under_a_debugger_is_told(monkeypatch):
    for halted, words in ((STUCK, "where no signal reaches it"), (TRACED, "by its debugger")):
        holder = Holder(Owner(77), 0.0, "alive", "kernel witness", pid_here=77, halted=halted)
        text = explain.held_text("x", holder, 1.0, 0.0)
        assert words in text
        assert "/proc/77/" in text


@needs("command:strace")
def test_a_stop_under_a_debugger_is_seen(stopped):
    """A stop by signal under strace is state t."""
    child = subprocess.Popen(
        ["strace", "-qq", "-o", "/dev/null", sys.executable, "-c",
         "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        pid = int(child.stdout.readline())
        until = time.monotonic() + 60
        while not process.halted(pid):
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
