"""The reader/writer log of the filelock face. What is claimed: testing/proofs_filelock.py."""

from __future__ import annotations

import pytest

from lifehold.testing.explore import MUTEX, TOKEN
from lifehold.testing.proofs_filelock import KNOWN_BAD, filelock_claims, game, side

CLAIMS = {claim.name.partition(": ")[2]: claim for claim in filelock_claims()}


def test_of_two_writers_one_of_whom_dies_at_any_step_one_is_in():
    report = CLAIMS["2 writers"].game().run(seconds=600)
    assert report.exhaustive, report
    assert not report.kinds, report


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "2 writers"])
def test_readers_and_writers_keep_each_other_out_in_a_larger_world(name):
    report = CLAIMS[name].game().run(seconds=1800)
    assert not report.kinds, report


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_a_known_bad_log_is_found(name):
    log, cut = KNOWN_BAD[name]
    first = side(writes=True, rounds=2 if cut == 1 else 1, log=log, cut=cut)
    played = game(name, first, side(writes=True, log=log, cut=cut), crashes=0, newcomer=False)
    report = played.run(seconds=600, stop_at={MUTEX, TOKEN})
    assert report.kinds & {MUTEX, TOKEN}, report
