"""Several threads that wait on one Lock object: what one has seen does not say when another wakes.

Played in one thread: the second try is made in the middle of the first one.
"""

from __future__ import annotations

import os

import pytest

from ground import needs
from lifehold import Lock
from lifehold.compat.filelock import SoftFileLock
from lifehold.compat.filelock.soft import SoftFileMechanism
from lifehold.compat.filelock.system_calls import TABLE
from lifehold.core.acquire import Ask, acquire
from lifehold.core.deadline import NEVER
from lifehold.core.grant import Held
from lifehold.core.owner import UNKNOWN, LifeVerdict
from lifehold.core.value import replace
from lifehold.local.soft import SoftLock
from lifehold.runtime import clock
from lifehold.runtime.blocking import finish

pytestmark = needs("linux")
TTL = 60.0


class Asleep(Exception):
    """Raised where a waiter would go to sleep; tells until when, and for which process."""


class Runtime:
    """The clock of the machine, and nobody who sleeps."""

    def now(self):
        return clock.now()

    async def changed(self, ask, path, until, *, blind=False, pid=None):
        raise Asleep(path, until, pid)


def in_the_middle(mechanism, monkeypatch, between):
    """Of the next judgement: `between()` is called when it is made, and before it is acted on."""
    name = "judged_of" if isinstance(mechanism, SoftLock) else "judged"
    shipped = getattr(mechanism, name)

    def judged(*arguments):
        found = shipped(*arguments)
        monkeypatch.setattr(mechanism, name, shipped)
        return between(found) or found

    monkeypatch.setattr(mechanism, name, judged)


def sleeps(mechanism, answer):
    """Where, until when and for which process who was answered so goes to sleep."""
    mechanism.runtime = Runtime()
    with pytest.raises(Asleep) as told:
        finish(acquire(mechanism, Patient(), Ask("a"), answer))
    return told.value.args


class Patient(Runtime):
    """A caller without a deadline, for whom the first notice is far away."""

    def now(self):
        return clock.now() + 1e9


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory"])
def test_a_thread_wakes_when_the_lease_that_it_saw_runs_out(kind, tmp_path, monkeypatch):
    path = tmp_path / "a"
    mechanism = Lock(path, kind=kind, ttl=TTL)._mechanism
    if kind == "soft":
        mechanism.safety = NEVER
    first, second, answers = Lock(path, kind=kind), Lock(path, kind=kind, ttl=TTL), []
    first.acquire()

    def between(_):
        first.release()
        second.acquire()
        answers.append(mechanism.attempt())

    in_the_middle(mechanism, monkeypatch, between)
    before = clock.now()
    other = mechanism.attempt()  # its look is the older one, and it acts on it later
    assert isinstance(other, Held)
    _, until, _ = sleeps(mechanism, answers[0])
    assert before + TTL <= until <= clock.now() + TTL
    second.release()


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory"])
def test_a_thread_wakes_when_the_process_that_it_saw_ends(kind, tmp_path, monkeypatch):
    path = tmp_path / "a"
    mechanism = Lock(path, kind=kind)._mechanism
    holder, answers = Lock(path, kind=kind), []
    holder.acquire()

    def between(found):
        answers.append(mechanism.attempt())
        owner = replace(found.marker.owner, pid_ns=1)  # of another namespace
        return replace(found, marker=replace(found.marker, owner=owner))

    in_the_middle(mechanism, monkeypatch, between)
    assert isinstance(mechanism.attempt(), Held)
    assert sleeps(mechanism, answers[0])[2] == os.getpid()
    holder.release()


def test_a_thread_of_the_filelock_face_wakes_when_the_process_that_it_saw_ends(
    tmp_path, monkeypatch
):
    path, answers = str(tmp_path / "a"), []
    mechanism = SoftFileMechanism(path, Runtime(), TABLE, None)
    shipped = mechanism._judged

    def judged(found):
        monkeypatch.setattr(mechanism, "_judged", shipped)
        answers.append(mechanism.attempt())
        return b"1\nelsewhere\n", LifeVerdict(UNKNOWN, "")

    monkeypatch.setattr(mechanism, "_judged", judged)
    with SoftFileLock(path):
        assert isinstance(mechanism.attempt(), Held)
        assert sleeps(mechanism, answers[0])[2] == os.getpid()
