"""Before each call of one party's act, another's whole act: nobody who holds is hit by it.

The explorer plays every interleaving of small worlds; here the whole of one act falls between two
calls of the other, in every kind whose record is the lock, on the real file system.
"""

from __future__ import annotations

import os

import pytest

from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant, Lost
from lifehold.local.directory import DirectoryLock
from lifehold.local.generation import GenerationLock
from lifehold.local.ground import MountInfo
from lifehold.local.handles import TABLE, Descriptors
from lifehold.local.judge import LivenessJudge
from lifehold.local.link import AGE, LinkLock
from lifehold.local.soft import SoftLock
from lifehold.runtime.blocking import BLOCKING, finish

TERMS = Terms(ttl=30.0, heartbeat=10.0, margin=3.0)
KINDS = {
    "soft": SoftLock, "link": LinkLock, "generation": GenerationLock, "directory": DirectoryLock,
}  # fmt: skip
MOST_CALLS = 100


class Clock:
    """A runtime whose clock stands, but for what is added to it."""

    def __init__(self):
        self.at = 1000.0

    def now(self):
        return self.at

    def __getattr__(self, name):
        return getattr(BLOCKING, name)


class Seam:
    """The calls; before the `left`-th of them comes another's act."""

    def __init__(self):
        self.left, self.act, self.last = 0, None, ""

    def before(self, number, act):
        self.left, self.act = number, act

    def __getattr__(self, name):
        call = getattr(TABLE.files, name)
        if not callable(call):
            return call

        def met(*given):
            if name == "pause":
                return None
            self.left -= 1
            if self.left == 0:
                self.last, act = name, self.act
                act()
            return call(*given)

        return met


def party(kind, path, terms=TERMS, **more):
    """(clock, seam, lock) of one who remembers for itself what it saw."""
    clock, seam = Clock(), Seam()
    lock = KINDS[kind](str(path), clock, table=Descriptors(seam), terms=terms, **more)
    foreign = AGE if kind == "link" else None
    lock.evidence = LivenessJudge(kind, {}, foreign=foreign)
    return clock, seam, lock


def left_by_the_dead(kind, path):
    _, _, lock = party(kind, path)
    grant = lock.attempt()
    for handle in grant.handle:
        setattr(handle, "posted" if hasattr(handle, "posted") else "let_go", None)
    grant.handle.clear()


def holds(lock, grant):
    return isinstance(grant, Grant) and lock.check(grant) is None


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_who_follow_one_dead_holder_one_holds(tmp_path, kind):
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        left_by_the_dead(kind, path)
        _, seam, one = party(kind, path)
        _, _, other = party(kind, path)
        others = []
        seam.before(number, lambda other=other, others=others: others.append(other.attempt()))
        ours = one.attempt()
        if not others:
            break
        got = [holds(one, ours), holds(other, others[0])]
        assert sum(got) <= 1, f"call {number} ({seam.last}): two hold"
        assert got[1] or not isinstance(others[0], Grant), f"call {number} ({seam.last}): robbed"
    assert 5 < number < MOST_CALLS - 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_that_comes_late_does_not_hit_who_followed(tmp_path, kind):
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        _, seam, late = party(kind, path)
        grant = late.attempt()
        later, _, other = party(kind, path)
        other.attempt()  # since then it watches
        later.at += 31
        others = []
        seam.before(number, lambda other=other, others=others: others.append(other.attempt()))
        late.drop(grant)
        if not others:
            break
        if isinstance(others[0], Grant):
            assert holds(other, others[0]), f"call {number} ({seam.last}): its record is gone"
    assert 1 < number < MOST_CALLS - 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_renewal_after_somebody_has_followed_is_refused(tmp_path, kind):
    path = tmp_path / "build.lock"
    _, _, late = party(kind, path)
    grant = late.attempt()
    later, _, other = party(kind, path)
    other.attempt()  # since then it watches
    later.at += 31
    followed = other.attempt()
    assert isinstance(finish(late.renew(grant)), Lost) or kind == "link"  # its clock tells it
    assert holds(other, followed)
    assert other.drop(followed) is None


@pytest.mark.parametrize("kind", ["soft", "link"])
def test_a_released_record_at_the_path_is_a_free_lock(tmp_path, kind):
    """Of another kind, say, which leaves its last record when it lets go."""
    _, _, released = party("generation", tmp_path / "numbered")
    assert released.drop(released.attempt()) is None
    (record,) = [each for each in (tmp_path / "numbered").iterdir() if each.name.isdigit()]
    path = tmp_path / "build.lock"
    path.write_bytes(record.read_bytes())
    _, _, lock = party(kind, path)
    assert holds(lock, lock.attempt())


def test_a_touch_before_the_last_look_keeps_a_link_lock(tmp_path):
    """As liblockfile renews: the content stays as it is, and the time alone tells of the beat."""
    seen = []
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        _, _, holder = party("link", path)
        kept = holder.attempt()
        assert holds(holder, kept)
        later, seam, other = party("link", path)
        other.attempt()  # since then it watches
        later.at += 31
        seam.before(number, lambda path=path: os.utime(path, ns=(10**18, 10**18)))
        answer = other.attempt()
        if not seam.last:
            break
        seen.append((seam.last, isinstance(answer, Grant)))
    under_guard = [name for name, _ in seen].index("guard") + 1
    assert not any(taken for _, taken in seen[:under_guard]), seen
    assert seen[-1][1]  # after the last look it is too late


class Interrupted(Exception):
    """As a signal handler raises it."""


@pytest.mark.parametrize("place", [None, MountInfo("nfs4", "0:2")], ids=["disk", "server"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a stake unmade
def test_an_attempt_that_was_interrupted_holds_nothing(tmp_path, kind, place):
    came = []

    def interrupts():
        came.append(seam.last)
        if seam.last != "open":  # of a descriptor that is not there yet nothing can be left
            raise Interrupted

    for number in range(1, MOST_CALLS):
        came.clear()
        path = tmp_path / f"{number}.lock"
        _, _, before = party(kind, path, place=place)
        before.drop(before.attempt())
        _, seam, one = party(kind, path, place=place)
        seam.before(number, interrupts)
        try:
            answer = one.attempt()
        except Interrupted:
            answer = None
        if not came:
            break
        if isinstance(answer, Grant):
            one.drop(answer)
        _, _, other = party(kind, path, place=place)
        next_one = other.attempt()
        assert isinstance(next_one, Grant), f"call {number} ({seam.last})"
        other.drop(next_one)
    assert 5 < number < MOST_CALLS - 1


@pytest.mark.parametrize("kind", KINDS)
def test_who_was_followed_before_it_came_to_its_lock_hits_nobody(tmp_path, kind):
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        clock, seam, late = party(kind, path)
        later, _, other = party(kind, path)
        others = []

        def passes(clock=clock, later=later, other=other, others=others):
            first = other.attempt()  # since then it watches
            clock.at += 31
            later.at += 31
            others.append(first if isinstance(first, Grant) else other.attempt())

        seam.before(number, passes)
        ours = late.attempt()
        if not others:
            break
        two = holds(late, ours) and holds(other, others[0]) and later.at < others[0].deadline
        assert not two, f"call {number} ({seam.last}): two hold"
        if isinstance(others[0], Grant) and later.at < others[0].deadline:
            assert holds(other, others[0]), f"call {number} ({seam.last}): its record is gone"
    assert 5 < number < MOST_CALLS - 1


@pytest.mark.parametrize("ttl", [None, TERMS], ids=["no ttl", "ttl"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_order_to_break_hits_whom_it_judged_and_nobody_who_came_later(tmp_path, kind, ttl):
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        _, _, holder = party(kind, path, ttl)
        grant = holder.attempt()
        _, _, other = party(kind, path, ttl)
        _, seam, breaker = party(kind, path, ttl)
        others = []

        def changes(holder=holder, grant=grant, other=other, others=others):
            holder.drop(grant)
            others.append(other.attempt())

        seam.before(number, changes)
        broken = breaker.break_("to see whom it hits")
        if not others:
            break
        if isinstance(others[0], Grant) and (
            broken is None or broken.token not in (others[0].token, None)
        ):
            assert holds(other, others[0]), f"call {number} ({seam.last}): the wrong one was hit"
    assert 2 < number < MOST_CALLS - 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_to_break_hits_nobody_who_takes_the_dead_ones_lock_over(tmp_path, kind):
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        left_by_the_dead(kind, path)
        _, _, other = party(kind, path)
        _, seam, breaker = party(kind, path)
        others = []
        seam.before(number, lambda other=other, others=others: others.append(other.attempt()))
        broken = breaker.break_("to see whom it hits")
        if not others:
            break
        if isinstance(others[0], Grant) and (broken is None or broken.nonce != others[0].nonce):
            assert holds(other, others[0]), f"call {number} ({seam.last}): the wrong one was hit"
    assert 2 < number < MOST_CALLS - 1
