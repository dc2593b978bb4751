"""The quick reader and argparse give the same answers, or the quick one gives none."""

from __future__ import annotations

import random

import pytest

from lifehold.cli.options import (
    COMMANDS,
    RUN,
    WHO,
    HelpAsked,
    Usage,
    duration,
    help_of,
    help_of_all,
    quick,
    thorough,
)

WORDS = ["-n", "-w", "5", "-w5", "--wait", "--wait=1h", "2d", "-E", "3", "-nE4", "-s", "-x", "-o",
         "--", "-", "--label", "a b", "", "name", "./path", "cmd", "-z", "--shared", "--close",
         "-1", "--lab"]  # fmt: skip


def command_of(rest):
    name, *command = rest
    return name, command[1:] if command[:1] == ["--"] else command


def test_both_readers_agree_on_twenty_thousand_lines():
    chance = random.Random(1)
    read = 0
    for _ in range(20_000):
        line = [chance.choice(WORDS) for _ in range(chance.randint(0, 7))]
        fast = quick(RUN, line)
        if fast is None or line.count("--") > 1:
            continue
        read += 1
        slow = thorough(RUN, line)
        assert (fast[0], command_of(fast[1])) == (slow[0], command_of(slow[1])), line
    assert read > 1000


def test_the_usual_lines_are_read_without_argparse():
    for line in ("-n a -- b", "a b", "-w 5m a -- b -x", "-o -s --label x ./a b", "-E 3 a b"):
        assert quick(RUN, line.split()) is not None


def test_what_is_unusual_is_left_to_argparse():
    for line in ("-q a b", "-w x a b", "-nE3 a b", "--wait=5 a b", "--help", "-w", "a"):
        assert quick(RUN, line.split()) is None
    with pytest.raises(HelpAsked):
        thorough(RUN, ["--help"])
    with pytest.raises(Usage, match="unrecognized"):
        thorough(RUN, ["-q", "a", "b"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("30s", 30), ("5m", 300), ("1h", 3600), ("2d", 172800), ("0", 0)],
)
def test_a_length_of_time_may_have_a_unit(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", ".", "1.2.3", "nan", "inf", "-1", "1e3", "5 m", "1w", "\u0665"]
)
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(ValueError, match="a length of time"):
        duration(text)


def test_every_help_fits_a_terminal_of_80_columns():
    for text in (help_of_all(), *map(help_of, COMMANDS.values())):
        assert [line for line in text.splitlines() if len(line) > 80] == []


def test_a_wrong_option_is_named_before_the_name_that_is_missing_after_it():
    for words in (["--nope"], ["--nope", "a"], ["-n", "-q"]):
        with pytest.raises(Usage, match="unrecognized arguments: -"):
            thorough(RUN, words)
    with pytest.raises(Usage, match="unrecognized arguments: --jsno"):
        thorough(WHO, ["--jsno"])
    with pytest.raises(Usage, match="required: NAME"):
        thorough(WHO, ["--json"])
