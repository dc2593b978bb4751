"""`lifehold flock` beside the real flock(1): same codes, same words, same locks."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ground import needs

pytestmark = needs("linux")
OURS = [sys.executable, "-m", "lifehold", "flock"]
REAL = ["flock"]

# Each runs beside a file `held`, that somebody holds; a file `plain`; a folder `dir`.
LINES = """\
|
-n held true
-nE 7 held true
-n -E7 held true
--conflict-exit-code=9 -n held true
-E 256 -n held true
-E -1 -n held true
-E x -n held true
-w 0 held true
-w 0.1 held true
-w 0.1 -E 5 held true
-w -1 held true
-w abc held true
-w nan plain true
-w infinity plain true
-w 0x10 plain true
-w 1_0 plain true
-w ' 1' plain true
-w 1e300 plain true
-E +3 -n held true
-E 0x3 -n held true
-E 1_0 -n held true
-w
--timeout
plain true
plain false
plain sh -c 'exit 42'
plain -c 'exit 41'
-c plain 'exit 40'
plain -c
plain -c a b
plain sh -c 'kill -9 $$'
plain /no/such
plain ./plain
plain ./script a 'b c'
-F plain ./script a
-o plain script
dir true
dir -c 'echo in dir'
/no/such/x true
/proc/nosuch true
99
9x
+99
18446744073709551616
-x
-F plain echo nofork
-F -o plain echo x
-o plain sh -c 'ls /proc/self/fd | wc -l'
plain sh -c 'ls /proc/self/fd | wc -l'
-s plain echo shared
-s -n held true
-e plain echo e
-n plain sh -c 'cat plain; echo; ls -s plain'
--bogus plain true
-Z plain true
--non held true
--verbose=1 plain true
-u plain true
-- plain true
new true
plain sh -c 'trap | wc -l; kill -PIPE $$'
plain ''
plain '' x
-F plain ''
-o -F plain ''
plain -c ''
-- -1
-n -- -1
-u -- ' -1'
-- -2147483648
-- -2147483649
-- -1 true
-- -x
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "plain").write_text("somebody's data")
    (tmp_path / "dir").mkdir()
    (tmp_path / "script").write_text('echo "$0" "$#" "$@"; exit 6\n')  # without a #! line
    (tmp_path / "script").chmod(0o755)
    with (tmp_path / "held").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tmp_path


def said(command, folder, **more):
    environment = {key: value for key, value in os.environ.items() if key != "SHELL"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        env=environment, check=False, **more,
    )  # fmt: skip
    told = done.stderr.replace("'lifehold flock", "'flock")
    return done.returncode, re.sub(r"\d+\.\d+", "N", done.stdout), told


@needs("flock")
@pytest.mark.parametrize("line", LINES.splitlines())
def test_a_line_ends_as_with_the_real_one(folder, line):
    words = [] if line == "|" else shlex.split(line)
    assert said([*OURS, *words], folder) == said([*REAL, *words], folder)
    assert (folder / "plain").read_text() == "somebody's data"


@needs("flock")
def test_verbose_tells_the_same_and_who_holds_it(folder):
    for words in (["-n", "--verbose", "held", "true"], ["-w", "0.1", "--verbose", "held", "true"]):
        ours, real = said([*OURS, *words], folder), said([*REAL, *words], folder)
        assert ours[:2] == real[:2]
        assert ours[2].startswith(real[2])
        assert f"pid {os.getpid()}" in ours[2]
        assert "lifehold who ./held" in ours[2]
    words = ["--verbose", "plain", "echo", "in"]
    ours, real = (sorted(said([*each, *words], folder)[1].splitlines()) for each in (OURS, REAL))
    assert ours == real  # in another order: the real one writes its own words last


def shell(text, folder):
    ours = " ".join(map(shlex.quote, OURS))
    return said(["sh", "-c", text.replace("FLOCK", ours)], folder)


def test_an_open_file_of_the_shell_is_locked_until_the_shell_closes_it(folder):
    text = (
        "exec 9>mine; FLOCK -n 9 && (FLOCK -n mine true; echo $?); FLOCK -u 9; FLOCK -n mine echo"
    )
    assert shell(text, folder) == (0, "1\n\n", "")


def test_the_whole_script_may_be_run_under_its_own_lock(folder):
    script = folder / "script"
    script.write_text('[ "$IN" ] || exec env IN=1 FLOCK -en "$0" sh "$0"; echo inside\n'.replace(
        "FLOCK", " ".join(map(shlex.quote, OURS))))  # fmt: skip
    assert said(["sh", str(script)], folder) == (0, "inside\n", "")


@pytest.mark.parametrize("other", [["flock"], [sys.executable, "-m", "lifehold", "run"]])
def test_it_excludes_the_others_on_the_same_file(folder, other):
    path = str(folder / "plain")
    with subprocess.Popen([*OURS, path, "sh", "-c", "echo; read x"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as holder:  # fmt: skip
        holder.stdout.readline()
        end = ["--"] if other[-1] == "run" else []
        refused = subprocess.run([*other, "-n", path, *end, "true"], capture_output=True,
                                 check=False)  # fmt: skip
        assert refused.returncode in (1, 75)
        holder.communicate(b"\n")
    assert holder.returncode == 0


def test_a_lock_that_becomes_free_is_given_to_who_waits(folder):
    path = folder / "held2"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiter = subprocess.Popen([*OURS, "-w", "30", str(path), "echo", "in"],
                                  stdout=subprocess.PIPE, text=True)  # fmt: skip
        while f"-> FLOCK  ADVISORY  WRITE {waiter.pid} " not in Path("/proc/locks").read_text():
            time.sleep(0.01)
            assert waiter.poll() is None
    assert waiter.communicate(timeout=90)[0] == "in\n"


def test_killed_it_leaves_the_lock_with_its_command(folder):
    path = str(folder / "mine")
    with subprocess.Popen([*OURS, path, "sh", "-c", "echo; read x"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as wrapper:  # fmt: skip
        wrapper.stdout.readline()
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(timeout=90) == -signal.SIGTERM
        assert said([*OURS, "-n", path, "true"], folder)[0] == 1
        wrapper.stdin.write(b"\n")
        wrapper.stdin.flush()
        assert said([*OURS, "-w", "60", path, "true"], folder)[0] == 0


def test_called_by_its_name_it_is_flock(folder):
    named = "import sys; sys.argv[0] = '/x/flock'\n"
    named += "from lifehold.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", named, "-n", "held", "true"]
    assert said(command, folder)[0] == 1


def test_a_file_system_that_is_read_only_and_a_file_without_right_are_told(folder):
    if os.geteuid() == 0:
        assert said([*OURS, "/proc/1/environ/x", "true"], folder)[0] == 66
    else:
        (folder / "plain").chmod(0)
        assert said([*OURS, "plain", "true"], folder)[0] == 66


def test_a_lock_that_comes_with_the_alarm_is_no_failure(tmp_path, monkeypatch):
    """The caller's open file keeps it: 1 would leave it locked, and nobody would know."""
    from lifehold.cli import flock as ours

    real, calls = fcntl.flock, []

    def late(fd, operation):
        calls.append(operation)
        if len(calls) == 1:
            raise BlockingIOError
        real(fd, operation)
        if len(calls) == 2:
            raise ours.WaitOver

    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE)
    monkeypatch.setattr(ours.fcntl, "flock", late)
    try:
        assert ours.flock(["-w", "100", str(fd)]) == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGPIPE, before[1])
        os.close(fd)
    assert calls == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB]


def test_an_alarm_that_is_lost_on_the_way_to_the_system_call_is_followed_by_another(
    folder, monkeypatch
):
    from lifehold.cli import flock as ours

    real = fcntl.flock

    def lost(fd, operation):
        if not operation & fcntl.LOCK_NB:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            signal.sigwait({signal.SIGALRM})
            assert signal.getitimer(signal.ITIMER_REAL)[1] > 0, "it waits for ever"
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        real(fd, operation)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE)
    monkeypatch.setattr(ours.fcntl, "flock", lost)
    try:
        with pytest.raises(SystemExit) as ended, (folder / "held").open() as file:
            ours.flock(["-w", "0.001", "-E", "9", str(file.fileno())])
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGPIPE, before[1])
    assert ended.value.code == 9
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("tool", ["ours", pytest.param("real", marks=needs("flock"))])
def test_ctrl_c_does_not_end_it_where_its_caller_ignores_it(tmp_path, tool):
    """As a job in the background of a script does, which gets Ctrl-C all the same."""
    command = shlex.join([*(OURS if tool == "ours" else ["flock"]), "lock"])
    process = subprocess.Popen(
        ["sh", "-c", f"trap '' INT; exec {command} sh -c 'echo; read x; exit 7'"], cwd=tmp_path,
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate("\n", timeout=60)
    assert process.returncode == 7
