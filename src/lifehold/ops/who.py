"""Who holds a lock file, or who held it last: kernel locks, of lifehold and of any other tool.

Promise: `held` and `free` are said only when the kernel says so; what cannot be seen from here is
`suspect`, with the reason. Nothing is made, written or locked by asking (but for a shared try of
some microseconds inside a PID namespace, where /proc/locks does not show the others).
"""

from __future__ import annotations

import os
import stat

from ..core.errors import CorruptRecord, InvalidArgument, LifeholdError
from ..core.grant import Holder
from ..core.liveness import ALIVE, DEAD, UNKNOWN
from ..core.mask import printable
from ..core.owner import INITIAL_PID_NAMESPACE
from ..core.value import value
from ..face import absolute
from ..local import holders, record
from ..local.files import HOST, READ_ONLY
from ..local.ground import place_of
from ..local.locktable import key_of, lines_of
from ..runtime import clock, process

HELD, FREE, SUSPECT, STALE = "held", "free", "suspect", "stale"
STATES = {ALIVE: HELD, UNKNOWN: SUSPECT, DEAD: STALE}
READS = 5  # of a record that is being written at this very moment
PAUSE = 0.002  # seconds between them


class FolderMissing(LifeholdError):
    """The path cannot lead to a lock file: its folder does not exist."""

    code = "no_such_input"


@value
class Answer:
    """What is known of one lock.

    `holder`: who has it now; `last`: whom the record names, when it is free; `exists`: whether
    there is a lock file; `note`: what else a reader must know.
    """

    name: str
    path: str
    state: str
    holder: Holder | None = None
    last: Holder | None = None
    exists: bool = True
    note: str = ""


def who(name: str, path: str, *, plain: bool = False) -> Answer:
    """The answer for the lock file at `path`, called `name`. `plain`: its folder may be missing.

    Raises FolderMissing; InvalidArgument for what is no lock file; CorruptRecord.
    """
    path = absolute(path)
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        folder = os.path.dirname(path)
        if plain or os.path.isdir(folder):
            return Answer(name, path, FREE, exists=False)
        raise FolderMissing(f"'{printable(folder)}' is not a folder", name=name) from error
    except OSError as error:  # ENAMETOOLONG, ELOOP, EACCES of a folder
        if isinstance(error, PermissionError):
            return _hidden(name, path, error)
        raise InvalidArgument(f"'{printable(path)}': {error.strerror}", name=name) from error
    _refuse_other_things(path, found.st_mode)
    try:
        fd = HOST.open(path, READ_ONLY)
    except OSError as error:
        return _hidden(name, path, error)
    try:
        holder = _holder(path)
        if holder is not None:
            return Answer(name, path, STATES[holder.alive], holder)
        last, version = _read(fd)
    finally:
        HOST.close(fd)
    if version > record.VERSION:  # L12
        note = (
            f"its record has version {version}, of a newer lifehold, which may know other holders"
        )
        return Answer(name, path, SUSPECT, note=note)
    return Answer(name, path, FREE, last=last)


def _holder(path: str) -> Holder | None:
    """Who holds it. Where /proc/locks does not show everybody, it is tried whether anybody does."""
    holder = holders.holder_of(HOST, path, False)
    if holder is not None and holder.alive == ALIVE:
        return holder
    if process.namespace("pid") == INITIAL_PID_NAMESPACE:
        return holder
    return holders.holder_of(HOST, path, True) if holders.is_taken(HOST, path) else None


def _refuse_other_things(path: str, mode: int) -> None:
    shown = printable(path)
    if stat.S_ISLNK(mode):
        raise InvalidArgument(
            f"'{shown}' is a symbolic link, which no lock of lifehold follows: ask for its target, "
            f"'{printable(os.path.realpath(path))}'"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # flock(1) locks folders as well
        raise InvalidArgument(f"'{shown}' is a device, a FIFO or a socket, not a lock file")


def _hidden(name: str, path: str, error: OSError) -> Answer:
    """A file that we may not read: the kernel's table may still tell who holds it."""
    reason = f"the lock file cannot be read here: {error.strerror}"
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return Answer(name, path, SUSPECT, note=reason)
    try:
        place = place_of(fd)
        lines = lines_of([key_of(fd)]) or []
    finally:
        os.close(fd)
    setters = [line for line in lines if line.kind == "FLOCK" and not line.waiting]
    if not setters:
        return Answer(name, path, SUSPECT, note=reason)
    holder = Holder(process.owner_of(setters[0].pid), alive=ALIVE, evidence="kernel witness",
                    lock=f"{path} (kernel lock, {place.words})")  # fmt: skip
    return Answer(name, path, HELD, holder, note=reason)


def _read(fd: int) -> tuple[Holder | None, int]:
    """The record's holder and the version of its format; (None, 0) when there is no record."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return None, 0
    for attempt in range(READS):
        content = HOST.pread(fd, record.SIZE, 0)
        if not content.startswith(record.MAGIC):
            return None, 0
        digits = content[len(record.MAGIC) :].partition(b",")[0]
        version = int(digits) if digits.isdigit() and len(digits) < 10 else 0
        found = record.parse(content)
        if found is not None and not found.torn:
            return record.as_holder(found, ""), version
        if version > record.VERSION:
            return None, version
        if attempt < READS - 1:
            clock.pause(PAUSE)
    raise CorruptRecord(
        "it is free, and its record is damaged: who held it last cannot be told. The next holder "
        "writes a new record"
    )
