"""Waiting in tests for what must come, for as long as a busy machine may take."""

from __future__ import annotations

import time

SOON = 30.0  # seconds


def until(what, within=SOON):
    end = time.monotonic() + within
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)
