"""How long the machine let us lie: a thread that wants to wake often, and notes how late it did.

Promise: a pause of all threads of this process that lasts longer than some milliseconds is seen.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..runtime import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY = 0.005  # seconds


@contextmanager
def pauses() -> Iterator[Callable[[], float]]:
    """Asked, the longest pause since the block began, in seconds."""
    end = threading.Event()
    longest = [0.0]

    def watch() -> None:
        before = clock.now()
        while not end.wait(EVERY):
            now = clock.now()
            longest[0] = max(longest[0], now - before - EVERY)
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: longest[0]
    finally:
        end.set()
        thread.join()
