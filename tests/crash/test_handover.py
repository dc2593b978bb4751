"""The soak of hand-overs, for seconds: nothing missed, and a fault would be found."""

from __future__ import annotations

from ground import needs
from lifehold.runtime.blocking import Bell
from soak import handover

pytestmark = needs("linux")


def test_hand_overs_with_random_pauses_miss_no_wake_up():
    turns, count, missed, overlaps, longest, failed = handover.play(1500, 60, seed=1)
    print(f"{count} hand-overs of {turns} grants, free for {longest * 1000:.1f} ms at most")
    assert count >= 1500
    assert (missed, overlaps, failed) == (0, 0, [])


def test_a_wake_up_that_is_lost_now_and_then_is_found(monkeypatch):
    ring, rung = Bell.ring, []

    def forgetful(self):
        rung.append(1)
        if len(rung) % 50:
            ring(self)

    monkeypatch.setattr(Bell, "ring", forgetful)
    monkeypatch.setattr(handover, "PARTIES", dict.fromkeys("abc", handover.PARTIES["helper"]))
    _, _, missed, *_ = handover.play(2000, 12, seed=1)
    assert missed > 0
