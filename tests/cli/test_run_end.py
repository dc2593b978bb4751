"""How a run ends before its time: signals, a lost lock, and kill -9 of any of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from ground import needs
from lifehold import Lock
from lifehold.cli.child import ChildCare, attend

from .killing import rounds
from .shell import pid_of, state

ROUNDS = int(os.environ.get("LIFEHOLD_TEST_KILLS", "25"))
# The command with other figures: what a lost lock gives CMD to end by itself, in seconds.
PATCHED = (
    "import _signal, sys; from lifehold.cli import child, main, supervisor; {}; "
    "sys.exit(main.main())"
)
HURRIED = ("-c", PATCHED.format("child.LOOK = 0.2"))
GRACE = ("--kill-grace", "0.2")
TRAP = 'trap "echo got {0}" {0}; echo ready; while :; do sleep 0.05; done'
STUBBORN = 'trap "" TERM; echo ready; while :; do sleep 0.05; done'


@pytest.mark.parametrize("close", [[], ["-o"]])
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT"])
def test_a_signal_to_the_wrapper_reaches_the_command(lifehold, name, close):
    run = lifehold.start("run", *close, "job", "sh", "-c", TRAP.format(name))
    assert run.stdout.readline() == "ready\n"
    number = getattr(signal, f"SIG{name}")
    run.send_signal(number)
    assert run.stdout.readline() == f"got {name}\n"
    assert run.poll() is None
    assert not lifehold.free()
    lifehold.kill(run)


# The command at a terminal: a session's first one becomes its own when it is opened.
AT_TERMINAL = (
    "-c",
    "import os, sys; os.open(os.ttyname(0), os.O_RDWR); import lifehold.cli.main as m; m.main()",
)


@pytest.mark.parametrize("close", [[], ["-o"]])
@pytest.mark.parametrize(
    ("trap", "status"), [("", -signal.SIGINT), ("trap 'exit 4' INT;", 4), ("trap '' INT;", 0)]
)
def test_ctrl_c_ends_the_shell_loop_around_us_unless_the_command_makes_something_of_it(
    lifehold, close, trap, status
):
    keyboard, terminal = os.openpty()
    script = f"{trap} echo ready; sleep 0.5"
    run = lifehold.start(
        "run", *close, "job", "sh", "-c", script, program=AT_TERMINAL, stdin=terminal
    )
    try:
        assert run.stdout.readline() == "ready\n"
        os.write(keyboard, b"\x03")
        assert run.wait(60) == status
        assert lifehold.free()
    finally:
        os.close(keyboard)
        os.close(terminal)


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_the_lock_is_held_until_a_terminated_command_is_gone(lifehold, close):
    script = (
        'trap "echo last words; sleep 0.3; exit 4" TERM; echo ready; while :; do sleep 0.05; done'
    )
    run = lifehold.start("run", *close, "job", "sh", "-c", script)
    run.stdout.readline()
    run.terminate()
    assert run.stdout.readline() == "last words\n"
    assert not lifehold.free()
    assert run.wait(60) == 4
    assert lifehold.free()


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_command_ended_by_a_forwarded_signal_gives_128_and_its_number(lifehold, close):
    run = lifehold.start("run", *close, "job", "sh", "-c", "echo ready; exec sleep 60")
    run.stdout.readline()
    run.terminate()
    assert run.wait(60) == 143


def test_what_the_caller_ignores_stays_ignored(lifehold):
    cmd = "kill -HUP $PPID; kill -HUP $$; echo lived"
    script = f"trap '' HUP; exec {sys.executable} -m lifehold run job sh -c '{cmd}'"
    by_shell = ("-c", "import os, sys; os.execvp('sh', ['sh', '-c', sys.argv[1]])")
    run = lifehold.start(script, program=by_shell)
    assert run.communicate(timeout=60)[0] == "lived\n"
    assert run.returncode == 0


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_lost_lock_stops_the_command_and_ends_with_74(lifehold, close):
    run = lifehold.start(
        "run", *close, "job", "sh", "-c", "echo ready; exec sleep 60", program=HURRIED
    )
    run.stdout.readline()
    (lifehold.folder / "job.lock").unlink()
    assert run.wait(60) == 74
    told = run.stderr.read()
    assert re.fullmatch(
        r"lifehold: 'job' is lost: its lock file was removed or renamed: others may be in\n"
        r"lifehold: stopping 'sh': TERM now, KILL after \S+ s\n", told
    )  # fmt: skip


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_command_that_ignores_term_is_killed_after_the_grace(lifehold, close, alive):
    run = lifehold.start(
        "run", *GRACE, *close, "job", "sh", "-c", f"echo $$; {STUBBORN}", program=HURRIED
    )
    child = int(run.stdout.readline())
    run.stdout.readline()
    (lifehold.folder / "job.lock").unlink()
    assert run.wait(60) == 74
    assert not alive(child)


def test_a_lock_found_lost_at_the_end_turns_success_into_74(lifehold):
    done = lifehold("run", "job", "sh", "-c", 'rm "$LIFEHOLD_LOCK"')
    assert done.returncode == 74
    assert "others may be in; 'sh' had ended with 0 when that was noticed" in done.stderr
    assert lifehold("run", "job", "sh", "-c", 'rm "$LIFEHOLD_LOCK"; exit 3').returncode == 3


def test_the_command_keeps_the_lock_when_its_wrapper_is_killed(lifehold, alive):
    run = lifehold.holder("job")
    run.kill()
    run.wait()
    assert alive(run.child)
    told = lifehold("run", "-n", "job", "--", "true").stderr
    assert f"by     pid {run.child} (sleep 600)" in told
    assert f"process {run.pid} locked it and is gone, this one inherited its open file" in told
    os.kill(run.child, signal.SIGKILL)
    assert lifehold("run", "-w", "60", "job", "--", "true").returncode == 0


def test_with_dash_o_the_command_ends_when_its_wrapper_is_killed(lifehold, alive):
    run = lifehold.holder("-o", "job")
    run.kill()
    assert lifehold("run", "-w", "60", "job", "--", "true").returncode == 0
    assert not alive(run.child)
    assert re.search(r"process \d+ \(lifehold run\) is gone: stopping 'sh'", run.stderr.read())


def test_with_dash_o_a_stubborn_command_is_killed_before_the_lock_is_free(lifehold, alive):
    run = lifehold.start(
        "run", *GRACE, "-o", "job", "sh", "-c", f"echo $$; {STUBBORN}", program=HURRIED
    )
    child = int(run.stdout.readline())
    run.stdout.readline()
    run.kill()
    assert lifehold("run", "-w", "60", "job", "--", "true").returncode == 0
    assert not alive(child)


def test_with_dash_o_the_command_dies_with_its_supervisor_and_the_wrapper_waits_for_it(
    lifehold, alive
):
    run = lifehold.holder("-o", "job")
    with open(f"/proc/{run.pid}/task/{run.pid}/children") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    assert run.wait(60) == 137
    assert not alive(run.child)
    assert lifehold.free()


@needs("linux")
def test_a_stopped_supervisor_ends_when_its_wrapper_is_killed_inside_of_another_run(
    lifehold, alive, eventually
):
    """What the run around it adopts is no orphan to the kernel, which does not continue it."""
    me = f"{sys.executable} -m lifehold"
    inner = f"{me} run -o inner -- sh -c 'echo $$ $PPID; exec sleep 600'; exec sleep 600"
    run = lifehold.start("run", "outer", "--", "sh", "-c", inner)
    command, supervisor = map(int, run.stdout.readline().split())
    os.kill(supervisor, signal.SIGSTOP)
    eventually(lambda: state(supervisor) == "T", "it is stopped")
    os.kill(parent(supervisor), signal.SIGKILL)
    assert lifehold("run", "-w", "60", "inner", "--", "true").returncode == 0
    assert not alive(command)


TELLS_LATE = """
import contextlib, os, signal, sys, time
from lifehold.cli import child, main, supervisor
child.prctl = supervisor.prctl = lambda *_: None  # as where there is none
wrapper, real = os.getpid(), supervisor.lead
def lead(*given, **more):
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        for _ in range(100):  # until the wrapper has looked
            os.kill(wrapper, 0)
            time.sleep(0.01)
    return real(*given, **more)
supervisor.lead = lead
sys.exit(main.main())
"""


def test_a_command_whose_supervisor_is_killed_before_its_number_is_told_does_not_run_on(
    lifehold, alive
):
    run = lifehold.start("run", "-o", "job", "--", "sleep", "600", program=("-c", TELLS_LATE))
    assert run.wait(60) == 137
    assert not alive(pid_of(lifehold.folder / "pid"))


@pytest.mark.parametrize("close", [False, True])
def test_no_kill_frees_the_lock_beside_a_running_command(tmp_path, close, monkeypatch, lifehold):
    monkeypatch.setenv("PYTHONPATH", lifehold.environment["PYTHONPATH"])
    played = rounds(tmp_path, ROUNDS, close=close)
    assert [one.violation for one in played if one.violation] == []
    assert sum(one.ran for one in played) >= ROUNDS // 4


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory"])
def test_a_command_under_a_lease_ends_with_who_renews_it(tmp_path, kind, lifehold):
    lease = ("--kind", kind, "--ttl", "3", str(tmp_path / "job"), "--", "sh", "-c")
    stubborn = 'trap "" TERM; echo $$; while :; do sleep 0.1; done'
    run = lifehold.start("run", *lease, stubborn)
    command = int(run.stdout.readline())
    run.kill()  # nobody renews now, so after the ttl anybody may take it
    done = lifehold("run", "-w", "60", *lease, f"kill -0 {command} || echo alone")
    assert (done.returncode, done.stdout) == (0, "alone\n"), done.stderr


@pytest.mark.parametrize("kind", ["soft", "generation", "store"])
def test_a_command_ends_before_the_lease_of_a_stopped_wrapper_does(tmp_path, kind, lifehold):
    """Only the wrapper renews, and `kill -STOP` of its number leaves CMD running."""
    place = ("--kind", kind, "--ttl", "3", str(tmp_path / "job"))
    if kind == "store":
        place = ("--store", f"sqlite:///{tmp_path}/locks.db", "--ttl", "3", "job")
    stubborn = 'trap "" TERM; echo $$; while :; do sleep 0.1; done'
    run = lifehold.start("run", *place, "--", "sh", "-c", stubborn)
    command = int(run.stdout.readline())
    run.send_signal(signal.SIGSTOP)
    try:
        alone = f"kill -0 {command} 2>/dev/null || echo alone"
        done = lifehold("run", "-w", "60", *place, "--", "sh", "-c", alone)
    finally:
        run.send_signal(signal.SIGCONT)
    assert (done.returncode, done.stdout) == (0, "alone\n"), done.stderr
    assert run.wait(60) == 74
    told = f"process {run.pid} (lifehold run) is stopped, and the lease that it does not renew"
    assert told in run.stderr.read()


def test_a_wrapper_stopped_at_the_birth_of_the_command_has_told_the_lease(tmp_path, lifehold):
    """The supervisor knows the end of the lease from the first instant, not from the first look."""
    stop = (
        "import os, signal, sys; from lifehold.cli import main; real = os.fork\n"
        "def fork():\n"
        "    os.fork = real\n"
        "    if child := real():\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return child\n"
        "os.fork = fork\n"
        "sys.exit(main.main())"
    )
    place = ("--kind", "soft", "--ttl", "3", str(tmp_path / "job"), "--", "sh", "-c")
    stubborn = 'trap "" TERM; echo $$; while :; do sleep 0.1; done'
    run = lifehold.start("run", *place, stubborn, program=("-c", stop))
    command = int(run.stdout.readline())
    try:
        alone = f"kill -0 {command} 2>/dev/null || echo alone"
        done = lifehold("run", "-w", "60", *place, alone)
    finally:
        run.send_signal(signal.SIGCONT)
    assert (done.returncode, done.stdout) == (0, "alone\n"), done.stderr
    assert run.wait(60) == 74


def test_a_stopped_command_is_not_ended_for_a_stopped_wrapper(tmp_path, lifehold, alive):
    place = ("--kind", "soft", "--ttl", "2", str(tmp_path / "job"))
    run = lifehold.start("run", *place, "--", "sh", "-c", "echo $$; exec sleep 60")
    command = int(run.stdout.readline())
    os.kill(command, signal.SIGSTOP)
    run.send_signal(signal.SIGSTOP)
    try:
        assert lifehold("run", "-w", "60", *place, "--", "true").returncode == 0
        time.sleep(1)  # in which it would be continued, to hear of its end
        assert Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    finally:
        run.send_signal(signal.SIGCONT)
    assert run.wait(60) == 74  # it sees that by itself, and stops CMD
    assert not alive(command)


def test_the_judge_of_the_kills_finds_a_wrapper_that_passes_nothing_on(
    tmp_path, monkeypatch, lifehold
):
    monkeypatch.setenv("PYTHONPATH", lifehold.environment["PYTHONPATH"])
    broken = (
        "import os, sys; from lifehold.cli.main import main; real = os.posix_spawnp\n"
        "os.posix_spawnp = lambda *a, file_actions, **k: real(*a, file_actions=[], **k)\n"
        "sys.exit(main())"
    )
    played = rounds(tmp_path, 6, close=False, program=(sys.executable, "-c", broken))
    assert any("the lock was free while CMD" in one.violation for one in played)


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_without_sigtimedwait_signals_still_reach_the_command(lifehold, close):
    poorer = ("-c", PATCHED.format("del _signal.sigtimedwait"))
    script = TRAP.format("TERM")
    run = lifehold.start("run", *close, "job", "sh", "-c", script, program=poorer)
    assert run.stdout.readline() == "ready\n"
    run.terminate()
    assert run.stdout.readline() == "got TERM\n"
    lifehold.kill(run)
    assert lifehold("run", *close, "job", "true", program=poorer).returncode == 0


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_an_empty_word_is_no_command(lifehold, close):
    done = lifehold("run", *close, "job", "--", "")
    assert done.returncode == 64
    assert done.stderr.startswith("lifehold: CMD is empty")


def test_a_supervisor_that_gets_no_process_for_the_command_says_so(lifehold):
    refuse = "def no(): raise BlockingIOError(11, 'Resource temporarily unavailable')"
    hook = f"{refuse}\nreal = os.fork\ndef once(): os.fork = no; return real()\nos.fork = once"
    program = (
        "-c",
        f"import os, sys\n{hook}\nfrom lifehold.cli import main\nsys.exit(main.main())",
    )
    done = lifehold("run", "-o", "job", "true", program=program)
    assert done.returncode == 71
    assert done.stderr == "lifehold: cannot run 'true': Resource temporarily unavailable\n"


STOPPED_AT_BIRTH = """
import os, signal, sys
from lifehold.cli import main
real = os.fork
def fork():
    os.fork = real
    if not (child := real()):
        os.kill(os.getpid(), signal.SIGSTOP)
    return child
os.fork = fork
sys.exit(main.main())
"""


@needs("proc")
def test_a_supervisor_stopped_at_its_birth_leaves_no_deaf_wrapper(lifehold, eventually):
    words = ("run", "-o", "--max-hold", "1", "job", "--", "sleep", "60")
    run = lifehold.start(*words, program=("-c", STOPPED_AT_BIRTH))
    eventually(lambda: list(children(run.pid).values()) == ["T"], "the supervisor is stopped")
    assert run.wait(60) == 74
    assert lifehold.free()


def test_after_the_end_of_its_supervisor_no_signal_goes_to_the_number_of_a_command(lifehold):
    """All of its group was gone, so the number may be another's."""
    tell = PATCHED.format("supervisor._end_group = lambda *_: print('sent')")
    done = lifehold("run", "-o", "job", "sh", "-c", "kill -KILL $$", program=("-c", tell))
    assert (done.returncode, done.stdout) == (137, "")


UNLOADED = """
import sys
from lifehold.cli import main, run

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "lifehold.cli.supervisor":
            raise {error}

sys.meta_path.insert(0, Finder())
{more}
sys.exit(main.main())
"""
LATER = "run.supervised, real = (lambda: None), run.supervised\n"
LATER += "run.RunReport.took = lambda *_: setattr(run, 'supervised', real)"


@pytest.mark.parametrize("more", ["", LATER], ids=["before the lock", "under it"])
@pytest.mark.parametrize("error", ["ImportError('gone')", "OSError(24, 'no descriptor')"])
@pytest.mark.parametrize("lease", [("-o",), ("--kind", "soft", "--ttl", "60")], ids=["-o", "ttl"])
def test_a_supervisor_that_cannot_be_loaded_leaves_no_lock(lifehold, lease, error, more):
    program = ("-c", UNLOADED.format(error=error, more=more))
    done = lifehold("run", *lease, "job", "--", "touch", "begun", program=program)
    assert done.returncode == 71, done.stderr
    assert "Traceback" not in done.stderr
    assert not (lifehold.folder / "begun").exists()
    assert "'job' is free" in lifehold("who", "job").stdout  # and not left by one who is gone


UNABLE = """
import os, sys
unable = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
os.execvp("setpriv", [*unable, sys.executable, "-m", "lifehold", *sys.argv[1:]])
"""


@needs("linux", "root", "command:setpriv")
def test_a_group_left_to_another_user_is_told(lifehold):
    script = "setpriv --reuid 65534 --clear-groups sleep 600 & exit 5"
    run = lifehold.start("run", "job", "sh", "-c", script, program=("-c", UNABLE))
    assert "has ended with 5, and processes that it started run on" in run.stderr.readline()
    assert not lifehold.free()


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid):
    """State of each child of a process, by its number."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found[int(entry.name)] = fields[0]
    return found


UNBURIED = """
import os, time
if os.fork():
    os.read(os.open("pipe", os.O_RDONLY), 1)  # until the other has left the group
    os._exit(5)
child = os.fork()
if child == 0:
    os._exit(0)
os.setsid()
os.closerange(0, 3)
os.close(os.open("pipe", os.O_WRONLY))
time.sleep(60)  # and never reaps its child, which stays in the group
"""


@needs("linux")
def test_a_zombie_that_nobody_buries_does_not_keep_the_lock(lifehold):
    started = []
    for number, close in enumerate(([], ["-o"])):
        os.mkfifo(lifehold.folder / f"pipe{number}")
        program = UNBURIED.replace("pipe", f"pipe{number}")
        words = ("run", *close, f"job{number}", "--", sys.executable, "-c", program)
        started.append(lifehold.start(*words))
    for number, run in enumerate(started):
        assert run.communicate(timeout=60)[1] == ""
        assert run.returncode == 5
        assert lifehold.free(f"job{number}")


@needs("linux")
def test_a_supervised_command_leaves_no_zombies_to_the_wrapper(lifehold):
    script = "for i in 1 2 3; do (sleep 0.1 &); done; sleep 0.5; echo ready; exec sleep 60"
    run = lifehold.start("run", "-o", "job", "sh", "-c", script)
    assert run.stdout.readline() == "ready\n"
    assert list(children(run.pid).values()) == ["S"]
    run.terminate()
    assert run.wait(60) == 143


WAKE_UP_PIPES = """
import _signal, os
del _signal.sigtimedwait
from lifehold.cli.signals import SignalQueue
inbox = SignalQueue()
get, put = os.pipe()
if os.fork() == 0:
    inbox.renew()
    os.write(put, b"ready")
    while inbox.next(0.05) is None:  # the parent's signals are none of ours
        pass
    os._exit(0)
os.read(get, 5)
for _ in range(200):
    os.kill(os.getpid(), _signal.SIGTERM)
    assert inbox.next(50) == _signal.SIGTERM
assert inbox.next(0.2) is None
os.kill(0, _signal.SIGTERM)
both = {inbox.next(50), inbox.next(50)}  # of two that wait the kernel lets the later one go first
assert both == {_signal.SIGTERM, _signal.SIGCHLD} and os.wait()[1] == 0
print("good")
"""


def test_a_supervisor_without_sigtimedwait_reads_no_message_of_its_wrapper(lifehold):
    process = lifehold.start(program=("-c", WAKE_UP_PIPES))
    assert process.communicate(timeout=60) == ("good\n", "")


@pytest.fixture
def unread():
    """The writing end of a pipe that is full and that nobody reads."""
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    for piece in (b"x" * 4096, b"x"):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(tell, piece)
    os.set_blocking(tell, True)
    yield tell
    os.close(heard)
    os.close(tell)


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_stderr_that_nobody_reads_keeps_no_command_from_being_stopped(lifehold, unread, close):
    words = ("run", *close, "--max-hold", "0.2", *GRACE, "job", "--", "sh", "-c", STUBBORN)
    run = lifehold.start(*words, stderr=unread)
    assert run.wait(60) == 74
    assert lifehold.free()


@pytest.mark.parametrize("kind", [["--kind", "soft"], ["--kind", "kernel"], ["--fair"]])
def test_a_stderr_that_nobody_reads_ends_no_wait_late_and_keeps_no_lock(lifehold, unread, kind):
    holder = lifehold.holder(*kind, "job")
    waiter = lifehold.start("run", *kind, "-w", "2.5", "job", "--", "echo", "in", stderr=unread)
    patient = lifehold.start("run", *kind, "job", "--", "echo", "in", stderr=unread)
    assert waiter.wait(60) == 75
    lifehold.kill(holder)
    assert patient.communicate(timeout=60)[0] == "in\n"


NO_FORK = """
import errno, os, sys
from lifehold.cli.main import main
def fork():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = fork
sys.exit(main(sys.argv[1:]))
"""


def test_a_command_that_no_process_can_be_made_for_leaves_no_lease(lifehold, tmp_path):
    path = str(tmp_path / "job.soft")
    words = ("run", "--json", "--kind", "soft", "--ttl", "300", path, "--", "true")
    done = lifehold(*words, program=("-c", NO_FORK))
    assert done.returncode == 71
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["outcome"], told["code"]) == ("not_started", 71)
    assert not Lock(path, kind="soft", ttl=300).locked()


NO_DESCRIPTOR = """
import resource, sys
from lifehold.cli import main, run
real = run.spawn
def spawn(*given):
    pid = real(*given)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    return pid
run.spawn = spawn
sys.exit(main.main())
"""


@needs("linux")
def test_a_wrapper_that_can_open_nothing_more_has_the_status_of_the_command(lifehold):
    words = ("run", "job", "--", "sh", "-c", "sleep 0.3; exit 5")  # until the wrapper has settled
    done = lifehold(*words, program=("-c", NO_DESCRIPTOR))
    assert (done.returncode, done.stderr) == (5, "")
    assert lifehold.free()


@needs("linux")
@pytest.mark.parametrize(
    ("options", "script"), [((), 'rm "$LIFEHOLD_LOCK"; '), (("--max-hold", "0.2"), "")]
)
def test_a_wrapper_that_can_open_nothing_more_stops_its_command_in_time(
    lifehold, alive, options, script
):
    words = ("run", *options, *GRACE, "job", "--", "sh", "-c", f"echo $$; {script}exec sleep 600")
    run = lifehold.start(*words, program=("-c", NO_DESCRIPTOR))
    command = int(run.stdout.readline())
    assert run.wait(60) == 74
    assert not alive(command)


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_python_without_ctypes_has_the_status_of_the_command(lifehold, close):
    without = ("-c", PATCHED.format("sys.modules['_ctypes'] = None"))
    words = ("run", *close, "job", "--", "sh", "-c", "sleep 0.3; exit 5")
    done = lifehold(*words, program=without)
    assert (done.returncode, done.stderr) == (5, "")


def test_the_end_of_a_lease_is_not_slept_through():
    asked = set()

    class Inbox:
        def next(self, seconds):
            asked.add(seconds)

    care = ChildCare("it", Inbox(), None, 1.0, lambda: None, str, look_in=lambda: 0.2)
    child = os.posix_spawn("/bin/true", ["true"], os.environ)
    assert attend(child, care, group=False) == 0
    assert asked == {0.2}
