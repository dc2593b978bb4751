"""The end of a lease is the end of its command: by an instant, not by when somebody noticed."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest

from ground import needs
from lifehold.cli import child, render, supervisor
from lifehold.cli.child import ChildCare, attend
from lifehold.cli.supervisor import LeaseEnd, Supervisor
from lifehold.runtime import clock

from .shell import PROMPT, Shell, pid_of, state

STUBBORN = 'trap "" TERM; echo ready; while :; do sleep 0.05; done'
CTRL_Z = "\x1a"


class Inbox:
    """No signals."""

    def next(self, seconds):
        time.sleep(min(seconds, 0.01))


def sleeper():
    return os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)


def test_a_lease_that_ends_while_max_hold_stops_the_command_makes_its_end_sooner(lifehold):
    limits = ("--max-hold", "0.2", "--kill-grace", "600")
    words = ("run", "--kind", "soft", "--ttl", "3", *limits, "job", "--", "sh", "-c", STUBBORN)
    run = lifehold.start(*words)
    assert run.stdout.readline() == "ready\n"
    assert run.stderr.readline().endswith("which is its --max-hold\n")
    assert run.stderr.readline().endswith("TERM now, KILL after 600 s\n")
    (lifehold.folder / "job.lock").unlink()
    assert run.wait(60) == 74
    assert "'job' is lost" in run.stderr.read()


def test_what_is_found_later_never_makes_the_end_of_a_command_later():
    told = []
    reasons = iter(["first", *["second"] * 1000])
    care = ChildCare(
        "it", Inbox(), None, 0.3, lambda: next(reasons), lambda *said: told.append(said) or ""
    )
    process = os.posix_spawn("/bin/sh", ["sh", "-c", 'trap "" TERM; sleep 60'], os.environ)
    assert attend(process, care, group=False) in (137, 143)
    assert [reason for reason, _ in told] == ["first"]


def test_what_ended_while_its_lock_was_looked_at_is_not_stopped():
    told = []
    process = os.posix_spawn("/bin/sh", ["sh", "-c", "sleep 0.1; exit 3"], os.environ)

    def lost_too_late():
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)  # between the reaping and the look
        return "lost"

    care = ChildCare("it", Inbox(), None, 5.0, lost_too_late, lambda *said: told.append(said) or "")
    assert attend(process, care, group=False) == 3
    assert not told


def orphaned_supervisor(left, late):
    life, other = os.pipe()
    os.close(other)  # the wrapper is gone
    os.set_blocking(life, False)
    ours = ChildCare("it", Inbox(), None, 5.0, lambda: None, lambda *_: "")
    return Supervisor(ours, LeaseEnd(left), 5.0, late, life, os.getpid())


@pytest.mark.parametrize("left", [0.4, -0.1, float("inf")])
def test_who_kills_a_wrapper_late_in_its_lease_does_not_give_the_command_longer(left):
    supervisor = orphaned_supervisor(left, late=0.25)
    assert supervisor._why_stop().endswith("(lifehold run) is gone")
    assert supervisor.care.kill_by == supervisor.ends.at + 0.25
    os.close(supervisor.life)


def test_a_lease_that_was_over_long_ago_leaves_a_supervised_command_no_moment():
    supervisor = orphaned_supervisor(left=-1.0, late=0.25)
    assert attend(sleeper(), supervisor.care, group=False) == 137  # not 143, of TERM
    os.close(supervisor.life)


def test_the_end_of_a_lease_that_is_over_stays_where_it_was():
    ends = LeaseEnd(-1.0)
    over_at = ends.at
    ends.tell(0.0)
    assert ends.at == over_at
    ends.tell(5.0)
    assert ends.left() > 0


def test_a_stderr_that_takes_nothing_delays_no_kill(monkeypatch):
    waits = []
    monkeypatch.setattr(render, "_takes_more", lambda: False)
    monkeypatch.setattr(render.native, "beside", lambda _, seconds: waits.append(seconds))
    kill_by = clock.now() + 0.2
    care = ChildCare("it", Inbox(), None, 5.0, lambda: "over", lambda *_: "words")
    care.kill_by = kill_by
    attend(sleeper(), care, group=False)
    assert waits
    assert max(waits) <= 0.2


@needs("command:bash", "proc")
def test_a_command_whose_lease_ended_in_a_stop_at_a_terminal_runs_no_more(lifehold, alive):
    """After Ctrl-Z, and `fg` when another has the lock: KILL comes before CONT."""
    lease = ("--kind", "soft", "--ttl", "2", "job", "--")
    shell = Shell(lifehold.folder, lifehold.environment)
    try:
        script = 'trap "echo > continued" CONT; echo $$ > pid; read line'
        shell.type(f"lifehold run {' '.join(lease)} sh -c '{script}'\n")
        command = pid_of(lifehold.folder / "pid")
        shell.type(CTRL_Z)
        shell.wait(r"Stopped\s+lifehold run .*\n")
        shell.wait(re.escape(PROMPT))
        assert state(command) == "T"
        assert lifehold("run", "-w", "60", *lease, "true").returncode == 0
        shell.type("fg\n")
        shell.wait("KILL now\n")
        shell.wait(re.escape(PROMPT))
        assert shell.run("echo status $?").endswith("status 74\n")
        assert not alive(command)
        assert not (lifehold.folder / "continued").exists()
    finally:
        shell.end()


STOP_ONCE = """
import os, signal, sys
from lifehold.cli import main, supervisor
real = {0}
def stopped():
    {0} = real
    os.kill(os.getpid(), signal.SIGSTOP)
    return real()
{0} = stopped
sys.exit(main.main())
"""


@pytest.mark.parametrize("at", ["supervisor.become_subreaper", "os.fork"])
def test_a_command_does_not_begin_when_its_lease_is_over(lifehold, eventually, at):
    """The wrapper is stopped between the grant and the birth of CMD."""
    lease = ("run", "-w", "60", "--kind", "soft", "--ttl", "2", "job", "--")
    run = lifehold.start(*lease, "touch", "begun", program=("-c", STOP_ONCE.format(at)))
    eventually(lambda: state(run.pid) == "T", "it is stopped")
    assert lifehold(*lease, "true").returncode == 0
    run.send_signal(signal.SIGCONT)
    assert run.wait(60) == 74
    assert not (lifehold.folder / "begun").exists()
    told = run.stderr.read()
    not_run = "lifehold: the lease was over before 'touch' began: it is not run\n"
    assert not_run in told or "stopping 'touch': KILL now\n" in told  # whoever looks first


def test_a_group_of_which_the_leader_alone_is_stopped_ends_with_the_lease(lifehold, alive):
    lease = ("--kind", "soft", "--ttl", "2", "job", "--")
    script = "(while :; do sleep 0.05; done) & echo $!; echo $$; wait"
    run = lifehold.start("run", *lease, "sh", "-c", script)
    worker, leader = int(run.stdout.readline()), int(run.stdout.readline())
    for pid in (run.pid, leader):
        os.kill(pid, signal.SIGSTOP)
    try:
        alone = f"kill -0 {worker} 2>/dev/null || echo alone"
        done = lifehold("run", "-w", "60", *lease, "sh", "-c", alone)
        assert done.stdout == "alone\n", done.stderr
    finally:
        run.send_signal(signal.SIGCONT)
    assert run.wait(60) == 74
    assert not alive(leader)


LEAVES = """
import os, sys, time
os.setpgid(0, os.getpgid(os.getppid()))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_command_that_has_left_its_group_is_stopped_all_the_same(lifehold, alive, close):
    words = ("run", *close, "--max-hold", "0.5", "--kill-grace", "9", "job", "--")
    run = lifehold.start(*words, sys.executable, "-c", LEAVES)
    command = int(run.stdout.readline())
    assert run.wait(60) == 74
    assert not alive(command)


OTHER_PROC = """
import os, sys
from lifehold.cli import child, main, supervisor
child.is_proc_ours = supervisor.is_proc_ours = lambda: False
supervisor.is_stopped = lambda pid: False
child.TELL = 0.1
sys.exit(main.main())
"""


def test_a_proc_that_is_not_ours_says_nothing_about_who_of_the_group_runs(lifehold):
    """In a PID namespace of its own with the /proc of another the group's numbers are others'."""
    me = os.getpgid(0)
    assert os.getpid() in child.members(me)
    script = "sleep 600 & exit 5"
    run = lifehold.start("run", "job", "sh", "-c", script, program=("-c", OTHER_PROC))
    assert "processes that it started run on: the lock is held" in run.stderr.readline()
    assert not lifehold.free()


def test_members_of_a_group_are_not_told_by_the_proc_of_another_namespace(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)
    assert not child.is_proc_ours()
    assert child.members(os.getpgid(0)) is None
    assert not supervisor.is_all_stopped(os.getpgid(0))


def test_where_proc_is_not_ours_the_clock_ends_the_command_of_a_stopped_wrapper(lifehold):
    lease = ("--kind", "soft", "--ttl", "2", "job", "--")
    script = "echo $$; exec sleep 60"
    run = lifehold.start("run", *lease, "sh", "-c", script, program=("-c", OTHER_PROC))
    command = int(run.stdout.readline())
    run.send_signal(signal.SIGSTOP)
    try:
        alone = f"kill -0 {command} 2>/dev/null || echo alone"
        done = lifehold("run", "-w", "60", *lease, "sh", "-c", alone)
        assert done.stdout == "alone\n", done.stderr
    finally:
        run.send_signal(signal.SIGCONT)
    assert run.wait(60) == 74


@needs("proc")
@pytest.mark.parametrize(("left", "how"), [(-1.0, None), (-100.0, "is late")])
def test_a_wrapper_that_runs_has_until_its_own_kill_to_see_to_the_command(left, how):
    life, wrapper = os.pipe()
    os.set_blocking(life, False)
    ours = ChildCare("it", Inbox(), None, 5.0, lambda: None, lambda *_: "")
    stands_by = Supervisor(ours, LeaseEnd(left), 5.0, 60.0, life, os.getpid())
    stands_by.child = os.getpgid(0)
    said = stands_by._why_stop()
    over = f"(lifehold run) {how}, and the lease that it does not renew is over"
    assert said.endswith(over) if how else said is None
    assert 0 < stands_by._look_in() <= supervisor.AGAIN
    for number in (life, wrapper):
        os.close(number)


HANGS = """
import ctypes, sys
from lifehold.cli import main, run
run.LockedCommand._why_stop = lambda _: ctypes.PyDLL(None).pause()  # with all its threads
sys.exit(main.main())
"""


@needs("proc")
def test_a_wrapper_that_hangs_does_not_let_its_command_outlive_the_lease(lifehold):
    lease = ("run", "-w", "60", "--kind", "soft", "--ttl", "4", "job", "--", "sh", "-c")
    run = lifehold.start(*lease, f"echo $$; {STUBBORN}", program=("-c", HANGS))
    command = int(run.stdout.readline())
    alone = f"kill -0 {command} 2>/dev/null || echo alone"
    done = lifehold(*lease, alone)
    assert done.stdout == "alone\n", done.stderr
