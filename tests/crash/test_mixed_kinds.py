"""One path asked for as two kinds of lock, in real processes: refused in words, never two holders."""

from __future__ import annotations

import contextlib
import os

import pytest

from crash.scene import hold
from lifehold import LifeholdError, Lock, UnsafeGround, WouldBlock
from lifehold.testing.crash import Child

KINDS = ["kernel", "soft", "link", "generation"]
LEAVES_NOTHING = ["soft", "link"]
HELD = [(kind, {}) for kind in KINDS] + [(kind, {"ttl": 30}) for kind in KINDS[1:]]


def hold_as(path, kind, options):
    hold(path, kind=kind, **options)


def name(case):
    return case if isinstance(case, str) else "with ttl" if case else "plain"


@pytest.mark.parametrize(("theirs", "options"), HELD, ids=name)
def test_a_held_lock_of_another_kind_is_refused_and_both_are_named(tmp_path, theirs, options):
    path = str(tmp_path / "job.lock")
    with Child(hold_as, path, theirs, options) as holder:
        holder.at("held")
        refused_to_others(path, theirs, options)
        holder.kill()
    refused_to_others(path, theirs, options, dead=True)
    Lock(path, kind=theirs, **options).acquire(60).release()
    if theirs in LEAVES_NOTHING:
        assert not os.path.lexists(path)
        return
    refused_to_others(path, theirs, options, dead=True)  # free, and its users may come again


def refused_to_others(path, theirs, options, dead=False):
    for ours in KINDS:
        for record in (True, False) if ours == "kernel" else (True,):
            lock = Lock(path, kind=ours, record=record, **(options if ours == theirs else {}))
            if ours != theirs:
                with pytest.raises(UnsafeGround, match=f"kind='{theirs}'.*kind='{ours}'"):
                    lock.acquire(0 if dead else 5)
            elif not dead:
                with pytest.raises(WouldBlock):
                    lock.acquire(0)


def race(folder, kind, rounds):
    """Every path of a series at once with the others. How often it was in."""
    inside = 0
    for number in range(rounds):
        try:
            lease = Lock(f"{folder}/{number}", kind=kind).acquire(0)
        except LifeholdError:
            continue
        inside += 1
        os.mkdir(f"{folder}/{number}.in")  # fails when another is in
        os.sched_yield()
        os.rmdir(f"{folder}/{number}.in")
        lease.release()
    return inside


def test_who_comes_first_to_a_new_path_decides_its_kind_and_two_are_never_inside(tmp_path):
    children = [Child(race, str(tmp_path), kind, 150) for kind in KINDS * 2]
    with contextlib.ExitStack() as stack:
        for child in children:
            stack.enter_context(child)
        ends = [child.end() for child in children]
    assert all(end.well for end in ends), [end.error for end in ends if not end.well]
    assert sum(end.value for end in ends) >= 150
