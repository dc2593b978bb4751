"""The one monotonic clock of the library.

It counts the time the machine was suspended (ADR 0003).
"""

from __future__ import annotations

import sys
import time

from . import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

now: Callable[[], float]
if sys.platform == "linux":
    # Seconds. CLOCK_MONOTONIC would stand still while the machine is suspended.
    now = native.bound(time.clock_gettime, time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":
    # Seconds. time.monotonic() would stand still in sleep; this clock of macOS goes on.
    now = native.bound(time.clock_gettime, time.CLOCK_MONOTONIC_RAW)

else:
    # Seconds. On Windows since 10 this clock goes on in sleep.
    now = time.monotonic


utc_now = time.time  # for people and records only; nothing is ever decided by it
utc_ns = time.time_ns


def pause(seconds: float) -> None:
    """Sleep; of a greenlet, while the others run."""
    if native.is_replaced():
        greenlets = sys.modules.get("lifehold.runtime.greenlets") or _greenlets()
        if (way := greenlets.way()) is not None:
            way.sleep(seconds)
            return
    native.sleep(seconds)


def _greenlets() -> Any:
    from . import greenlets

    return greenlets
