"""Who waits is woken by what others do, never by what its own looks do."""

from __future__ import annotations

import sys

import pytest

from lifehold import Lock, Timeout
from lifehold.local.kinds import KINDS
from lifehold.runtime import change_wait

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")


@pytest.mark.parametrize("used", ["new", "used"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kernel"])
def test_a_look_of_a_waiter_wakes_no_waiter(tmp_path, kind, used):
    """It looked without a pause, and wrote a record at each look, where it had held it before."""
    path = tmp_path / "jobs.lock"
    waiter = Lock(path, kind=kind, wait=1)
    if used == "used":
        waiter.acquire().release()
    looks = 0
    attempt = waiter._mechanism.attempt

    def counted():
        nonlocal looks
        looks += 1
        return attempt()

    waiter._mechanism.attempt = counted
    with Lock(path, kind=kind), pytest.raises(Timeout):
        waiter.acquire()
    more = {"folder": 20}  # it is looked at: lockfolder's own rule
    assert looks <= 2 + len(change_wait.AGAIN) + 2 * len(change_wait.ARMED) + more.get(kind, 0)
