"""Who reads, who writes and who waits to write, of a reader/writer lock of kind "soft".

Promise: of its records alone, as the lock's own parties judge them; nothing is made, written or
removed, and a record's own kernel lock is tried shared, for a moment. While readers are in, a claim
is a writer that waits for them; later readers wait for it.
"""

from __future__ import annotations

import errno
import os

from ..core.owner import ALIVE, DEAD
from ..core.value import replace
from ..local.files import HOST, READ_ONLY
from ..local.ground import place_of
from ..local.identify import STATES, WATCHED, holder_of
from ..local.judge import Evidence
from ..local.kernel_holders import Waiting
from ..local.record import CURRENT, READ_SIZE, read
from ..local.record_handle import Seen
from ..local.soft_readwrite import KIND, SUFFIX, is_marker
from ..runtime import clock
from .answer import FREE, STALE, SUSPECT, Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Holder
    from ..local.judge import Judged

MOST = 1000  # readers that are judged; more of them are counted
CLAIMS = "CLAIM"  # how a writer waits for readers: with its record in its place


def answer(name: str, path: str, fd: int | None = None) -> Answer | None:
    """The answer for the lock at `path`; None when no such lock is there, or nobody is in it.

    `fd`: of the path, when it is open for reading already.
    """
    try:
        claim = _judged(path, path) if fd is None else _of_fd(path, fd)
        if claim is None and os.path.lexists(path):
            return None
        names = _names(path + SUFFIX)
        if claim is None and not names:
            return None
        found = [_judged(path, f"{path}{SUFFIX}/{each}") for each in names[:MOST]]
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            note = f"who is in cannot be read here: {error.strerror}"
            return Answer(name, path, SUSPECT, note=note, kind=KIND)
        return None
    readers = [each for each in found if each is not None]
    return _told(Answer(name, path, FREE, kind=KIND), claim, readers, len(names))


def has_readers(folder: str, name: str) -> bool:
    """Whether an entry of a folder is where readers of such a lock leave their markers."""
    return name.endswith(SUFFIX) and name != SUFFIX and bool(_names(os.path.join(folder, name)))


def _names(folder: str) -> list[str]:
    try:
        return sorted(filter(is_marker, os.listdir(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _told(empty: Answer, claim: Judged | None, readers: list[Judged], count: int) -> Answer:
    living = [each for each in readers if each.state != DEAD]
    writes = claim is not None and claim.state != DEAD
    if living:
        holders = [_reader(each) for each in living]
        waiting: tuple[Waiting, ...] = ()
        if writes and claim is not None:
            waiting = (Waiting(_pid(claim), True, CLAIMS),)
        state = STATES[ALIVE] if any(each.state == ALIVE for each in living) else SUSPECT
        many = f"{count} readers, of whom {MOST} were looked at" if count > MOST else ""
        note = many or f"{len(living)} reader{'s' * (len(living) > 1)}"
        return replace(
            empty, state=state, holder=holders[0], others=tuple(holders[1:]), waiting=waiting,
            note=f"a reader/writer lock: {note}{', and a writer waits for them' * writes}",
        )  # fmt: skip
    if claim is not None:
        note = "a reader/writer lock: a writer"
        return replace(empty, state=STATES[claim.state], holder=holder_of(claim), note=note)
    if not readers:
        return empty
    note = "a reader/writer lock: readers that are gone; the next writer removes what they left"
    return replace(empty, state=STALE, holder=_reader(readers[0]), note=note)


def _reader(found: Judged) -> Holder:
    holder = holder_of(found)
    return replace(holder, evidence=f"{holder.evidence}; a reader")


def _pid(claim: Judged) -> int:
    holder = holder_of(claim)
    owner = holder.owner
    return holder.pid_here or (owner.pid if owner and holder.pid_here is None else 0)


def _judged(path: str, file: str) -> Judged | None:
    """None: it is gone, or no record of such a lock."""
    try:
        fd = HOST.open(file, READ_ONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        return _of_fd(path, fd, certain=file != path)
    finally:
        HOST.close(fd)


def _of_fd(path: str, fd: int, *, certain: bool = False) -> Judged | None:
    """`certain`: by its name it is a marker, whatever can be read of it."""
    try:
        found = read(HOST.pread(fd, READ_SIZE, 0))
    except IsADirectoryError:
        return None
    if not certain and not (found.state == CURRENT and found.kind == KIND):
        return None
    return Evidence(KIND, WATCHED).judged(path, Seen(HOST, fd), place_of(fd), clock.now)
