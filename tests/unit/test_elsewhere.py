"""The number by which an owner of another PID namespace is called here."""

from __future__ import annotations

import os
import subprocess

import pytest

from ground import needs
from lifehold.core.owner import Owner
from lifehold.core.value import replace
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
