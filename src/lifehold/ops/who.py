"""Who holds a lock file, or who held it last: kernel locks, of lifehold and of any other tool.

Promise: `held` and `free` are said only when the kernel says so; what cannot be seen from here is
`suspect`, with the reason. Nothing is made, written or locked by asking (but for a shared try of
some microseconds inside a PID namespace, where /proc/locks does not show the others).
"""

from __future__ import annotations

import os
import stat

from ..core import explain
from ..core.errors import CorruptRecord, InvalidArgument, LifeholdError
from ..core.grant import Holder
from ..core.mask import printable
from ..core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN
from ..core.value import replace
from ..face import absolute
from ..local import kernel_holders, record
from ..local.files import HOST, READ_ONLY
from ..local.lock_names import is_store
from ..local.proc_locks import FLOCK, POSIX, key_of
from ..runtime import clock, fork, process
from . import databases, existence, present, readers, slots
from .answer import FREE, HELD, STALE, SUSPECT, Answer
from .foreign import Files, fcntl_holders, of_removed, queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["FREE", "HELD", "STALE", "SUSPECT", "Answer", "FolderMissing", "who"]
STATES = {ALIVE: HELD, UNKNOWN: SUSPECT, DEAD: STALE}
READS = 5  # of a record that is being written at this very moment
PAUSE = 0.002  # seconds between them
OURS_BY_FCNTL = "this process has an fcntl lock on the file, which to read it would drop"
EMPTY = "no kernel lock; a tool that locks by presence would look the same"
MOST = 20  # of others who are looked at as to whether they run
MANY = 100  # holders of one shared lock that are named


class FolderMissing(LifeholdError):
    """The path cannot lead to a lock file: its folder does not exist."""

    code = "no_such_input"


def who(
    name: str, path: str, *, plain: bool = False, files: Files | None = None, removed: bool = True
) -> Answer:
    """The answer for the lock file at `path`, called `name`. `plain`: its folder may be missing.

    `files`: what was seen of the open files of processes, to be used for several paths; `removed`:
    look through them for files that stood here before. Raises FolderMissing; InvalidArgument for
    what is no lock file; CorruptRecord.
    """
    if is_store(path):
        stored: Any = fork.lazily("lifehold.ops.stored")
        return stored.answer(name, path)  # type: ignore[no-any-return]
    path = absolute(path)
    files = files or Files([path])
    try:
        answer = _found(name, path, plain, files, removed)
        if answer.state == FREE and (told := existence.beside(name, path, files.eyes)) is not None:
            answer = told
        if not answer.family:
            answer = existence.family_of(path, answer, readable=answer.note != OURS_BY_FCNTL)
        return as_it_runs(answer)
    except (LifeholdError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - what a file says costs itself alone
        return unread(name, path, error)


def unread(name: str, path: str, error: Exception) -> Answer:
    """The answer for what nobody foresaw: it may be held, and the others are told all the same."""
    return Answer(name, path, SUSPECT, note=f"what is there cannot be judged: {error!r:.200}")


def as_it_runs(answer: Answer) -> Answer:
    """The answer, with whether its holders can run, and what lets them go on."""
    holder = process.as_it_runs(answer.holder)
    others = tuple(filter(None, map(process.as_it_runs, answer.others[:MOST])))
    cures = dict.fromkeys(cure for each in (holder, *others) for cure in explain.cures(each))
    if not cures:
        return answer
    others += answer.others[MOST:]
    return replace(answer, holder=holder, others=others,
                   remedy=tuple(dict.fromkeys((*cures, *answer.remedy))))  # fmt: skip


def _found(name: str, path: str, plain: bool, files: Files, removed: bool) -> Answer:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if (answer := readers.answer(name, path)) is not None:
            return answer
        folder = os.path.dirname(path)
        if plain or os.path.isdir(folder):
            return _with_removed(Answer(name, path, FREE, exists=False), files)
        raise FolderMissing(f"'{printable(folder)}' is not a folder", name=name) from error
    except OSError as error:  # ENAMETOOLONG, ELOOP, EACCES of a folder
        if isinstance(error, PermissionError):
            return Answer(name, path, SUSPECT, note=_cannot_be_read(error))
        raise InvalidArgument(f"'{printable(path)}': {error.strerror}", name=name) from error
    for _ in range(READS):  # a link may go, and another come, while it is read
        if not stat.S_ISLNK(found.st_mode):
            break
        known = existence.answer(name, path, files.eyes, found)
        if known is not None:
            return known
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return Answer(name, path, FREE, exists=False)
    _refuse_other_things(path, found.st_mode)
    fd, hidden = _opened(path, files)
    if fd is None:
        return Answer(name, path, SUSPECT, note=hidden)
    try:
        if not hidden and (answer := present.answer(name, path, fd)) is not None:
            return _with_removed(answer, files) if removed else answer
        if not hidden and (answer := readers.answer(name, path, fd)) is not None:
            return answer
        if not hidden and (permits := slots.permits_of(HOST, fd)) is not None:
            return slots.answer(who, Answer(name, path, FREE), permits)
        if not hidden and (answer := databases.answer(name, path, fd, files)) is not None:
            return answer
        answer = _steady(Answer(name, path, FREE, note=hidden), fd, files)
        if answer.holder is None and hidden:
            return replace(answer, state=SUSPECT)
        if answer.holder is None:
            answer = _unheld(answer, fd, found, files)
    finally:
        HOST.close(fd)
    return _with_removed(answer, files) if removed else answer


def _opened(path: str, files: Files) -> tuple[int | None, str]:
    """A descriptor, and why it cannot be read from, "" when it can.

    Closing any descriptor of a file drops all fcntl locks that this very process has on it, which
    is what POSIX wants: so a file that we have such a lock on is not opened.
    """
    fd = None
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        lines = files.lines(key_of(fd)) or []
        if any(line.kind == POSIX and line.pid == os.getpid() for line in lines):
            return fd, OURS_BY_FCNTL
    except (OSError, AttributeError):  # no such thing but on Linux
        pass
    try:
        readable = HOST.open(path, READ_ONLY)
    except OSError as error:
        return fd, _cannot_be_read(error)
    if fd is not None:
        os.close(fd)
    return readable, ""


def _steady(answer: Answer, fd: int, files: Files) -> Answer:
    """Who holds it, looked at again when it changed hands while we looked."""
    for _ in range(kernel_holders.LOOKS):
        files.forget()
        seen = kernel_holders.look_at(
            HOST, answer.path, fd, readable=not answer.note, table=files.lines
        )
        found = _holders(seen, files, bool(answer.note))
        waiting = queue(seen, files)
        if not found:
            return replace(answer, waiting=waiting)
        told = replace(
            answer, state=STATES[found[0][1].alive], holder=found[0][1], kind=found[0][0],
            others=tuple(holder for _, holder in found[1:]), waiting=waiting,
        )  # fmt: skip
        held = [line for line in seen.lines or () if not line.waiting]
        now = files.lines(seen.key)
        if now is None or all(line in now for line in held):
            return told
    return replace(
        told,
        holder=Holder(alive=ALIVE, evidence=kernel_holders.RESTLESS, lock=seen.lock),
        others=(),
    )


def _holders(seen: kernel_holders.Look, files: Files, hidden: bool) -> list[tuple[str, Holder]]:
    """Each with its kind: flock(2) first, which our own locks are."""
    setters = seen.setters(FLOCK)
    found = [("flock", kernel_holders.held_by(seen, line, files.of)) for line in setters[:MANY]]
    if not setters and not hidden:
        holder = _unshown(seen.path)
        found = [("flock", holder)] if holder is not None else []
    return found + fcntl_holders(seen, files)


def _unshown(path: str) -> Holder | None:
    """Where /proc/locks does not show everybody, it is tried whether anybody holds it."""
    holder = kernel_holders.holder_of(HOST, path, False)
    if holder is not None and holder.alive == ALIVE:
        return holder
    if process.namespace("pid") == INITIAL_PID_NAMESPACE:
        return holder
    return (
        kernel_holders.holder_of(HOST, path, True) if kernel_holders.is_taken(HOST, path) else None
    )


def _unheld(answer: Answer, fd: int, found: os.stat_result, files: Files) -> Answer:
    """No kernel lock is held: the record of the last holder, or a lock of another tool."""
    last, version = _read(fd)
    if not version:
        known = existence.answer(answer.name, answer.path, files.eyes, found, fd)
        if known is None and stat.S_ISREG(found.st_mode) and not found.st_size:
            return replace(answer, note=EMPTY)
        return answer if known is None else replace(known, waiting=answer.waiting)
    if version > record.VERSION:  # L12
        note = (
            f"its record has version {version}, of a newer lifehold, which may know other holders"
        )
        return replace(answer, state=SUSPECT, note=note)
    return replace(answer, last=last)


def _with_removed(answer: Answer, files: Files) -> Answer:
    """Who still holds a file that stood here: it excludes nobody who comes now (L1)."""
    removed = of_removed(answer.path, files)
    if not removed:
        return answer
    state = SUSPECT if answer.state == FREE else answer.state
    return replace(answer, state=state, removed=tuple(removed))


def _refuse_other_things(path: str, mode: int) -> None:
    shown = printable(path)
    if stat.S_ISLNK(mode):
        raise InvalidArgument(
            f"'{shown}' is a symbolic link, which no lock of lifehold follows: ask for its target, "
            f"'{printable(os.path.realpath(path))}'"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # flock(1) locks folders as well
        raise InvalidArgument(f"'{shown}' is a device, a FIFO or a socket, not a lock file")


def _cannot_be_read(error: OSError) -> str:
    told = f"the lock file cannot be read here: {error.strerror}"
    if isinstance(error, PermissionError) and error.filename and os.name == "posix":
        told += f"; ask root: sudo lifehold who {explain.quote(error.filename)}"
    return told


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
