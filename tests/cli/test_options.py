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
    arguments,
    duration,
    help_of,
    help_of_all,
    quick,
    thorough,
)
from lifehold.cli.options_run import contradictions, names_and_command
from lifehold.cli.width import narrowed

WORDS = [
    "--name", "-n", "-w", "5", "-w5", "--wait", "--wait=1h", "2d", "-E", "3", "-nE4", "-s", "-x",
    "-o", "--", "-", "--label", "a b", "", "name", "./path", "cmd", "-z", "--shared", "--close",
    "-1", "--lab", "-c", "-F", "--skip-ok", "-v", "--json", "--fair", "--also",
]  # fmt: skip


def test_both_readers_agree_on_thousands_of_lines():
    chance = random.Random(1)
    read = 0
    for _ in range(3_000):
        line = [chance.choice(WORDS) for _ in range(chance.randint(0, 7))]
        fast = quick(RUN, line)
        if fast is None:
            continue
        read += 1
        assert fast == thorough(RUN, line), line
    assert read > 250


def split(line):
    given, rest = arguments(RUN, line)
    return names_and_command(given, rest)


@pytest.mark.parametrize(
    ("line", "names", "command"),
    [
        ("a b", "a", "b"), ("a -- b -x", "a", "b -x"), ("--also b a -- c", "a b", "c"),
        ("-- a -- b", "a", "b"), ("-- a b", "a", "b"), ("a -- b -- c", "a", "b -- c"),
        ("--also=b --also c -c x a", "a b c", "/bin/sh -c x"), ("a -c x", "a", "/bin/sh -c x"),
        ("a -- -c x", "a", "/bin/sh -c x"), ("a echo -n", "a", "echo -n"),
        ("-nE4 a b", "a", "b"), ("-w5m --wait=3 a b", "a", "b"), ("--also b -ow 5 a c", "a b", "c"),
        ("a -- git log -- f", "a", "git log -- f"),
        ("a -n b -n", "a", "b -n"), ("a -n -- b -n", "a", "b -n"), ("a -w 5 -- b", "a", "b"),
        ("-o a --also c -w5m -- b -- c", "a c", "b -- c"),
        ("a --also=b -c x", "a b", "/bin/sh -c x"),
        ("--name a -n b -n", "a", "b -n"), ("a -nc x", "a", "/bin/sh -c x"),
    ],
)  # fmt: skip
def test_the_first_word_is_the_lock_and_the_rest_the_command(line, names, command, monkeypatch):
    monkeypatch.delenv("SHELL", raising=False)
    assert split(line.split()) == (names.split(), command.split())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ([], "no lock is named"), (["a"], "no command"), (["a", "--"], "no command"),
        (["--", "--", "b"], "no lock is named"), (["a", "--", ""], "CMD is empty"),
        (["a", "--", " "], "CMD is empty"), (["-c", "", "a"], "CMD is empty"),
        (["-c", "x", "a", "--", "b"], "not both"), (["-c", "x"], "no lock is named"),
        (["--", "a", "-n", "--", "b"], "'-n' stands behind a --"),
        (["a", "--name", "b", "c"], "give one of the two"),
        (["a", "--wiat", "5", "b"], "unknown option '--wiat'; did you mean '--wait'"),
        (["a", "b", "--", "c"], "between NAME and a --"),
        (["--", "a", "b", "--", "c"], "between NAME and a --"),
        (["a", "git", "log", "-p", "--", "f"], "between NAME and a --"),
        (["-c", "x", "a", "b"], "there is one NAME"), (["--also", "b"], "no lock is named"),
    ],
)  # fmt: skip
def test_a_line_without_a_lock_or_a_command_is_explained(line, why):
    with pytest.raises(Usage, match=why):
        split(line)


@pytest.mark.parametrize(
    "line", ["-F -o", "-F --max-hold 5", "--skip-ok -E 3", "-F -o --json"]
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(line):
    given, _ = arguments(RUN, [*line.split(), "a", "b"])
    with pytest.raises(Usage, match="both"):
        contradictions(given)


def test_the_usual_lines_are_read_without_argparse():
    for line in ("-n a -- b", "a b", "-w 5m a -- b -x", "-o -s --label x ./a b", "-E 3 a b",
                 "a -n b", "a -w 5 -- b -n", "--name a b -x"):  # fmt: skip
        assert quick(RUN, line.split()) is not None


def test_what_is_unusual_is_left_to_argparse():
    for line in ("-q a b", "-w x a b", "-nE3 a b", "--wait=5 a b", "--help", "-w", "",
                 "a --name b c", "a -q b", "a - b"):  # fmt: skip
        assert quick(RUN, line.split()) is None
    with pytest.raises(HelpAsked):
        thorough(RUN, ["--help"])
    with pytest.raises(Usage, match="unknown option"):
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


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_help_flows_in_a_terminal_of_40_columns(name):
    text = help_of(COMMANDS[name]) if name else help_of_all()
    narrow = narrowed(text, 40)
    assert narrow.split() == text.split()  # no word is lost, and none is moved
    copied = ("  lifehold ", "  exec ", "  eval ")  # what is to be copied stays whole
    long = [line for line in narrow.splitlines() if len(line) > 40 and " " in line.strip()]
    assert [line for line in long if not line.startswith(copied)] == []


def test_the_first_page_has_each_command_once():
    rows = [line.split()[0] for line in help_of_all().splitlines() if line[:2] == "  "]
    assert sorted(rows) == sorted([*COMMANDS, *["lifehold"] * 4])


def test_a_wrong_option_is_named_before_the_name_that_is_missing_after_it():
    for words in (["--nope"], ["--nope", "a"], ["-n", "-q"]):
        with pytest.raises(Usage, match="unknown option '-"):
            thorough(RUN, words)
    with pytest.raises(Usage, match="unknown option '--jsno'; did you mean '--json'"):
        thorough(WHO, ["--jsno"])
    with pytest.raises(Usage, match="NAME is missing; for example:  lifehold who nightly-report"):
        thorough(WHO, ["--json"])


@pytest.mark.parametrize("words", ["who -- -x", "wait -- -foo", "log -- -n"])
def test_what_stands_behind_two_dashes_is_an_operand(words):
    name, *rest = words.split()
    assert arguments(COMMANDS[name], rest)[1] == [rest[-1]]
