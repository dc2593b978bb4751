"""A bounded run of tests/soak/fuzz.py: no mutated file or answer is out of order."""

from __future__ import annotations

import pytest

from ground import needs
from soak import fuzz

pytestmark = needs("linux", "proc")
CASES = {"families": 40, "own": 40, "history": 60, "live": 200, "webhook": 12}


@pytest.mark.parametrize("what", CASES)
def test_no_mutation_ends_a_command_or_lets_a_second_holder_in(what):
    found = fuzz.play(1, (what,), cases=CASES[what])
    assert found.wrong == {}
    assert found.counted[what] == CASES[what]
