"""How many others stand in the kernel's queue for a lock file, before us if we stand there too.

Promise: a number to be shown, true at the moment it was read. Nothing is decided by it: the kernel
hides who waits in other PID namespaces, so from inside a container it may be too small.
"""

from __future__ import annotations

import os

from . import holders, locktable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .files import Files


def waiters(files: Files, path: str) -> int | None:
    """None when the kernel's table cannot be read. The kernel lists the waiters as they came."""
    queue = holders.waiters_of(files, path)
    if not queue and not os.access(locktable.TABLE, os.R_OK):
        return None
    pids = [waiting.pid for waiting in queue]
    me = os.getpid()
    return len(pids[: pids.index(me)] if me in pids else pids)
