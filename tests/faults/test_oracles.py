"""Each judge of the fault table catches a lock that is broken on purpose in just its way."""

from __future__ import annotations

import pytest

from faults import deaths, paths
from faults.cell import ALL, play
from faults.rows import Row

LEASED = {"leased": True, "witness": False}
CAUGHT = {
    "lets everybody in": ("Open", {}, "kill -9, somebody waits", "double holders"),
    "stays for ever": ("Forever", {}, "kill -9, nobody waits", "wedged"),
    "steals by age, and says nothing": (
        "Stealing", LEASED, "stopped beyond its ttl", "the old holder was not told",
    ),
    "has one token for all": (
        "Numberless", LEASED, "stopped beyond its ttl", "its token was accepted",
    ),
    "has tokens that do not grow": (
        "Numberless", LEASED, "stopped beyond its ttl", "tokens did not grow",
    ),
    "takes its time": ("Slow", LEASED, "kill -9, nobody waits", "recovered only after"),
    "robs who lives": ("Stealing", {}, "stopped, without a ttl", "double holders"),
    "says nothing of a removed file": (
        "Forever", {}, "its file removed while held", "the old holder was not told",
    ),
}  # fmt: skip
assert deaths, paths


@pytest.mark.parametrize("name", CAUGHT)
def test_the_table_catches_a_lock_that_is_broken_in_one_way(name):
    kind, promises, fault, words = CAUGHT[name]
    row = Row(f"broken {kind}", f"broken.{kind}(path)", **promises)
    cell = play(ALL[fault], row, patient=False)
    assert any(words in wrong for wrong in cell.wrong), cell
