"""`lifehold run`: exclusion, what CMD is given, and what who waits is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ground import needs
from lifehold.core.around import Around, added, parse

TOLD = r"""could not acquire '{name}' {how}: it is held
  by     pid {pid} \(lifehold run {name} -- sh -c .*\), user \w+, host .+
  since  \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(.*s\)
  alive  yes, checked now \(kernel witness\)
  next   wait:  lifehold run --wait 1h {name} -- CMD
         look:  lifehold who {name}
  lock   {path} \(kernel lock, \w+\)
"""


def test_two_runs_of_one_name_exclude_each_other(lifehold, tmp_path):
    add = "read n < count; sleep 0.02; echo $((n + 1)) > count"
    (tmp_path / "count").write_text("0\n")
    runs = [lifehold.start("run", "job", "--", "sh", "-c", add) for _ in range(8)]
    assert [run.wait(90) for run in runs] == [0] * 8
    assert (tmp_path / "count").read_text() == "8\n"


def test_who_does_not_get_the_lock_is_told_who_has_it(lifehold):
    holder = lifehold.holder("job")
    facts = {"name": "job", "pid": holder.pid, "path": re.escape(str(lifehold.folder / "job.lock"))}
    done = lifehold("run", "-n", "job", "--", "echo", "never")
    assert re.fullmatch(TOLD.format(how="at once", **facts), done.stderr)
    assert done.stdout == ""
    done = lifehold("run", "-w", "0.1", "job", "--", "echo", "never")
    assert re.fullmatch(TOLD.format(how=r"within 0\.1\d* s", **facts), done.stderr)


def test_the_remedies_run_as_printed(lifehold):
    holder = lifehold.holder("./a b.lock")
    told = lifehold("run", "-n", "./a b.lock", "--", "true").stderr
    wait, look = re.search(r"wait:  lifehold (.*) -- CMD\n +look:  lifehold (.*)\n", told).groups()

    def by_shell(words: str) -> subprocess.CompletedProcess[str]:
        line = f"{sys.executable} -m lifehold {words}"
        return subprocess.run(line, shell=True, env=lifehold.environment, cwd=lifehold.folder,
                              capture_output=True, text=True, timeout=90, check=False)  # fmt: skip

    assert by_shell(look).returncode == 0
    lifehold.kill(holder)
    assert by_shell(f"{wait} -- echo in").stdout == "in\n"


def test_who_waits_is_told_after_two_seconds_and_gets_in(lifehold):
    holder = lifehold.holder("job")
    waiter = lifehold.start("run", "job", "--", "echo", "in")
    line = waiter.stderr.readline()
    assert re.fullmatch(
        rf"lifehold: waiting for 'job' for 2\S* s: held by pid {holder.pid} "
        r"\(lifehold run job .*\), "
        r"user .*, since .* UTC \(.* s\), alive: yes, checked now \(kernel witness\)\n", line
    )  # fmt: skip
    lifehold.kill(holder)
    assert waiter.stdout.readline() == "in\n"
    assert waiter.wait(60) == 0
    assert re.fullmatch(r"lifehold: 'job' is ours after 2\S* s\n", waiter.stderr.read())


def test_a_waiting_run_gets_in_at_once_after_kill_nine_of_the_whole_holder(lifehold, eventually):
    holder = lifehold.holder("job")
    waiter = lifehold.start("run", "job", "--", "date", "+%s.%N")
    eventually(lambda: lifehold.queued() == 1, "the waiter stands in the queue")
    killed_at = time.time()
    lifehold.kill(holder)
    started_at = float(waiter.communicate(timeout=60)[0])
    assert started_at - killed_at < 2  # some milliseconds; the machine may be busy


def test_a_label_is_shown_to_who_waits(lifehold):
    lifehold.holder("--label", "month's end\x1b[31m", "job")
    assert "label month's end\\x1b[31m" in lifehold("run", "-n", "job", "--", "true").stderr


def test_shared_runs_hold_together_and_keep_exclusive_ones_out(lifehold):
    lifehold.holder("-s", "job")
    assert lifehold("run", "-n", "-s", "job", "--", "true").returncode == 0
    assert lifehold("run", "-n", "-x", "job", "--", "true").returncode == 75


def test_the_command_finds_its_lock_in_the_environment(lifehold):
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    given = json.loads(lifehold("run", "job", sys.executable, "-c", script).stdout)
    path = str(lifehold.folder / "job.lock")
    record = json.loads(Path(path).read_text())
    assert given["LIFEHOLD_NAME"] == "job"
    assert given["LIFEHOLD_LOCK"] == path
    assert given["LIFEHOLD_TOKEN"] == str(record["token"])
    assert given["LIFEHOLD_NONCE"] == f"{record['nonce']}-{record['token']}"
    assert given["LIFEHOLD_HELD"] == f"{given['LIFEHOLD_NONCE']}@{path}"
    later = json.loads(lifehold("run", "./job.lock", sys.executable, "-c", script).stdout)
    assert int(later["LIFEHOLD_TOKEN"]) > int(given["LIFEHOLD_TOKEN"])
    assert (later["LIFEHOLD_NAME"], later["LIFEHOLD_LOCK"]) == ("./job.lock", path)


def test_a_lock_without_a_token_says_so_by_an_empty_one(lifehold, tmp_path):
    (tmp_path / "data").write_text("somebody's data\n")
    done = lifehold("run", "./data", "sh", "-c", "echo ${LIFEHOLD_TOKEN-unset}")
    assert done.stdout == "\n"
    assert (tmp_path / "data").read_text() == "somebody's data\n"


def nested(lifehold, *runs: str) -> subprocess.CompletedProcess[str]:
    words: list[str] = []
    for run in runs:
        words += [*run.split(), "--", sys.executable, "-m", "lifehold"]
    return lifehold(*words[:-3], "sh", "-c", 'echo "$LIFEHOLD_HELD"')


def test_a_nested_run_of_the_same_lock_is_an_error_and_not_a_hang(lifehold):
    done = nested(lifehold, "run job", "run job")
    assert done.returncode == 75
    assert done.stderr.startswith(
        "could not acquire 'job': the `lifehold run` around this command holds it, until this "
        "command has ended"
    )
    assert nested(lifehold, "run job", "run other", "run ./job.lock").returncode == 75
    assert nested(lifehold, "run job", "run -E 9 job").returncode == 9
    assert nested(lifehold, "run -o job", "run -o job").returncode == 75


def test_a_nested_run_is_recognised_without_a_record_and_when_shared(lifehold, tmp_path):
    (tmp_path / "data").write_text("somebody's data\n")
    assert nested(lifehold, "run ./data", "run ./data").returncode == 75
    assert nested(lifehold, "run -s job", "run job").returncode == 75
    assert nested(lifehold, "run -s job", "run -s job").returncode == 0


def test_a_nested_run_of_another_lock_adds_to_the_list(lifehold):
    done = nested(lifehold, "run job", "run ./a:b%c")
    assert done.returncode == 0
    entries = parse(done.stdout.strip())
    assert [os.path.basename(entry.path) for entry in entries] == ["job.lock", "a:b%c"]
    assert done.stdout.count(":") == 1


def test_an_old_list_of_held_locks_does_not_refuse_a_free_lock(lifehold):
    path = lifehold.folder / "job.lock"
    old = f"nonce-1@{path}"
    assert lifehold("run", "job", "--", "true", env={"LIFEHOLD_HELD": old}).returncode == 0
    lifehold.holder("job")
    told = lifehold("run", "-n", "job", "--", "true", env={"LIFEHOLD_HELD": f"::@:x@:{old}"}).stderr
    assert "it is held" in told


@pytest.mark.parametrize("path", ["/a", "/a b", "/a:b", "/%3A", "/%:%25", "/ü@x", "/n\nl"])
def test_the_list_of_held_locks_survives_any_path(path):
    text = added(added("", "n1", path), "n2", "/other")
    assert parse(text) == [Around("n1", path), Around("n2", "/other")]


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_what_has_left_the_group_of_the_command_does_not_hold_the_lock(lifehold, close):
    script = "setsid sleep 30 >/dev/null 2>&1 & echo $!"
    done = lifehold.start("run", *close, "job", "--", "sh", "-c", script)
    left = int(done.stdout.readline())
    assert done.wait(60) == 0
    try:
        assert lifehold.free()
    finally:
        os.kill(left, signal.SIGKILL)


def test_the_lock_is_held_until_the_whole_group_of_the_command_is_gone(lifehold):
    script = "(sleep 60; :) >/dev/null 2>&1 & echo $!; exit 3"
    runs = {"job": lifehold.start("run", "job", "--", "sh", "-c", script)}
    runs["other"] = lifehold.start("run", "-o", "other", "--", "sh", "-c", script)
    for name, run in runs.items():
        left = int(run.stdout.readline())
        assert lifehold("run", "-n", name, "--", "true").returncode == 75
        told = run.stderr.readline()
        assert re.fullmatch(
            r"lifehold: 'sh' has ended with 3, and processes that it started run on \(pid "
            rf"{left}, \d+\): the lock is held until they end \(setsid keeps one out of this\)\n",
            told,
        )
        run.terminate()
        assert run.wait(60) == 3
        assert lifehold("run", "-n", name, "--", "true").returncode == 0


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_command_that_becomes_a_daemon_does_not_keep_the_lock(lifehold, close):
    daemon = (
        "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True)\nos.close(1); os.close(2)\nimport time; time.sleep(600)"
    )
    run = lifehold.start("run", *close, "job", "--", sys.executable, "-c", daemon)
    pid = int(run.stdout.readline())
    try:
        assert run.wait(60) == 0
        assert lifehold.free()
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_the_command_inherits_the_descriptor_only_without_dash_o(lifehold):
    count = "ls -l /proc/self/fd | grep -c job.lock"
    assert lifehold("run", "job", "sh", "-c", count).stdout == "1\n"
    assert lifehold("run", "-o", "job", "sh", "-c", count).stdout == "0\n"


def test_the_command_finds_signals_as_they_were(lifehold):
    # Signals 1 to 28: glibc's posix_spawn ignores 32 and 33, its own, for every program that it
    # starts.
    status = "sed -nE 's/^(Sig(Blk|Ign)).*(.{7})$/\\1 \\3/p' /proc/self/status"
    plain = subprocess.check_output(["sh", "-c", status], text=True, timeout=60)
    for close in ([], ["-o"]):
        assert lifehold("run", *close, "job", "sh", "-c", status).stdout == plain


def test_stdin_and_stdout_belong_to_the_command(lifehold):
    process = lifehold.start("run", "job", "cat", stdin=subprocess.PIPE)
    assert process.communicate("through\n", timeout=60) == ("through\n", "")


@pytest.mark.parametrize("close", [[], ["-o"]])
@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_become_the_lock_file(lifehold, streams, close):
    words = " ".join(
        [sys.executable, "-m", "lifehold", "run", *close, "job", "--", "ls", "-l", "/proc/self/fd"]
    )
    inner = f"{words.replace('/proc/self/fd', '/proc/self/fd > seen')}"
    script = f"exec {streams}; {inner}" if ">&-" not in streams else f"{words} {streams}"
    done = subprocess.run(
        ["sh", "-c", script], env=lifehold.environment, cwd=lifehold.folder, timeout=60,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1, 2)  # that of `ls`, whose output may be closed
    assert b"list" not in (lifehold.folder / "job.lock").read_bytes()
    assert json.loads((lifehold.folder / "job.lock").read_bytes())


def test_it_runs_in_the_environment_of_a_crontab(lifehold, tmp_path):
    path = str(tmp_path / "job.lock")
    done = subprocess.run(
        ["env", "-i", f"PYTHONPATH={lifehold.environment['PYTHONPATH']}", sys.executable,
         "-m", "lifehold", "run", path, "--", "sh", "-c", "pwd; env | grep -c LIFEHOLD_"],
        cwd="/", capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "/\n5\n", "")


@needs("root")
def test_a_user_without_a_home_is_told_where_names_could_live(lifehold, tmp_path):
    script = (
        "import os, sys, lifehold.cli.run; from lifehold.cli.main import main\n"
        "os.setuid(54321); os.environ.clear()\n"  # Python may be out of reach from here on
        "sys.exit(main(['run', 'job', '--', 'true']))"
    )
    process = lifehold.start(program=("-c", script))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 71
    assert "Set LIFEHOLD_DIR to a folder, or give a path" in err


@pytest.mark.parametrize("name", ["a b", "ünïcode", "x.y", "100%", "a:b", "'", "$(x)"])
def test_a_name_may_be_any_words(lifehold, name):
    assert lifehold("run", name, "--", "sh", "-c", 'echo "$LIFEHOLD_NAME"').stdout == f"{name}\n"
    assert (lifehold.folder / f"{name}.lock").exists()


@pytest.mark.parametrize("path", ["./-dash", "./tab\there", "./sub folder/x", "./new\nline"])
def test_a_path_may_be_anything(lifehold, path):
    assert lifehold("run", "--", path, "--", "true").returncode == 0
    assert (lifehold.folder / path).exists()
    lifehold.holder(path)
    told = lifehold("run", "-n", path, "--", "true").stderr
    assert len(told.splitlines()) == 7
    assert told.replace("\n", "").isprintable()


def test_an_empty_command_and_an_option_after_a_dash_dash_are_explained(lifehold):
    empty = lifehold("run", "job", "--", "")
    assert (empty.returncode, "CMD is empty" in empty.stderr) == (64, True)
    late = lifehold("run", "--", "job", "-n", "--", "true")
    assert late.returncode == 64
    assert "'-n' stands behind a --, where no option of lifehold is" in late.stderr
    late = lifehold("run", "job", "--", "-n", "true")
    assert late.returncode == 127
    assert "options of lifehold stand before the --" in late.stderr


@needs("linux", "proc")
def test_a_pid_file_of_a_process_that_lives_is_told_and_that_of_a_dead_one_is_not(lifehold):
    path = lifehold.folder / "app.pid"
    daemon = subprocess.Popen(["sleep", "60"])
    path.write_text(f"{daemon.pid}\n")
    done = lifehold("run", "-n", "./app.pid", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    said = f"'./app.pid' is held by its presence, by pid {daemon.pid} (sleep 60)"
    assert said in done.stderr
    daemon.kill()
    daemon.wait()
    assert lifehold("run", "-n", "./app.pid", "--", "true").stderr == ""
    assert path.read_text() == f"{daemon.pid}\n"


@pytest.mark.parametrize("words", [["job"], ["-w", "5", "job"], ["-s", "job"], ["./data/x.lock"]])
def test_a_usual_run_tells_what_one_with_a_whole_lock_does(lifehold, words):
    """It asks the mechanism alone; a run inside of another asks a `Lock`."""
    (lifehold.folder / "data").mkdir()
    show = 'echo "$LIFEHOLD_NAME $LIFEHOLD_LOCK ${LIFEHOLD_TOKEN:+token} ${LIFEHOLD_NONCE%-*}"'
    command = ["run", "-v", *words, "--", "sh", "-c", show]
    ours = [sys.executable, "-m", "lifehold"]
    usual, whole = lifehold(*command), lifehold("run", "outer", "--", *ours, *command)
    told = [
        [re.sub(r"\b[0-9a-f]{16}\b|\d[\d.e-]*", "N", text) for text in (done.stdout, done.stderr)]
        for done in (usual, whole)
    ]
    assert usual.returncode == whole.returncode == 0
    assert told[0] == told[1]
