"""The number by which an owner of another PID namespace is called here."""

from __future__ import annotations

import os
import subprocess

import pytest

from ground import needs
from lifehold.core.owner import ALIVE, Owner
from lifehold.core.value import replace
from lifehold.local.identify import holder_of
from lifehold.local.judge import Judgement
from lifehold.local.record import CURRENT, ParsedRecord
from lifehold.runtime import process
from lifehold.runtime.process import boot_id, number_here

pytestmark = needs("linux", "proc")


@pytest.fixture
def inside():
    """A process that its own namespace calls 1, and what we call it."""
    with subprocess.Popen(
        ["unshare", "-pf", "--mount-proc", "--kill-child", "sh", "-c", "echo; exec sleep 60"],
        stdout=subprocess.PIPE,
    ) as outside:
        outside.stdout.readline()
        with open(f"/proc/{outside.pid}/task/{outside.pid}/children") as file:
            pid = int(file.read())
        yield pid
        outside.kill()


@needs("unshare")
def test_a_process_of_a_container_is_found_by_its_namespace_and_its_number_there(inside):
    owner = Owner(1, pid_ns=process.namespace("pid", inside), boot_id=boot_id())
    assert number_here(owner) == inside
    assert number_here(replace(owner, pid=4711)) == 0
    assert number_here(replace(owner, pid_ns=owner.pid_ns + 100_000)) == 0


def test_of_our_own_namespace_of_another_kernel_and_of_nobody_nothing_is_looked_for():
    ours = Owner(os.getpid(), pid_ns=process.namespace("pid"), boot_id=boot_id())
    assert number_here(ours) is None
    assert number_here(replace(ours, pid_ns=1, boot_id="another")) is None
    assert number_here(replace(ours, pid_ns=None)) is None
    assert number_here(None) is None


@pytest.fixture
def hidden(monkeypatch):
    """The namespaces of other processes cannot be read: they are another user's."""
    real = process.namespace
    ours = {"self", os.getpid()}
    monkeypatch.setattr(
        process, "namespace", lambda kind, pid="self": real(kind, pid) if pid in ours else None
    )


@needs("unshare")
def test_of_another_user_a_process_is_known_by_its_begin(inside, hidden):
    seen, spaces = process.look(inside), (process.namespace("time"), 4711)
    owner = Owner(1, pid_ns=4711, boot_id=boot_id(), time_ns=spaces[0])
    assert number_here(owner) == 0, "nothing can be compared"
    by_ticks = replace(owner, start_ticks=seen.start_ticks)
    assert number_here(by_ticks) == inside
    assert number_here(replace(by_ticks, pid=4711)) == 0
    assert number_here(replace(by_ticks, start_ticks=5)) == 0
    assert number_here(replace(by_ticks, time_ns=spaces[1])) == 0
    if seen.pidfd_ino is not None:
        by_pidfd = replace(by_ticks, time_ns=spaces[1], pidfd_ino=seen.pidfd_ino)
        assert number_here(by_pidfd) == inside
        assert number_here(replace(by_ticks, pidfd_ino=5)) == 0


def held_by(owner):
    """A record that `owner` left, whose witness is held."""
    marker = ParsedRecord(CURRENT, b"", "soft", owner, witness=True)
    return Judgement(ALIVE, "kernel witness", marker, 1, "x (soft lock)")


def test_a_living_holder_of_another_user_is_not_called_gone(hidden):
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            seen = process.look(child.pid)
            owner = replace(
                process.here(),
                pid=child.pid,
                start_ticks=seen.start_ticks,
                pidfd_ino=seen.pidfd_ino,
            )
            found = holder_of(held_by(owner))
            assert (found.evidence, found.pid_here) == ("kernel witness", child.pid)
            elsewhere = replace(owner, time_ns=4711, pidfd_ino=None)  # nothing can be compared
            assert holder_of(held_by(elsewhere)).evidence == "kernel witness"
        finally:
            child.kill()
    child.wait()
    assert f"process {owner.pid} is gone" in holder_of(held_by(owner)).evidence


def test_a_number_that_another_process_has_by_now_is_not_the_holder():
    owner = replace(process.here(), start_ticks=1, pidfd_ino=1)
    found = holder_of(held_by(owner))
    assert f"process {owner.pid} is gone" in found.evidence
    assert found.pid_here is None
