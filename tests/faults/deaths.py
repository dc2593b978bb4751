"""Faults of the holder itself: killed, out of memory, stopped, forked behind Python's back."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

from faults.cell import fault
from faults.rows import TTL


def leased(row):
    return "it has a ttl" if row.leased else ""


def unleased(row):
    return "" if row.leased else "it has no ttl"


@fault("kill -9, somebody waits")
def killed_with_a_waiter(scene):
    holder, waiter = scene.party(), scene.party()
    scene.holds(holder.ready())
    scene.is_refused(waiter.ready())
    waiter.tell("acquire", "None")
    time.sleep(0.1)  # it waits by now; nothing hangs on it
    at = holder.kill()
    scene.recovers(waiter, at, scene.row.proof, asked=True)
    scene.goes_on(waiter)


@fault("kill -9, nobody waits")
def killed_alone(scene):
    holder, following = scene.party(), scene.party()
    scene.holds(holder.ready())
    following.ready()
    holder.kill()
    holder.ended()
    scene.recovers(following, time.monotonic(), scene.row.proof)
    scene.goes_on(following)


@fault("two holders killed in turn")
def killed_twice(scene):
    parties = [scene.party() for _ in range(3)]
    scene.holds(parties[0].ready())
    for party, following in itertools.pairwise(parties):
        following.ready().tell("acquire", "None")
        at = party.kill()
        scene.recovers(following, at, scene.row.proof, asked=True)
    scene.goes_on(parties[-1])


@fault("SIGTERM in a wait and in the hold")
def terminated(scene):
    holder, waiter, following = scene.party(), scene.party(), scene.party()
    scene.holds(holder.ready())
    waiter.ready().tell("acquire", "None")
    following.ready()
    waiter.kill(signal.SIGTERM)
    scene.is_refused(following)
    at = holder.kill(signal.SIGTERM)
    scene.recovers(following, at, scene.row.proof)
    scene.goes_on(following)


@fault("stopped beyond its ttl", unless=unleased)
def stopped(scene):
    holder, waiter = scene.party(), scene.party()
    scene.holds(holder.ready())
    scene.is_refused(waiter.ready())
    at = holder.stop()
    scene.recovers(waiter, at, scene.row.lease)
    holder.resume()
    scene.is_told(holder)
    scene.goes_on(waiter)


@fault("stopped, without a ttl", unless=leased)
def stopped_for_long(scene):
    holder, other = scene.party(), scene.party()
    scene.holds(holder.ready())
    other.ready()
    holder.stop()
    scene.is_robbed_never(other, 0.5)
    holder.resume()
    scene.goes_on(holder)


@fault("stopped for less than its ttl", unless=unleased)
def stopped_for_a_while(scene):
    holder, other = scene.party(), scene.party()
    scene.holds(holder.ready())
    other.ready()
    for _ in range(2):
        holder.stop()
        scene.is_robbed_never(other, TTL / 4)
        holder.resume()
        time.sleep(TTL / 2)
    scene.goes_on(holder)


@fault("out of memory", "memory cgroup")
def out_of_memory(scene):
    holder, waiter = scene.party(), scene.party()
    holder.ready(), waiter.ready()
    with Limited(holder.pid, 64 << 20):
        scene.holds(holder)
        waiter.tell("acquire", "None")
        Path(scene.yard, f"killed.{holder.name}").touch()
        holder.tell("eat")
        holder.ended()
        scene.recovers(waiter, time.monotonic(), scene.row.proof, asked=True)
    scene.goes_on(waiter)


@fault("forked by C code, then killed")
def forked_in_c(scene):
    """The child inherits every descriptor, and with it a witness: that is no death to the kernel.

    When the child ends too, the lock is free at once.
    """
    holder, other = scene.party(), scene.party()
    scene.holds(holder.ready())
    child = holder.ask("fork_in_c")["pid"]
    scene.is_refused(other.ready())
    holder.kill()
    os.kill(child, signal.SIGKILL)
    scene.recovers(other, time.monotonic(), scene.row.proof)
    scene.goes_on(other)


class Limited:
    """A memory cgroup with a limit, of version 1 or 2, and one process in it."""

    def __init__(self, pid, size):
        self.group = Path(memory_cgroup(), f"lifehold-fault-{os.getpid()}")
        self.pid, self.size = pid, size

    def __enter__(self):
        self.group.mkdir()
        old = self.group / "memory.limit_in_bytes"
        (old if old.exists() else self.group / "memory.max").write_text(str(self.size))
        swap = self.group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        (self.group / "cgroup.procs").write_text(str(self.pid))

    def __exit__(self, *_):
        until = time.monotonic() + 60
        while True:
            try:
                return self.group.rmdir()
            except OSError:
                assert time.monotonic() < until, "the cgroup is still in use"
                time.sleep(0.01)


def memory_cgroup():
    """Where a memory cgroup can be made; None for nowhere."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            return where
        if kind == "cgroup2" and "memory" in Path(where, "cgroup.subtree_control").read_text():
            return where
    return None
