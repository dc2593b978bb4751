"""When people are told that they wait: after 2 seconds, 6, 14, 30, 62, 122, and so on.

One schedule for all: `Lock`, stores, `lifehold flock`, `dotlockfile`, the locks of redis-py.
Nothing is imported here, since a command that only starts needs it too.
"""

from __future__ import annotations

FIRST_NOTICE = 2.0  # seconds of waiting until the first notice; each gap is twice the one before
LONGEST_GAP = 60.0  # seconds between two notices, at most
