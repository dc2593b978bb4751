"""Variants of the soft reader/writer lock that are wrong. What is claimed: claims/readwrite.py."""

from __future__ import annotations

import pytest

from explore.claims.readwrite import KNOWN_BAD, WatchesTheFolder, client, game
from explore.claims.soft import NFS, TERMS
from lifehold.testing.explore import MUTEX, STUCK
from lifehold.testing.remembered import TimedRemembering

pytestmark = pytest.mark.large


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_a_known_bad_reader_or_writer_is_found(name):
    kind = KNOWN_BAD[name]
    played = game(name, client(writes=True, make=kind), client(writes=False, make=kind))
    report = played.run(seconds=60, stop_at={MUTEX})
    assert report.kinds == {MUTEX}, report


@pytest.mark.soak
def test_who_waits_for_a_reader_must_watch_its_own_marker():
    writer = client(writes=True, waits=True, make=WatchesTheFolder)
    played = game("watches the folder", writer, client(writes=False))
    report = played.run(seconds=1800, stop_at={STUCK})
    assert report.kinds == {STUCK}, report


class NeverAsks(TimedRemembering):
    """A file server's client that goes on to believe what it remembers of a folder."""

    def do_anew(self, world, me, path):
        world.found(path)


def test_a_reader_who_is_not_told_anew_who_claims_is_let_in_beside_the_writer():
    pair = [client(writes=each, terms=TERMS, place=NFS) for each in (True, False)]
    played = game("never asks", *pair, crashes=0, model=NeverAsks, newcomer=False)
    report = played.run(seconds=120, stop_at={MUTEX})
    assert report.kinds == {MUTEX}, report
