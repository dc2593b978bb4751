"""What tests of runtime/watch_thread.py listen with."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from lifehold.runtime import watch_table, watch_thread


class Bell:
    """Counts its rings; `heard()` waits for one since the last time."""

    def __init__(self):
        self.event, self.count = threading.Event(), 0

    def ring(self):
        self.count += 1
        self.event.set()

    def heard(self, within=60.0):
        came = self.event.wait(within)
        self.event.clear()
        return came


def no_sweep(monkeypatch):
    """Whoever is told from here on is told by an event: no look comes in time."""
    for module in (watch_table, watch_thread):
        monkeypatch.setattr(module, "SWEEP", 600.0)


@contextmanager
def watching(path, ring, **options):
    watch = watch_thread.watch(str(path), ring, **options)
    try:
        yield watch
    finally:
        watch.close()
