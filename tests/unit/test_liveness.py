"""judge(): only a proof makes DEAD (L2). Every branch, as one table."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lifehold.core.owner import (
    ALIVE,
    DEAD,
    INITIAL_PID_NAMESPACE,
    UNKNOWN,
    ObserverView,
    Owner,
    Sighting,
    judge,
)
from lifehold.core.value import as_dict, replace

HERE = Owner(1, "web-3", "m", "boot-1", pid_ns=10, time_ns=20, start_ticks=5)
THEM = Owner(77, "web-3", "m", "boot-1", pid_ns=10, time_ns=20, start_ticks=500, pidfd_ino=9)
SAME = Sighting(True, start_ticks=500, pidfd_ino=9)
BARE = Owner(77)
INITIAL = replace(HERE, pid_ns=INITIAL_PID_NAMESPACE)


def ground(seen=SAME, *, one_kernel=True, witness=None, here=HERE, sees_all=True):
    return ObserverView(one_kernel, witness, here, sees_all, lambda pid: seen)


GONE, THREAD, ZOMBIE = (
    Sighting(False),
    Sighting(True, is_thread=True, thread_of=7),
    Sighting(True, is_zombie=True),
)
OLD_KERNEL, OTHER = replace(SAME, pidfd_ino=None), Sighting(True, start_ticks=501)
TABLE = [
    ("a held witness", THEM, ground(GONE, witness=True), ALIVE, "kernel witness"),
    (
        "a held witness on shared ground",
        THEM,
        ground(GONE, one_kernel=False, witness=True),
        ALIVE,
        "kernel witness",
    ),
    ("shared ground", THEM, ground(GONE, one_kernel=False), UNKNOWN, "prove nothing here"),
    (
        "a free witness on shared ground",
        THEM,
        ground(GONE, one_kernel=False, witness=False),
        UNKNOWN,
        "prove nothing here",
    ),
    ("a free witness", THEM, ground(SAME, witness=False), DEAD, "witness is free"),
    ("another boot", replace(THEM, boot_id="boot-0"), ground(), DEAD, "restarted"),
    (
        "another boot on shared ground",
        replace(THEM, boot_id="boot-0"),
        ground(one_kernel=False),
        UNKNOWN,
        "shared",
    ),
    ("another namespace", replace(THEM, pid_ns=11), ground(GONE), UNKNOWN, "another PID namespace"),
    ("blind observer", THEM, ground(GONE, here=Owner(1)), UNKNOWN, "cannot read its own"),
    (
        "observer without boot id",
        THEM,
        ground(GONE, here=replace(HERE, boot_id=None)),
        UNKNOWN,
        "cannot read its own",
    ),
    ("no such process", THEM, ground(GONE), DEAD, "no process 77"),
    ("a thread", THEM, ground(THREAD), DEAD, "number of a thread"),
    ("a zombie", THEM, ground(ZOMBIE), DEAD, "waits to be reaped"),
    ("same pidfd", THEM, ground(), ALIVE, "same pidfd inode"),
    (
        "same pidfd in another time namespace",
        replace(THEM, time_ns=21),
        ground(),
        ALIVE,
        "same pidfd",
    ),
    ("other pidfd", THEM, ground(replace(SAME, pidfd_ino=8)), DEAD, "another process (pidfd"),
    ("other pidfd, same ticks", THEM, ground(replace(SAME, pidfd_ino=8)), DEAD, "another process"),
    ("same start, no pidfs", THEM, ground(OLD_KERNEL), ALIVE, "same start time"),
    ("other start", THEM, ground(OTHER), DEAD, "another process (start time)"),
    (
        "no start recorded",
        replace(THEM, start_ticks=None, pidfd_ino=None),
        ground(OTHER),
        UNKNOWN,
        "cannot be compared",
    ),
    ("no start seen", THEM, ground(Sighting(True)), UNKNOWN, "cannot be compared"),
    (
        "other time namespace",
        replace(THEM, time_ns=21, pidfd_ino=None),
        ground(OTHER),
        UNKNOWN,
        "another time namespace",
    ),
    (
        "bare number inside a namespace",
        BARE,
        ground(GONE),
        UNKNOWN,
        "not all processes are visible",
    ),
    (
        "bare number, some hidden",
        BARE,
        ground(GONE, here=INITIAL, sees_all=False),
        UNKNOWN,
        "not all processes are visible",
    ),
    ("bare number, gone", BARE, ground(GONE, here=INITIAL), DEAD, "no process 77"),
    ("bare number, zombie", BARE, ground(ZOMBIE, here=INITIAL), DEAD, "no process 77"),
    ("bare number, thread", BARE, ground(THREAD, here=INITIAL), UNKNOWN, "a thread of process 7:"),
    ("bare number, runs", BARE, ground(here=INITIAL), UNKNOWN, "some process has the number"),
    (
        "bare number on shared ground",
        BARE,
        ground(GONE, here=INITIAL, one_kernel=False),
        UNKNOWN,
        "shared",
    ),
    (
        "no boot id recorded",
        replace(THEM, boot_id=None),
        ground(here=INITIAL),
        UNKNOWN,
        "another PID namespace",
    ),
    (
        "no namespace recorded",
        replace(THEM, pid_ns=None),
        ground(GONE),
        UNKNOWN,
        "not all processes",
    ),
]


@pytest.mark.parametrize(
    ("owner", "ground", "state", "evidence"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_the_verdict_is_the_one_that_the_evidence_allows(owner, ground, state, evidence):
    verdict = judge(owner, ground)
    assert verdict.state == state
    assert evidence in verdict.evidence


MAYBE = some.sampled_from([None, 1, 2])
OWNERS = some.builds(
    Owner,
    some.just(77),
    boot_id=some.sampled_from([None, "a", "b"]),
    time_ns=MAYBE,
    pid_ns=some.sampled_from([None, 10, 11, INITIAL_PID_NAMESPACE]),
    start_ticks=MAYBE,
    pidfd_ino=MAYBE,
)
SIGHTINGS = some.builds(
    Sighting, some.booleans(), some.booleans(), some.booleans(), start_ticks=MAYBE, pidfd_ino=MAYBE
)
ANY = (OWNERS, OWNERS, SIGHTINGS, some.booleans(), some.sampled_from([None, True, False]))


@given(*ANY)
def test_nobody_is_dead_on_shared_ground(owner, here, seen, sees_all, witness):
    found = judge(owner, ObserverView(False, witness, here, sees_all, lambda pid: seen))
    assert found.state == (ALIVE if witness else UNKNOWN)


@given(*ANY)
def test_nobody_of_another_pid_namespace_is_judged_by_a_number(
    owner, here, seen, sees_all, witness
):
    if owner.pid_ns == here.pid_ns or None in (owner.pid_ns, owner.boot_id) or witness is not None:
        return
    found = judge(owner, ObserverView(True, None, here, sees_all, lambda pid: seen))
    assert found.state == (
        DEAD if here.boot_id not in (None, owner.boot_id) and here.pid_ns else UNKNOWN
    )


@given(*ANY)
def test_a_process_that_matches_in_everything_is_never_dead(owner, here, other, sees_all, witness):
    seen = replace(other, exists=True, is_thread=False, is_zombie=False)
    seen = replace(seen, start_ticks=owner.start_ticks, pidfd_ino=owner.pidfd_ino)
    here = replace(here, boot_id=owner.boot_id)
    found = judge(owner, ObserverView(True, witness, here, sees_all, lambda pid: seen))
    assert (found.state == DEAD) == (witness is False)
    assert found.evidence


def test_losing_knowledge_never_turns_unknown_or_alive_into_dead():
    for seen, one_kernel in itertools.product((SAME, GONE, OTHER), (True, False)):
        full = judge(THEM, ground(seen, one_kernel=one_kernel)).state
        for field in ("boot_id", "pid_ns", "time_ns", "start_ticks", "pidfd_ino"):
            assert as_dict(THEM)[field] is not None
            less = judge(replace(THEM, **{field: None}), ground(seen, one_kernel=one_kernel)).state
            assert less in (UNKNOWN, full) or (full == UNKNOWN and less != DEAD)
