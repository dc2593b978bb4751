"""The one monotonic clock of the library.

It counts the time the machine was suspended (ADR 0003).
"""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def now(_read=time.clock_gettime, _clock=time.CLOCK_BOOTTIME) -> float:  # type: ignore[no-untyped-def]
        """Seconds.

        CLOCK_MONOTONIC stands still while a laptop or a virtual machine is suspended.
        """
        return _read(_clock)  # type: ignore[no-any-return]

else:
    # macOS: mach_absolute_time stops in sleep and CPython offers nothing else; a suspended holder
    # then believes in its lease for too long, and only the token protects. Windows: the tick count
    # goes on.
    now = time.monotonic

utc_now = time.time  # for people and records only; nothing is ever decided by it
utc_ns = time.time_ns
pause = time.sleep
