"""Every claim of the conformance suite, of every kind, under every face."""

from __future__ import annotations

import pytest

from lifehold import registry
from lifehold.testing.conformance import Subject, cases
from lifehold.testing.memory import Shelf

SHELF = Shelf()
registry.offer("memory", SHELF.lock)
KERNEL = Subject("kernel")
MEMORY = Subject(
    "memory",
    lacks=dict.fromkeys(("processes", "survives_crash"), "it lives in the memory of one process"),
    lose=SHELF.lose,
)
UNRECORDED = Subject(
    "kernel", name="kernel without record", options={"record": False},
    lacks=dict.fromkeys(("token", "evidence"), "record=False writes nothing"),
)  # fmt: skip
CLEANING = Subject(
    "kernel", name="kernel with cleanup", options={"cleanup": True},
    lacks={"shared": "only who is alone may unlink the file"},
)  # fmt: skip
FAIR = Subject("kernel", name="kernel, fair", options={"fair": True})
ALL = [
    *cases(KERNEL),
    *cases(MEMORY),
    *cases(UNRECORDED, faces=("blocking",)),
    *cases(CLEANING, faces=("blocking",)),
    *cases(FAIR),
]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_kind_keeps_the_claim(case, tmp_path):
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
