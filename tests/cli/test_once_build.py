"""`lifehold once --build DIR -- CMD`: whole or not at all, by one for all."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from lifehold.local.files import HOST
from lifehold.local.kernel_holders import waiters_of

from .shell import pid_of

FILL = 'echo w > "$LIFEHOLD_BUILD/w"; '


@pytest.fixture
def build(lifehold, tmp_path):
    """Call it for the folder `v7`, in a process of its own."""

    def call(script, *options, begin=False):
        words = ("once", *options, "--build", str(tmp_path / "v7"), "--", "sh", "-c", script)
        return lifehold.start(*words) if begin else lifehold(*words)

    return call


def left(folder):
    return sorted(name for name in os.listdir(folder) if "building" in name or "removed" in name)


def test_a_folder_is_there_as_a_whole_and_is_not_built_again(build, tmp_path):
    ended = build(FILL + "echo done")
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert (tmp_path / "v7" / "w").read_text() == "w\n"
    assert left(tmp_path) == []
    again = build("echo again; exit 3", "--json")
    assert (again.returncode, again.stdout) == (0, "")
    assert json.loads(again.stderr)["outcome"] == "unneeded"


def test_who_waits_gets_the_same_output_and_finds_it_there(build, tmp_path, eventually):
    os.mkfifo(tmp_path / "door")
    script = "echo $$ > pid; read x < door; echo built; " + FILL
    calls = [build(script, begin=True)]
    pid_of(tmp_path / "pid")
    calls += [build(script, begin=True) for _ in range(2)]
    lock = str(tmp_path / "v7.lock")
    eventually(lambda: len(waiters_of(HOST, lock)) == 2, "two wait")
    assert not (tmp_path / "v7").exists()
    (tmp_path / "door").write_text("\n")
    said = [(*call.communicate(timeout=90), call.returncode) for call in calls]
    assert [(out, code) for out, _, code in said] == [("built\n", 0)] * 3
    assert sum("is not run again" in err and "rm -r" in err for _, err, _ in said) == 2
    assert os.listdir(tmp_path / "v7") == ["w"]


def test_a_killed_builder_leaves_nothing_and_the_next_one_builds(build, tmp_path, eventually):
    first = build(FILL + "echo $$ > pid; sleep 100", begin=True)
    child = pid_of(tmp_path / "pid")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=90)
    ended = build(FILL.replace("w", "v"))
    assert ended.returncode == 0, ended.stderr
    assert os.listdir(tmp_path / "v7") == ["v"]
    assert left(tmp_path) == []
    eventually(lambda: not Path(f"/proc/{child}/cwd").exists(), "its CMD is stopped")


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (FILL + "exit 3", 3, ""),
        ("true", 1, "left nothing in the folder"),
        ('rm -r "$LIFEHOLD_BUILD"', 74, "is not there any more"),
    ],
)
def test_a_cmd_that_fails_leaves_nothing(build, tmp_path, script, code, words):
    ended = build(script)
    assert ended.returncode == code
    assert words in ended.stderr
    assert not (tmp_path / "v7").exists()
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--build", ""), "unset variable"),
        (("--build", "/"), "must name the folder"),
        (("--build", "v7", "--keep", "1h"), "not both"),
        (("--build", "v7", "--unless", "true"), "not both"),
        (("--build", "v7", "--forget"), "not both"),
        (("--build", "file"), "is a file"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(lifehold, tmp_path, options, words):
    (tmp_path / "file").touch()
    ended = lifehold("once", *options, "--", "false")
    assert ended.returncode == 64, ended.stderr
    assert words in ended.stderr
    assert not (tmp_path / "v7").exists()
