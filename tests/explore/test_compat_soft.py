"""The soft locks and leases of the filelock face. What is claimed: claims/filelock_soft.py."""

from __future__ import annotations

import pytest

from explore.claims.filelock_model import DEAD_ONE, GARBAGE, left, original, plain
from explore.claims.filelock_soft import (
    KNOWN_BAD,
    Impatient,
    Leasing,
    game,
    lease,
    marks_claims,
    soft,
)
from lifehold.compat.filelock import pidfile
from lifehold.compat.filelock.soft import SoftLockRecord
from lifehold.testing.explore import MIXED, MUTEX

pytestmark = pytest.mark.large

CLAIMS = {claim.name: claim for claim in marks_claims()}


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_a_lease_that_is_taken_from_a_holder_who_has_renewed_is_found(name):
    """The first of them was ours: stopped between its look at the file and at the clock."""
    taker = lease(tries=2, kind=KNOWN_BAD[name])
    played = game(name, lease(renew=1), taker, model=timed, crashes=0)
    assert MUTEX in played.run(seconds=600, stop_at={MUTEX}).kinds


def timed():
    return Leasing(free=2)


def test_a_replacement_that_keeps_what_it_took_is_found(monkeypatch):
    monkeypatch.setattr(pidfile, "replaced", blindly)
    odd = left(GARBAGE)
    report = game("blind", soft(Impatient), original(), start=odd, crashes=0).run()
    assert report.kinds & {MUTEX, MIXED}, report


def blindly(files, path, judged, stamp, mine, clock):
    """Without a look at what the exchange took."""
    name, mine.name = mine.name, ""
    try:
        files.exchange(name, path)
    except FileNotFoundError:
        return False
    files.unlink(name)
    return True


def test_an_adoption_that_does_not_look_again_is_found(monkeypatch):
    monkeypatch.setattr(SoftLockRecord, "is_at", lambda self, path: True)
    dead = left(plain(DEAD_ONE, False))
    report = game("believes", soft(), original(), start=dead, crashes=0).run()
    assert report.kinds & {MUTEX, MIXED}, report


@pytest.mark.soak
def test_a_giving_back_that_removes_what_came_in_meanwhile_is_found(monkeypatch):
    """Of a release that removed the breaker's file, a newcomer, and an exchange that came late."""
    monkeypatch.setattr(pidfile, "give_back", carelessly)
    played = CLAIMS["filelock's lease: 2 clients beside filelock, a silent holder"].game()
    assert MUTEX in played.run(seconds=1800, stop_at={MUTEX}).kinds


def carelessly(files, path, name, ours, clock):
    """Whatever is under the name when our own file is gone counts as nobody's."""
    key = ours.dev, ours.ino
    try:
        while pidfile.leads(files, name, key) is False:
            here = pidfile.leads(files, path, key)
            if not files.fstat(ours.fd).st_nlink:
                break
            if here is not False:
                files.exchange(name, path)
    except FileNotFoundError:
        pass
    try:
        files.unlink(name)
    except FileNotFoundError:
        pass
