"""Every claim of the conformance suite about leases in stores, under every face."""

from __future__ import annotations

import pytest

from lifehold import connect
from lifehold.testing.conformance import Subject, cases

STORE = {
    "drop": "a thread gives it back, a moment later",
    "shared": "readers share by read_write(), not by exclusive=False",
}


def in_memory(folder):
    return f"memory://{folder}#build"


def lose(url):
    where, _, name = url.partition("#")
    connect(where).break_(name, "to see who is told")


def by_url(subject, face, target, options):
    return face.lock(target, **{**subject.options, **options})


MEMORY = Subject(
    "auto", name="memory store", target=in_memory, lose=lose, make=by_url,
    lacks=STORE | {"lose": "check() asks no store: verify() does"}
    | dict.fromkeys(("processes", "survives_crash"), "it is of one process"),
)  # fmt: skip


@pytest.mark.parametrize("case", cases(MEMORY, lacking=False), ids=str)
def test_the_store_keeps_the_claim(case, tmp_path):
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
