"""`lifehold dotlockfile` beside the real dotlockfile(1): the table of exit codes, row by row."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ground import needs, require

pytestmark = needs("linux")
OURS = [sys.executable, "-m", "lifehold", "dotlockfile"]
REAL = ["dotlockfile"]
DEAD = 2**22 - 2  # a process number that is beyond what this kernel gives out by default

# Each runs in a folder with: held ("0\n", fresh), old (the same, an hour old), seen (old and read
# since), live and ancient (our pid; young and a day old), dead (a pid that is gone), empty,
# garbage, minus ("-1"), dir and olddir, lost (a symbolic link that leads nowhere).
LINES = """\
|
-Z
-V
-l -u free
-u free true
-t free true
-c free true
-r
-i
-m -Z
-c free
-c held
-u free
-u held
-t free
-t held
-t old
free
-l free
-N free
-qlr 0 free
-r 0 held
-r 0 -i 0 held
-r 3 -i 0 held
-r 1 -i 1 held
-i 0 -r1 held
-r x free
-r -5 free
-r 0x free
-i x free
-q -r x free
-q -i x free
-p -r 0 free
-p -c live
-p -c dead
-c dead
-r 0 dead
-r 0 -p dead
-r 0 -p live
-p -c ancient
-r 0 -p ancient
-c empty
-c garbage
-c minus
-p -c empty
-p -c garbage
-p -c minus
-r 0 empty
-c dir
-r 0 dir
-r 0 olddir
-c lost
/nonexistent/a
-u /nonexistent/a
-c held/a
/proc/a
-r 0 LONG
free true
free false
-P free true
-P free false
-P free sh -c 'exit 42'
-P free sh -c 'kill -9 $$'
free sh -c 'kill -9 $$'
-P free /no/such
free /no/such
-P free ./held
-P free ''
free ''
-p -q -P free '' x
-P free -- true
-P -- free true
-r 0 held true
-r 0 -P held true
-P -p free sh -c 'head -1 free | grep -c .'
-P free sh -c 'head -1 free'
-P free sh -c 'env | grep -ci lockfile'
-P free sh -c 'rm free'
-P free ./script
free echo said
"""
# On these the original waits for a second look, and follows a link to unlink it: ours does not.
BETTER = {
    "-c old": (1, 0), "-r 0 old": (0, 4), "-c seen": (1, 1), "-r 0 seen": (0, 0),
    "-c ancient": (1, 0), "-r 0 lost": (8, 0),
}  # fmt: skip


def filled(folder):
    """Such a folder."""
    folder.mkdir()
    hour = time.time() - 3600
    texts = {
        "held": "0\n", "old": "0\n", "seen": "0\n", "live": f"{os.getpid()}\n", "empty": "",
        "ancient": f"{os.getpid()}\n", "dead": f"{DEAD}\n", "garbage": "{x}\n", "minus": "-1\n",
        "script": "echo $0 runs\n",
    }  # fmt: skip
    for each, text in texts.items():
        (folder / each).write_text(text)
    (folder / "script").chmod(0o755)
    for each in ("dir", "olddir"):
        (folder / each).mkdir()
    for each in ("old", "seen", "olddir", "ancient"):
        os.utime(folder / each, (hour, hour))
    (folder / "seen").read_text()
    os.utime(folder / "seen", (time.time(), hour))
    (folder / "lost").symlink_to("nowhere")
    return folder


def said(command, folder, line):
    """(status, stdout, what each file became). The real one may leave a temporary file behind."""
    words = [] if line == "|" else shlex.split(line.replace("LONG", "x" * 300))
    environment = {k: v for k, v in os.environ.items() if k not in ("MAIL", "_")}
    done = subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    left = [each for each in folder.iterdir() if each.name[:3] != ".lk" or command is OURS]
    return done.returncode, done.stdout, {each.name: what(each) for each in left}


def what(path):
    """A file by its first line and mode."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        return stat.filemode(mode)
    return stat.filemode(mode), path.read_text().partition("\n")[0]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What both said to each line. Some of them wait, and all of them together wait no longer."""

    base = tmp_path_factory.mktemp("lines")  # once: it is not made for threads

    def both(at, line):
        place = base / str(at)
        place.mkdir()
        try:
            return [said(each, filled(place / name), line)
                    for each, name in ((OURS, "a"), (REAL, "b"))]  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:  # fails this line, and not all
            return [repr(error), ""]

    with ThreadPoolExecutor(6) as pool:
        lines = LINES.splitlines()
        return dict(zip(lines, pool.map(both, range(len(lines)), lines), strict=True))


@needs("command:dotlockfile")
@pytest.mark.parametrize("line", LINES.splitlines())
def test_a_line_ends_as_with_the_real_one(answers, line):
    if "-p" in line and "dead" in line:  # a bare number proves nothing where some are hidden
        require("all processes")
    ours, real = answers[line]
    assert ours == real


@pytest.mark.parametrize("line", BETTER)
def test_the_first_look_gives_the_right_answer(tmp_path, line):
    ours, _ = BETTER[line]
    place = filled(tmp_path / "a")
    assert said(OURS, place, line)[0] == ours
    assert (place / "lost").is_symlink()


@needs("command:dotlockfile")
@pytest.mark.parametrize("line", BETTER)
def test_the_real_one_answers_otherwise_as_the_page_says(tmp_path, line):
    assert said(REAL, filled(tmp_path / "b"), line)[0] == BETTER[line][1]


@needs("command:dotlockfile")
def test_a_mailbox_is_locked_under_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MAIL", str(tmp_path / "box"))
    for command, other in ((OURS, REAL), (REAL, OURS)):
        assert subprocess.run([*command, "-m"], check=False).returncode == 0
        assert (tmp_path / "box.lock").exists()
        assert subprocess.run([*other, "-r", "0", "-m"], check=False).returncode == 4
        assert subprocess.run([*other, "-m", "-u"], check=False).returncode == 0
        assert os.listdir(tmp_path) == []


@needs("command:dotlockfile")
def test_a_lock_of_ours_holds_for_the_real_one_and_its_end_is_seen(tmp_path):
    path = str(tmp_path / "box.lock")
    script = (
        f"{shlex.join([*OURS, '-p', path])} && dotlockfile -p -c {path} && dotlockfile -r 0 {path}"
    )
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 4
    first = (tmp_path / "box.lock").read_text().partition("\n")[0]
    assert not os.path.exists(f"/proc/{first}")  # the sh that asked for it
    assert subprocess.run([*OURS, "-p", "-c", path], check=False).returncode == 1
    assert subprocess.run(["dotlockfile", "-p", "-c", path], check=False).returncode == 1


def waiting(*words, cwd, **more):
    """A call of ours that has found the lock held, and waits."""
    process = subprocess.Popen(
        [*OURS, *words], cwd=cwd, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **more
    )
    until_it_waits(process.pid)
    return process


def until_it_waits(pid):
    """It waits as soon as it watches."""
    watches = Path(f"/proc/{pid}/fd")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if any("inotify" in leads_to(each) for each in list(watches.iterdir())):
            return
        time.sleep(0.005)
    raise AssertionError("it does not wait")


def leads_to(link):
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed meanwhile


def ended(process):
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "QUIT", "PIPE", "KILL"])
def test_a_signal_ends_who_waits_and_nothing_is_left(tmp_path, name):
    (tmp_path / "held").write_text("0\n")
    process = waiting("-r", "5", "held", cwd=tmp_path)
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    assert ended(process) == -number
    assert os.listdir(tmp_path) == ["held"]
    assert (tmp_path / "held").read_text() == "0\n"


def test_a_signal_ends_who_tries_without_a_pause(tmp_path):
    (tmp_path / "held").write_text("0\n")
    process = subprocess.Popen([*OURS, "-r", "-1", "-i", "0", "held"], cwd=tmp_path)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[11]) + int(fields[12]) > 50:  # of 0.01 s: it has begun, and is busy
            break
        time.sleep(0.01)
    process.terminate()
    assert process.wait(timeout=60) == -signal.SIGTERM
    assert os.listdir(tmp_path) == ["held"]


def test_a_waiter_is_woken_when_the_lock_is_removed(tmp_path):
    held = tmp_path / "held"
    held.write_text("0\n")
    process = waiting("-r", "1000", "-p", "held", "true", cwd=tmp_path)
    held.unlink()
    assert ended(process) == 0
    assert os.listdir(tmp_path) == []


def test_a_waiter_gives_up_when_whoever_called_it_is_gone(tmp_path):
    (tmp_path / "held").write_text("0\n")
    caller = subprocess.Popen(
        ["sh", "-c", f"{shlex.join(OURS)} -r 1000 held; :"], cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    child = _child_of(caller.pid)
    until_it_waits(child)
    caller.kill()
    caller.wait(timeout=60)
    until = time.monotonic() + 60
    while alive(child) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(child)
    assert os.listdir(tmp_path) == ["held"]


def _child_of(pid):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(found[0])
        time.sleep(0.005)
    raise AssertionError("no child")


def running(folder, script, *words):
    """Ours with a CMD that has said its first line."""
    process = subprocess.Popen(
        [*OURS, *words, "lock", "sh", "-c", script], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return process, process.stdout.readline().split()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "script", ["sleep 60 & echo $$ $!; wait", "trap '' TERM; sleep 60 & echo $$ $!; wait"]
)
def test_sigterm_leaves_neither_lock_nor_child(tmp_path, script):
    process, pids = running(tmp_path, script, "-P")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == -signal.SIGTERM
    assert [pid for pid in pids if alive(pid)] == []
    assert os.listdir(tmp_path) == []


def test_sigterm_ends_a_command_that_has_a_session_of_its_own(tmp_path):
    """Its lock would be removed beside it."""
    command = ["setsid", "sh", "-c", "echo $$; exec sleep 60"]
    process = subprocess.Popen(
        [*OURS, "-P", "lock", *command], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    (pid,) = process.stdout.readline().split()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    assert not alive(pid)
    process.communicate()
    assert os.listdir(tmp_path) == []


@needs("root", "unshare")
def test_as_process_1_of_a_container_it_ends_as_by_sigterm(tmp_path):
    """The kernel ends no process 1 by a signal that it does not handle."""
    command = ["unshare", "--kill-child", "-pf", "--mount-proc", *OURS, "-P", "lock"]
    process = subprocess.Popen(
        [*command, "sh", "-c", "echo; exec sleep 60"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.readline()
    os.kill(_child_of(process.pid), signal.SIGTERM)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["INT", "QUIT", "HUP"])
def test_other_signals_to_it_alone_change_nothing(tmp_path, name):
    process, _ = running(tmp_path, "echo; read x; exit 7", "-P")
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert (tmp_path / "lock").exists()
    process.stdin.write("\n")
    process.stdin.flush()
    assert ended(process) == 7
    assert os.listdir(tmp_path) == []


@needs("command:dotlockfile")
def test_killed_it_leaves_the_lock_to_cmd_and_its_end_frees_it_at_once(tmp_path):
    process, (pid,) = running(tmp_path, "echo $$; read x")
    pipe, process.stdin = process.stdin, None
    process.kill()
    process.wait(timeout=60)
    assert alive(pid)
    for command in (OURS, REAL):
        assert said(command, tmp_path, "-r 0 lock")[0] == 4
    pipe.close()
    process.communicate(timeout=60)
    until = time.monotonic() + 60
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.005)
    assert said(OURS, tmp_path, "-c lock")[0] == 1
    assert said(OURS, tmp_path, "-r 0 lock")[0] == 0


def test_called_by_its_name_it_is_dotlockfile(tmp_path):
    named = "import sys; sys.argv[0] = '/x/dotlockfile'\n"
    named += "from lifehold.cli.main import main; sys.exit(main())"
    assert said([sys.executable, "-c", named], tmp_path, "-c nothing")[0] == 1
    assert said([sys.executable, "-c", named], tmp_path, "made")[0] == 0
    assert (tmp_path / "made").exists()


def test_the_command_line_option_help_tells_the_rules(tmp_path):
    code, out, _ = said(OURS, tmp_path, "--help")
    assert code == 0
    assert "usage: lifehold dotlockfile" in out
    assert "-p is\nrefused on network file systems" in out
