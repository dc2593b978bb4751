"""`lifehold once`: one process runs CMD, everybody gets its bytes and its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from lifehold import InvalidArgument, Lock, connect, once
from lifehold.local.files import HOST
from lifehold.local.kernel_holders import waiters_of

from .shell import pid_of

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/once.schema.json").read_text()
)  # fmt: skip
# CMD of most tests: notes its number, waits until somebody opens the door, then goes on.
DOOR = "echo $$ >> runs; echo $$ > pid; read x < door; "


@pytest.fixture
def job(lifehold, tmp_path, eventually):
    os.mkfifo(tmp_path / "door")
    return Story(lifehold, tmp_path, eventually)


class Story:
    """A first caller whose CMD runs, and others who wait for it."""

    def __init__(self, lifehold, folder: Path, eventually) -> None:
        self.lifehold, self.folder, self.eventually = lifehold, folder, eventually
        self.called: list[subprocess.Popen[bytes]] = []
        self.script = ""

    def begin(self, script: str, waiting: int, *options: str) -> int:
        """The number of the first CMD, once all others wait."""
        self.script = DOOR + script
        self.call(*options)
        first = pid_of(self.folder / "pid")
        for _ in range(waiting):
            self.call(*options)
        self.all_wait(waiting)
        return first

    def call(self, *options: str) -> subprocess.Popen[bytes]:
        words = ("once", *options, "job", "--", "sh", "-c", self.script)
        process = self.lifehold.start(*words, text=False, errors=None)
        self.called.append(process)
        return process

    def all_wait(self, count: int) -> None:
        lock = str(self.folder / "job.lock")
        self.eventually(lambda: len(waiters_of(HOST, lock)) == count, f"{count} wait")

    def open(self) -> None:
        (self.folder / "door").write_text("\n")

    def next_one(self, after: int) -> int:
        """The number of the CMD that runs next."""
        self.eventually(lambda: len(self.runs()) > after, "another runs")
        return self.runs()[-1]

    def runs(self) -> list[int]:
        file = self.folder / "runs"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def ends(self) -> list[tuple[bytes, int]]:
        found = []
        for process in self.called:
            out, _ = process.communicate(timeout=90)
            found.append((out, process.returncode))
        return found


# ---- one runs, all get it


def test_everybody_gets_the_bytes_and_the_exit_code_of_one_run(job):
    job.begin(r"printf 'a\000\377\n'; exit 7", 7)
    job.open()
    assert job.ends() == [(b"a\0\xff\n", 7)] * 8
    assert len(job.runs()) == 1


def test_who_comes_later_gets_the_output_and_is_told_whose_it_is(lifehold):
    assert lifehold("once", "job", "--", "echo", "made").stdout == "made\n"
    later = lifehold("once", "job", "--", "echo", "again")
    assert (later.stdout, later.returncode) == ("made\n", 0)
    assert re.search(r"'job' is not run again: what pid \d+ .*once --forget job", later.stderr)
    assert lifehold("once", "--forget", "job").returncode == 0
    assert lifehold("once", "job", "--", "echo", "again").stdout == "again\n"


def test_a_failure_goes_to_those_who_waited_and_is_run_again_after(job, lifehold):
    job.begin("echo no; exit 3", 2)
    job.open()
    assert job.ends() == [(b"no\n", 3)] * 3
    kept = lifehold("once", "--keep-failure", "1h", "job", "--", "echo", "yes")
    assert (kept.stdout, kept.returncode) == ("no\n", 3)
    assert lifehold("once", "job", "--", "echo", "yes").stdout == "yes\n"


def test_keep_of_zero_runs_again_and_keep_counts_from_the_end(lifehold):
    for text in ("one", "two"):
        assert lifehold("once", "--keep", "0", "job", "--", "echo", text).stdout == text + "\n"
    assert lifehold("once", "--keep", "1h", "job", "--", "echo", "three").stdout == "two\n"


def test_a_check_has_the_signals_that_a_command_has(lifehold, tmp_path):
    """Python ignores two of them; a CHECK that does so never ends behind `| head`."""
    check = "grep SigIgn /proc/self/status > ignored; false"
    assert lifehold("once", "--keep", "0", "--unless", check, "job", "--", "true").returncode == 0
    ignored = int((tmp_path / "ignored").read_text().split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << number - 1


# Of a CHECK: it fails at once when it is asked first, and hangs when it is asked under the lock.
HANGS = "test -e asked && { echo $$ > pid; exec sleep 600; }; touch asked; false"
# So that it is not the signal that ends it.
# The job tells it, once it is a program: a shell forgets a signal that comes to its child sooner.
ANSWERS = "trap 'exit 3' TERM; " + HANGS.replace(
    "echo $$ > pid; exec sleep 600", "sh -c 'echo $PPID > pid; exec sleep 600' & wait"
)


@pytest.mark.parametrize(
    ("number", "check"),
    [(signal.SIGTERM, HANGS), (signal.SIGINT, HANGS), (signal.SIGTERM, ANSWERS)],
)
def test_a_signal_ends_a_check_under_the_lock_which_is_let_go(
    lifehold, alive, tmp_path, number, check
):
    url = f"sqlite:///{tmp_path}/locks.db"
    words = ("once", "--json", "--store", url, "--unless", check, "job", "--", "touch", "ran")
    first = lifehold.start(*words)
    running = pid_of(tmp_path / "pid")
    first.send_signal(number)
    assert first.wait(90) in (128 + number, -number)
    assert not alive(running)
    assert connect(url).inspect("job") is None
    told = json.loads(first.communicate()[1].splitlines()[-1])
    assert (told["outcome"], told["code"]) == ("ended", 128 + number)
    assert not (tmp_path / "ran").exists()


def test_max_hold_stops_a_check_that_hangs(lifehold, alive, tmp_path):
    words = ("once", "--json", "--max-hold", "0.3", "--unless", HANGS, "job")
    stopped = lifehold(*words, "--", "touch", "ran")
    told = json.loads(stopped.stderr.splitlines()[-1])
    assert (told["outcome"], told["code"], stopped.returncode) == ("lost", 74, 74)
    assert "--max-hold" in told["text"]
    assert not alive(pid_of(tmp_path / "pid"))
    assert not (tmp_path / "ran").exists()


def test_a_cmd_behind_a_check_finds_its_signals_and_streams(lifehold):
    words = ("once", "--unless", "false", "job", "--", "sh", "-c")
    called = lifehold.start(*words, "cat; grep SigBlk /proc/self/status", stdin=subprocess.PIPE)
    assert called.communicate("in\n", timeout=90)[0].split() == ["in", "SigBlk:", "0" * 16]


def test_a_check_that_succeeds_makes_cmd_unneeded(lifehold, tmp_path):
    words = ("once", "--unless", "echo noise; test -e there", "job", "--")
    assert lifehold(*words, "sh", "-c", "echo made; touch there").stdout == "made\n"
    unneeded = lifehold(*words, "false")
    assert (unneeded.stdout, unneeded.stderr, unneeded.returncode) == ("", "", 0)
    (tmp_path / "there").unlink()
    assert lifehold(*words, "echo", "anew").stdout == "anew\n"


def test_a_check_leaves_stdin_to_cmd(lifehold):
    """As ssh and psql do, this CHECK reads all that it finds."""
    words = ("once", "--unless", "cat; false", "job", "--", "cat")
    called = lifehold.start(*words, stdin=subprocess.PIPE)
    assert called.communicate("rows\n", timeout=90)[0] == "rows\n"


def test_output_comes_while_cmd_runs(job):
    first = job.lifehold.start("once", "job", "--", "sh", "-c", f"echo early; {DOOR} echo late")
    assert first.stdout.readline() == "early\n"
    job.open()
    assert first.communicate(timeout=90)[0] == "late\n"


def test_output_that_cmd_writes_over_is_no_result_once_it_was_passed_on(job):
    """Of an open that cuts the file: who ran CMD and who waited would get different bytes."""
    script = f"echo first; {DOOR} echo the second > /dev/stdout; echo third"
    words = ("once", "--json", "job", "--", "sh", "-c", script)
    first = job.lifehold.start(*words)
    assert first.stdout.readline() == "first\n"
    job.open()
    told = json.loads(first.communicate(timeout=90)[1].splitlines()[-1])
    assert (told["outcome"], told["code"], first.returncode) == ("ended", 71, 71)
    assert ">> /dev/stdout" in told["text"]
    assert job.lifehold("once", "job", "--", "echo", "anew").stdout == "anew\n"


def test_output_that_cmd_appends_by_a_name_of_stdout_is_whole(job):
    script = f"echo first; {DOOR} echo second >> /dev/stdout; echo third"
    first = job.lifehold.start("once", "job", "--", "sh", "-c", script)
    assert first.stdout.readline() == "first\n"
    job.open()
    assert first.communicate(timeout=90)[0] == "second\nthird\n"
    assert job.lifehold("once", "job", "--", "false").stdout == "first\nsecond\nthird\n"


def test_a_reader_that_goes_away_does_not_end_the_run(job, lifehold):
    first = lifehold.start("once", "job", "--", "sh", "-c", f"echo early; {DOOR} seq 100000")
    assert first.stdout.readline() == "early\n"
    first.stdout.close()
    job.open()
    assert first.wait(90) == 0
    assert lifehold("once", "job", "--", "false").stdout.endswith("\n100000\n")


def test_output_that_cannot_be_written_is_told_and_is_kept_for_the_others(lifehold):
    with open("/dev/full", "w") as full:
        for _ in range(2):
            done = lifehold("once", "job", "--", "echo", "kept", stdout=full)
            assert done.returncode == 71
            assert "No space left" in done.stderr
    assert lifehold("once", "job", "--", "false").stdout == "kept\n"


def read_all(process) -> tuple[int, int]:
    """(bytes of its output, the most memory it had meanwhile in KiB)."""
    count = most = 0
    while piece := process.stdout.read(1 << 20):
        count += len(piece)
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue  # it has ended, and its last words are in the pipe
        most = max(most, *map(int, re.findall(r"VmHWM:\s+(\d+)", status)), 0)
    return count, most


@pytest.mark.parametrize("size", [96 << 20, pytest.param(1 << 30, marks=pytest.mark.soak)])
def test_much_output_is_held_by_the_disk_alone(lifehold, size):
    for command in (("head", "-c", str(size), "/dev/zero"), ("false",)):
        process = lifehold.start("once", "big", "--", *command, text=False, errors=None)
        count, most = read_all(process)
        assert (count, process.wait(90)) == (size, 0)
        assert 0 < most < 64 << 10


# ---- whoever dies


def test_kill_of_the_wrapper_stops_cmd_and_exactly_one_other_takes_over(job, eventually, alive):
    first = job.begin("echo done", 3)
    job.called[0].kill()
    second = job.next_one(1)
    assert not alive(first)
    job.all_wait(2)
    job.open()
    assert [end for end in job.ends() if end[1] >= 0] == [(b"done\n", 0)] * 3
    assert job.runs() == [first, second]


def test_kill_of_cmd_is_no_result_and_exactly_one_other_takes_over(job):
    first = job.begin("echo done", 3)
    os.kill(first, signal.SIGKILL)
    second = job.next_one(1)
    job.all_wait(2)
    job.open()
    assert job.ends() == [(b"", 137), *[(b"done\n", 0)] * 3]
    assert job.runs() == [first, second]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_kill_of_the_supervisor_stops_cmd_too(job, eventually, alive):
    first = job.begin("echo done", 1)
    supervisor = parent_of(first)
    os.kill(supervisor, signal.SIGKILL)
    job.next_one(1)
    assert not alive(first)
    job.open()
    assert [code for _, code in job.ends()] == [137, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_wrapper_ends_cmd_without_a_result(job, number):
    first = job.begin("echo done", 1)
    job.called[0].send_signal(number)
    job.next_one(1)
    job.open()
    assert job.ends() == [(b"", 128 + number), (b"done\n", 0)]
    assert job.runs()[0] == first


def test_a_cmd_that_ends_with_a_status_of_its_own_after_a_signal_has_no_result(job):
    job.begin("echo done", 0)
    (job.folder / "pid").unlink()
    (job.folder / "runs").unlink()
    job.called[0].kill()
    job.called.clear()
    trap = "trap 'exit 5' TERM; echo $$ >> runs; echo $$ > pid; while :; do sleep 0.01; done"
    process = job.lifehold.start("once", "other", "--", "sh", "-c", trap)
    pid_of(job.folder / "pid")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 5
    assert "no result" in said
    assert job.lifehold("once", "other", "--", "echo", "next").stdout == "next\n"


def test_a_crash_of_cmd_is_a_failure_for_those_who_waited(job):
    job.begin("kill -SEGV $$", 1)
    job.open()
    assert [code for _, code in job.ends()] == [139, 139]
    assert len(job.runs()) == 1


def test_a_lock_that_is_lost_while_cmd_runs_leaves_no_result(job, lifehold):
    job.begin("echo late", 0)
    (job.folder / "job.lock").unlink()
    out, said = job.called[0].communicate(timeout=90)
    assert (out, job.called[0].returncode) == (b"", 74)
    assert b"is lost" in said
    assert lifehold("once", "job", "--", "echo", "later").stdout == "later\n"


@pytest.mark.parametrize(("code", "wanted"), [(0, 74), (3, 3)])
def test_a_loss_noticed_when_cmd_has_ended_keeps_the_status_of_its_failure(
    job, alive, eventually, code, wanted
):
    """As `run` does. Who is stopped meanwhile cannot notice it sooner."""
    supervisor = parent_of(job.begin(f"rm job.lock; exit {code}", 0, "--json"))
    (wrapper,) = job.called
    wrapper.send_signal(signal.SIGSTOP)
    job.open()
    eventually(lambda: not alive(supervisor), "CMD has ended, with its supervisor")
    wrapper.send_signal(signal.SIGCONT)
    told = json.loads(wrapper.communicate(timeout=90)[1].splitlines()[-1])
    assert (told["outcome"], told["code"], wrapper.returncode) == ("lost", wanted, wanted)


@pytest.mark.parametrize("code", [0, 3])
def test_results_that_were_removed_meanwhile_change_no_status(lifehold, code):
    ended = lifehold("once", "--json", "job", "--", "sh", "-c", f"rm -r *.once; exit {code}")
    told = json.loads(ended.stderr.splitlines()[-1])
    assert (told["outcome"], told["code"], ended.returncode) == ("ended", code, code)
    assert "somebody removed it" in ended.stderr


def test_max_hold_stops_a_cmd_that_hangs_and_leaves_no_result(lifehold):
    done = lifehold("once", "--max-hold", "0.2", "job", "--", "sleep", "60")
    assert done.returncode == 74
    assert lifehold("once", "job", "--", "echo", "next").stdout == "next\n"


def test_nothing_is_left_of_a_run_without_a_result(lifehold, tmp_path):
    lifehold("once", "job", "--", "sh", "-c", "echo half; kill -9 $$")
    assert os.listdir(tmp_path / "job.lock.once") == []


# ---- its own words


def test_who_does_not_want_to_wait_gets_75_or_the_status_of_their_choice(lifehold, tmp_path):
    with Lock(tmp_path / "job.lock"):
        held = lifehold("once", "-n", "job", "--", "true")
        assert held.returncode == 75
        assert "lifehold once --wait 1h job -- CMD" in held.stderr
        assert lifehold("once", "-w", "0.01", "-E", "9", "job", "--", "true").returncode == 9


@pytest.mark.parametrize("options", [(), ("--keep", "0"), ("--forget",)])
def test_a_link_in_place_of_the_results_is_not_followed(lifehold, tmp_path, options):
    assert lifehold("once", "./other", "--", "echo", "secret").returncode == 0
    (tmp_path / "job.once").symlink_to(tmp_path / "other.once")
    words = () if "--forget" in options else ("--", "touch", "ran")
    refused = lifehold("once", *options, "./job", *words)
    assert (refused.stdout, refused.returncode) == ("", 64)
    assert "is no folder of results" in refused.stderr
    assert not (tmp_path / "ran").exists()
    assert lifehold("once", "./other", "--", "false").stdout == "secret\n"


def test_a_name_of_a_python_function_is_not_that_of_a_command(lifehold, tmp_path, monkeypatch):
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    once("job", lambda: 1)
    done = lifehold("once", "job", "--", "true")
    assert done.returncode == 64
    assert "--forget" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "no NAME"),
        (("--", "true"), "no NAME before --"),
        (("job",), "no command"),
        (("job", "--"), "no command"),
        (("--", "job", "--json", "--", "true"), "stands behind a --"),
        (("job", "--", ""), "CMD is empty"),
        (("-c", "true", "job", "--", "true"), "-c TEXT or CMD"),
        (("--forget", "job", "--", "true"), "--forget runs nothing"),
        (("--keep", "soon", "job", "--", "true"), "length of time"),
        (("--shared", "job", "--", "true"), "unknown option '--shared'"),
        (("-bad/name", "--", "true"), "-b"),
    ],
)
def test_a_line_that_cannot_be_understood_ends_with_64(lifehold, words, why):
    done = lifehold("once", *words)
    assert done.returncode == 64
    assert why in done.stderr


def test_a_command_that_is_not_there_ends_with_127(lifehold):
    done = lifehold("once", "job", "--", "no-such-command")
    assert done.returncode == 127
    assert "not found" in done.stderr


def test_text_for_the_shell_is_cmd_as_well(lifehold):
    assert lifehold("once", "-c", "echo $((40 + 2))", "job").stdout == "42\n"


def test_the_environment_tells_cmd_which_lock_it_has(lifehold, tmp_path):
    done = lifehold("once", "job", "--", "sh", "-c", "echo $LIFEHOLD_NAME $LIFEHOLD_LOCK")
    assert done.stdout == f"job {tmp_path}/job.lock\n"


def test_json_tells_each_outcome_in_one_line(lifehold, tmp_path):
    def last(*words: str) -> dict:
        done = lifehold("once", "--json", *words)
        line = json.loads(done.stderr.splitlines()[-1])
        jsonschema.validate(line, SCHEMA)
        assert line["code"] == done.returncode
        return line

    ran = last("job", "--", "echo", "hi")
    assert (ran["outcome"], ran["bytes"], ran["token"]) == ("ran", 3, ran["number"])
    again = last("job", "--", "echo", "hi")
    assert again["outcome"] == "replayed"
    assert {key: again[key] for key in ("number", "made_at", "made_by", "bytes")} == {
        key: ran[key] for key in ("number", "made_at", "made_by", "bytes")
    }
    assert last("--unless", "true", "job", "--", "false")["outcome"] == "unneeded"
    assert last("--forget", "job")["outcome"] == "forgotten"
    assert last("job", "--", "sh", "-c", "kill -9 $$")["outcome"] == "ended"
    assert last("job", "--", "rm", str(tmp_path / "job.lock"))["outcome"] == "lost"
    with Lock(tmp_path / "job.lock"):
        assert last("-n", "job", "--", "true")["outcome"] == "held"
    (tmp_path / "file").write_text("data")
    assert last(f"{tmp_path}/file", "--", "true")["outcome"] == "error"


def test_json_tells_what_the_system_refused(lifehold, tmp_path):
    """Of a replay: stdout is full, or nobody reads it; and of results that are no folder."""
    words = ("once", "--json", "job", "--", "echo", "out")
    assert lifehold(*words).returncode == 0
    unread, end = os.pipe()
    os.close(unread)
    with open("/dev/full", "wb") as full:
        ends = [lifehold(*words, stdout=full), lifehold(*words, stdout=end)]
    os.close(end)
    (tmp_path / "no.lock.once").write_text("")
    ends.append(lifehold("once", "--json", "--forget", "no"))
    told = [json.loads(ended.stderr.splitlines()[-1]) for ended in ends]
    for line in told:
        jsonschema.validate(line, SCHEMA)
        assert line["outcome"] == "error"
    assert [line["code"] for line in told] == [ended.returncode for ended in ends] == [71, 141, 64]
    assert told[0]["text"] == "the system refused: No space left on device"


def test_the_history_has_a_line_for_each_run_alone(lifehold):
    for _ in range(2):
        lifehold("once", "job", "--", "echo", "x")
    rows = lifehold("log", "--json", "job").stdout
    assert rows.count('"event"') == 1


@pytest.mark.parametrize("options", [("--kind", "soft"), ("--kind", "soft", "--ttl", "20s")])
def test_soft_locks_run_once_as_well(lifehold, options):
    for _ in range(2):
        assert lifehold("once", *options, "job", "--", "sh", "-c", "echo $$").returncode == 0
    first, again = (lifehold("once", *options, "job", "--", "date", "+%N").stdout for _ in "ab")
    assert first == again


def test_a_session_lock_is_refused_before_anything_runs(lifehold, tmp_path):
    run = lifehold("once", "--kind", "session", "job", "--", "touch", str(tmp_path / "ran"))
    assert run.returncode == 64
    assert "lifehold run --kind session" in run.stderr
    assert not (tmp_path / "ran").exists()
    with pytest.raises(InvalidArgument, match="leave out the kind"):
        once(str(tmp_path / "job"), lambda: 1, kind="session")


def test_a_command_that_cannot_be_started_is_told_and_no_result(tmp_path):
    """A fork may be refused, and descriptors may be used up."""
    words = (
        "import errno, os, sys\n"
        "def refuse(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "if sys.argv.pop(1) == 'refuse': os.fork = refuse\n"
        "from lifehold.cli.main import main\n"
        "sys.exit(main())"
    )

    def ran(how):
        done = subprocess.run(
            [sys.executable, "-c", words, how, "once", "--json", "job", "--", "echo", "made"],
            env=os.environ | {"LIFEHOLD_DIR": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        *said, line = done.stderr.splitlines()
        return done.returncode, done.stdout, said, json.loads(line)["outcome"]

    why = "lifehold: cannot run 'echo': Resource temporarily unavailable"
    assert ran("refuse") == (71, "", [why], "error")
    assert ran("let") == (0, "made\n", [], "ran")
