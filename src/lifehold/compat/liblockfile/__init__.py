"""liblockfile(3) in Python: the same functions, numbers and lock files.

    from lifehold.compat.liblockfile import L_SUCCESS, lockfile_create, lockfile_remove

    if (status := lockfile_create("box.lock", 5)) != L_SUCCESS:
        print(status.why)

Old programs, dotlockfile(1) and these functions exclude each other on the same files. Promise,
rules and limits: calls.py, dotlock.py, dotlock.py; for people docs/how-to/migrate/dotlockfile.md.
"""

from __future__ import annotations

from .calls import lockfile_check, lockfile_create, lockfile_remove, lockfile_touch
from .mailbox import MAILDIR, maillock, mailunlock, touchlock
from .status import (
    L_ERROR,
    L_MANLOCK,
    L_MAXTRYS,
    L_NAMELEN,
    L_ORPHANED,
    L_PID,
    L_PPID,
    L_RMSTALE,
    L_SUCCESS,
    L_TMPLOCK,
    L_TMPWRITE,
    Status,
)

__all__ = [
    "L_ERROR",
    "L_MANLOCK",
    "L_MAXTRYS",
    "L_NAMELEN",
    "L_ORPHANED",
    "L_PID",
    "L_PPID",
    "L_RMSTALE",
    "L_SUCCESS",
    "L_TMPLOCK",
    "L_TMPWRITE",
    "MAILDIR",
    "Status",
    "lockfile_check",
    "lockfile_create",
    "lockfile_remove",
    "lockfile_touch",
    "maillock",
    "mailunlock",
    "touchlock",
]
