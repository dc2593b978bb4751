"""Texts on a terminal: no line of facts is broken within a word, and none of its words is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lifehold.cli import render
from lifehold.cli.width import columns, folded, wrapped

HELD = """\
could not acquire 'nightly-report' within 3 s: it is held
  by     pid 1516 (lifehold run nightly-report -- sleep 60), user ana, host web-3, label nightly
  since  2026-11-21 23:24:59 UTC (12 s)
  next   wait:  lifehold run --wait 1h /var/lib/lifehold/some/long/path/nightly-report -- CMD
         look:  lifehold who /var/lib/lifehold/some/long/path/that/goes/on/and/on/nightly-report
  lock   /var/lib/lifehold/some/long/path/that/goes/on/and/on/nightly-report (kernel lock, ext4)"""


def test_facts_go_on_below_and_what_is_to_be_copied_stays_whole():
    lines = folded(HELD, 80).splitlines()
    assert lines[1:3] == [
        "  by     pid 1516 (lifehold run nightly-report -- sleep 60), user ana, host",
        "         web-3, label nightly",
    ]
    assert lines[3:] == HELD.splitlines()[2:]
    assert folded(HELD, 200) == folded(HELD, 0) == HELD
    assert folded("could not\n  CMD    do that at all", 20) == "could not\n  CMD    do that at all"
    assert folded("a sentence of more words than fit\n  x", 20) == (
        "a sentence of more\n  words than fit\n  x"
    )


@given(some.lists(some.text("ab漢", min_size=1, max_size=30)), some.integers(20, 60))
def test_wrapping_loses_no_word_and_keeps_to_the_room(words, room):
    line = "  by     " + " ".join(words)
    lines = wrapped(line, room, 9)
    assert "".join(lines).replace(" ", "") == line.replace(" ", "")
    longest = max(map(columns, line.split()), default=0)
    assert all(columns(each) <= max(room, longest + 9) for each in lines)


@pytest.mark.parametrize(("room", "whole"), [(0, False), (60, False), (60, True), (20, False)])
def test_the_last_cell_of_a_table_fits_a_terminal_and_is_whole_elsewhere(monkeypatch, room, whole):
    monkeypatch.setattr(render, "_room", lambda fd: room)
    command = " ".join(f"word{number}" for number in range(20))
    lines = render.table([["NAME", "COMMAND"], ["nightly", command]], whole=whole).splitlines()
    if not room:
        assert lines == ["NAME     COMMAND", f"nightly  {command}"]
    elif whole:
        assert max(map(len, lines)) <= room
        assert " ".join(" ".join(lines[1:]).split()) == f"nightly {command}"
    else:
        assert len(lines) == 2
        assert max(map(len, lines)) <= room
        assert lines[1].endswith("...") == (room > len("nightly  ") + render.LEAST)


def test_the_columns_of_a_table_stand_below_one_another_whatever_the_names():
    rows = [["NAME", "STATE"], ["名前.lock", "held"], ["e\u0301", "free"], ["plain", "stale"]]
    lines = render.table(rows).split("\n")
    words = [row[1] for row in rows]
    at = {columns(line[: line.index(word)]) for line, word in zip(lines, words, strict=True)}
    assert at == {columns("名前.lock") + 2}
