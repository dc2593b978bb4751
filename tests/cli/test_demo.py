"""`lifehold demo`: its four scenes happen, in earnest, and nothing is left of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from lifehold.cli.demo import Part, Story, StoryWriter

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
    """Processes that still work in the demo's folder, a moment after its end."""
    for _ in range(100):
        if not working_in(folder):
            break
        time.sleep(0.05)
    return working_in(folder)


def working_in(folder: Path) -> list[str]:
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


def test_the_story_fits_a_narrow_terminal_and_its_last_words_run_as_printed(lifehold):
    path = f"{os.path.dirname(sys.executable)}-absent:/usr/bin"
    demos = {}
    for columns in (40, 80):
        environment = {"COLUMNS": str(columns), "TMPDIR": "/tmp", "PATH": path}
        demos[columns] = lifehold.start("demo", "--fast", env=environment)
    for columns, demo in demos.items():
        told = demo.communicate(timeout=60)[0].splitlines()
        last = next(at for at, line in enumerate(told) if line.startswith("Your turn:"))
        assert [line for line in told[:last] if len(line) > columns] == []
        turn = told[last].partition(":")[2]
        run = lifehold(program=("-c", f"import os; os.execl('/bin/sh', 'sh', '-c', {turn!r})"))
        assert run.stdout == "my turn\n"


def test_a_line_is_plain_but_for_what_is_good_or_bad_of_it(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    pen = StoryWriter()
    pen.note("next", "by pid 7 (sleep 60)", good="pid 7")
    pen.note("you", "$ kill -9 7")
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("by \x1b[32mpid 7\x1b[0m (sleep 60)")
    assert second.endswith("\x1b[1m$ kill -9 7\x1b[0m")


def interrupted(lifehold, folder: Path, moments) -> None:
    """One demo for each moment, side by side: a line of its story, the signal then, the status."""
    for number in range(5):
        moments = told_to(lifehold, folder / str(number), moments)
        if not moments:
            return
    raise AssertionError(f"the story was over each time before the signal came: {moments}")


def told_to(lifehold, folder: Path, moments) -> list[tuple]:
    """The moments at which the signal came too late: the story had been told to its end."""
    demos, late = [], []
    for moment in moments:
        begin, sent, _, *words = moment
        temp = folder / f"temp{len(demos)}"
        temp.mkdir(parents=True)
        demo = lifehold.start("demo", *words, env={"TMPDIR": str(temp)})
        demos.append((demo, temp, moment))
        Thread(target=interrupt, args=(demo, begin, sent)).start()
    for demo, temp, moment in demos:
        try:
            status = demo.wait(90)
        except subprocess.TimeoutExpired:
            pytest.fail(f"after {begin!r} and signal {sent} it still runs:\n{seen_of(demo.pid)}")
        if status == 0:
            late.append(moment)
        assert status in (0, moment[2])
        assert demo.stderr.read() == ""
        assert list(temp.iterdir()) == []
        assert left_over(temp) == []
    return late


def seen_of(pid: int) -> str:
    """What the kernel tells of a process and its children."""
    lines = []
    for entry in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            if pid in (int(entry.name), int(words[1])):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                status = (entry / "status").read_text().splitlines()
                told = [line for line in status if line.startswith(("State", "Threads", "Sig"))]
                waits = (entry / "wchan").read_text(), (entry / "syscall").read_text().strip()
                lines.append(f"{entry.name} {command} {told} {waits}")
    return "\n".join(lines)


def interrupt(demo, begin: str, sent: int) -> None:
    for line in demo.stdout:
        if re.match(begin, line):
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(demo.pid, sent)


def test_ctrl_c_at_any_scene_leaves_nothing(lifehold, tmp_path):
    by = [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)] * 2
    fast = [(), (), ("--fast",), ("--fast",)]
    moments = [(str(number), *how, *words) for number, how, words in zip("1234", by, fast)]  # noqa: B905
    interrupted(lifehold, tmp_path, moments)


def test_ctrl_c_beside_an_orphaned_command_leaves_nothing(lifehold, tmp_path):
    begins = [".*sleep 60 &", r".*\(the wrapper", ".*by pid"]
    moments = [(begin, signal.SIGINT, -signal.SIGINT, "--fast") for begin in begins]
    interrupted(lifehold, tmp_path, moments)


def test_the_number_of_a_part_that_was_waited_for_is_not_killed(tmp_path, monkeypatch):
    story = Story(str(tmp_path), fast=True)
    part = Part("this", folder=str(tmp_path), mask=())
    story.parts.append(part)
    while part.line():
        continue
    part.kill()
    assert part.wait(60)
    story.orphan = part.pid  # as of a command that was ended just before Ctrl-C
    sent = []
    monkeypatch.setattr(os, "killpg", lambda *call: sent.append(call))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        story.end()
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert sent == []


BREAKABLE = """
import os, subprocess
def asked(self, *_, **__):
    if self.returncode is None:  # at the end of its life Popen asks itself
        os._exit(99)
kind = subprocess.Popen
kind._wait = kind._internal_poll = kind.send_signal = asked
from lifehold.cli.main import main
main(["demo", "--fast"])
"""


def test_nothing_is_asked_of_popen_that_ctrl_c_could_leave_locked(lifehold, tmp_path):
    told = lifehold(program=("-c", BREAKABLE), env={"TMPDIR": str(tmp_path)})
    assert (told.returncode, told.stderr) == (0, "")
    assert "Four scenes in" in told.stdout
