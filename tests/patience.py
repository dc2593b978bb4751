"""Waiting in tests for what must come, for as long as a busy machine may take."""

from __future__ import annotations

import threading
import time

from lifehold import LifeholdError, StoreUnavailable

SOON = 60.0  # seconds


def until(what, within=SOON):
    end = time.monotonic() + within
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


def at_last(act, within=SOON):
    """What `act()` answers, asked again while a store with a short `timeout` is too slow for it."""
    end = time.monotonic() + within
    while True:
        try:
            return act()
        except StoreUnavailable:
            assert time.monotonic() < end, "the store never answered in time"


def tried(act):
    """Whether the store has answered, be it by a refusal."""
    try:
        act()
    except StoreUnavailable:
        return False
    except LifeholdError:
        return True
    return True


def ended(act):
    """How `act()` ended, in a thread: whoever hangs would stop the other tests."""
    found = []

    def work():
        try:
            found.append(act())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SOON)
    assert found, "it hangs"
    return found[0]


def steadily(judge, tries=3):
    """What `judge()` answers, which a pause of the machine may spoil: a fault shows each time.

    For lengths of time and shares alone; it leaves nothing behind when its assert fails.
    """
    for _ in range(tries - 1):
        try:
            return judge()
        except AssertionError as error:
            print(f"once more: {error}")
    return judge()
