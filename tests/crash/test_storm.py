"""Many processes on one path, killed at random.

Never two inside, tokens grow, somebody is in soon.
"""

from __future__ import annotations

from crash.storm import storm


def test_a_storm_of_kills_makes_no_two_holders_and_stops_nobody(tmp_path):
    found = storm(str(tmp_path), 4, 60, 20)
    assert found["overlaps"] == 0
    assert found["tokens grow"]
    assert found["free at the end"]
    assert found["kills"] >= 20
    assert found["max ms"] < 5000
