"""A holder in another PID namespace dies: who waits is woken by that, and not by a clock.

Every look that a waiter makes by the clock is taken away here, so whoever was not told of the death
would sleep until the test fails.
"""

from __future__ import annotations

import threading

import pytest

from ground import needs
from lifehold import Cancel, Lock
from lifehold.core import acquire
from lifehold.core.deadline import NEVER
from lifehold.runtime import change_wait, watch_table, watch_thread
from soak.namespaces import NEW_PID_NAMESPACE, Peer

pytestmark = needs("root", "linux", "unshare")
PATIENCE = 60.0
KINDS = ["soft", "link", "generation", "directory"]


@pytest.fixture
def by_events_alone(monkeypatch):
    """Nobody looks by the clock: neither in vain after arming, nor the thread that listens."""
    asleep, arm, limit = threading.Event(), change_wait.ChangeWait.arm, change_wait.ChangeWait.limit

    def arm_once(self):
        arm(self)
        self._again = iter(())

    def before_it_sleeps(self, until):
        asleep.set()  # its look with the watch in place is over
        return limit(self, until)

    monkeypatch.setattr(change_wait.ChangeWait, "arm", arm_once)
    monkeypatch.setattr(change_wait.ChangeWait, "limit", before_it_sleeps)
    for module in (watch_table, watch_table, watch_thread):
        monkeypatch.setattr(module, "SWEEP", 1e6)
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 1e6)
    mine = watch_thread.WatchThread()
    monkeypatch.setattr(watch_thread, "near", mine)
    yield asleep
    mine.stop()
    mine.give_back()


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiter_is_woken_by_the_death_itself(kind, tmp_path, by_events_alone):
    asleep, cancel = by_events_alone, Cancel()
    lock, found = Lock(tmp_path / "lock", kind=kind, cancel=cancel), []
    lock._mechanism.safety = NEVER

    def wait():
        with lock as lease:  # what is free is taken by who is cancelled, too
            found.append(lease.token)

    with Peer(tmp_path, "holder", NEW_PID_NAMESPACE) as holder:
        holder.ready().ask("kind", kind)
        first = int(holder.ask("acquire", "0").split()[1])
        assert lock.holder().owner.pid == 1
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert asleep.wait(PATIENCE)
        holder.kill()
        waiter.join(PATIENCE)
        slept_on = waiter.is_alive()
        cancel.cancel()
        waiter.join()
    assert not slept_on
    assert found[0] > first
