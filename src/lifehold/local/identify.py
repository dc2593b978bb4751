"""Which lock stands at a path whose record is the lock, found without being told its kind.

Promise: nothing is made or written; a record's own kernel lock is tried shared, for a moment. What
is no such record (a kernel lock's file, a pid file, somebody's data) is left to who knows it.
"""

from __future__ import annotations

import stat

from ..core import explain
from ..core.mask import printable
from ..core.owner import ALIVE, DEAD, UNKNOWN, judge
from ..core.value import replace
from ..runtime import clock, fork, process
from . import kinds, record_folders
from .files import READ_ONLY, Files
from .ground import place_of
from .judge import Judgement, LivenessJudge, Sightings
from .record import (
    CURRENT,
    LIVE,
    OLDER,
    READ_SIZE,
    UNREADABLE,
    UNSEEN,
    VOID,
    ParsedRecord,
    read,
)
from .record_folders import name_of
from .record_handle import BorrowedRecord
from .refusals import is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Holder
    from . import folder, kernel_holders
else:
    kernel_holders = fork.later("lifehold.local.kernel_holders", globals())
    folder = fork.later("lifehold.local.folder", globals())

WATCHED = Sightings()  # by who asks, not by who waits for the lock
STATES = {ALIVE: "held", UNKNOWN: "suspect", DEAD: "stale"}


def standing(files: Files, path: str, fd: int | None = None) -> Judgement | None:
    """What stands at a path, judged; None when it is no record that is a lock. Raises OSError.

    `fd`: of the path, when it is open already: to close another would drop fcntl locks of ours.
    """
    mode = files.lstat(path).st_mode
    if stat.S_ISDIR(mode):
        return _highest(files, path)
    if not stat.S_ISREG(mode):
        return None
    return _judged(files, path, path) if fd is None else _of_fd(files, path, fd)


def holder_at(files: Files, path: str) -> Holder | None:
    """Whoever holds it, None for nobody, and when no such record is there."""
    try:
        found = standing(files, path)
    except OSError:
        return None
    return None if found is None or is_free(found) else holder_of(found, path)


def is_free(found: Judgement) -> bool:
    """Whether the record itself says that nobody holds it."""
    return found.marker.stage not in LIVE


def holder_of(found: Judgement, path: str = "") -> Holder:
    """Its holder, by the number that is right here; that somebody inherited its record is said.

    Of another PID namespace it is looked for among all processes: for people, never in an attempt.
    `path`: of the lock, where who inherited is to be looked for as well.
    """
    holder, owner = found.holder(), found.marker.owner
    if owner is None or is_free(found) or holder.pid_here is not None:
        return holder
    ground = process.ground(True, None)
    here = ground.here
    if owner.boot_id != here.boot_id or (owner.pid_ns is None and here.pid_ns is not None):
        return holder
    if owner.pid_ns != here.pid_ns:  # of a dead one no number is right: none is looked for
        return replace(holder, pid_here=0 if found.state == DEAD else process.number_here(owner))
    if found.state != ALIVE:
        return holder
    seen = judge(owner, ground).state  # the witness may be held by who inherited it
    if seen != DEAD:
        known = seen == ALIVE or process.goes_by(owner.pid, owner)
        return replace(holder, pid_here=owner.pid) if known else holder
    gone = f"process {owner.pid} is gone, and what inherited its open record holds on"
    if heirs := _heirs(owner.pid, path):
        # It stays the holder's own grant: an order to break it names that process.
        command = explain.short(printable(process.command_of(heirs[0]) or "?"))
        gone += f": pid {heirs[0]} ({command})"
        gone += f" and {len(heirs) - 1} more" if len(heirs) > 1 else ""
    return replace(holder, evidence=f"{holder.evidence}; {gone}")


def _heirs(setter: int, path: str) -> list[int]:
    """Who inherited the record at `path` of a process that is gone, as far as it can be seen."""
    try:
        return kernel_holders.heirs_of(setter, path) if path else []
    except OSError:
        return []  # it was released just now


def _highest(files: Files, path: str) -> Judgement | None:
    """Of numbered records the highest that was ever held, of bids the first in line.

    Anybody who may write there can plant an entry that nobody can read: it hides no living holder,
    and nobody is proven gone beside it.
    """
    names = files.listdir(path)
    if record_folders.kind_of(names) == "folder":
        return folder.first_at(path)
    numbers = sorted((int(name) for name in names if is_number(name)), reverse=True)
    entries = [(name_of(number), "generation") for number in numbers]
    entries += [(name, "directory") for name in names if record_folders.is_entry(name)]
    odd = known = None
    for name, kind in entries:
        try:
            found = _judged(files, path, f"{path}/{name}", kind)
        except FileNotFoundError:
            continue
        except OSError as error:
            odd = odd or unread(path, name, kind, error)
            continue
        if found is None or (kind == "generation" and found.marker.stage == VOID):
            continue
        if found.state == ALIVE:
            return found
        known = found if known is None or known.state == DEAD else known
        if kind == "generation":
            break
    return odd or known


def unread(path: str, name: str, kind: str, error: OSError) -> Judgement:
    """Of an entry with the name of a record, which cannot be opened or read."""
    marker = ParsedRecord(UNREADABLE, UNSEEN, kind)
    why = f"{printable(name)} cannot be read as a record: {error.strerror}"
    return Judgement(UNKNOWN, why, marker, name, f"{path} ({kind} lock)")


def _judged(files: Files, path: str, file: str, kind: str = "") -> Judgement | None:
    fd = files.open(file, READ_ONLY)
    try:
        return _of_fd(files, path, fd, kind)
    finally:
        files.close(fd)


def _of_fd(files: Files, path: str, fd: int, kind: str = "") -> Judgement | None:
    found = read(files.pread(fd, READ_SIZE, 0))
    if found.state == CURRENT:
        kind = found.kind or kind or "link"
    elif found.state == OLDER and found.kind == "json":
        kind = "soft"
    else:
        kind = kind or _kind_of_damaged(found.content)
    if not kinds.is_record(kind):
        return None
    seen = BorrowedRecord(files, fd, by_touch=kind == "link")
    return LivenessJudge(kind, WATCHED).judged(path, seen, place_of(fd), clock.now)


def _kind_of_damaged(content: bytes) -> str:
    """The kind that the first bytes still tell."""
    told = (kind for kind in kinds.KINDS if b'"kind":"%s"' % kind.encode() in content[:64])
    return next(filter(kinds.is_record, told), "")
