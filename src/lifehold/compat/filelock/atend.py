"""At the end of the program: locks that lie in a file system, and that nobody would release.

A kernel lock ends with its process; what is a file stays. Modules are taken apart before the last
objects are, so it is done before. A hold of a thread that still runs is left to it.
"""

from __future__ import annotations

import atexit
import contextlib
from typing import Any
from weakref import WeakSet

from ...runtime import fork

living: WeakSet[Any] = WeakSet()
sides: WeakSet[Any] = WeakSet()  # reader/writer locks


@atexit.register
def release_all() -> None:
    """Let go of everything whose thread is over, or is this one."""
    for lock in list(living):
        if lock._generation == fork.here():
            for hold in list(lock._holds):
                if hold.orphaned or hold is lock._context.hold:
                    with contextlib.suppress(Exception):
                        lock._release_last(hold)
    for each in list(sides):
        with contextlib.suppress(Exception):
            each.release(force=True)
