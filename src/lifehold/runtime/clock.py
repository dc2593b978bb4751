"""The one monotonic clock of the library.

It counts the time the machine was suspended (ADR 0003).
"""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def now() -> float:
        """Seconds. CLOCK_MONOTONIC would stand still while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def now() -> float:
        """Seconds. On macOS the clock stands still in sleep, and CPython offers no other.

        A suspended holder then believes in its lease for too long, and only the token protects.
        """
        return time.monotonic()


utc_now = time.time  # for people and records only; nothing is ever decided by it
utc_ns = time.time_ns
pause = time.sleep
