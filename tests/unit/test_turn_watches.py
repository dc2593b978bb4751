"""A waiter that watches leases whose end no clock of the store can tell."""

from __future__ import annotations

from lifehold.core.backend import Refused, StoreHolder
from lifehold.store.waiter import AFTER, Waiter


def actor(mark, renewals=0, ends_in=None, ttl=10.0, delay=0.0):
    return StoreHolder(
        mark, 1, 1, 0, ttl, ends_in, f"{mark}:{renewals}", 0.0, renewals, None, delay
    )


def test_a_lease_that_stays_unchanged_for_its_ttl_is_over_and_no_other():
    turn = Waiter("ab12")
    turn.refused(Refused((actor("a", delay=2.0),)), 100.0)
    assert turn.gone(111.9) is None
    assert turn.gone(112.0) == "a:0"
    turn.refused(Refused((actor("a", 1),)), 112.0)
    assert turn.gone(121.9) is None


def test_a_lease_that_is_renewed_does_not_hide_a_dead_one_behind_it():
    turn, told = Waiter("ab12"), []
    for second in range(30):
        turn.refused(Refused((actor("alive", second), actor("dead"))), 100.0 + second)
        told.append(turn.gone(100.0 + second))
    assert told[:10] == [None] * 10
    assert set(told[10:]) == {"dead:0"}


def test_many_dead_ones_are_watched_together_and_followed_one_after_another():
    turn = Waiter("ab12")
    dead = [actor(mark) for mark in "abc"]
    turn.refused(Refused(tuple(dead)), 0.0)
    for expected in ("a:0", "b:0", "c:0"):
        assert turn.gone(10.0) == expected
        dead.pop(0)
        turn.refused(Refused(tuple(dead)), 10.0)
    assert turn.gone(10.0) is None


def test_it_looks_again_when_the_first_of_them_may_be_over():
    turn = Waiter("ab12")
    turn.refused(Refused((actor("a", ttl=0.5), actor("b", ttl=0.2)), ahead=5), 100.0)
    assert turn.look_at == 100.2 + AFTER


def test_a_lease_whose_end_the_store_tells_is_not_watched():
    turn = Waiter("ab12")
    turn.refused(Refused((actor("a", ends_in=3.0),)), 100.0)
    assert turn.gone(10_000.0) is None
