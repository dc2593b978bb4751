"""By which number a process of another PID namespace is called here.

Promise: a number is given only for a process that is, by its own namespace and its number there,
the one that was asked for; 0 says that none such can be seen, so no number of ours is its.
What fails: inside a container /proc shows only its own processes, and the namespace of another
user's process may not be read. Costs a look at each process, so it is for texts only.
"""

from __future__ import annotations

import os

from . import process
from .boot import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.owner import Owner

MOST = 1_000  # processes that are looked at: some 40 ms


def number_here(owner: Owner | None) -> int | None:
    """The number here of an owner in another PID namespace of this kernel, 0 when it is not seen.

    None for an owner of our own namespace, of another kernel, or without a namespace: its number
    is what its record says; and where there are too many processes to look at them all.
    """
    if owner is None or owner.pid_ns is None or owner.boot_id != boot_id():
        return None
    if owner.pid_ns == process.namespace("pid"):
        return None
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    for pid in pids[:MOST]:
        if process.goes_by(pid, owner):
            return pid
    return 0 if len(pids) <= MOST else None


def called(number: int) -> int | None:
    """A process that is called by `number` in a PID namespace below ours; None for nobody."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return None
    return next((pid for pid in pids if number in process.numbers_of(pid)[1:]), None)
