"""The line of a waiting command: as much as fits, and never a column more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lifehold.cli.notice import fitting
from lifehold.cli.width import columns, cut
from lifehold.core.events import Waiting
from lifehold.core.grant import Holder
from lifehold.core.mask import printable
from lifehold.core.owner import Owner

SINCE = 1_795_140_004.0  # 2026-11-20 02:00:04 UTC
NOW = SINCE + 41640
OWNER = Owner(4127, "web-3", user="ana", command="python report.py --full", container="9f2c")
TOLD = Waiting("nightly-report", 2.0, Holder(OWNER, SINCE, "alive", "kernel witness"), 2)

AT = {
    200: "waiting 12 s for 'nightly-report': held by pid 4127 (python report.py --full), user ana, "
    "since 2026-11-20 02:00:04 UTC (11 h 34 min), alive, checked now (kernel witness); "
    "2 ahead of us",
    160: "waiting 12 s for 'nightly-report': held by pid 4127 (python report.py --full), user ana, "
    "for 11 h 34 min, alive, checked now (kernel witness); 2 ahead of us",
    120: "waiting 12 s for 'nightly-report': held by pid 4127 (python report.py --full), for "
    "11 h 34 min, alive; 2 ahead of us",
    80: "waiting 12 s for 'nightly-report': held by pid 4127, alive; 2 ahead of us",
    40: "waiting 12 s for 'nightly-report': he...",
}


def text(told, room, age=0.0):
    return "".join(part for _, part in fitting(told, 12.7, age, NOW, room))


@pytest.mark.parametrize("room", AT)
def test_a_wider_terminal_is_told_more(room):
    assert text(TOLD, room) == AT[room]


def test_an_old_look_at_the_holder_is_called_old():
    assert ", alive, checked 7 s ago (kernel witness)" in text(TOLD, 300, 7.2)


def test_a_holder_without_a_trace_is_said_to_have_left_none():
    assert text(Waiting("x", 2.0, None), 80) == (
        "waiting 12 s for 'x': held, the holder left no trace"
    )


@given(some.text(max_size=40), some.text(max_size=200), some.integers(1, 300))
def test_no_name_and_no_command_makes_the_line_too_long(name, command, room):
    owner = Owner(1, "h", user="u", command=command, label=name)
    line = text(Waiting(name, 2.0, Holder(owner, SINCE, "alive", command)), room)
    assert columns(line) <= room
    assert line.isprintable()


@pytest.mark.parametrize(
    ("shown", "wide"), [("abc", 3), ("夜間", 4), ("e\u0301", 1), ("한글", 4), ("é", 1), ("", 0)]
)
def test_a_text_takes_the_columns_of_its_characters(shown, wide):
    assert columns(shown) == wide


@given(some.text(), some.integers(0, 50))
def test_what_is_cut_fits(given_text, room):
    shown = printable(given_text)
    assert columns(cut(shown, room)) <= room
    assert cut(shown, 10_000) == shown
