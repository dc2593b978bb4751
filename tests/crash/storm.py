"""A storm of kill -9 on processes that contend for one lock, and its figures."""

from __future__ import annotations

import os
import random
import time

from crash.scene import Section, free
from lifehold import Lock
from lifehold.testing.crash import Child


def worker(folder):
    """Acquires, stands in the section for a moment, releases, for ever."""
    section, lock = Section(folder), Lock(os.path.join(folder, "lock"))
    random.seed()
    while True:
        with lock as lease:
            section("ours", lease.token, random.random() * 0.002)


def said(crew):
    """Why nobody gets in: those that have ended by themselves, with their last words."""
    ended = [each for each in crew if not os.path.exists(f"/proc/{each.pid}/fd/0")]
    return "nobody gets in any more: " + "\n".join(each.end().error for each in ended)


def storm(folder, processes, kills, seconds):
    """Kill one of the workers again and again; every fifth time all of them at once."""
    section = Section(folder)
    crew = [Child(worker, folder) for _ in range(processes)]
    killed_at, until = [], time.monotonic() + seconds
    try:
        while len(killed_at) < kills and time.monotonic() < until:
            entered = len(section.entries)
            while len(section.entries) < entered + random.randrange(1, 6):
                time.sleep(random.random() * 0.003)
                assert section.overlaps == 0
                assert time.monotonic() < until + 30, said(crew)
            victims = crew if len(killed_at) % 5 == 4 else [random.choice(crew)]
            for victim in list(victims):
                section.killed(victim.pid)
                victim.signal(9)
                killed_at.append(time.monotonic_ns())
            for victim in list(victims):
                victim.__exit__(None, None, None)
                crew[crew.index(victim)] = Child(worker, folder)
    finally:
        for victim in crew:
            section.killed(victim.pid)
            victim.__exit__(None, None, None)
    entries = section.entries
    times, lags = [ns for _, _, ns in entries], []
    for instant in killed_at:
        later = [ns for ns in times if ns > instant]
        lags += [(later[0] - instant) / 1e6] if later else []
    lags.sort()
    return {
        "kills": len(killed_at), "grants": len(entries), "overlaps": section.overlaps,
        "tokens grow": section.tokens_grow(), "free at the end": free(os.path.join(folder, "lock")),
        "p50 ms": lags[len(lags) // 2], "p99 ms": lags[len(lags) * 99 // 100], "max ms": lags[-1],
    }  # fmt: skip
