"""Who holds a kernel lock.

The record in the file, compared with what the kernel says in /proc/locks.

The record alone names the *last* holder of a file that flock(1) may hold now; /proc/locks alone
names the process that called flock(2), which may be dead while its child holds on, and shows only
our own PID namespace. Together they are honest. Takes no lock, so it disturbs nobody's try, but
where neither can tell: there `is_taken` tries shared.
"""

from __future__ import annotations

import errno

from ..core.errors import CorruptRecord
from ..core.grant import Holder
from ..core.liveness import ALIVE, DEAD, judge
from ..core.owner import INITIAL_PID_NAMESPACE, Owner
from ..core.value import replace
from ..runtime import process
from .files import LOCK_NB, LOCK_SH, READ_ONLY, Files
from .ground import Place, place_of
from .locktable import FLOCK, KernelLine, Waiting, key_of, lines_of, waiters_of
from .record import SIZE, Record, as_holder, parse
from .refusals import refused

__all__ = ["Waiting", "holder_of", "is_taken", "waiters_of"]


def holder_of(files: Files, path: str, held: bool) -> Holder | None:
    """Who holds flock(2) on the file at `path`, None for nobody.

    `held`: we have just been refused.
    """
    try:
        place, lines, record = _read(files, path)
    except OSError as error:
        if held:
            return Holder(evidence=f"the lock file cannot be read: {error.strerror}")
        if error.errno == errno.ENOENT:
            return None
        raise refused(path, error) from error
    setters = [line for line in lines or [] if line.kind == FLOCK and not line.waiting]
    lock = f"{path} (kernel lock, {place.words})"
    if setters:
        return _seen(record, setters[0], lock)
    if not held and lines is None:  # no /proc/locks, as on macOS: flock itself has to tell
        held = is_taken(files, path)
        if not held:
            return None
    if not held and (lines is not None and process.namespace("pid") == INITIAL_PID_NAMESPACE):
        return None  # nothing is hidden from us: it is free
    if not held:
        unseen = _unseen(record, place, lock)
        if unseen is None or unseen.alive != DEAD:
            return unseen
        # The proof is another boot id, and a container may be given one: flock itself has to tell.
        if not is_taken(files, path):
            return None
    return _refused(record, lines, lock)


def _read(files: Files, path: str) -> tuple[Place, list[KernelLine] | None, Record | None]:
    """Where the lock file lies, what the kernel shows of it, and its record."""
    fd = files.open(path, READ_ONLY)
    try:
        place = place_of(fd)
        lines = lines_of([key_of(fd)])
        try:
            record = parse(files.pread(fd, SIZE, 0))
        except IsADirectoryError:  # flock(1) locks folders as well
            record = None
        except CorruptRecord:
            record = Record(None, None, None, None, torn=True)
    finally:
        files.close(fd)
    return place, lines, record


def _seen(record: Record | None, line: KernelLine, lock: str) -> Holder:
    """The kernel names the process that called flock(2)."""
    owner = record.owner if record else None
    witness = "kernel witness"
    if owner is not None and owner.pid == line.pid and owner.pid_ns == process.namespace("pid"):
        verdict = judge(owner, process.ground(True, None))
        if verdict.state != DEAD:
            assert record is not None
            return replace(as_holder(record, lock), alive=ALIVE, evidence=witness)
        note = f"{witness}; {verdict.evidence}, a process that inherited its open file holds on"
        assert record is not None
        return replace(as_holder(record, lock), alive=ALIVE, evidence=note)
    if owner is not None and process.goes_by(line.pid, owner):
        assert record is not None
        note = f"{witness}; it is process {line.pid} as seen from here"
        return replace(as_holder(record, lock), alive=ALIVE, evidence=note)
    if not process.look(line.pid).exists:
        note = (
            f"{witness}; process {line.pid} locked it and is gone, one that "
            "inherited its open file holds on"
        )
        return Holder(Owner(pid=line.pid), alive=ALIVE, evidence=note, lock=lock)
    shared = "" if line.exclusive else ", shared"
    note = f"{witness}{shared}; it left no record"
    return Holder(process.owner_of(line.pid), alive=ALIVE, evidence=note, lock=lock)


def _refused(record: Record | None, lines: list[KernelLine] | None, lock: str) -> Holder:
    """flock(2) said "held", and /proc/locks does not show by whom.

    Another PID namespace, or no /proc.
    """
    why = (
        "kernel witness"
        if lines is None
        else "kernel witness; its process is not visible from here"
    )
    if record is None or record.owner is None:
        return Holder(alive=ALIVE, evidence=why, lock=lock)
    return replace(as_holder(record, lock), alive=ALIVE, evidence=why)


def _unseen(record: Record | None, place: Place, lock: str) -> Holder | None:
    """Nobody refused us and nothing is shown, but holders of other PID namespaces would not be.

    None when the record names nobody who could be hidden; else the verdict on its owner, which is
    UNKNOWN, or DEAD for another boot id.
    """
    if record is None or record.owner is None:
        return None
    if record.owner.pid_ns == process.namespace("pid"):
        return None
    verdict = judge(record.owner, process.ground(place.one_kernel, None))
    return replace(as_holder(record, lock), alive=verdict.state, evidence=verdict.evidence)


def is_taken(files: Files, path: str) -> bool:
    """Whether anybody holds flock(2) on the file.

    /proc/locks hides what other PID namespaces hold. Inside one we must try: shared, for some
    microseconds, in which only another's exclusive try without patience can be turned away.
    """
    try:
        fd = files.open(path, READ_ONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(path, error) from error
    try:
        lines = lines_of([key_of(fd)])
        if any(line.kind == FLOCK and not line.waiting for line in lines or []):
            return True
        if lines is not None and process.namespace("pid") == INITIAL_PID_NAMESPACE:
            return False
        files.flock(fd, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        files.close(fd)
    return False
