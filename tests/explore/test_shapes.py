"""Variants of semaphores and of the kernel's reader/writer lock that are wrong.

What is claimed of the shipped ones: claims/shapes.py.
"""

from __future__ import annotations

from explore.claims import shapes as proofs
from explore.claims.shapes import CountsNobody, game, side, taker
from lifehold.local.files import LOCK_NB, LOCK_SH, LOCK_UN
from lifehold.testing.explore import MUTEX


def test_two_who_disagree_about_n_must_look_after_their_slot_is_theirs():
    played = game("counts nobody", taker(1, kind=CountsNobody), taker(2, kind=CountsNobody))
    assert played.run(seconds=60, stop_at={MUTEX}).kinds == {MUTEX}


def test_a_writer_that_lets_go_before_it_reads_lets_another_writer_in(monkeypatch):
    class InTwoSteps(proofs.Unlined):
        def _share(self, slot, grant):
            self.table.files.flock(slot.fd, LOCK_UN)
            self.table.files.flock(slot.fd, LOCK_SH | LOCK_NB)

    monkeypatch.setattr(proofs, "Unlined", InTwoSteps)
    played = game("in two steps", side(writes=True, downgrades=True), side(writes=True))
    assert MUTEX in played.run(seconds=60, stop_at={MUTEX}).kinds
