"""Lengths of time that people give, deadlines, pauses."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lifehold import Backoff, InvalidArgument
from lifehold.core.acquire import deadline_of
from lifehold.core.deadline import (
    LONGEST,
    NEVER,
    default_margin,
    lease_deadline,
    seconds,
)
from lifehold.runtime import clock


@pytest.mark.parametrize(
    "bad",
    [-1, -0.001, float("nan"), float("inf"), -float("inf"), "5", b"5", True, False, [1], 1j, 1e30],
)
def test_what_is_no_length_of_time_is_refused_by_name(bad):
    with pytest.raises(InvalidArgument, match=r"^wait must be ") as caught:
        seconds("wait", bad)
    assert repr(bad) in str(caught.value)


def test_zero_is_a_wait_but_no_bound():
    assert seconds("wait", 0) == 0.0
    with pytest.raises(InvalidArgument, match="max_hold must be more than 0"):
        seconds("max_hold", 0, zero=False)


@given(some.one_of(some.floats(0, LONGEST), some.integers(0, int(LONGEST))))
def test_every_sane_length_becomes_a_float(given_seconds):
    assert seconds("wait", given_seconds) == given_seconds
    assert type(seconds("wait", given_seconds)) is float


def test_no_length_means_for_ever():
    assert seconds("wait", None) is None
    assert deadline_of(None, 5.0) == NEVER
    assert deadline_of(0, 5.0) == 5.0
    assert deadline_of(2, 5.0) == 7.0


@given(some.floats(0.5, 1e6), some.floats(0, 1e9))
def test_a_holder_stops_before_anyone_else_may_begin(ttl, sent_at):
    ours = lease_deadline(sent_at, ttl, default_margin(ttl))  # L8
    assert ours < sent_at + ttl
    assert default_margin(ttl) >= max(ttl / 10, 0.25)


@given(
    first=some.floats(0.001, 1), times=some.floats(1, 100), growth=some.floats(1, 10),
    jitter=some.floats(0, 1), draw=some.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_pauses_grow_to_the_longest_and_stay_within_their_jitter(
    first, times, growth, jitter, draw
):
    backoff = Backoff(first, first * times, growth=growth, jitter=jitter, random=lambda: draw)
    whole = first
    for pause in islice(backoff.pauses(), 20):
        assert whole * (1 - jitter) <= pause * (1 + 1e-9)
        assert pause <= whole * (1 + 1e-9)
        whole = min(whole * growth, backoff.longest)


def test_two_waiters_do_not_pause_alike():
    one, other = (list(islice(Backoff().pauses(), 12)) for _ in range(2))
    assert one != other
    assert all(0 < pause <= 0.25 for pause in one)


def test_a_wait_draws_none_of_the_programs_own_random_numbers():
    random.seed(7)
    before = random.getstate()
    drawn = list(islice(Backoff(1, 1, jitter=1).pauses(), 1000))
    assert random.getstate() == before
    assert (min(drawn) < 0.1, max(drawn) > 0.9, len(set(drawn))) == (True, True, 1000)
    assert all(0 <= each <= 1 for each in drawn)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 0}, {"first": -1}, {"first": 2, "longest": 1}, {"growth": 0.5}, {"jitter": -0.1},
        {"jitter": 1.1}, {"growth": float("nan")}, {"first": float("nan")},
    ],
)  # fmt: skip
def test_a_backoff_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        Backoff(**wrong)
    assert repr(Backoff(1, 2)) == "Backoff(1, 2, growth=2.0, jitter=0.5)"


def test_the_clock_only_goes_forward():
    assert clock.now() <= clock.now()
    assert abs(clock.utc_ns() / 1e9 - clock.utc_now()) < 60
