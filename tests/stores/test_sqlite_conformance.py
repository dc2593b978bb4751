"""Every claim of the conformance suite, of leases in SQLite, under every face."""

from __future__ import annotations

import pytest

from lifehold.testing.conformance import Subject, cases

LACKS = {
    "lose": "check() asks nobody: that it was broken is told by verify() and the next renewal",
    "shared": "readers and writers of a store are its read_write()",
}
SQLITE = Subject(
    "auto", name="sqlite", options={"ttl": 30}, lacks=LACKS, remote=True,
    target=lambda folder: f"sqlite:///{folder}/x.db#build",
)  # fmt: skip


@pytest.mark.parametrize("case", cases(SQLITE), ids=str)
def test_leases_in_sqlite_conform(case, tmp_path):
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
