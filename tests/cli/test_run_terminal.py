"""Job control and the keys of a terminal, as without lifehold: a real bash at a real pty."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest

from ground import needs

from .shell import PROMPT, Shell, pid_of, state

pytestmark = needs("command:bash", "proc")
BOTH = pytest.mark.parametrize("close", ["", "-o "], ids=["inherited", "supervised"])
CTRL_C, CTRL_Z, CTRL_D, CTRL_BACKSLASH = "\x03", "\x1a", "\x04", "\x1c"


@pytest.fixture
def shell(lifehold) -> Iterator[Shell]:
    one = Shell(lifehold.folder, lifehold.environment)
    yield one
    one.end()


@BOTH
def test_ctrl_c_ends_the_command_and_the_shell_sees_130(shell, lifehold, close):
    shell.type(f"lifehold run {close}job -- sh -c 'echo begun; exec sleep 60'\n")
    shell.wait("\nbegun\n")
    assert not lifehold.free()
    shell.type(CTRL_C)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 130\n")
    assert lifehold.free()


@BOTH
def test_ctrl_c_ends_a_loop_and_a_script_around_the_command(shell, lifehold, close):
    line = f"lifehold run {close}job -- sh -c 'echo begun; exec sleep 60'"
    shell.type(f"for i in 1 2 3; do {line}; done\n")
    shell.wait("\nbegun\n")
    shell.type(CTRL_C)
    assert "begun" not in shell.wait("(?s)(.*)" + re.escape(PROMPT))[1]
    (lifehold.folder / "script").write_text(f"{line}\necho went on\n")
    for by in ("sh", "bash"):
        shell.type(f"{by} script\n")
        shell.wait("\nbegun\n")
        shell.type(CTRL_C)
        assert "went on" not in shell.wait("(?s)(.*)" + re.escape(PROMPT))[1]
        assert shell.run("echo status $?").endswith("status 130\n")


@BOTH
def test_a_command_that_makes_something_of_ctrl_c_goes_on(shell, close):
    # bash looks whether a signal came and then reads: what came between the two waits for a line.
    reading = "until read -t 0.2 line; do :; done"
    script = f'trap "echo caught" INT; echo begun; {reading}; echo "read $line"'
    shell.type(f"lifehold run {close}job -- bash -c '{script}'\n")
    shell.wait("\nbegun\n")
    shell.type(CTRL_C)
    shell.wait("caught\n")
    shell.type("words\n")
    shell.wait("read words\n")
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 0\n")


@BOTH
def test_ctrl_z_stops_it_fg_goes_on_and_the_lock_is_held_all_along(shell, lifehold, close):
    script = 'echo $$ > pid; echo begun; read line; echo "read $line"; exit 5'
    shell.type(f"lifehold run {close}job -- sh -c '{script}'\n")
    shell.wait("\nbegun\n")
    child = pid_of(lifehold.folder / "pid")
    shell.type(CTRL_Z)
    shell.wait(r"\[1\]\+\s+Stopped\s+lifehold run .*\n")
    shell.wait(re.escape(PROMPT))
    assert state(child) == "T"
    assert not lifehold.free()
    assert "Stopped" in shell.run("jobs")
    shell.type("fg\n")
    shell.wait(r"lifehold run .*\n")
    shell.type("words\n")
    shell.wait("read words\n")
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 5\n")
    assert lifehold.free()


@BOTH
def test_ctrl_z_again_and_again_and_ctrl_c_in_the_end(shell, lifehold, close):
    shell.type(f"lifehold run {close}job -- sh -c 'echo $$ > pid; exec sleep 60'\n")
    child = pid_of(lifehold.folder / "pid")
    for _ in range(3):
        shell.type(CTRL_Z)
        shell.wait("Stopped")
        shell.wait(re.escape(PROMPT))
        shell.fg(child)
    shell.type(CTRL_C)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 130\n")
    assert lifehold.free()


@BOTH
def test_bg_lets_a_stopped_command_go_on_beside_the_shell(shell, lifehold, close):
    script = "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo done"
    # Not by dash: stopped while its vfork(2) waits for a child that is stopped before it execs, it
    # never counts as stopped, with lifehold or without.
    shell.type(f"lifehold run {close}job -- bash -c '{script}'\n")
    shell.wait("\nbegun\n")
    shell.type(CTRL_Z)
    shell.wait("Stopped")
    shell.wait(re.escape(PROMPT))
    shell.run("bg")
    assert "Running" in shell.run("jobs")
    (lifehold.folder / "go").touch()
    shell.wait("done\n")
    shell.type("wait\n")
    shell.wait(re.escape(PROMPT))
    assert lifehold.free()


@BOTH
def test_a_background_job_that_reads_is_stopped_and_reads_after_fg(shell, lifehold, close):
    script = 'echo $$ > pid; read line; echo "read $line"'
    shell.run(f"lifehold run {close}job -- sh -c '{script}' &")
    pid_of(lifehold.folder / "pid")
    while "Stopped" not in shell.run("jobs"):
        pass
    shell.type("fg\n")
    shell.wait(r"lifehold run .*\n")
    shell.type("words\n")
    shell.wait("read words\n")
    shell.wait(re.escape(PROMPT))


@BOTH
def test_a_background_job_brought_to_the_front_obeys_the_keys(shell, lifehold, close):
    script = "echo $$ > pid; exec sleep 60"
    shell.run(f"lifehold run {close}job -- sh -c '{script}' &")
    child = pid_of(lifehold.folder / "pid")
    shell.fg(child)
    shell.type(CTRL_Z)
    shell.wait("Stopped")
    shell.wait(re.escape(PROMPT))
    shell.fg(child)
    shell.type(CTRL_C)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 130\n")
    assert lifehold.free()


@BOTH
def test_the_terminal_stays_with_a_pipeline_around_the_command(shell, lifehold, close):
    shell.type(f"cat | lifehold run {close}job -- sed -u s/a/b/\n")
    shell.type("xax\n")
    shell.wait("\nxbx\n")
    shell.type(CTRL_D)
    shell.wait(re.escape(PROMPT))
    script = 'echo begun; read line; echo "read $line"'
    # As a pager does: it reads the keyboard while the command before it writes.
    pager = """python3 -c 'print("paged", open("/dev/tty").readline())'"""
    shell.type(f"lifehold run {close}job -- echo text | {pager}\n")
    shell.type("key\n")
    shell.wait("paged key\n")
    shell.wait(re.escape(PROMPT))
    shell.type(f"lifehold run {close}job -- sh -c '{script}' | cat\n")
    shell.wait("\nbegun\n")
    shell.type("words\n")
    shell.wait("read words\n")
    shell.wait(re.escape(PROMPT))


@BOTH
def test_the_keys_reach_a_command_in_a_pipeline(shell, lifehold, close):
    shell.type(f"lifehold run {close}job -- sh -c 'echo $$ > pid; exec sleep 60' | cat\n")
    child = pid_of(lifehold.folder / "pid")
    shell.type(CTRL_Z)
    shell.wait("Stopped")
    shell.wait(re.escape(PROMPT))
    shell.fg(child)
    shell.type(CTRL_C)
    shell.wait(re.escape(PROMPT))
    assert lifehold.free()


@BOTH
def test_ctrl_z_and_fg_of_a_script_around_the_command(shell, lifehold, close):
    (lifehold.folder / "script").write_text(
        f"lifehold run {close}job -- sh -c 'echo begun; read line; echo read $line'\necho after\n"
    )
    for by in ("sh", "bash"):
        shell.type(f"{by} script\n")
        shell.wait("\nbegun\n")
        shell.type(CTRL_Z)
        shell.wait("Stopped")
        shell.wait(re.escape(PROMPT))
        assert not lifehold.free()
        shell.type("fg\n")
        shell.wait(rf"{by} script\n")
        shell.type("words\n")
        shell.wait("read words\nafter\n")
        shell.wait(re.escape(PROMPT))


@BOTH
def test_a_shell_under_the_lock_has_job_control_of_its_own(shell, lifehold, close):
    shell.type(f"lifehold run {close}job -- env PS1='inner> ' bash --norc --noediting -i\n")
    shell.wait("inner> ")
    shell.type("sh -c 'echo begun; exec sleep 60'\n")
    shell.wait("(\n|> )begun\n")
    shell.type(CTRL_Z)
    shell.wait("Stopped")
    shell.wait("inner> ")
    assert not lifehold.free()
    shell.type("exit 4\n")
    shell.wait("There are stopped jobs")
    shell.wait("inner> ")
    shell.type("exit 4\n")
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 4\n")
    assert lifehold.free()


@BOTH
def test_a_new_size_of_the_window_reaches_the_command(shell, close):
    script = 'trap "echo winch; stty size; exit" WINCH; echo begun; while :; do sleep 0.02; done'
    shell.type(f"lifehold run {close}job -- bash -c '{script}'\n")
    shell.wait("\nbegun\n")
    shell.resize(40, 200)
    shell.wait("winch\n40 200\n")
    shell.wait(re.escape(PROMPT))
    shell.type(f"lifehold run {close}job -- bash -c '{script}' | cat\n")
    shell.wait("\nbegun\n")
    shell.resize(41, 201)
    shell.wait("winch\n")
    shell.wait(re.escape(PROMPT))


@BOTH
def test_the_terminal_is_the_commands_while_it_runs_and_the_shells_after(shell, lifehold, close):
    shell.type(f"lifehold run {close}job -- sh -c 'echo $$ > pid; exec sleep 60'\n")
    child = pid_of(lifehold.folder / "pid")
    assert shell.foreground() == child
    os.kill(child, signal.SIGTERM)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 143\n")
    # Under a script nobody but lifehold takes it back.
    (lifehold.folder / "script").write_text(f"lifehold run {close}job -- true; read x; echo $x\n")
    shell.type("sh script\n")
    shell.type("words\n")
    shell.wait("\nwords\n")
    shell.wait(re.escape(PROMPT))


@BOTH
def test_ctrl_backslash_ends_the_command_and_a_script_around_it(shell, lifehold, close):
    shell.run("ulimit -c 0")
    (lifehold.folder / "script").write_text(
        f"lifehold run {close}job -- sh -c 'echo begun; exec sleep 60'\necho went on\n"
    )
    shell.type("sh script\n")  # bash ignores it
    shell.wait("\nbegun\n")
    shell.type(CTRL_BACKSLASH)
    assert "went on" not in shell.wait("(?s)(.*)" + re.escape(PROMPT))[1]
    assert lifehold.free()


@BOTH
def test_our_words_do_not_stop_us_where_the_background_may_not_write(shell, lifehold, close):
    shell.run("stty tostop")
    shell.type(f"lifehold run -v {close}--max-hold 0.3 job -- sleep 60\n")
    shell.wait("stopping 'sleep'")
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 74\n")
    assert "written" in shell.run(f"lifehold run {close}job -- echo written | cat")
    assert lifehold.free()


@BOTH
def test_a_command_that_is_not_there_leaves_the_terminal_to_the_shell(shell, lifehold, close):
    assert "cannot run 'nope': not found" in shell.run(f"lifehold run {close}job -- nope")
    assert shell.run("echo status $?").endswith("status 127\n")
    assert lifehold.free()


@BOTH
def test_a_killed_wrapper_gives_the_terminal_back_to_the_shell(shell, lifehold, close):
    shell.type(f"lifehold run {close}job -- sh -c 'echo $PPID > parent; exec sleep 60'\n")
    parent = pid_of(lifehold.folder / "parent")
    if close:  # the supervisor
        with open(f"/proc/{parent}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    shell.wait("(?s)Killed.*" + re.escape(PROMPT))
    # A supervisor that is left says what it stops, before or after the shell's next line.
    assert "status 137\n" in shell.run("echo status $?")


AT_BIRTH = """
import os, signal, sys
from lifehold.cli import child, main, supervisor
real = child.become
def become(*given):
    os.kill(0, signal.SIGTSTP)  # as the terminal does, to the group in its foreground
    return real(*given)
child.become = supervisor.become = become
sys.exit(main.main())
"""


@BOTH
def test_ctrl_z_at_the_birth_of_the_command_stops_it_until_fg(shell, lifehold, close):
    (lifehold.folder / "birth").write_text(AT_BIRTH)
    shell.type(f"{sys.executable} birth run {close}job -- sh -c 'echo begun; exit 3'\n")
    shell.wait(r"Stopped\s+\S+ birth run .*\n")
    shell.wait(re.escape(PROMPT))
    assert not lifehold.free()
    shell.type("fg\n")
    shell.wait("\nbegun\n")
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 3\n")
    assert lifehold.free()


@BOTH
@pytest.mark.parametrize("then", ["sleep 0.5", "exit"])
def test_ctrl_z_stops_what_a_command_that_has_ended_left_behind(shell, lifehold, close, then):
    rest = "echo $$ > pid; exec sleep 600"
    script = f'sh -c "{rest}" & {then}'.replace("$", "\\$")
    shell.type(f"lifehold run {close}job -- sh -c '{script}'\n")
    left = pid_of(lifehold.folder / "pid")
    shell.wait(r"processes that it started run on \(pid \d+\)")
    shell.type(CTRL_Z)
    shell.wait(r"Stopped\s+lifehold run .*\n")
    shell.wait(re.escape(PROMPT))
    assert state(left) == "T"
    assert not lifehold.free()
    shell.fg(left)
    os.kill(left, signal.SIGKILL)  # Ctrl-C is ignored by what sh has put into the background
    shell.wait(re.escape(PROMPT))
    assert lifehold.free()


@pytest.mark.parametrize("line", ["run", "run -o", "once --keep 0"])
@pytest.mark.parametrize("code", [130, 131])
def test_a_status_like_that_of_a_key_ends_no_script_around_us(shell, lifehold, line, code):
    (lifehold.folder / "script").write_text(
        f"lifehold {line} job -- sh -c 'exit {code}'\necho on $?\n"
    )
    assert f"on {code}\n" in shell.run("bash script")
