"""The strict lock of the filelock face. What is claimed: testing/proofs_strict.py."""

from __future__ import annotations

import pytest

from lifehold.testing.explore import MUTEX, WEDGED
from lifehold.testing.proofs_strict import KNOWN_BAD, game, strict, strict_claims

CLAIMS = {claim.name.partition(": ")[2]: claim for claim in strict_claims()}


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if not claim.soak])
def test_one_holds_a_strict_lock_in_every_interleaving(name):
    report = CLAIMS[name].game().run(seconds=600)
    assert report.exhaustive, report
    assert not report.kinds, report


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.soak])
def test_one_holds_it_in_a_larger_world(name):
    assert not CLAIMS[name].game().run(seconds=1800).kinds


def test_whose_holder_died_stays_for_who_comes_later():
    report = game("dies", strict(), crashes=1, newcomer=None).run()
    assert report.kinds == {WEDGED}, report


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_a_known_bad_doorway_is_found(name):
    one = strict(kind=KNOWN_BAD[name])
    report = game(name, one, one, crashes=0, newcomer=False).run(stop_at={MUTEX})
    assert MUTEX in report.kinds, report
