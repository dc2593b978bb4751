"""The kernel's table of locks: its lines, its waiters, and a table longer than one page."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from ground import needs
from lifehold.local import proc_locks
from lifehold.local.files import HOST
from lifehold.local.kernel_holders import waiters_of
from lifehold.local.proc_locks import KernelLine, Key, key_of, lines_of, parse

WAIT = "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(fd, %s)"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "3: FLOCK  ADVISORY  WRITE 25275 fe:00:2433655 0 EOF",
            KernelLine("FLOCK", True, 25275, False, Key("254:0", 2433655)),
        ),
        (
            "3:   -> FLOCK  ADVISORY  READ 25320 fe:10:2433655 0 EOF",
            KernelLine("FLOCK", False, 25320, True, Key("254:16", 2433655)),
        ),
        (
            "1: OFDLCK ADVISORY  READ -1 00:2b:7 100 199",
            KernelLine("OFDLCK", False, -1, False, Key("0:43", 7), "100", "199"),
        ),
        ("4: LEASE  ACTIVE    READ 7 <none>:0 0 EOF", None),
        ("4: POSIX  *NOINODE* READ 7 <none>:0 0 EOF", None),
        ("", None),
    ],
)
def test_a_line_of_the_table_is_read(text, line):
    assert parse(text) == line


def test_a_table_longer_than_a_page_is_read_until_two_readings_agree(monkeypatch):
    ours = "1: FLOCK  ADVISORY  WRITE 7 fe:00:5 0 EOF\n"
    others = "2: FLOCK  ADVISORY  WRITE 8 fe:00:6 0 EOF\n" * 200
    readings = [others, ours + others, others, ours + others, ours + others]
    monkeypatch.setattr(proc_locks, "_read", lambda: readings.pop(0))
    assert lines_of([Key("254:0", 5)]) == [parse(ours)]
    assert readings == []


def test_what_moved_between_two_pages_and_came_twice_is_shown_once(monkeypatch):
    held = "1: FLOCK  ADVISORY  WRITE 7 fe:00:5 0 EOF\n"
    waits = "1: -> FLOCK  ADVISORY  WRITE 9 fe:00:5 0 EOF\n"
    others = "2: FLOCK  ADVISORY  WRITE 8 fe:00:6 0 EOF\n" * 200
    monkeypatch.setattr(proc_locks, "_read", lambda: held + others + held + waits)
    assert lines_of([Key("254:0", 5)]) == [parse(held), parse(waits)]


def test_a_system_without_the_table_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(proc_locks, "TABLE", str(tmp_path / "none"))
    assert lines_of([Key("254:0", 5)]) is None
    assert waiters_of(HOST, str(tmp_path / "missing")) == ()


@needs("linux", "proc")
def test_waiters_stand_in_the_order_in_which_they_came(tmp_path):
    path = tmp_path / "x.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiting = []
    try:
        for operation in ("fcntl.LOCK_EX", "fcntl.LOCK_SH", "fcntl.LOCK_EX"):
            came = subprocess.Popen([sys.executable, "-c", WAIT % operation, path])
            waiting.append(came)
            while len(waiters_of(HOST, str(path))) < len(waiting):
                assert came.poll() is None
        found = waiters_of(HOST, str(path))
        assert [each.pid for each in found] == [each.pid for each in waiting]
        assert [each.exclusive for each in found] == [True, False, True]
        assert "fcntl.flock" in found[0].command
        assert {each.key for each in lines_of([key_of(fd)])} == {key_of(fd)}
    finally:
        for each in waiting:
            each.kill()
            each.wait()
        os.close(fd)
    assert waiters_of(HOST, str(path)) == ()
