"""Every claim of the conformance suite, of every kind, under every face."""

from __future__ import annotations

import pytest

from lifehold.testing.conformance import Subject, cases

KERNEL = Subject("kernel")
ALL = [*cases(KERNEL)]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_kind_keeps_the_claim(case, tmp_path):
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
