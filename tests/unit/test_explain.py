"""The one text for "held" (DESIGN 5), word for word; and remedies that run as printed."""

from __future__ import annotations

import subprocess
from datetime import UTC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ground import needs
from lifehold.core.explain import by, held_text, quote, span, utc, waiting_text
from lifehold.core.grant import Holder
from lifehold.core.owner import Owner

SINCE = 1_795_140_004.25  # 2026-11-20 02:00:04 UTC
NOW = SINCE + 11 * 3600 + 34 * 60 + 9
LOCK = "/var/lib/lifehold/nightly-report.lock (kernel lock, ext4)"
OWNER = Owner(
    4127, "web-3", user="ana", uid=1000, command="python report.py --full", container="9f2c"
)
HOLDER = Holder(OWNER, SINCE, "alive", "kernel witness", 7, "ab-7", LOCK)

HELD = """\
could not acquire 'nightly-report' within 30 s: it is held
  by     pid 4127 (python report.py --full), user ana, host web-3, container 9f2c
  since  2026-11-20 02:00:04 UTC (11 h 34 min)
  alive  yes, checked now (kernel witness)
  next   wait:  lifehold run --wait 1h nightly-report -- CMD
         look:  lifehold who nightly-report
  lock   /var/lib/lifehold/nightly-report.lock (kernel lock, ext4)"""

NO_TRACE = """\
could not acquire 'x' at once: it is held
  by     unknown: the holder left no trace
  next   wait:  lifehold run --wait 1h x -- CMD
         look:  lifehold who x"""

SUSPECT = """\
could not acquire 'a b' at once: its record is newer
  by     pid 7, user 1000, label nightly
  since  unknown
  alive  cannot be told (another PID namespace)
  next   wait:  lifehold run --wait 1h 'a b' -- CMD
         look:  lifehold who 'a b'"""


def test_a_refusal_reads_as_designed():
    assert held_text("nightly-report", HOLDER, 30, NOW) == HELD


def test_a_holder_without_a_trace_is_said_to_have_left_none():
    assert held_text("x", None, 0, NOW) == NO_TRACE
    assert (
        waiting_text("x", None, 2, NOW) == "waiting for 'x' for 2 s: held, the holder left no trace"
    )


def test_the_remedies_of_a_name_fit_eighty_columns_and_a_long_command_is_cut_in_its_middle():
    assert max(map(len, held_text("n" * 30, None, 30, NOW).split("\n"))) <= 80
    owner = Owner(7, command="python " + "x" * 500 + " --last")
    said = by(Holder(owner))
    assert len(said) < 140
    assert said.startswith("pid 7 (python xxx")
    assert said.endswith("xxx --last)")


def test_who_waits_too_is_counted():
    assert "  queue  1 other waits for it too\n" in held_text("x", HOLDER, 1, NOW, waiters=1)
    assert waiting_text("x", HOLDER, 1, NOW, 3).endswith("; 3 others wait before us")


def test_why_nobody_can_be_named_is_said_where_it_is_known():
    holder = Holder(evidence="the lock file cannot be read: Permission denied")
    assert waiting_text("x", holder, 2, NOW) == f"waiting for 'x' for 2 s: held, {holder.evidence}"
    lines = held_text("x", holder, 0, NOW).split("\n")
    assert lines[1] == f"  by     unknown: {holder.evidence}"
    assert lines[2].startswith("  next   ")


def test_what_is_unknown_is_called_unknown():
    owner = Owner(7, uid=1000, label="nightly")
    holder = Holder(owner, evidence="another PID namespace")
    assert held_text("a b", holder, 0, NOW, "its record is newer") == SUSPECT
    assert by(Holder()) == "unknown"


def test_a_notice_is_one_line_with_everything_in_it():
    text = waiting_text("nightly-report", HOLDER, 62, NOW)
    assert text == (
        "waiting for 'nightly-report' for 1 min 2 s: held by pid 4127 (python report.py --full), "
        "user ana, host web-3, container 9f2c, since 2026-11-20 02:00:04 UTC (11 h 34 min), alive: "
        "yes, checked now (kernel witness)"
    )


def test_hostile_names_and_commands_play_no_tricks_on_a_terminal():
    owner = Owner(
        1, "h\x1b]0;x\x07", user="a\nb", command="rm\r\x1b[2J", label="\x9b", container="\x08"
    )
    for name in ("a\x1b[31m", "a\nb", "\u202eevil"):
        text = held_text(name, Holder(owner, lock="l\x1b"), 1, NOW)
        assert all(line.isprintable() for line in text.split("\n"))
        assert len(text.split("\n")) == 7
        assert waiting_text(name, Holder(owner), 1, NOW).isprintable()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.0000001, "0.001 s"),
        (0.25, "0.25 s"),
        (9.994, "9.99 s"),
        (10, "10 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (250, "4 min 10 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h"),
        (41640, "11 h 34 min"),
        (86400, "1 d"),
        (266400, "3 d 2 h"),
        (1e10, "115740 d 17 h"),
    ],
)
def test_a_length_of_time_is_said_in_words(seconds, words):
    assert span(seconds) == words


@given(some.floats(0, 1e12))
def test_every_length_of_time_can_be_said(seconds):
    assert span(seconds).split()[1] in {"s", "min", "h", "d"}


def test_a_clock_that_stepped_back_makes_no_negative_age():
    assert "(0 s)" in held_text("x", HOLDER, 1, SINCE - 500)
    assert utc(0) == "1970-01-01 00:00:00 UTC"


@given(some.datetimes(timezones=some.just(UTC)))
def test_an_instant_is_said_as_the_calendar_has_it(moment):
    # A float cannot tell the last microsecond of a second from the next second for long.
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert utc(moment.timestamp()) == f"{moment.isoformat(' ', 'seconds')[:19]} UTC"


NASTY = [
    "plain",
    "a b",
    "",
    "it's",
    '"x"',
    "$HOME",
    "`id`",
    "a\nb",
    "a\tb",
    "back\\slash",
    "-n",
    "é漢",
    "a'b\nc",
    "\\n",
    "a;b&c|d",
    "*?[x]",
    "!h",
    "~",
    "#a",
    "\x1b[31m",
    "\x01\x7f",
    "\u202e",
    "\udcff",
]


@needs("command:bash")
@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_a_quoted_name_is_one_word_of_a_real_shell(name):
    # $'...' is not in dash; bash, zsh, ksh, busybox and POSIX 2024 have it.
    assert _said_by_bash([name]) == [name]
    assert quote(name).isprintable()


@needs("command:bash")
@settings(max_examples=15, deadline=None)
@given(some.lists(some.text(some.characters(exclude_characters="\0")), min_size=20, max_size=60))
def test_any_name_is_one_word_of_a_real_shell(names):
    names = [n for n in names if not any(0xD800 <= ord(char) < 0xDC80 or 0xDCFF < ord(char) < 0xE000
                                         for char in n)]  # fmt: skip
    assert _said_by_bash(names) == names


def _said_by_bash(names):
    script = "".join(f"printf '%s\\0' {quote(name)}\n" for name in names)
    said = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return said.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@needs("command:sh")
@pytest.mark.parametrize("name", [name for name in NASTY if name.isprintable()], ids=ascii)
def test_a_printable_name_is_one_word_even_of_the_plainest_shell(name):
    done = subprocess.run(["sh", "-c", f"printf %s {quote(name)}"], capture_output=True, check=True)
    assert done.stdout.decode() == name
