"""What the benchmarks measure with is right: real processes, each a fraction of a second."""

from __future__ import annotations

import os
import time

import pytest
from benchmarks import contest, handover, protocols, rivals


def test_in_a_relay_nobody_has_two_turns_before_another_had_one(tmp_path):
    match = contest.play(rivals.Raw, 2, 0.2, tmp_path, relay=True)
    assert sum(match.turns) >= 4
    assert max(match.turns) - min(match.turns) <= 1
    assert len(match.handed_ns) >= sum(match.turns) / 2  # who came late was not waiting
    assert min(match.handed_ns) > 0


def test_a_match_is_not_left_before_it_has_begun(tmp_path):
    match = contest.play(rivals.Ours, 3, 0.2, tmp_path, relay=False)
    assert all(turns > 0 for turns in match.turns)


def test_a_process_that_fails_fails_the_benchmark(tmp_path):
    pid, pipe = contest.forked(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="failed"):
        contest.answer(pid, pipe)


def test_a_killed_holder_is_timed_and_one_who_stays_locked_is_given_up(tmp_path, monkeypatch):
    found = handover.killed(rivals.Ours, 2, tmp_path)
    assert len(found) == 2
    assert 0 < max(found) < handover.PATIENCE * 1e9
    monkeypatch.setattr(handover, "PATIENCE", 0.3)

    class Stuck:
        def __init__(self, path):
            self.path = path

        def acquire(self):
            while True:
                try:
                    return os.close(os.open(self.path, protocols.NEW, 0o600))
                except FileExistsError:
                    time.sleep(0.05)

    assert handover.killed(Stuck, 3, tmp_path) == [float("inf")]


@pytest.mark.parametrize("make", [protocols.exclusive, protocols.soft, protocols.link])
def test_a_protocol_written_by_hand_leaves_the_lock_free(make, tmp_path):
    pair = make(tmp_path)
    pair()
    pair()
    assert [each.name for each in tmp_path.iterdir() if not each.name.endswith(".token")] == []


def test_the_numbered_protocol_leaves_one_record_one_higher(tmp_path):
    pair = protocols.generation(tmp_path)
    (before,) = (tmp_path / "raw-generation").iterdir()
    pair()
    (after,) = (tmp_path / "raw-generation").iterdir()
    assert int(after.name) == int(before.name) + 1
