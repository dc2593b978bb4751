"""Every claim of the conformance suite, of every kind, under every face."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lifehold import AsyncSemaphore, ReadWriteLock, Semaphore, registry
from lifehold.aio import AsyncReadWriteLock
from lifehold.local.kernel_semaphore import KernelSemaphore, slot_path
from lifehold.testing.conformance import Subject, cases
from lifehold.testing.dict_lock import MemoryLocks

LOCKS = MemoryLocks()
registry.offer("memory", LOCKS.lock)
NO_TTL = {"ttl": "the kernel frees it with its holder"}
KERNEL = Subject("kernel", lacks=NO_TTL)
MEMORY = Subject(
    "memory",
    lacks=dict.fromkeys(("processes", "survives_crash"), "it lives in the memory of one process"),
    lose=LOCKS.lose,
)
LEASED = Subject(
    "memory", name="memory with ttl", options={"ttl": 30}, lacks=MEMORY.lacks, lose=LOCKS.lose
)
SOFT = Subject("soft", lacks={"shared": "its record is the lock, and has one owner"})
SOFT_LEASED = Subject("soft", name="soft with ttl", options={"ttl": 30}, lacks=SOFT.lacks)
UNRECORDED = Subject(
    "kernel", name="kernel without record", options={"record": False},
    lacks=dict.fromkeys(("token", "evidence"), "record=False writes nothing") | NO_TTL,
)  # fmt: skip
CLEANING = Subject(
    "kernel", name="kernel with cleanup", options={"cleanup": True},
    lacks={"shared": "only who is alone may unlink the file"} | NO_TTL,
)  # fmt: skip
ONE_AT_A_TIME = {"shared": "it has one holder at a time"}
GENERATION = Subject("generation", lacks=ONE_AT_A_TIME, lose=shutil.rmtree)
LINK = Subject("link", lacks=ONE_AT_A_TIME)
DIRECTORY = Subject("directory", lacks=ONE_AT_A_TIME, lose=shutil.rmtree)
FOLDER = Subject(
    "folder", lacks=ONE_AT_A_TIME | {"ttl": "a bid stays until its process is proven gone"},
    lose=shutil.rmtree,
)  # fmt: skip
LEASED_KINDS = [
    Subject(kind, name=f"{kind} with ttl", options={"ttl": 30}, lacks=ONE_AT_A_TIME, lose=lose)
    for kind, lose in (
        ("generation", GENERATION.lose),
        ("link", LINK.lose),
        ("directory", DIRECTORY.lose),
    )
]
STRICT = Subject("link", name="link, strict", options={"strict": True}, lacks=ONE_AT_A_TIME)
FAIR = Subject("kernel", name="kernel, fair", options={"fair": True}, lacks=NO_TTL)


def side_of_readwrite(subject, face, target, options):
    """The writers' side of a reader/writer lock, or the readers'."""
    side = {True: "_writes", False: "_reads"}[options.pop("exclusive", True)]
    made = ReadWriteLock if face.name == "blocking" else AsyncReadWriteLock
    return getattr(made(target, **subject.options, **options), side)


def one_permit(path, runtime, *, label, mode, shared, exclusive, record, cleanup):
    """A semaphore of one, as a kind of lock."""
    assert exclusive
    assert record
    return KernelSemaphore(path, runtime, 1, label=label, mode=mode, shared=shared)


registry.offer("one permit", one_permit)
READWRITE = Subject(
    "kernel", name="reader/writer", make=side_of_readwrite,
    lacks=NO_TTL | {"shared": "its readers refuse more: tests/unit/test_readwrite.py"},
)  # fmt: skip
ONE_PERMIT = Subject(
    "one permit", lacks=NO_TTL | ONE_AT_A_TIME | {"processes": "tests/crash/test_starving.py",
    "survives_crash": "tests/crash/test_starving.py"},
    lose=lambda path: os.unlink(slot_path(path, 0)),
)  # fmt: skip


def permits(subject, face, target, options):
    made = Semaphore if face.name == "blocking" else AsyncSemaphore
    return made(target, 2, **subject.options, **options)


def lose_readwrite(path):
    """The writer's file and the markers of readers, whichever are there."""
    for name in (path, *(Path(f"{path}.readers").glob("r.*"))):
        Path(name).unlink(missing_ok=True)


SHAPES = [
    Subject("kernel", name="readers and writers", make=side_of_readwrite, shape="readwrite"),
    Subject(
        "soft", name="soft readers and writers", options={"kind": "soft"}, shape="readwrite",
        make=side_of_readwrite, lose=lose_readwrite,
    ),
    Subject(
        "soft", name="soft readers and writers with ttl", options={"kind": "soft", "ttl": 30},
        shape="readwrite", make=side_of_readwrite, lose=lose_readwrite,
    ),
    Subject(
        "semaphore", name="two permits", make=permits, shape="semaphore",
        lose=lambda path: os.unlink(slot_path(path, 0)),
    ),
]  # fmt: skip
# Under every face: each mechanism once. Its variants: under the blocking face alone.
EVERYWHERE = [
    *SHAPES, READWRITE, ONE_PERMIT, KERNEL, MEMORY, GENERATION, LINK, DIRECTORY, FOLDER, SOFT, FAIR,
]  # fmt: skip
BLOCKING = [LEASED, *LEASED_KINDS, STRICT, SOFT_LEASED, UNRECORDED, CLEANING]
ALL = [case for subject in EVERYWHERE for case in cases(subject, lacking=False)]
ALL += [case for subject in BLOCKING for case in cases(subject, ("blocking",), lacking=False)]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_kind_keeps_the_claim(case, tmp_path):
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
