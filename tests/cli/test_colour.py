"""Colours where a terminal wants them; tables that fit it; every locale."""

from __future__ import annotations

import os
import re

import pytest

from lifehold import Lock
from lifehold.cli import colour, render
from lifehold.cli.width import columns, cut, wrapped

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
ROWS = [
    ["NAME", "STATE", "PID", "USER", "SINCE", "COMMAND"],
    ["/srv/app/a/long/way/down/nightly-report.lock", "held", "4127", "ana",
     "2026-11-21 23:24:59 UTC (12 s)", "python report.py --full"],
    ["short", "stale", "(77)", "held", "-", "free"],
]  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "terminal", "coloured"),
    [
        ({"TERM": "xterm"}, True, True), ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False), ({}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True), ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
    ],
)  # fmt: skip
def test_a_terminal_that_wants_colours_gets_them_and_nothing_else(
    monkeypatch, environment, terminal, coloured
):
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "isatty", lambda fd: terminal)
    assert colour.wanted() is coloured
    assert ("\x1b" in render.table(ROWS)) is coloured


@pytest.mark.parametrize("room", [20, 40, 60, 80, 200])
def test_a_table_fits_the_terminal_with_its_colours_and_without(monkeypatch, room):
    monkeypatch.setattr(render, "_room", lambda fd: room)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = render.table(ROWS)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = render.table(ROWS)
    assert ESCAPE.sub("", coloured) == plain
    assert max(map(columns, plain.splitlines())) <= room
    assert "held" in plain.splitlines()[1]  # the state is the last to go
    assert coloured.count(colour.GREEN) == 1  # a user called `held` is no state
    if room >= 40:
        assert plain.splitlines()[1].split()[0].endswith("report.lock")


def test_a_table_that_goes_on_below_leaves_columns_out_before_it_breaks_a_row(monkeypatch):
    monkeypatch.setattr(render, "_room", lambda fd: 40)
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [["WHEN", "EVENT", "CODE", "WAITED", "PID", "WHAT"],
            ["2026-11-27 08:46:21 UTC", "skip", "75", "-", "6826", "held by pid 6719"]]  # fmt: skip
    head, what, first, *_ = render.table(rows, whole=True).splitlines()
    assert (head.split(), what.split()) == (["WHEN", "EVENT", "CODE"], ["WHAT"])
    assert first.split()[-2:] == ["skip", "75"]


def test_a_long_scan_tells_a_terminal_how_far_it_has_come_and_leaves_nothing(monkeypatch):
    said: list[bytes] = []
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(render.os, "write", lambda fd, text: said.append(text))
    for terminal in (False, True):
        monkeypatch.setattr(render.os, "isatty", lambda fd, terminal=terminal: terminal)
        with render.progress() as tell:
            assert (tell is not None) == terminal
            if tell:
                tell(5_000)
    assert said == [b"\rlifehold: 5,000 files ...\x1b[K\r", b"\r\x1b[K"]


def test_colours_are_no_letters_when_widths_are_counted():
    text = f"{colour.GREEN}held{colour.END} by {colour.RED}somebody{colour.END}"
    assert columns(text) == len("held by somebody")
    for room in range(1, 20):
        short = cut(text, room)
        assert columns(short) <= room
        assert short.count("\x1b") == 4  # none is cut open, none is left on
    lines = wrapped(text, 12, 2)
    assert [ESCAPE.sub("", line) for line in lines] == ["held by", "  somebody"]


LOCALES = {
    "C as cron has it": {"LC_ALL": "C"},
    "C alone": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii:strict"},
    "utf-8": {"LC_ALL": "C.UTF-8"},
}


@pytest.mark.parametrize("locale", LOCALES)
def test_every_name_is_shown_in_every_locale(lifehold, locale):
    """What the terminal cannot show, and bytes that are no text, are written out as escapes."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONUTF8", "PYTHONIOENCODING"):
        lifehold.environment.pop(name, None)
    lifehold.environment |= LOCALES[locale]
    odd = os.fsdecode(b"./na\xefve-\xff.lock")
    with Lock(lifehold.folder / "ünï-漢.lock"):
        lines = [
            ("run", "-n", "--label", "ünï-漢", odd, "--", "sh", "-c", "echo ran"),
            ("who", odd, "./ünï-漢.lock"), ("ls", f"{lifehold.folder}"),
            ("log", odd), ("ls", "--names"), ("clear", "-n", "./ünï-漢.lock"), ("ünï",),
        ]  # fmt: skip
        done = [lifehold(*line) for line in lines]
    assert [each.returncode for each in done] == [0, 0, 0, 0, 0, 0, 64]
    assert not [each.stderr for each in done if "Traceback" in each.stderr]
    assert done[0].stdout == "ran\n"
    for each in (done[1], done[2]):
        assert r"na\xefve-\xff" in each.stdout or "na\\xc3\\xafve" in each.stdout
        assert "held" in each.stdout
