"""The soak of hand-overs, for seconds: nothing missed, and a fault would be found."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold.core import acquire
from lifehold.runtime.blocking import ThreadWakeup
from soak import handover

pytestmark = needs("linux")


@pytest.fixture
def no_notice(monkeypatch):
    """A missed wake-up lasts until the first notice: so long that no pause of the machine does."""
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 40.0)
    monkeypatch.setattr(handover, "LIMIT", 20.0)
    monkeypatch.setattr(handover, "STUCK", 60.0)


def test_no_wake_up_is_missed_in_hand_overs_with_random_pauses(no_notice):
    turns, count, missed, overlaps, longest, failed = handover.play(1500, 300, seed=1)
    print(f"{count} hand-overs of {turns} grants, free for {longest * 1000:.1f} ms at most")
    assert not failed
    assert (missed, overlaps) == (0, 0)
    assert count >= 1500


def test_a_wake_up_that_is_lost_now_and_then_is_found(monkeypatch):
    ring, rung = ThreadWakeup.ring, []

    def forgetful(self):
        rung.append(1)
        if len(rung) % 50:
            ring(self)

    monkeypatch.setattr(ThreadWakeup, "ring", forgetful)
    monkeypatch.setattr(handover, "PARTIES", dict.fromkeys("abc", handover.PARTIES["helper"]))
    _, _, missed, *_ = handover.play(2000, 12, seed=1)
    assert missed > 0
