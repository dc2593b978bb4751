"""The reader/writer log of the filelock face. What is claimed: claims/filelock_log.py."""

from __future__ import annotations

import pytest

from explore.claims.filelock_log import KNOWN_BAD, game, side
from lifehold.testing.explore import MUTEX, TOKEN

pytestmark = pytest.mark.large


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_a_known_bad_log_is_found(name):
    log, cut = KNOWN_BAD[name]
    first = side(writes=True, rounds=2 if cut == 1 else 1, log=log, cut=cut)
    played = game(name, first, side(writes=True, log=log, cut=cut), crashes=0, newcomer=False)
    report = played.run(seconds=600, stop_at={MUTEX, TOKEN})
    assert report.kinds & {MUTEX, TOKEN}, report
