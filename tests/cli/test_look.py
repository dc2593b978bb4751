"""`lifehold ls`, `wait`, `log`, `check` and `touch`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from ground import needs
from lifehold import CorruptRecord, Lock, ReadWriteLock
from lifehold.local import proc_locks
from lifehold.ops import history, inventory
from lifehold.ops.who import who

DOCS = Path(__file__).parents[2] / "docs/reference"
WHO = json.loads((DOCS / "who.schema.json").read_text(encoding="utf-8"))
ANSWERS = json.loads((DOCS / "answers.schema.json").read_text(encoding="utf-8"))


def answer(done, schema=ANSWERS):
    """The JSON that it printed, which keeps its schema."""
    found = json.loads(done.stdout)
    jsonschema.validate(found, schema)
    return found


def ours(lifehold, path):
    """`lifehold` as CMD of a run calls it."""
    return f"{sys.executable} -m lifehold {path}"


# ---- ls


def test_ls_shows_what_is_held_first_and_who_held_the_others_last(lifehold):
    lifehold("run", "a", "--", "true")
    holder = lifehold.holder("b")
    done = lifehold("ls")
    head, held, free = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert head.split() == ["NAME", "STATE", "PID", "USER", "SINCE", "COMMAND"]
    assert held.split()[:3] == ["b", "held", str(holder.pid)]
    assert free.split()[:2] == ["a", "free"]
    assert " last 20" in free
    assert lifehold("ls", "--held", "--names").stdout == "b\n"
    assert lifehold("ls", "--names").stdout == "a\nb\n"


def test_ls_of_a_folder_shows_our_records_and_what_other_tools_hold(lifehold):
    folder = lifehold.folder / "dir"
    folder.mkdir()
    with Lock(folder / "ours"):
        pass
    for name in ("data", "held", "bytes"):
        (folder / name).write_bytes(b"x" * 1024)
    with open(folder / "held") as one, open(folder / "bytes", "r+") as two:
        fcntl.flock(one, fcntl.LOCK_SH)
        fcntl.lockf(two, fcntl.LOCK_EX)
        found = answer(lifehold("ls", "--json", str(folder)), WHO)["locks"]
    named = {Path(each["path"]).name: (each["state"], each["kind"]) for each in found}
    assert named == {
        "ours": ("free", "flock"), "held": ("held", "flock"), "bytes": ("held", "fcntl")
    }  # fmt: skip
    assert [each["state"] for each in found] == ["held", "held", "free"]


def test_ls_of_nothing_says_so_and_of_a_missing_folder_ends_with_66(lifehold):
    done = lifehold("ls")
    told = "lifehold: no locks with a plain name; all of this machine: lifehold ls --host\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
    assert lifehold("ls", "--names").stdout == ""
    done = lifehold("ls", "/no/such/folder", ".")
    assert done.returncode == 66
    assert "'/no/such/folder' is not a folder" in done.stderr


def test_ls_leaves_links_folders_and_fifos_alone_and_escapes_names(lifehold):
    (lifehold.folder / "link.lock").symlink_to("x.lock")
    (lifehold.folder / "dir.lock").mkdir()
    os.mkfifo(lifehold.folder / "fifo.lock")
    (lifehold.folder / "a\n\x1b[2J.lock").touch()
    done = lifehold("ls")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert lifehold("ls", "--names").stdout == ""


NEWER = b'{"lifehold":99,"x":1' + b" " * 1000 + b"}"  # of a version that knows other holders


def test_ls_marks_a_damaged_record_and_goes_on(lifehold):
    with Lock(lifehold.folder / "a.lock"):
        pass
    content = (lifehold.folder / "a.lock").read_bytes()
    (lifehold.folder / "b.lock").write_bytes(content[:50] + b"\xff" * 974)
    done = lifehold("ls", str(lifehold.folder))
    assert done.returncode == 0
    states = {row.split()[0]: row.split()[1] for row in done.stdout.splitlines()[1:]}
    assert states == {
        f"{lifehold.folder}/b.lock": "suspect",
        f"{lifehold.folder}/a.lock": "free",
    }


@pytest.mark.parametrize("content", [NEWER, b'{"lifehold":1,' + b"x" * 1000])
@pytest.mark.parametrize("place", ["a folder", "plain names"])
def test_the_list_of_locks_says_of_a_record_that_it_cannot_read_what_who_says(
    lifehold, content, place
):
    (lifehold.folder / "r.lock").write_bytes(content)
    name, path = "r", str(lifehold.folder / "r.lock")
    if place == "a folder":
        (answer,) = inventory.of_folder(str(lifehold.folder))
    else:
        (answer,) = inventory.of_paths({path: name}, every=True)
    try:
        told = who(name, path).note
    except CorruptRecord as error:
        told = error.text
    assert (answer.state, answer.note) == ("suspect", told)


@needs("linux", "proc")
def test_ls_of_ten_thousand_locks_takes_seconds_and_not_minutes(lifehold):
    with Lock(lifehold.folder / "l0.lock"):
        pass
    content = (lifehold.folder / "l0.lock").read_bytes()
    for number in range(1, 10_000):
        (lifehold.folder / f"l{number}.lock").write_bytes(content)
    held = [os.open(lifehold.folder / f"l{n}.lock", os.O_RDONLY) for n in range(200)]
    for fd in held:
        fcntl.flock(fd, fcntl.LOCK_EX)
    began = time.process_time() + os.times().children_user + os.times().children_system
    done = lifehold("ls")
    spent = time.process_time() + os.times().children_user + os.times().children_system - began
    for fd in held:
        os.close(fd)
    assert len(done.stdout.splitlines()) == 10_001
    assert done.stdout.count(" held ") == 200
    assert spent < 20, spent  # of processor time; 1.3 s on a quiet machine


@pytest.fixture
def other(lifehold, for_all):
    """Calls `lifehold` as a user who may not read the folder `inner` of `for_all`."""
    (for_all / "inner").mkdir(mode=0o700)

    def call(*words):
        first = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        command = [*first, sys.executable, "-m", "lifehold", *words]
        more = {"env": lifehold.environment, "cwd": for_all, "timeout": 90, "text": True}
        return subprocess.run(command, capture_output=True, check=False, **more)

    return call


@needs("root", "command:setpriv", "python of others")
@pytest.mark.parametrize("only", ["--stale", "--held", "--older=1h", "--names"])
def test_ls_of_a_tree_names_the_folders_that_it_could_not_read(other, only):
    done = other("ls", "-R", only, ".")
    assert (done.returncode, done.stdout) == (0, "")
    assert "lifehold: not seen: could not be read: './inner'\n" in done.stderr


@needs("root", "command:setpriv", "python of others")
def test_ls_of_a_tree_says_in_json_what_it_could_not_read(lifehold, other, for_all):
    found = answer(other("ls", "-R", "--stale", "--json", "."), WHO)
    assert (found["locks"], found["unseen"]) == ([], ["could not be read: './inner'"])
    assert "unseen" not in answer(lifehold("ls", "-R", "--stale", "--json", str(for_all)), WHO)


@needs("root", "command:setpriv", "python of others")
def test_the_watch_tells_of_a_folder_below_that_it_cannot_read(other, for_all):
    (for_all / "watch.toml").write_text(f"folders = ['{for_all}']\n")
    done = other("watch", "--once", "watch.toml")
    told = f"lifehold: unread: {for_all}/inner: '{for_all}/inner' could not be read\n"
    assert (done.returncode, done.stderr) == (1, f"{told}lifehold: 1 unread\n")


# ---- wait


@pytest.mark.parametrize("how", ["-x", "-s"])
def test_wait_ends_when_the_lock_is_free_and_leaves_nothing_behind(lifehold, how, eventually):
    holder = lifehold.holder(how, "job")
    waits = lifehold.start("wait", "job")
    queue = lambda: json.loads(lifehold("who", "--json", "job").stdout)["locks"][0]["waiting"]  # noqa: E731
    eventually(queue, "it stands in the kernel's queue")
    os.kill(holder.child, signal.SIGKILL)
    assert waits.wait(60) == 0
    said = waits.stderr.read().splitlines()  # on a busy machine it waited for more than 2 s
    assert [line for line in said if not line.startswith("lifehold: waiting for 'job' ")] == []
    assert lifehold("who", "job").returncode == 1


def test_wait_for_a_free_lock_or_a_missing_file_is_over_at_once_and_makes_nothing(lifehold):
    done = lifehold("wait", "--json", "job")
    assert done.returncode == 0
    assert answer(done)["free"] is True
    assert lifehold("wait", "./x").returncode == 0
    assert list(lifehold.folder.iterdir()) == []
    assert lifehold("wait", "/no/such/folder/x").returncode == 66


def test_wait_gives_up_after_its_time_with_75_and_says_who_has_it(lifehold):
    holder = lifehold.holder("job")
    done = lifehold("wait", "-w", "0.2", "job")
    assert done.returncode == 75
    assert re.match(r"'job' is still held after \d\.\d+ s\n", done.stderr)
    assert f"\n  by     pid {holder.pid} (lifehold run job " in done.stderr
    assert "\n  next   wait:  lifehold wait -w 1h job\n" in done.stderr
    assert answer(lifehold("wait", "-w", "0", "--json", "job"))["free"] is False


@needs("linux", "proc")
def test_wait_waits_for_fcntl_locks_too(lifehold):
    path = lifehold.folder / "x"
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)
        assert lifehold("wait", "-w", "0.2", str(path)).returncode == 75
        waits = lifehold.start("wait", str(path))
        time.sleep(0.3)
        assert waits.poll() is None
    assert waits.wait(60) == 0


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_wait_waits_for_a_soft_reader_or_writer_too(lifehold, side):
    path = lifehold.folder / "x.lock"
    with getattr(ReadWriteLock(path, kind="soft", ttl=30), side)():
        assert lifehold("wait", "-w", "0.2", str(path)).returncode == 75
        waits = lifehold.start("wait", str(path))
        time.sleep(0.3)
        assert waits.poll() is None
    assert waits.wait(60) == 0


def test_wait_for_a_semaphore_ends_when_no_slot_is_taken_any_more(lifehold):
    holders = [lifehold.holder("--slots", "a,b", "gpu") for _ in range(2)]
    assert lifehold("wait", "-w", "0.2", "gpu").returncode == 75
    waits = lifehold.start("wait", "gpu")
    time.sleep(0.3)
    os.kill(holders[0].child, signal.SIGKILL)
    time.sleep(0.3)
    assert waits.poll() is None
    os.kill(holders[1].child, signal.SIGKILL)
    assert waits.wait(60) == 0
    assert lifehold("run", "-n", "--slots", "a,b", "gpu", "true").returncode == 0


@needs("linux", "proc")
def test_wait_for_a_pid_file_ends_with_its_process(lifehold):
    path = lifehold.folder / "x.pid"
    daemon = subprocess.Popen(["sleep", "60"])
    path.write_text(f"{daemon.pid}\n")
    waits = lifehold.start("wait", str(path))
    time.sleep(0.3)
    assert waits.poll() is None
    daemon.kill()
    daemon.wait()
    assert waits.wait(60) == 0


@needs("all processes")
def test_wait_does_not_wait_for_the_end_of_what_a_pid_file_cannot_mean(lifehold):
    """A container's pid file, whose number is that of a thread of the kernel here."""
    path = lifehold.folder / "x.pid"
    path.write_text(f"{next(filter(proc_locks.is_kernel_thread, proc_locks.processes()))}\n")
    for span, head in (("0", "is suspect"), ("0.1", "is still suspect after")):
        done = lifehold("wait", "-w", span, str(path))
        assert done.returncode == 75
        assert head in done.stderr.splitlines()[0]
    waiter = lifehold.start("wait", str(path))
    assert "alive: cannot be told" in waiter.stderr.readline()
    path.unlink()
    assert waiter.wait(30) == 0


def test_two_who_wait_do_not_disturb_each_other_nor_a_runner(lifehold):
    holder = lifehold.holder("job")
    waits = [lifehold.start("wait", "job") for _ in range(3)]
    run = lifehold.start("run", "-w", "1h", "job", "--", "true")
    time.sleep(0.5)
    os.kill(holder.child, signal.SIGKILL)
    assert [each.wait(60) for each in (*waits, run)] == [0, 0, 0, 0]


def test_wait_for_the_lock_that_runs_us_is_refused_and_no_hang(lifehold):
    done = lifehold("run", "job", "--", *ours(lifehold, "wait job").split())
    assert done.returncode == 75
    assert "to wait would be to wait for ever" in done.stderr


@needs("proc")
def test_ctrl_c_ends_a_wait_by_the_signal_which_a_shell_calls_130(lifehold, eventually):
    lifehold.holder("job")
    waits = lifehold.start("wait", "job")
    eventually(lifehold.queued, "it waits")
    waits.send_signal(signal.SIGINT)
    assert waits.wait(60) == -signal.SIGINT


# ---- log


def test_log_shows_what_became_of_the_runs(lifehold):
    lifehold("run", "job", "--", "sh", "-c", "exit 3")
    lifehold.holder("job")
    lifehold("run", "-n", "job", "--", "true")
    done = lifehold("log", "job")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [row[3:5] for row in rows[1:]] == [["hold", "3"], ["skip", "75"]]
    assert "held by pid" in done.stdout
    found = answer(lifehold("log", "--json", "--event", "skip", "-l", "1", "job"))
    assert [entry["event"] for entry in found["entries"]] == ["skip"]


def test_log_shows_the_last_run_and_not_one_of_a_clock_that_stood_ahead(lifehold):
    lifehold("run", "job", "--", "true")
    lock = str(lifehold.folder / "job.lock")
    ahead = history.HistoryEntry("hold", "job", time.time() + 365 * 86400, command="ahead")
    assert history.append(lock, ahead)
    lifehold("run", "job", "--", "true")
    found = answer(lifehold("log", "--json", "job"))["entries"]
    assert [each["command"] for each in found] == ["true", "ahead", "true"]
    assert answer(lifehold("log", "--json", "-l", "1", "job"))["entries"] == found[-1:]


def test_log_without_a_history_says_so(lifehold):
    done = lifehold("log", "job")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "lifehold: no run of 'job' has left a line\n"
    assert answer(lifehold("log", "--json", "job"))["entries"] == []
    assert lifehold("log", "--event", "no", "job").returncode == 64
    assert lifehold("log", "-l", "0", "job").returncode == 64
    assert lifehold("log", "/no/such/folder/x").returncode == 66


# ---- check and touch


def test_check_and_touch_are_silent_and_0_inside_a_run_that_holds(lifehold):
    check, touch = ours(lifehold, "check"), ours(lifehold, "touch")
    script = f"{check} && {check} job && {touch} && {check} --token $LIFEHOLD_TOKEN job"
    done = lifehold("run", "job", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = lifehold("run", "-s", "job", "--", "sh", "-c", f"{check} && {touch}")
    assert (done.returncode, done.stderr) == (0, "")


def test_check_of_the_innermost_lock_and_of_an_outer_one(lifehold):
    check = ours(lifehold, "check")
    done = lifehold("run", "out", "--", *f"{sys.executable} -m lifehold run in --".split(),
                    "sh", "-c", f"{check} --json; {check} out; {check} other")  # fmt: skip
    assert done.returncode == 1
    assert answer(done)["path"].endswith("/in.lock")
    assert "no `lifehold run` around this command holds" in done.stderr


def test_check_says_1_and_touch_74_when_the_lock_was_lost(lifehold):
    check, touch = ours(lifehold, "check"), ours(lifehold, "touch")
    script = f'trap "" TERM; rm "$LIFEHOLD_LOCK"; {check}; echo $?; {touch}; echo $?'
    done = lifehold("run", "job", "--", "sh", "-c", script)
    assert done.stdout == "1\n74\n"


def test_check_says_1_when_another_holds_it_by_now(lifehold):
    holder = lifehold.holder("job")
    held = f"0123456789abcdef-1@{lifehold.folder}/job.lock"
    done = lifehold("check", env={"LIFEHOLD_HELD": held})
    assert (done.returncode, done.stdout) == (1, "")
    assert "another holds" in done.stderr
    holder.kill()


def test_check_of_a_token_needs_no_run_around_it(lifehold):
    with Lock(lifehold.folder / "job.lock") as lease:
        assert lifehold("check", "--token", str(lease.token), "job").returncode == 0
        done = lifehold("check", "--json", "--token", "7", "job")
        assert done.returncode == 1
        assert (answer(done)["valid"], answer(done)["token"]) == (False, lease.token)
    assert lifehold("check", "--token", str(lease.token), "job").returncode == 1
    assert lifehold("check", "--token", "7").returncode == 64
    assert lifehold("check").returncode == 1


def test_ls_of_a_tree_shows_stale_locks_of_other_tools_first(lifehold):
    deep = lifehold.folder / "one" / "two"
    deep.mkdir(parents=True)
    (deep / "SingletonLock").symlink_to("elsewhere-77")
    (lifehold.folder / "one" / "loop").symlink_to(lifehold.folder)
    (lifehold.folder / "one" / "poetry.lock").write_text("1\n")
    (lifehold.folder / "one" / "notes.lock").write_text("shopping\n")
    state = deep / ".terraform.tfstate.lock.info"
    state.write_text('{"ID": "1", "Who": "ana@host"}')
    (deep / "terraform.tfstate").write_text("{}")
    lifehold.holder("job")
    found = lifehold("ls", "-R", ".")
    rows = [line.split()[:2] for line in found.stdout.splitlines()[1:]]
    assert [row for row in rows if row[1] != "free"] == [
        ["./one/two/.terraform.tfstate.lock.info", "stale"],
        ["./one/two/SingletonLock", "suspect"],
        ["./job.lock", "held"],
    ]
    only = lifehold("ls", "-R", "--stale", "--names", ".")
    assert only.stdout == "./one/two/.terraform.tfstate.lock.info\n"
    assert lifehold("ls", "-R", "--held", "--older", "1h", "--names", ".").stdout == ""
    assert "one/two" not in lifehold("ls", ".").stdout
