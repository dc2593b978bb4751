"""Who holds a lock: the identity record that every lock which can carry one does carry.

An identity is a process on a kernel, not a number: pid + start ticks + PID namespace + boot id, and
on kernels with pidfs the inode of the pidfd, which is never used twice in one boot. Start ticks are
not comparable across time namespaces, so that namespace belongs to the identity too (ADR 0002).
"""

from __future__ import annotations

from .value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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


TEXTS = frozenset({"host", "machine_id", "boot_id", "user", "container", "command", "label"})


def owner_of(read: Callable[[], object]) -> Owner | None:
    """The owner in a record that `read()` parses; None where that is torn, foreign or of no sense.

    L12  What a newer version wrote besides is not for us. No record makes a reader fail.
    """
    try:
        found = read()
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    known = {str(key): found[key] for key in Owner.__match_args__ if key in found}
    numbers = [item for key, item in known.items() if key not in TEXTS and item is not None]
    if known.get("pid") is None or any(type(each) is not int for each in numbers):
        return None
    if any(type(known.get(key, "")) not in {str, type(None)} for key in TEXTS):
        return None
    return Owner(**known)


@value
class Sighting:
    """What the kernel shows under one process number, here and now."""

    exists: bool
    is_thread: bool = False  # kill(tid, 0) succeeds on thread ids; such a number names no process
    is_zombie: bool = False  # nothing runs and nothing is open any more
    start_ticks: int | None = None
    pidfd_ino: int | None = None
    command: str | None = None
    thread_of: int | None = None  # the process of a thread


# ------------------------------------------------------------------------------------------------
# Whether the owner named in a record lives: ALIVE, DEAD or UNKNOWN, with the evidence in words.
#
# L2  Only a proof makes DEAD: the kernel witness is free, or the process is gone by identity; and a
#     proof counts only on a file system that one kernel alone can mount, since machine ids repeat
#     in images and boot ids in snapshot clones. A number from another PID namespace proves nothing.
#     What cannot be decided is UNKNOWN: waited for and reported, never taken.


ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"


@value
class LifeVerdict:
    """ALIVE, DEAD or UNKNOWN, and why."""

    state: str
    evidence: str


@value
class ObserverView:
    """What the observer knows of the place: the file system, itself, and what it may see.

    `one_kernel`: the file system can be mounted by one kernel only; `witness`: True while the
    kernel lock that proves life is held, False when it is free, None when there is none; `here`:
    the observer;
    `sees_all`: no process is hidden from it; `look`: what runs under a number in the observer's
    namespace; `elsewhere`: a process that has a number in another PID namespace, None for nobody.
    """

    one_kernel: bool
    witness: bool | None
    here: Owner
    sees_all: bool
    look: Callable[[int], Sighting]
    elsewhere: Callable[[int], int | None] = lambda number: None


def judge(owner: Owner, ground: ObserverView) -> LifeVerdict:
    """The one function that decides whether an owner lives (L2)."""
    if ground.witness is True:
        return LifeVerdict(ALIVE, "kernel witness")
    if not ground.one_kernel:
        return LifeVerdict(
            UNKNOWN, "a shared file system: ids and process numbers prove nothing here"
        )
    if ground.witness is False:
        return LifeVerdict(DEAD, "its kernel witness is free")
    here = ground.here
    if owner.boot_id is None and owner.pid_ns not in (None, here.pid_ns):
        return LifeVerdict(UNKNOWN, f"process {owner.pid} belongs to another PID namespace")
    if owner.boot_id is None or owner.pid_ns is None:
        return _judge_bare_number(owner, ground)
    if here.boot_id is None or here.pid_ns is None:
        return LifeVerdict(UNKNOWN, "this process cannot read its own boot id or PID namespace")
    if owner.boot_id != here.boot_id:
        return LifeVerdict(DEAD, "the machine has been restarted since")
    if owner.pid_ns != here.pid_ns:
        return LifeVerdict(UNKNOWN, f"process {owner.pid} belongs to another PID namespace")
    return _judge_process(owner, ground.look(owner.pid), ground)


def _judge_process(owner: Owner, seen: Sighting, ground: ObserverView) -> LifeVerdict:
    """Same kernel, same boot, same PID namespace: the number can be looked up."""
    pid = owner.pid
    if not seen.exists:
        return LifeVerdict(DEAD, f"no process {pid} any more")
    if seen.is_thread:
        return LifeVerdict(DEAD, f"{pid} is now the number of a thread, not of a process")
    if seen.is_zombie:
        return LifeVerdict(DEAD, f"process {pid} has ended and waits to be reaped")
    if owner.pidfd_ino is not None and seen.pidfd_ino is not None:
        if owner.pidfd_ino == seen.pidfd_ino:
            return LifeVerdict(ALIVE, f"process {pid} runs, same pidfd inode")
        return LifeVerdict(DEAD, f"{pid} was given to another process (pidfd inode)")
    if owner.start_ticks is None or seen.start_ticks is None:
        return LifeVerdict(UNKNOWN, f"a process {pid} runs, its start time cannot be compared")
    if owner.time_ns != ground.here.time_ns:
        return LifeVerdict(
            UNKNOWN, f"a process {pid} runs, its start time is of another time namespace"
        )
    if owner.start_ticks != seen.start_ticks:
        return LifeVerdict(DEAD, f"{pid} was given to another process (start time)")
    return LifeVerdict(ALIVE, f"process {pid} runs, same start time")


def _judge_bare_number(owner: Owner, ground: ObserverView) -> LifeVerdict:
    """An older format that names a number and nothing else."""
    if ground.here.pid_ns != INITIAL_PID_NAMESPACE or not ground.sees_all:
        return LifeVerdict(
            UNKNOWN, f"a bare process number {owner.pid}, and not all processes are visible here"
        )
    seen = ground.look(owner.pid)
    if seen.is_thread:  # of a tool that we do not know: to kill(2) this number lives
        what = f"{owner.pid} is the number of a thread of process {seen.thread_of}: it may be meant"
        return LifeVerdict(UNKNOWN, what)
    if seen.exists and not seen.is_zombie:
        return LifeVerdict(UNKNOWN, f"some process has the number {owner.pid}")
    other = ground.elsewhere(owner.pid)  # a container writes its own number into a shared folder
    if other is not None:
        what = f"process {other} is called {owner.pid} in its own PID namespace: it may be meant"
        return LifeVerdict(UNKNOWN, what)
    return LifeVerdict(DEAD, f"no process {owner.pid} any more")
