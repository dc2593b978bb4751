"""What happened to a lock, as frozen records: the public path of core/events.py.

from lifehold import events

stop = events.subscribe(print)   # an event for each grant, loss, renewal, release
stop()
"""

from __future__ import annotations

from .core.events import (
    Acquired,
    Broken,
    Cleared,
    Event,
    HandedOver,
    InDoubt,
    Lost,
    Released,
    Renewed,
    Skipped,
    Suspended,
    TakenOver,
    Waiting,
    subscribe,
)

__all__ = [
    "Acquired",
    "Broken",
    "Cleared",
    "Event",
    "HandedOver",
    "InDoubt",
    "Lost",
    "Released",
    "Renewed",
    "Skipped",
    "Suspended",
    "TakenOver",
    "Waiting",
    "subscribe",
]
