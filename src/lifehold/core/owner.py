"""Who holds a lock: the identity record that every lock which can carry one does carry.

An identity is a process on a kernel, not a number: pid + start ticks + PID namespace + boot id, and
on kernels with pidfs the inode of the pidfd, which is never used twice in one boot. Start ticks are
not comparable across time namespaces, so that namespace belongs to the identity too (ADR 0002).
"""

from __future__ import annotations

from .value import value

INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of include/linux/proc_ns.h


@value
class Owner:
    """One process, thread and reason. Any field but `pid` may be None.

    Not readable there, or an older format.

    `pid` is the thread-group id, in the PID namespace `pid_ns` (an inode number); `start_ticks` are
    clock ticks since boot as seen in the time namespace `time_ns`; `command` is masked (L11).
    """

    pid: int
    host: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    pid_ns: int | None = None
    time_ns: int | None = None
    start_ticks: int | None = None
    pidfd_ino: int | None = None
    thread: int | None = None
    uid: int | None = None
    user: str | None = None
    container: str | None = None
    command: str | None = None
    label: str = ""


@value
class Sighting:
    """What the kernel shows under one process number, here and now."""

    exists: bool
    is_thread: bool = False  # kill(tid, 0) succeeds on thread ids; such a number names no process
    is_zombie: bool = False  # nothing runs and nothing is open any more
    start_ticks: int | None = None
    pidfd_ino: int | None = None
    command: str | None = None
