"""What a waiter costs while it waits: its CPU, of one process for each, all at the same time."""

from __future__ import annotations

import os
import resource
import tempfile
import time

from . import rivals
from .contest import answer, forked
from .measure import Line, Plan

BUDGET_MS = 20.0  # for 60 s


def cpu(plan: Plan) -> list[Line]:
    """Everybody waits for as long, beside the others; import and first use are part of it.

    Each in a folder of its own: some make and remove files while they wait, which would wake those
    who are told of what happens in a folder.
    """
    seconds = plan.of(5, 60)
    with tempfile.TemporaryDirectory(prefix="lifehold-bench-", dir=plan.disk) as folder:
        chosen, _ = rivals.present({**rivals.KERNEL, **rivals.SOFT}, folder)
    lines = []
    with tempfile.TemporaryDirectory(prefix="lifehold-bench-", dir=plan.disk) as folder:
        paths = {name: f"{tempfile.mkdtemp(dir=folder)}/lock" for name in chosen}
        locks = {name: make(paths[name]) for name, make in chosen.items()}
        for lock in locks.values():
            lock.acquire()

        def wait(name: str) -> float:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # who holds it is told there
            lock = chosen[name](paths[name])
            before = _used()
            lock.acquire()
            used = _used() - before
            lock.release()
            return used

        started = {name: forked(lambda name=name: wait(name)) for name in chosen}  # type: ignore[misc]
        time.sleep(seconds)
        for lock in locks.values():
            lock.release()
        for name, (pid, pipe) in started.items():
            budget = BUDGET_MS if name.startswith("lifehold") else None
            lines.append(Line(f"CPU of a waiter in {seconds} s", name, answer(pid, pipe) * 1000,
                              "ms", budget=budget, of="value", count=1))  # fmt: skip
    return lines


def _used() -> float:
    """Seconds of CPU of this process and of those that it has waited for."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)
