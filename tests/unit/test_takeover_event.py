"""Who takes a lock over tells it, of whichever kind: whose it was, and on what evidence."""

from __future__ import annotations

import pytest

from lifehold.core import events
from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant, Held
from lifehold.local import link
from lifehold.local.directory import DirectoryLock
from lifehold.local.generation import GenerationLock
from lifehold.local.judge import LivenessJudge
from lifehold.local.link import LinkLock
from lifehold.local.soft import SoftLock
from lifehold.local.soft_readwrite import SoftReadWrite
from lifehold.runtime.blocking import BLOCKING

TERMS = Terms(ttl=60.0, heartbeat=20.0, margin=6.0)
KINDS = {
    "directory": DirectoryLock, "generation": GenerationLock, "link": LinkLock, "soft": SoftLock,
    "soft writer": SoftReadWrite,
}  # fmt: skip


@pytest.fixture
def told():
    found = []
    leave = events.subscribe(found.append)
    yield found
    leave()


@pytest.mark.parametrize("kind", KINDS)
def test_a_takeover_is_told(kind, told, tmp_path, monkeypatch):
    monkeypatch.setattr(link, "SETTLE", 0.0)
    path = str(tmp_path / "lock")
    silent = KINDS[kind](path, BLOCKING, terms=TERMS)
    lost = silent.attempt()
    assert isinstance(lost, Grant)
    other = KINDS[kind](path, BLOCKING, terms=TERMS)
    assert isinstance(other.attempt(), Held)
    patience = LivenessJudge._timed  # its lease has run out while we watched

    def later(self, case, at, record, ttl, before, now):
        return patience(self, case, at, record, ttl, before + ttl, now)

    monkeypatch.setattr(LivenessJudge, "_timed", later)
    grant = other.attempt()
    assert isinstance(grant, Grant)
    assert grant.token > lost.token
    (event,) = [each for each in told if isinstance(each, events.TakenOver)]
    assert (event.name, event.nonce) == (path, grant.nonce)
    assert event.holder.nonce == lost.nonce
    assert "unchanged for 60 s" in event.evidence
    assert other.drop(grant) is None
    assert silent.drop(lost) is not None
