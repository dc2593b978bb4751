"""A grant that is handed out still runs: the clock is looked at after the last look at storage.

Whoever comes to its lock after its deadline may have been followed already, and a token that it
draws then is greater than the live holder's (L4, L8).
"""

from __future__ import annotations

import time

import pytest

from lifehold.core.acquire import Ask
from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant, Held
from lifehold.local.directory import DirectoryLock
from lifehold.local.generation import GenerationLock
from lifehold.local.ground import MountInfo
from lifehold.local.handles import TABLE, Descriptors
from lifehold.local.link import LinkLock
from lifehold.local.soft import SoftLock
from lifehold.local.soft_readwrite import SoftReadWrite
from lifehold.runtime.blocking import BLOCKING, finish

TERMS = Terms(ttl=30.0, heartbeat=10.0, margin=3.0)
MOST_CALLS = 200


def reader(*given, **options):
    return SoftReadWrite(*given, exclusive=False, **options)


def far(*given, **options):
    return GenerationLock(*given, place=MountInfo("nfs4", "0:2"), **options)


KINDS = {
    "soft": SoftLock, "link": LinkLock, "generation": GenerationLock, "directory": DirectoryLock,
    "reader": reader, "writer": SoftReadWrite, "generation on a server": far,
}  # fmt: skip


class Clock:
    """A runtime whose clock stands, but for what is added to it."""

    def __init__(self):
        self.at = 1000.0

    def now(self):
        return self.at

    def __getattr__(self, name):
        return getattr(BLOCKING, name)


class Slow:
    """The calls of the seam; the `number`-th takes an hour to answer.

    Not a close(2): it tells nothing, and what comes after it may as well be a pause of the caller.
    """

    def __init__(self, clock, number):
        self.clock, self.left, self.armed = clock, number, True

    def __getattr__(self, name):
        call = getattr(TABLE.files, name)
        if not callable(call):
            return call

        def slow(*given):
            if name == "pause":
                return None
            try:
                return call(*given)
            finally:
                self.left -= name != "close"
                if self.left == 0:
                    self.clock.at += 3600

        return slow


def slow_lock(kind, path, number):
    clock = Clock()
    table = Descriptors(Slow(clock, number))
    return clock, table.files, KINDS[kind](str(path), clock, table=table, terms=TERMS)


def dead(kind, path):
    """Left by a holder that died."""
    lock = slow_lock(kind, path, -1)[2]
    grant = lock.attempt()
    assert isinstance(grant, Grant)
    for handle in grant.handle:
        setattr(handle, "posted" if hasattr(handle, "posted") else "let_go", None)
    grant.handle.clear()


@pytest.mark.parametrize("followed", [False, True], ids=["free", "after one who died"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_grant_is_handed_out_that_has_run_out_meanwhile(tmp_path, kind, followed):
    if followed and kind in ("reader", "generation on a server"):
        pytest.skip("a reader takes nothing over, and on a server no death is proven")
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        if followed:
            dead(kind, path)
        clock, slow, lock = slow_lock(kind, path, number)
        answer = lock.attempt()
        if isinstance(answer, Grant):
            assert answer.deadline > clock.at, f"call {number}: {answer}"
            lock.drop(answer)
        else:
            assert isinstance(answer, Held)
        if slow.left > 0:
            break
        assert isinstance(KINDS[kind](str(path), BLOCKING, terms=TERMS).attempt(), Grant), (
            f"call {number}: something was left that is held"
        )
    assert 5 < number < MOST_CALLS - 1


def test_a_waiting_reader_is_given_no_grant_that_ran_out_while_it_withdrew_its_wish(tmp_path):
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        clock, slow, lock = slow_lock("reader", path, number)
        ask = Ask(str(path))
        answer = Held()
        for _ in range(4):
            if isinstance(answer, Held):
                answer = finish(lock.wait(ask, clock.at + 0.01))
        ask.leave()
        if isinstance(answer, Grant):
            assert answer.deadline > clock.at, f"call {number}: {answer}"
            lock.drop(answer)
        if slow.left > 0:
            return
    raise AssertionError("it never came to its end")


def test_a_waiting_writer_is_given_no_claim_that_ran_out_while_it_looked_for_readers(tmp_path):
    came = 0
    for number in range(1, MOST_CALLS):
        path = tmp_path / f"{number}.lock"
        inside = reader(str(path), BLOCKING, terms=TERMS)
        reads = inside.attempt()
        clock, slow, lock = slow_lock("writer", path, -1)
        ask = Ask(str(path))
        for _ in range(3):
            assert isinstance(finish(lock.wait(ask, clock.at)), Held)
        inside.drop(reads)
        slow.left = number
        answer = finish(lock.wait(ask, clock.at))
        ask.leave()
        if isinstance(answer, Grant):
            assert answer.deadline > clock.at, f"call {number}: {answer}"
            came += 1
            lock.drop(answer)
        if slow.left > 0:
            break
    assert came


def test_who_is_handed_a_token_outranks_nobody_who_came_later(tmp_path, monkeypatch):
    """The order of a pause between link(2) and the draw: the late token would be the greater."""
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    path = str(tmp_path / "build.lock")
    late_clock, later = Clock(), []

    class Paused(Slow):
        def __getattr__(self, name):
            call = getattr(TABLE.files, name)
            if name != "open":
                return call

            def opened(at, *given):
                if at.endswith(".token") and not later:
                    late_clock.at += 3600
                    next_clock = Clock()
                    other = SoftLock(path, next_clock, terms=TERMS)
                    assert isinstance(other.attempt(), Held)
                    next_clock.at += 3600
                    later.append(other.attempt())
                return call(at, *given)

            return opened

    table = Descriptors(Paused(late_clock, -1))
    lock = SoftLock(path, late_clock, table=table, terms=TERMS)
    assert isinstance(lock.attempt(), Held)
    assert isinstance(later[0], Grant)
    assert later[0].handle[0].is_at(path)
