"""What a record proves, and what it does not (L2)."""

from __future__ import annotations

import pytest

from lifehold.core.deadline import NEVER
from lifehold.core.owner import DEAD, UNKNOWN
from lifehold.core.value import replace
from lifehold.local import soft_readwrite
from lifehold.local.ground import MountInfo
from lifehold.local.judge import LivenessJudge, Sightings
from lifehold.local.record import RecordTemplate
from lifehold.runtime.process import here

DISK, FAR = MountInfo("ext4", "0:1"), MountInfo("nfs4", "0:2")
OTHER_BOOT = "01234567-89ab-cdef-0123-456789abcdef"


class Found:
    """A record that is looked at. `held`: what its kernel lock says."""

    key = "0:1"

    def __init__(self, ttl, witness, held, **changes):
        text = RecordTemplate("link", replace(here(), **changes), ttl, DISK, witness=witness)
        self.content, self.held = text.numbered(1, "a" * 32, 7, 1_700_000_000_000_000), held

    def read(self):
        return self.content

    def touched(self):
        return 0

    def has_witness(self):
        return self.held


def judged(now=0.0, **found):
    return LivenessJudge("link", {}).judged("/a", Found(**found), DISK, lambda: now)


@pytest.mark.parametrize("held", [False, None])
def test_another_boot_id_alone_does_not_end_a_lease(held):
    """A container may be shown another one, and a restored machine has an old one."""
    found = judged(ttl=30.0, witness=False, held=held, boot_id=OTHER_BOOT)
    assert (found.state, found.due) == (UNKNOWN, 30.0)
    assert "another boot id" in found.evidence


def test_a_free_witness_ends_a_lease_whatever_the_boot_id():
    found = judged(ttl=30.0, witness=True, held=False, boot_id=OTHER_BOOT)
    assert (found.state, found.evidence) == (DEAD, "its kernel witness is free")


def test_a_witness_that_is_held_stands_above_another_boot_id():
    found = judged(ttl=30.0, witness=True, held=True, boot_id=OTHER_BOOT)
    assert (found.state, found.evidence) == ("alive", "kernel witness")


def test_without_a_lease_another_boot_is_the_proof():
    found = judged(ttl=None, witness=False, held=None, boot_id=OTHER_BOOT)
    assert (found.state, found.due) == (DEAD, NEVER)


@pytest.mark.large
def test_of_5000_leases_that_are_watched_at_once_each_runs_out():
    """What was seen belongs to whoever waits by it: none is forgotten to make room for others."""
    seen = Sightings()
    evidence, found = LivenessJudge("link", seen), Found(ttl=30.0, witness=False, held=None)
    paths = [f"/{number}" for number in range(5000)]
    for now in (0.0, 10.0, 20.0):
        states = {evidence.judged(path, found, FAR, lambda now=now: now).state for path in paths}
        assert states == {UNKNOWN}
    states = {evidence.judged(path, found, FAR, lambda: 30.0).state for path in paths}
    assert states == {DEAD}


@pytest.mark.large
def test_a_lease_that_ran_out_long_ago_and_that_nobody_took_is_forgotten():
    seen = Sightings()
    evidence, found = LivenessJudge("link", seen), Found(ttl=30.0, witness=False, held=None)
    for now in range(20):
        for number in range(1000):
            evidence.judged(f"/{now}/{number}", found, FAR, lambda now=now: now * 300.0)
    assert len(seen) <= 2 * 4000


def test_a_reader_that_may_go_in_is_waited_for_once_whoever_else_asks(monkeypatch):
    monkeypatch.setattr(soft_readwrite, "FREE_FOR", {})
    turns = soft_readwrite.SoftReadWrite.__new__(soft_readwrite.SoftReadWrite)
    turns.folder, turns.runtime = "/a.readers", Runtime()
    assert turns._free_since("first") == 0.0
    for number in range(3000):
        turns.runtime.at = number / 3000
        turns._free_since(f"r.{number}")
    assert turns._free_since("first") == 0.0
    turns.runtime.at = 1000.0
    turns._free_since("last")
    assert len(soft_readwrite.FREE_FOR) == 1


class Runtime:
    at = 0.0

    def now(self):
        return self.at


class Hangs(Found):
    """A record whose reading takes a while."""

    def __init__(self, clock, seconds):
        super().__init__(ttl=30.0, witness=False, held=None)
        self.clock, self.seconds = clock, seconds

    def read(self):
        self.clock.at += self.seconds
        return super().read()


def test_a_record_counts_from_after_it_was_read_and_not_from_when_we_began_to_look():
    """It may have been written while the reading hung."""
    clock, evidence = Runtime(), LivenessJudge("link", {})
    assert evidence.judged("/a", Hangs(clock, 5.0), FAR, clock.now).due == 35.0


def test_a_look_that_hung_is_of_the_time_at_which_it_began():
    """What it brings may be old: the record may have been renewed since."""
    clock, evidence = Runtime(), LivenessJudge("link", {})
    evidence.judged("/a", Hangs(clock, 0.0), FAR, clock.now)
    clock.at = 29.0
    assert evidence.judged("/a", Hangs(clock, 5.0), FAR, clock.now).state == UNKNOWN
    assert evidence.judged("/a", Hangs(clock, 0.0), FAR, clock.now).state == DEAD
