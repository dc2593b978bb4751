"""Variants of the soft reader/writer lock that are wrong. What is claimed: testing/proofs.py."""

from __future__ import annotations

import pytest

from lifehold.testing.explore import MUTEX, STUCK
from lifehold.testing.proofs_readwrite import KNOWN_BAD, WatchesTheFolder, client, game


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
