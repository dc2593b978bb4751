"""`lifehold demo`: its four scenes happen, in earnest, and nothing is left of them."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

SCENES = [
    r"holder pid \d+ holds 'nightly-report', token \d+",
    r"waiter waiting for 'nightly-report' for \S+ s: held by pid \d+ .*? alive: yes, checked now",
    r"\$ kill -9 \d+",
    r"waiter the lock is mine",
    r"from kill -9 to the waiter's grant: \d+\.\d ms",
    r"A pid \d+ holds 'account', token \d+",
    r"\$ kill -STOP \d+",
    r"B pid \d+ holds 'account', token \d+",
    r"B balance = 200: written",
    r"A balance = 100: StaleToken: ",
    r"A check\(\): LeaseLost: ",
    r'account.json in the end: {"balance": 200, "token": \d+}',
    r"\$ lifehold run backup -- sleep 60 & \(pid \d+, sleep (?P<command>\d+)\)",
    r"\$ kill -9 \d+ \(the wrapper",
    r"next could not acquire 'backup' at once: it is held",
    r"by pid (?P<holder>\d+) \(sleep 60\)",
    r"next in at once",
    r"Four scenes in \d+ s",
]


def left_over(folder: Path) -> list[str]:
    """Processes that work in the demo's folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(folder)):
                found.append(pid)
        except OSError:
            continue
    return found


def test_the_story_is_told_and_nothing_is_left(lifehold, tmp_path):
    temp = tmp_path / "temp"
    temp.mkdir()
    state = tmp_path / "lifehold"  # of a user who has used the name of the story
    state.mkdir()
    (state / "nightly-report.lock").touch()
    environment = {"TMPDIR": str(temp), "XDG_STATE_HOME": str(tmp_path)}
    process = lifehold.start("demo", "--fast", env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    out = " ".join(out.split())
    at, named = 0, {}
    for scene in SCENES:
        found = re.search(scene, out[at:])
        assert found, f"missing: {scene}\n{out}"
        at += found.end()
        named |= found.groupdict()
    assert named["command"] == named["holder"]
    assert "\x1b" not in out
    assert list(temp.iterdir()) == []
    assert left_over(temp) == []


@pytest.mark.parametrize("columns", [40, 80])
def test_the_story_fits_a_narrow_terminal_and_its_last_words_run_as_printed(lifehold, columns):
    path = f"{os.path.dirname(sys.executable)}-absent:/usr/bin"
    environment = {"COLUMNS": str(columns), "TMPDIR": "/tmp", "PATH": path}
    done = lifehold("demo", "--fast", env=environment)
    told = done.stdout.splitlines()
    last = next(at for at, line in enumerate(told) if line.startswith("Your turn:"))
    assert [line for line in told[:last] if len(line) > columns] == []
    turn = next(line for line in told if line.startswith("Your turn:")).partition(":")[2]
    run = lifehold(program=("-c", f"import os; os.execl('/bin/sh', 'sh', '-c', {turn!r})"))
    assert run.stdout == "my turn\n"


def test_ctrl_c_at_any_scene_leaves_nothing(lifehold, tmp_path):
    for number, (sent, code) in enumerate([(signal.SIGINT, 130), (signal.SIGTERM, 143)] * 2):
        temp = tmp_path / f"temp{number}"
        temp.mkdir()
        process = lifehold.start(
            "demo", *(["--fast"] if number > 1 else []), env={"TMPDIR": str(temp)}
        )
        for line in process.stdout:
            if line.startswith(str(number + 1)):
                break
        os.killpg(process.pid, sent)
        assert process.communicate(timeout=30)[1] == ""
        assert process.returncode == code
        assert list(temp.iterdir()) == []
        assert left_over(temp) == []


@pytest.mark.parametrize("moment", ["sleep 60 &", "(the wrapper", "by pid"])
def test_ctrl_c_beside_an_orphaned_command_leaves_nothing(lifehold, tmp_path, moment):
    process = lifehold.start("demo", "--fast", env={"TMPDIR": str(tmp_path)})
    for line in process.stdout:
        if moment in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []
    assert left_over(tmp_path) == []
