"""`lifehold run` waiting on a terminal: one line, rewritten in place, and nothing left of it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from patience import steadily

ERASE = "\r\x1b[J"
QUICK = ("-m", "lifehold.cli.demo", "run", "0.2")


class Terminal:
    """A pseudo terminal with one waiter on it, as its session's foreground group."""

    def __init__(self, lifehold, columns: int = 100, **environment: str) -> None:
        self.lifehold, self.said = lifehold, ""
        self.main, self.side = pty.openpty()
        self.resize(columns)
        self.environment = lifehold.environment | {"TERM": "xterm"} | environment
        self.environment.pop("NO_COLOR", None) if "NO_COLOR" not in environment else None

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def run(
        self, *words: str, program: tuple[str, ...] = QUICK, **more: object
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *program, *words], env=self.environment, cwd=self.lifehold.folder,
            start_new_session=True, **{"stdin": self.side, "stdout": self.side, "stderr": self.side}
            | more, preexec_fn=lambda: fcntl.ioctl(self.side, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )  # fmt: skip
        self.lifehold.started.append(process)
        return process

    def until(self, claim: Callable[[str], object], seconds: float = 60) -> str:
        """All that was said, once `claim` holds of it."""
        end = time.monotonic() + seconds
        while not claim(self.said):
            assert time.monotonic() < end, self.said
            if select.select([self.main], [], [], 0.1)[0]:
                self.said += os.read(self.main, 65536).decode()
        return self.said

    @property
    def screen(self) -> str:
        """What is to be seen after the last erasing."""
        return self.said.rpartition(ERASE)[2]

    def close(self) -> None:
        os.close(self.main)
        os.close(self.side)


@pytest.fixture
def terminal(lifehold) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*args: object, **environment: str) -> Terminal:
        made.append(Terminal(lifehold, *args, **environment))
        return made[-1]

    yield make
    lifehold.end()
    for each in made:
        each.close()


def paintings(said: str) -> int:
    return said.count("waiting ")


def test_a_wait_is_one_line_rewritten_each_second_and_gone_when_the_lock_is_ours(
    terminal, lifehold
):
    holder, screen = lifehold.holder("job"), terminal(160)
    began = time.monotonic()
    waiter = screen.run("run", "job", "--", "echo", "CMD speaks")
    screen.until(lambda said: paintings(said) >= 3)
    assert time.monotonic() - began > 1.9, "more than one painting in a second"
    assert "\n" not in screen.said
    line = re.sub(r"\x1b\[\d+m", "", screen.screen)
    assert re.fullmatch(
        rf"waiting \d+ s for 'job': held by pid {holder.pid} \(lifehold run job .*\), .*alive, "
        r"checked [a-z0-9 ]+ \(kernel witness\)\r", line
    ), line  # fmt: skip
    lifehold.kill(holder)
    assert waiter.wait(60) == 0
    screen.until(lambda said: "CMD speaks\r\n" in said)
    assert re.fullmatch(
        r"lifehold: 'job' is ours after \S+ s\r\nCMD speaks\r\n", screen.screen
    ), screen.screen  # fmt: skip


def test_the_line_fits_a_terminal_that_becomes_narrow_also_with_wide_names(terminal, lifehold):
    lifehold.holder("--label", "漢字", "夜間報告書")
    screens = {columns: terminal(100) for columns in (100, 60, 40, 30)}
    for screen in screens.values():
        screen.run("run", "夜間報告書", "--", "true")
    for screen in screens.values():
        screen.until(lambda said: paintings(said) >= 1)
    for columns, screen in screens.items():
        screen.resize(columns)
    for columns, screen in screens.items():
        seen = paintings(screen.said)
        screen.until(lambda said: paintings(said) >= seen + 2)  # noqa: B023
        line = re.sub(r"\x1b\[\d+m|\r", "", screen.screen)
        assert sum(2 if ord(char) > 0x2E80 else 1 for char in line) < columns
        assert line.startswith("waiting ")


def test_no_color_leaves_the_line_and_takes_its_colours(terminal, lifehold):
    lifehold.holder("job")
    screen = terminal(NO_COLOR="1")
    screen.run("run", "job", "--", "true")
    screen.until(lambda said: paintings(said) >= 1 and said.endswith("\r"))
    assert "\x1b[J" in screen.said
    assert not re.search(r"\x1b\[\d*m", screen.said)


def test_where_no_line_can_be_rewritten_each_notice_is_a_line_of_its_own(
    terminal, lifehold, tmp_path
):
    holder = lifehold.holder("job")
    dumb, other, log = terminal(TERM="dumb"), terminal(), tmp_path / "log"
    with log.open("w") as file:
        waiters = [dumb.run("run", "job", "--", "true"),
                   other.run("run", "job", "--", "true", stderr=file)]  # fmt: skip
        dumb.until(lambda said: paintings(said) >= 2)
        dumb.until(lambda _: paintings(log.read_text()) >= 2)
        lifehold.kill(holder)
        assert [waiter.wait(60) for waiter in waiters] == [0, 0]
    dumb.until(lambda said: "is ours after" in said)
    for text in (dumb.said, log.read_text()):
        lines = text.replace("\r\n", "\n").splitlines()
        assert [line[:17] for line in lines[:-1]] == ["lifehold: waiting"] * (len(lines) - 1)
        assert len(lines) >= 3
        assert "\x1b" not in text
    assert other.said == ""


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, -2), (signal.SIGTERM, -15), (signal.SIGHUP, -1)]
)
def test_a_signal_that_ends_the_wait_leaves_a_clean_line(terminal, lifehold, sent, status):
    lifehold.holder("job")
    screen = terminal()
    waiter = screen.run("run", "job", "--", "true")
    screen.until(lambda said: paintings(said) >= 1)
    os.kill(waiter.pid, sent)
    assert waiter.wait(60) == status
    screen.until(lambda said: said.rstrip("\r\n").endswith("\x1b[J"))
    assert screen.screen.strip() == ""


def test_a_refusal_follows_on_a_clean_line(terminal, lifehold):
    lifehold.holder("job")

    def judge():  # a machine that paused for 0.6 s has painted nothing
        screen = terminal()
        assert screen.run("run", "-w", "0.6", "job", "--", "true").wait(60) == 75
        screen.until(lambda said: "  lock   " in said and said.endswith("\r\n"))
        assert paintings(screen.said) == 1
        assert screen.screen.startswith("could not acquire 'job' within 0.6")

    steadily(judge)


def test_on_a_terminal_facts_are_broken_between_words_and_json_is_not(terminal, lifehold):
    lifehold.holder("--label", "a label of some words, so that the line is long", "job")
    for words in (("run", "-n", "job", "--", "true"), ("who", "job")):
        screen = terminal(80)
        screen.run(*words, program=("-m", "lifehold"))
        screen.until(lambda said: "  lock   " in said and said.endswith("\r\n"))
        fact = re.search(r"(?s)\n(  by     .*?)\r\n  since", screen.said)[1].split("\r\n")
        assert len(fact) > 1
        assert all(len(line) <= 80 for line in fact)
        assert all(line.startswith(" " * 9) for line in fact[1:])
        assert " label a label of some words, " in " ".join(" ".join(fact).split())
    screen = terminal(80)
    screen.run("who", "--json", "job", program=("-m", "lifehold"))
    screen.until(lambda said: said.endswith("\n}\r\n"))
    assert json.loads(screen.said)["locks"][0]["state"] == "held"
    screen = terminal(80)
    screen.run("ls", program=("-m", "lifehold"))
    screen.until(lambda said: "held" in said and said.endswith("\r\n"))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.said)  # colours take no columns
    assert plain != screen.said
    assert [line for line in plain.split("\r\n") if len(line) > 80] == []


JOB_CONTROL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, child.pid)
while os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1]):
    os.tcsetpgrp(0, os.getpgrp())
    print("[stopped]", flush=True)
    os.tcsetpgrp(0, child.pid)
    os.kill(child.pid, signal.SIGCONT)
"""


def test_ctrl_z_leaves_a_clean_line_and_the_line_comes_back(terminal, lifehold):
    lifehold.holder("job")
    screen = terminal()
    quick = [sys.executable, *QUICK, "run", "job", "--", "true"]
    screen.run(*quick, program=("-c", JOB_CONTROL))
    screen.until(lambda said: paintings(said) >= 1)
    for _ in range(2):
        os.write(screen.main, b"\x1a")
        screen.until(lambda said: said.endswith(f"{ERASE}[stopped]\r\n") or "[stopped]" in said)
        seen = paintings(screen.said)
        screen.until(lambda said: paintings(said) > seen)  # noqa: B023
    before_stops = re.findall(r"(.{4})\[stopped\]", screen.said, re.DOTALL)
    assert before_stops == [ERASE, ERASE]


def test_a_terminal_that_was_stopped_by_ctrl_s_does_not_hold_up_the_lock(terminal, lifehold):
    holder = lifehold.holder("job")
    screen = terminal()
    mark = lifehold.folder / "mark"
    screen.run("run", "job", "--", "touch", str(mark), stdout=subprocess.DEVNULL)
    screen.until(lambda said: paintings(said) >= 1)
    termios.tcflow(screen.side, termios.TCOOFF)
    time.sleep(1.2)  # a painting of the line comes in between
    lifehold.kill(holder)
    termios.tcflow(screen.side, termios.TCOON)
    end = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_clock_of_the_line_costs_next_to_nothing(terminal, lifehold):
    lifehold.holder("job")
    screen = terminal(160)
    waiter = screen.run("run", "job", "--", "true")
    screen.until(lambda said: paintings(said) >= 1)
    before = used(waiter.pid)
    screen.until(lambda said: paintings(said) >= 4)
    assert used(waiter.pid) - before <= 0.3, "seconds of CPU for three paintings"


def used(pid: int) -> float:
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        main = int(file.read().split()[0])
    others = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        if int(task) != pid:
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                others += int(file.read().split()[0])
    return (main + others) / 1e9
