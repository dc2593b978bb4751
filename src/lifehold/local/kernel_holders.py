"""Who holds a kernel lock.

The record in the file, compared with what the kernel says in /proc/locks and of open files.

The record alone names the *last* holder of a file that flock(1) may hold now. /proc/locks alone
names the process that called flock(2), which may be gone while a child that inherited the open file
holds on, and shows only our own PID namespace. Together they are honest. Takes no lock, so it
disturbs nobody's try, but where neither can tell: there `how_taken` tries the lock for a moment.
"""

from __future__ import annotations

import errno
import os

from ..core.errors import CorruptRecord, pass_up
from ..core.grant import Holder
from ..core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN, Owner, judge
from ..core.value import replace, value
from ..runtime import clock, process
from ..runtime.process import boot_id, number_here
from . import proc_locks
from .files import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, READ_ONLY, Files
from .ground import MountInfo, place_of
from .proc_locks import (
    FLOCK,
    OFD,
    KernelLine,
    Key,
    OpenFileScan,
    key_of,
    lines_of,
    mappers,
    shares_descriptors,
)
from .record import SIZE, Record, as_holder, is_newer, parse
from .refusals import JUST_RELEASED, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "HolderLook",
    "KernelWaiter",
    "heirs_of",
    "held_by",
    "holder_of",
    "how_taken",
    "is_taken",
    "look_at",
    "those_in_line",
    "waiters_of",
]

WITNESS = "kernel witness"
OF_NEWER = "its record is of a newer lifehold, which may know other holders"
LOOKS = 3  # a lock may change hands while we look: how often we look again
RESTLESS = f"{WITNESS}; it changes hands faster than can be looked"


@value
class HolderLook:
    """What one look at a lock file shows.

    `lines`: of the kernel's table, waiters included, None where there is none; `record`: ours;
    `newer`: it is of a later version.
    """

    path: str
    place: MountInfo
    key: Key
    lines: list[KernelLine] | None
    record: Record | None
    newer: bool

    def setters(self, kind: str) -> list[KernelLine]:
        return [line for line in self.lines or () if line.kind == kind and not line.waiting]

    @property
    def lock(self) -> str:
        return f"{self.path} (kernel lock, {self.place.words})"


def holder_of(files: Files, path: str, held: bool) -> Holder | None:
    """Who holds flock(2) on the file at `path`, None for nobody.

    `held`: we have just been refused.
    """
    before = None
    for _ in range(LOOKS):
        try:
            seen = look_at(files, path)
        except OSError as error:
            pass_up(error)
            gone = error.errno == errno.ENOENT
            if held:
                why = f"the lock file cannot be read: {error.strerror}"
                return Holder(evidence=JUST_RELEASED if gone else why)
            if gone:
                return None
            raise refused(path, error) from error
        setters = seen.setters(FLOCK)
        if not setters:
            return _unshown(files, seen, held)
        holder = held_by(seen, setters[0])
        now = lines_of([seen.key])
        if now is None or setters[0] in now:  # the record that we read was that of this holder
            if said(holder) == before or is_recorded(seen, setters[0], holder):
                return holder
            before = said(holder)
    return Holder(alive=ALIVE, evidence=RESTLESS, lock=seen.lock)


def said(holder: Holder) -> object:
    """What two looks at one holder have in common; `began` is reckoned anew, from two clocks."""
    return holder.owner, holder.nonce, holder.evidence


def is_recorded(seen: HolderLook, line: KernelLine, holder: Holder) -> bool:
    """Whether the kernel's holder is whom the record names, if one is expected there.

    Else somebody holds it who writes no record, or inherited it; or it went to another, and came
    back, while we looked. Two looks tell the one from the other. Who shares it writes none.
    """
    record, owner = seen.record, holder.owner
    if owner is None:
        return False
    if record is None or record.owner is None or not line.exclusive:
        return True
    return (owner.pid, holder.nonce) == (record.owner.pid, record.nonce)


def look_at(
    files: Files,
    path: str,
    fd: int | None = None,
    *,
    readable: bool = True,
    table: Callable[[Key], list[KernelLine] | None] | None = None,
) -> HolderLook:
    """One look at the lock file at `path`, through `fd` when it is open already.

    `readable`: false for a descriptor that was opened with O_PATH; `table`: what the kernel shows
    of a file, when that was read already.
    """
    newer = False
    opened = files.open(path, READ_ONLY) if fd is None else fd
    try:
        key = key_of(opened)
        lines = lines_of([key]) if table is None else table(key)
        try:
            content = files.pread(opened, SIZE, 0) if readable else b""
            record, newer = parse(content), is_newer(content)
        except IsADirectoryError:  # flock(1) locks folders as well
            record = None
        except CorruptRecord:
            record = Record(None, None, None, None, torn=True)
        return HolderLook(path, place_of(opened), key, lines, record, newer)
    finally:
        if fd is None:
            files.close(opened)


def held_by(
    seen: HolderLook, line: KernelLine, into: Callable[[int], OpenFileScan] | None = None
) -> Holder:
    """Who has the lock that the kernel shows in `line`, of a process that called flock(2).

    `into`: a survey of one process, or of all for 0, when there is one already.
    """
    if line.pid <= 0:  # a process of another PID namespace
        return _refused(seen)
    survey = OpenFileScan([_name(seen)], [line.pid]) if into is None else into(line.pid)
    setter, record = process.look(line.pid), seen.record
    owner = record.owner if record else None
    here = owner is not None and owner.pid_ns == process.namespace("pid")
    named = owner is not None and (
        owner.pid == line.pid if here else process.goes_by(line.pid, owner)
    )
    gone, why = not setter.exists or setter.is_zombie, f"no process {line.pid} any more"
    if named and here and not gone:
        assert owner is not None
        # A container may have been given another boot id; the kernel shows that it is this boot.
        verdict = judge(replace(owner, boot_id=boot_id()), process.ground(True, None))
        if verdict.state == DEAD:
            gone, why = True, verdict.evidence
            if _has(survey, line.pid, seen, False):  # its number's next process did
                gone = named = False
    has = not gone and _has(survey, line.pid, seen, True)
    if not has:
        survey = OpenFileScan([_name(seen)], after=line.pid) if into is None else into(0)
        # It may have let go before the first survey, and taken it again before this one.
        has = not gone and line.pid in [file.pid for file in survey.holding(seen.key, FLOCK)]
    if has:
        return _setter(seen, line, record if named else None)
    heir = _heir(seen, survey, line, record if named else None, gone)
    if heir is not None:
        return heir
    if not gone:
        return _unopened(seen, line, survey, record if named else None)
    if not _unseen_words(survey) and (mapped := mappers(seen.key)):
        return _mapper(seen, mapped[0], f"{WITNESS}; {why}")
    note = f"{WITNESS}; {why}, a process that inherited its open file holds on"
    left = Holder(Owner(pid=line.pid)) if not named or record is None else as_holder(record, "")
    return replace(left, alive=ALIVE, evidence=note + _unseen_words(survey), lock=seen.lock)


def _setter(seen: HolderLook, line: KernelLine, record: Record | None) -> Holder:
    """The process that called flock(2), by its `record` where it left one."""
    if record is None or record.owner is None:
        return _stranger(seen, line)
    here = record.owner.pid_ns == process.namespace("pid")
    note = "" if here else f"; it is process {line.pid} as seen from here"
    left = as_holder(record, seen.lock)
    return replace(left, alive=ALIVE, evidence=WITNESS + note, pid_here=line.pid)


def _stranger(seen: HolderLook, line: KernelLine) -> Holder:
    """A holder that is none of ours: what its process tells."""
    shared = "" if line.exclusive else ", shared"
    note = f"{WITNESS}{shared}; it left no record"
    owner = process.owner_of(line.pid)
    told = Holder(owner, alive=ALIVE, evidence=note, lock=seen.lock)
    return replace(told, pid_here=line.pid, began=process.started_at(line.pid))


def _unopened(
    seen: HolderLook, line: KernelLine, survey: OpenFileScan, record: Record | None
) -> Holder:
    """Its setter lives and has it open no more: what keeps it is no descriptor that can be seen.

    Else it let go while we looked, or a process that we may not look into has it.
    """
    if not survey.may_look_into(line.pid) or _unseen_words(survey):
        return _stranger(seen, line)
    if not shares_descriptors(line.pid):  # a thread of its own may have it
        return _stranger(seen, line)
    if _comes_and_goes(seen, line):
        return _setter(seen, line, record)
    mapped = mappers(seen.key)
    if line.pid in mapped:
        return _stranger(seen, line)
    note = f"{WITNESS}; process {line.pid} locked it and has it open no more"
    if not mapped:
        note += "; a mapping or a descriptor on its way keeps it"
        return Holder(alive=ALIVE, evidence=note, lock=seen.lock)
    return _mapper(seen, mapped[0], note)


def _comes_and_goes(seen: HolderLook, line: KernelLine) -> bool:
    """Whether the setter was seen to let go, or has it open: it takes the lock again and again.

    No two looks at one instant are to be had, so neither may have met the moments of its holding.
    """
    for _ in range(PROBES):
        clock.pause(PAUSE)
        if line not in (lines_of([seen.key]) or ()):
            return True
        if OpenFileScan([_name(seen)], [line.pid]).holding(seen.key, FLOCK):
            return True
    return False


def _mapper(seen: HolderLook, pid: int, note: str) -> Holder:
    """One that keeps the lock by its memory, as far as can be seen."""
    owner, began = process.owner_of(pid), process.started_at(pid)
    told = Holder(owner, alive=ALIVE, evidence=f"{note}, this one has it mapped", lock=seen.lock)
    return replace(told, pid_here=pid, began=began)


def _has(survey: OpenFileScan, pid: int, seen: HolderLook, otherwise: bool) -> bool:
    """Whether the process has the locked file open; `otherwise` when we may not look."""
    return bool(survey.holding(seen.key, FLOCK)) if survey.may_look_into(pid) else otherwise


def _heir(
    seen: HolderLook, survey: OpenFileScan, line: KernelLine, record: Record | None, gone: bool
) -> Holder | None:
    """The process that really holds, when the one that called flock(2) does so no more."""
    found = survey.holding(seen.key, FLOCK)
    pids = list(dict.fromkeys(file.pid for file in found if line.exclusive or line in file.locks))
    if not pids:
        return None
    what = "is gone, this one inherited its open file" if gone else "passed its open file to this"
    more = f", and so did {', '.join(map(str, pids[1:4]))}" if len(pids) > 1 else ""
    more += f" and {len(pids) - 4} others" if len(pids) > 4 else ""
    owner = process.owner_of(pids[0])
    if record is not None and record.owner is not None:
        owner = replace(owner, label=record.owner.label)
    left = Holder() if record is None else as_holder(record, "")
    note = f"{WITNESS}; process {line.pid} locked it and {what}{more}"
    left = replace(left, owner=owner, alive=ALIVE, evidence=note, lock=seen.lock)
    return replace(left, pid_here=pids[0], began=process.started_at(pids[0]))


def heirs_of(setter: int, path: str) -> list[int]:
    """Who has a file at `path`, or below it, open with the lock that a `setter` now gone took.

    Raises OSError.
    """
    lines = [line for line in proc_locks.whole_table() or () if line.pid == setter]
    if not lines:
        return []
    survey, real = OpenFileScan([os.path.basename(path)], after=setter), os.path.realpath(path)
    inode = os.stat(path).st_ino  # a record may have come into its place from another name
    found = [
        file.pid
        for line in lines
        if line.kind == FLOCK and not line.waiting
        for file in survey.holding(line.key, FLOCK)
        if line.key.inode == inode or file.link.startswith(f"{real}/")
    ]
    return list(dict.fromkeys(found))


def _name(seen: HolderLook) -> str:
    return seen.path.rstrip("/").rpartition("/")[2]


def _unseen_words(survey: OpenFileScan) -> str:
    """What a survey that found nobody could not see."""
    if unread := survey.unread:
        return f"; {unread}"
    if survey.cut:
        return "; there are too many open files to look at all"
    return "" if process.sees_all_processes() else "; not all processes can be seen from here"


def _unshown(files: Files, seen: HolderLook, held: bool) -> Holder | None:
    """The kernel's table names nobody: nobody holds it, or another PID namespace, or no table."""
    how = ""
    if not held and seen.lines is None:  # no /proc/locks, as on macOS: flock itself has to tell
        how = how_taken(files, seen.path)
        if not how:
            return None
        held = True
    if not held and process.namespace("pid") == INITIAL_PID_NAMESPACE:
        return None  # nothing is hidden from us: it is free
    if not held:
        unseen = _unseen(seen)
        if unseen is None or unseen.alive != DEAD:
            return unseen
        # The proof is another boot id, and a container may be given one: flock itself has to tell.
        how = how_taken(files, seen.path)
        if not how:
            return None
    elif seen.newer and not is_taken(files, seen.path):  # L12  the record alone refused us
        return Holder(alive=UNKNOWN, evidence=OF_NEWER, lock=seen.lock)
    return sharer(seen) if how == SHARED else _refused(seen)


def sharer(seen: HolderLook) -> Holder:
    """Who shares it, as far as can be seen: the record is that of the last who held it alone."""
    return _refused(replace(seen, record=None), f"{WITNESS}, shared")


def _refused(seen: HolderLook, why: str = WITNESS) -> Holder:
    """flock(2) said "held", and /proc/locks does not show by whom.

    Another PID namespace, a setter that is dead as seen from ours, or no /proc/locks.
    """
    record = seen.record
    owner = record.owner if record else None
    space = process.namespace("pid")
    found = OpenFileScan([_name(seen)]).holding(seen.key, FLOCK)
    pids = list(dict.fromkeys(file.pid for file in found))
    if found and not (owner and owner.pid_ns == space and owner.pid in pids):
        return _holding_here(seen, pids, why)
    if not found and seen.lines is not None:
        why += "; its process is not visible from here"
    if record is None or owner is None:
        return Holder(alive=ALIVE, evidence=why, lock=seen.lock)
    here = owner.pid if found else number_here(owner)
    return replace(as_holder(record, seen.lock), alive=ALIVE, evidence=why, pid_here=here)


def _holding_here(seen: HolderLook, pids: list[int], why: str) -> Holder:
    """A process of our own namespace has the locked file open; who locked it is not shown."""
    record, owner = seen.record, process.owner_of(pids[0])
    note = f"{why}; this process has the locked file open"
    left = Holder()
    if record is not None and record.owner is not None and record.owner.pid_ns == owner.pid_ns:
        # Its record, when the dead owner's children have the file.
        left, owner = as_holder(record, ""), replace(owner, label=record.owner.label)
        note = (
            f"{WITNESS}; no process {record.owner.pid} any more, this one inherited its open file"
        )
        if process.look(record.owner.pid).exists:
            left, note = Holder(), f"{WITNESS}; this process has the locked file open"
    left = replace(left, owner=owner, alive=ALIVE, evidence=note, lock=seen.lock)
    return replace(left, pid_here=pids[0], began=process.started_at(pids[0]))


def _unseen(seen: HolderLook) -> Holder | None:
    """Nobody refused us and nothing is shown, but holders of other PID namespaces would not be.

    None when the record names nobody who could be hidden; else the verdict on its owner, which is
    UNKNOWN, or DEAD for another boot id.
    """
    record = seen.record
    if record is None or record.owner is None:
        return None
    if record.owner.pid_ns == process.namespace("pid"):
        return None
    verdict = judge(record.owner, process.ground(seen.place.one_kernel, None))
    left, here = as_holder(record, seen.lock), number_here(record.owner)
    return replace(left, alive=verdict.state, evidence=verdict.evidence, pid_here=here)


EXCLUSIVE, SHARED = "exclusive", "shared"
PROBES = 3  # of a lock that another may be trying, or letting go of, at this moment
PAUSE = 0.0005  # seconds between them


def is_taken(files: Files, path: str) -> bool:
    """Whether anybody holds flock(2) on the file, shared or not."""
    return bool(how_taken(files, path))


def how_taken(files: Files, path: str) -> str:
    """EXCLUSIVE or SHARED, as flock(2) is held on the file; "" when nobody holds it.

    /proc/locks hides what other PID namespaces hold. Inside one we must try: for some microseconds,
    and only when it is free, in which another's try without patience can be turned away. Shared
    holders turn away an exclusive try alone.
    """
    try:
        fd = files.open(path, READ_ONLY)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise refused(path, error) from error
    try:
        lines = lines_of([key_of(fd)])
        shown = [line for line in lines or () if line.kind == FLOCK and not line.waiting]
        if shown:
            return EXCLUSIVE if any(line.exclusive for line in shown) else SHARED
        if lines is not None and process.namespace("pid") == INITIAL_PID_NAMESPACE:
            return ""
        for left in reversed(range(PROBES)):
            if _is_granted(files, fd, LOCK_EX):
                return ""
            if left:
                clock.pause(PAUSE)
        return SHARED if _is_granted(files, fd, LOCK_SH) else EXCLUSIVE
    finally:
        files.close(fd)


def _is_granted(files: Files, fd: int, how: int) -> bool:
    """Whether flock(2) is granted now; it is let go of at once."""
    try:
        files.flock(fd, how | LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a file server that wants a descriptor open for writing
        if how == LOCK_EX and error.errno == errno.EBADF:
            return _is_granted(files, fd, LOCK_SH)
        raise
    files.flock(fd, LOCK_UN)  # L9  not by close alone: a child that is forked now has a copy
    return True


# ------------------------------------------------------------------------------------------------
# Who waits for a kernel lock, in the order in which they will be served.
#
# Promise: true at the moment it was read, and nothing is decided by it. From inside a PID namespace
# the kernel hides those who wait outside.


FAIR = "FAIR"  # who stands in the line of fair askers, and not yet in that of flock(2)
NOBODY = -1  # the number of who waits for an OFD lock; 0 is a process not visible from here


@value
class KernelWaiter:
    """One who stands in the kernel's queue.

    `pid` as seen from here; 0 or -1 when the kernel does not tell.
    """

    pid: int
    exclusive: bool
    kind: str = FLOCK

    @property
    def command(self) -> str | None:
        """Its command line, masked, read when it is asked for; None when it has ended."""
        return process.command_of(self.pid) if self.pid > 0 else None


def queue_in(lines: list[KernelLine], places: dict[int, int]) -> tuple[KernelWaiter, ...]:
    """Who waits for flock(2), in order.

    The first of the line of fair askers stands in the kernel's queue, the others behind. `places`:
    whose they are, where that is known.
    """
    queue = [
        KernelWaiter(line.pid, line.exclusive)
        for line in lines
        if line.waiting and line.kind == FLOCK
    ]
    line_up = sorted(line.place for line in lines if line.place and not line.waiting)
    later = line_up[1:] if queue else line_up
    return (*queue, *(KernelWaiter(places.get(place, NOBODY), True, FAIR) for place in later))


def waiters_of(files: Files, path: str) -> tuple[KernelWaiter, ...]:
    """Who waits for flock(2) on the file at `path`, in the order in which they will be served.

    Empty where none wait, and where nothing can be seen. Threads of one process stand there by the
    number of their process; ourselves too, if we wait. Opens and locks nothing of anybody's.
    """
    try:
        fd = files.open(path, READ_ONLY)
    except OSError as error:
        pass_up(error)
        return ()
    try:
        key = key_of(fd)
    finally:
        files.close(fd)
    lines = lines_of([key]) or []
    return queue_in(lines, _our_places(path, key) if any(line.place for line in lines) else {})


def _our_places(path: str, key: Key) -> dict[int, int]:
    us = os.getpid()
    ours = OpenFileScan([os.path.basename(path)], [us]).holding(key, OFD)
    return {lock.place: us for file in ours for lock in file.locks if lock.place}


def those_in_line(files: Files, path: str) -> Holder:
    """What is said to whom a line refuses while nobody holds the lock."""
    note = "nobody holds it now: others stand in line for it, one of them may be stopped"
    try:
        seen = look_at(files, path)
    except OSError as error:
        pass_up(error)
        return Holder(evidence=note)
    if seen.lines is not None and not queue_in(seen.lines, {}):
        return Holder(evidence=JUST_RELEASED)
    for file in OpenFileScan([_name(seen)]).holding(seen.key, OFD):
        if any(lock.place for lock in file.locks) and process.halted(file.pid):
            return Holder(
                evidence=f"nobody holds it now: process {file.pid}, which stands in line for it, "
                f"is stopped: kill -CONT {file.pid}"
            )
    return Holder(evidence=note)


# ------------------------------------------------------------------------------------------------
# How many others stand in the kernel's queue for a lock file, before us if we stand there too.
#
# Promise: a number to be shown, true at the moment it was read. Nothing is decided by it: the
# kernel hides who waits in other PID namespaces, so from inside a container it may be too small.


def waiters(files: Files, path: str) -> int | None:
    """None when the kernel's table cannot be read. The kernel lists the waiters as they came."""
    queue = waiters_of(files, path)
    if not queue and not os.access(proc_locks.TABLE, os.R_OK):
        return None
    pids = [waiting.pid for waiting in queue]
    me = os.getpid()
    return len(pids[: pids.index(me)] if me in pids else pids)
