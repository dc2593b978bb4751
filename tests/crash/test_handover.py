"""The soak of hand-overs, for seconds: nothing missed, and a fault would be found."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold.runtime.blocking import ThreadWakeup
from soak import handover
from unsteady import Certain

pytestmark = needs("linux")


@pytest.mark.timing("six parties that pause by chance, on a CPU that two other streams want too")
def test_hand_overs_with_random_pauses_come_within_a_second():
    turns, count, missed, overlaps, longest, failed = handover.play(1500, 60, seed=1)
    print(f"{count} hand-overs of {turns} grants, free for {longest * 1000:.1f} ms at most")
    if count < 1500 or overlaps or failed:
        raise Certain(f"{count} hand-overs, {overlaps} overlaps, failed: {failed}")
    assert missed == 0


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
