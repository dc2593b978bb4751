"""Tokens only grow, and the data refuses a late writer (L4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lifehold import StaleToken
from lifehold.core.fence import LARGEST, admit, next_token

CLOCK = some.integers(-(2**70), 2**60)


@given(some.lists(some.tuples(CLOCK, some.booleans()), min_size=2, max_size=50))
def test_tokens_strictly_grow_whatever_the_clock_does(steps):
    stored = last = 0
    for clock_us, lost in steps:
        if lost:
            stored = 0  # the file was emptied: only the clock and our own memory are left
        token = next_token(stored, last, clock_us)
        assert token > last
        assert token > stored
        assert token >= clock_us
        stored = last = token


@given(some.integers(0, LARGEST), some.integers(0, LARGEST), some.integers(0, LARGEST))
def test_a_token_always_fits_a_signed_column(stored, last, clock_us):
    assert next_token(stored, last, clock_us) < 2**63


def test_a_holder_may_write_often_and_a_late_one_is_refused():
    fence = 0
    for token in (5, 5, 9, 9):
        fence = admit("x", token, fence)
    with pytest.raises(StaleToken) as caught:
        admit("x", 5, fence)
    assert (caught.value.token, caught.value.fence, caught.value.name) == (5, 9, "x")
    assert "another holder came after" in str(caught.value)


def test_a_lock_without_a_token_cannot_guard_data():
    with pytest.raises(StaleToken, match="carries no token"):
        admit("x", None, 0)
