"""The strict lock of the filelock face. What is claimed: claims/filelock_strict.py."""

from __future__ import annotations

import pytest

from explore.claims.filelock_strict import KNOWN_BAD, game, strict
from lifehold.testing.explore import MUTEX, WEDGED

pytestmark = pytest.mark.large


def test_whose_holder_died_stays_for_who_comes_later():
    report = game("dies", strict(), crashes=1, newcomer=None).run()
    assert report.kinds == {WEDGED}, report


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_a_known_bad_doorway_is_found(name):
    one = strict(kind=KNOWN_BAD[name])
    report = game(name, one, one, crashes=0, newcomer=False).run(stop_at={MUTEX})
    assert MUTEX in report.kinds, report
