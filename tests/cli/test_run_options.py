"""What the options of `lifehold run` do, each with what it must not do."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from lifehold.ops import history

BOTH = pytest.mark.parametrize("close", [[], ["-o"]], ids=["inherited", "supervised"])


def test_dash_c_runs_a_text_in_the_users_shell(lifehold):
    for words in (["-c", "echo $0 $((1+1))", "job"], ["job", "-c", "echo $0 $((1+1))"]):
        assert lifehold("run", *words, env={"SHELL": "/bin/sh"}).stdout == "/bin/sh 2\n"
        assert lifehold("run", *words, env={"SHELL": "/bin/bash"}).stdout == "/bin/bash 2\n"
        assert lifehold("run", *words, env={"SHELL": ""}).stdout == "/bin/sh 2\n"
    several = lifehold("run", "--also", "b", "-c", "echo $LIFEHOLD_NAME; exit 7", "a")
    assert (several.returncode, several.stdout) == (7, "a\n")
    both = lifehold("run", "-c", "true", "job", "--", "true")
    assert (both.returncode, "not both" in both.stderr) == (64, True)


def test_dash_f_becomes_the_command_which_holds_the_lock(lifehold, alive):
    run = lifehold.start("run", "-F", "job", "--", "sh", "-c", "echo $$; read x; exit 6", stdin=-1)
    assert int(run.stdout.readline()) == run.pid
    assert not lifehold.free()
    assert "lifehold run -F job" in lifehold("run", "-n", "job", "true").stderr
    run.stdin.close()
    assert run.wait(60) == 6
    assert lifehold.free()
    events = [(entry.event, entry.code) for entry in history.read(f"{lifehold.folder}/job.lock")]
    assert ("hold", None) in events


def test_dash_f_of_a_command_that_is_not_there_ends_with_127_and_holds_nothing(lifehold):
    done = lifehold("run", "-F", "job", "--", "nope")
    assert (done.returncode, done.stderr) == (127, "lifehold: cannot run 'nope': not found\n")
    assert lifehold.free()
    assert lifehold("run", "-F", "job", "--", "/").returncode == 126


def test_dash_f_leaves_signals_and_streams_as_they_were(lifehold):
    status = "sed -nE 's/^(Sig(Blk|Ign)).*(.{7})$/\\1 \\3/p' /proc/self/status; cat"
    import subprocess

    plain = subprocess.run(["sh", "-c", status], input="in\n", capture_output=True, text=True,
                           timeout=150, check=True).stdout  # fmt: skip
    run = lifehold.start("run", "-F", "job", "sh", "-c", status, stdin=subprocess.PIPE)
    assert run.communicate("in\n", timeout=60)[0] == plain


def test_dash_f_is_refused_with_what_needs_somebody_to_watch(lifehold):
    for words in (["-F", "-o"], ["-F", "--max-hold", "5"]):
        done = lifehold("run", *words, "job", "--", "true")
        assert done.returncode == 64
        assert "nobody is left to stop CMD" in done.stderr
    done = lifehold("run", "-F", "--kind", "link", "job", "--", "true")
    assert done.returncode == 64
    assert "nobody is left to touch the lock file" in done.stderr


@BOTH
def test_max_hold_stops_the_whole_group_and_ends_with_74(lifehold, close, alive):
    script = "sleep 60 & echo $!; wait"
    began = time.monotonic()
    run = lifehold.start("run", *close, "--max-hold", "1.6", "job", "--", "sh", "-c", script)
    left = int(run.stdout.readline())
    assert run.wait(60) == 74
    assert 1.6 <= time.monotonic() - began < 60
    assert not alive(left)
    assert run.stderr.read() == (
        "lifehold: 'job': held for 1.6 s, which is its --max-hold\n"
        "lifehold: stopping 'sh': TERM now, KILL after 5 s\n"
    )
    assert lifehold.free()
    events = history.read(f"{lifehold.folder}/job.lock")
    assert (events[0].event, events[0].code) == ("loss", 74)
    assert events[0].reason.endswith("which is its --max-hold")


@BOTH
def test_the_lock_is_not_free_before_a_stubborn_command_is_killed(lifehold, close, alive):
    script = "trap '' TERM; echo $$; while :; do sleep 0.02; done"
    run = lifehold.start("run", *close, "--max-hold", "1.5", "--kill-grace", "0.6", "job", "--",
                         "sh", "-c", script)  # fmt: skip
    child = int(run.stdout.readline())
    assert lifehold("run", "-w", "60", "job", "--", "true").returncode == 0
    assert not alive(child)
    assert run.wait(60) == 74


def test_a_command_that_ends_before_its_max_hold_is_left_alone(lifehold):
    done = lifehold("run", "--max-hold", "30", "job", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (3, "")


def test_nonsense_for_a_value_is_refused_before_anything_is_made(lifehold):
    nonsense = [["-w", "soon"], ["-w", ""], ["-w", "1e3"], ["-w", "nan"], ["-w", "5 m"],
                ["-w", "-1"], ["--max-hold", "0"], ["--max-hold", "x"], ["--kill-grace", "-1"],
                ["-E", "256"], ["--skip-ok", "-E", "3"]]  # fmt: skip
    for done in lifehold.together(*(("run", *words, "job", "--", "true") for words in nonsense)):
        assert done.returncode == 64, done.args
        assert done.stderr.startswith("lifehold: ")
    assert list(lifehold.folder.iterdir()) == []


@BOTH
def test_a_signal_reaches_the_whole_group(lifehold, close):
    script = "trap 'echo outer; exit 5' TERM; sh -c 'trap \"echo inner; exit\" TERM; echo in; while :; do sleep 0.02; done' & wait; wait"  # noqa: E501
    run = lifehold.start("run", *close, "job", "--", "sh", "-c", script)
    assert run.stdout.readline() == "in\n"
    run.terminate()
    assert run.wait(60) == 5
    assert sorted(run.stdout.read().split()) == ["inner", "outer"]


@BOTH
@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_signal_of_the_user_reaches_the_command_alone(lifehold, close, name):
    script = f"trap 'echo got' {name}; echo ready; while :; do sleep 0.1; done"
    run = lifehold.start("run", *close, "job", "--", "sh", "-c", script)
    assert run.stdout.readline() == "ready\n"
    for _ in range(3):
        run.send_signal(getattr(signal, f"SIG{name}"))
        assert run.stdout.readline() == "got\n"  # a `sleep` killed by it would end with 138
    assert run.poll() is None


def test_a_stopped_command_without_a_terminal_is_left_to_who_stopped_it(lifehold, eventually):
    script = "echo $$; while [ ! -e go ]; do sleep 0.02; done; exit 4"
    # Not by dash: stopped while its vfork(2) waits for a child that is stopped, it is never "T".
    run = lifehold.start("run", "job", "--", "bash", "-c", script)
    child = int(run.stdout.readline())

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    for number in (signal.SIGSTOP, signal.SIGTSTP):
        os.kill(child, number)
        eventually(lambda: state(child) == "T", "the command is stopped")
        time.sleep(0.05)
        assert state(run.pid) != "T"
        assert not lifehold.free()
        os.kill(child, signal.SIGCONT)
    run.send_signal(signal.SIGTSTP)  # passed on, and so is SIGCONT
    eventually(lambda: state(child) == "T", "the command is stopped by way of the wrapper")
    run.send_signal(signal.SIGCONT)
    eventually(lambda: state(child) != "T", "the command goes on")
    (lifehold.folder / "go").touch()
    assert run.wait(60) == 4


@BOTH
def test_a_command_that_waits_for_what_left_its_group_is_waited_for(lifehold, close):
    done = lifehold("run", *close, "job", "--", "sh", "-c", "setsid -w sh -c 'exit 3'")
    assert done.returncode == 3
    assert lifehold.free()


def test_fair_runs_are_served_in_the_order_of_their_coming(lifehold, eventually):
    lifehold.holder("--fair", "job")
    runs = []
    for number in range(4):
        script = f"echo {number} >> order"
        runs.append(lifehold.start("run", "--fair", "job", "--", "sh", "-c", script))
        eventually(lambda: lifehold.queued() >= len(runs), "it stands in the line")
        time.sleep(0.05)
    lifehold.kill(lifehold.started[0])
    assert [run.wait(60) for run in runs] == [0] * 4
    assert (lifehold.folder / "order").read_text().split() == ["0", "1", "2", "3"]


def test_a_label_is_recorded_and_a_contradiction_of_options_is_refused(lifehold):
    lifehold("run", "--label", "x y", "job", "--", "true")
    assert json.loads((lifehold.folder / "job.lock").read_text())["label"] == "x y"
    assert lifehold("run", "--skip-ok", "-E", "0", "job", "--", "true").returncode == 64


@BOTH
def test_a_run_in_a_pipeline_that_closes_early_ends_as_the_command_does(lifehold, close):
    words = " ".join([sys.executable, "-m", "lifehold", "run", *close, "job", "--", "yes"])
    script = f"{words} | head -1; echo ${{PIPESTATUS[0]}}"
    run = lifehold.start(
        script, program=("-c", "import os,sys; os.execvp('bash',['bash','-c',sys.argv[1]])")
    )
    assert run.communicate(timeout=60)[0] == "y\n141\n"
    assert lifehold.free()
