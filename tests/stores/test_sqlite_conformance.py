"""Every claim of the conformance suite, of leases in SQLite, under every face."""

from __future__ import annotations

import pytest

from lifehold import connect
from lifehold.stores.aleases import AsyncLeaseStore
from lifehold.testing.conformance import Subject, cases

NO_LOSS = {"lose": "check() asks nobody: that it was broken is told by verify() and a renewal"}


def store_of(face, target):
    url = target.partition("#")[0]
    return connect(url) if face.name == "blocking" else AsyncLeaseStore(url)


def side(subject, face, target, options):
    """The writers' side of a reader/writer lock, or the readers'."""
    name = {True: "_writes", False: "_reads"}[options.pop("exclusive", True)]
    return getattr(store_of(face, target).read_write("build", **subject.options, **options), name)


def permits(subject, face, target, options):
    return store_of(face, target).semaphore("build", 2, **subject.options, **options)


def target(folder):
    return f"sqlite:///{folder}/x.db#build"


COMMON = {"options": {"ttl": 30}, "target": target, "remote": True}
SUBJECTS = [
    Subject(
        "auto", name="sqlite", **COMMON,
        lacks=NO_LOSS | {"shared": "readers and writers of a store are its read_write()"},
    ),
    Subject(
        "auto", name="sqlite readers and writers", shape="readwrite", make=side, lacks=NO_LOSS,
        **COMMON,
    ),
    Subject(
        "auto", name="sqlite two permits", shape="semaphore", make=permits, lacks=NO_LOSS, **COMMON
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [case for each in SUBJECTS for case in cases(each, lacking=False)], ids=str
)
def test_leases_in_sqlite_conform(case, tmp_path):
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
