"""Who holds a lock file, or who held it last: kernel locks, of lifehold and of any other tool.

Promise: `held` and `free` are said only when the kernel says so; what cannot be seen from here is
`suspect`, with the reason. Nothing is made, written or locked by asking (but for a try of some
microseconds inside a PID namespace, where /proc/locks does not show the others).
"""

from __future__ import annotations

import errno
import os
import stat

from ..core import explain
from ..core.errors import CorruptRecord, InvalidArgument, LifeholdError
from ..core.grant import Holder
from ..core.mask import printable
from ..core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN
from ..core.value import replace
from ..local import identify, kernel_holders, kernel_semaphore, kinds, record, soft_readwrite
from ..local.files import HOST, READ_ONLY
from ..local.ground import place_of
from ..local.identify import STATES, WATCHED, holder_of
from ..local.judge import LivenessJudge
from ..local.kernel_holders import KernelWaiter
from ..local.kernel_semaphore import slot_path
from ..local.lock_names import is_store
from ..local.proc_locks import FLOCK, POSIX, key_of
from ..local.record import CURRENT, FROM_NEWER, OLDER, READ_SIZE, UNREADABLE, UNSEEN, read
from ..local.record_handle import BorrowedRecord
from ..local.soft_readwrite import SUFFIX, is_marker
from ..lock import absolute
from ..runtime import clock, fork, process
from . import databases, families
from .answer import FREE, HELD, STALE, SUSPECT, LockAnswer
from .foreign import (
    ForeignFiles,
    fcntl_holders,
    lease_holders,
    of_removed,
    queue,
    sees_all_locks,
    unshown_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ..local.files import Files
    from ..local.judge import Judgement
    from ..local.kernel_holders import HolderLook
    from . import stored
    from .families import Family, ProcessTable, StatedHolder

    Found = TypeVar("Found", LockAnswer, LockAnswer | None)
else:
    stored = fork.later("lifehold.ops.stored", globals())

__all__ = ["FREE", "HELD", "STALE", "SUSPECT", "FolderMissing", "LockAnswer", "who"]
READS = 5  # of a record that is being written at this very moment
PAUSE = 0.002  # seconds between them, and before a second look
OURS_BY_FCNTL = "this process has an fcntl lock on the file, which to read it would drop"
LEASED = "a process has a lease on the file, which to open it would end: it was not read"
SHUT = (OURS_BY_FCNTL, LEASED)
EMPTY = "no kernel lock; a tool that locks by presence would look the same"
MOST = 20  # of others who are looked at as to whether they run
MANY = 100  # holders of one shared lock that are named


class FolderMissing(LifeholdError):
    """The path cannot lead to a lock file: its folder does not exist."""

    code = "no_such_input"


def who(
    name: str,
    path: str,
    *,
    plain: bool = False,
    files: ForeignFiles | None = None,
    removed: bool = True,
) -> LockAnswer:
    """The answer for the lock file at `path`, called `name`. `plain`: its folder may be missing.

    `files`: what was seen of the open files of processes, to be used for several paths; `removed`:
    look through them for files that stood here before. Raises FolderMissing; InvalidArgument for
    what is no lock file; CorruptRecord.
    """
    if is_store(path):
        return stored.answer(name, path)
    files = files or ForeignFiles([absolute(path)])
    return settled([path], lambda _: [one_look(name, path, plain, files, removed)])[0]


def settled(paths: list[str], ask: Callable[[list[str]], list[Found]]) -> list[Found]:
    """`ask(paths)`; what seems to be gone, or cannot be told, is asked for until it says it twice.

    A holder that releases between the look at its record and that at its witness seems to have
    died. At the second look its record does not stand there any more.
    """
    found = ask(paths)
    todo = [at for at, answer in enumerate(found) if _is_doubtful(answer)]
    for _ in range(READS):
        if not todo:
            break
        clock.pause(PAUSE)
        before = [_said(found[at]) for at in todo]
        for at, answer in zip(todo, ask([paths[at] for at in todo]), strict=True):
            found[at] = answer
        changed = [at for at, said in zip(todo, before, strict=True) if _said(found[at]) != said]
        todo = [at for at in changed if _is_doubtful(found[at])]
    return found


def _is_doubtful(answer: LockAnswer | None) -> bool:
    return answer is not None and answer.state in (STALE, SUSPECT)


def _said(answer: LockAnswer | None) -> object:
    """What two looks at one lock that nobody touches have in common."""
    if answer is None:
        return None
    who = answer.holder
    grant = None if who is None else (who.owner, who.since, who.token, who.nonce)
    return answer.state, answer.kind, grant


def one_look(name: str, path: str, plain: bool, files: ForeignFiles, removed: bool) -> LockAnswer:
    """As `who`; but somebody who releases just now may seem to be gone."""
    path = absolute(path)
    try:
        answer = _found_in_time(name, path, plain, files, removed)
        if answer.state == FREE and (told := beside(name, path, files.eyes)) is not None:
            answer = told
        if not answer.family:
            answer = family_of(path, answer, readable=answer.note not in SHUT)
        return as_it_runs(answer)
    except (LifeholdError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - what a file says costs itself alone
        return unread(name, path, error)


def unread(name: str, path: str, error: Exception) -> LockAnswer:
    """The answer for what nobody foresaw: it may be held, and the others are told all the same."""
    return LockAnswer(name, path, SUSPECT, note=f"what is there cannot be judged: {error!r:.200}")


def as_it_runs(answer: LockAnswer) -> LockAnswer:
    """The answer, with whether its holders can run, and what lets them go on."""
    holder = process.as_it_runs(answer.holder)
    others = tuple(filter(None, map(process.as_it_runs, answer.others[:MOST])))
    cures = dict.fromkeys(cure for each in (holder, *others) for cure in explain.cures(each))
    if not cures:
        return answer
    others += answer.others[MOST:]
    return replace(
        answer, holder=holder, others=others, remedy=tuple(dict.fromkeys((*cures, *answer.remedy)))
    )


def _found_in_time(
    name: str, path: str, plain: bool, files: ForeignFiles, removed: bool
) -> LockAnswer:
    """What is found; from the start when the file went between two looks, as a release does."""
    for _ in range(READS):
        try:
            return _found(name, path, plain, files, removed)
        except FileNotFoundError:
            continue
    return LockAnswer(name, path, SUSPECT, note="it comes and goes while it is read")


def _found(name: str, path: str, plain: bool, files: ForeignFiles, removed: bool) -> LockAnswer:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if (answer := answer_readers(name, path)) is not None:
            return answer
        folder = os.path.dirname(path)
        if plain or os.path.isdir(folder):
            return _with_removed(LockAnswer(name, path, FREE, exists=False), files)
        raise FolderMissing(f"'{printable(folder)}' is not a folder", name=name) from error
    except OSError as error:  # ENAMETOOLONG, ELOOP, EACCES of a folder
        if isinstance(error, PermissionError):
            return LockAnswer(name, path, SUSPECT, note=_cannot_be_read(error))
        raise InvalidArgument(f"'{printable(path)}': {error.strerror}", name=name) from error
    for _ in range(READS):  # a link may go, and another come, while it is read
        if not stat.S_ISLNK(found.st_mode):
            break
        known = answer_existence(name, path, files.eyes, found)
        if known is not None:
            return known
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return LockAnswer(name, path, FREE, exists=False)
    _refuse_other_things(path, found.st_mode)
    fd, hidden = _opened(path, files)
    if fd is None:
        return LockAnswer(name, path, SUSPECT, note=hidden)
    try:
        if not hidden and (answer := answer_present(name, path, fd)) is not None:
            return _with_removed(answer, files) if removed else answer
        if not hidden and (answer := answer_readers(name, path, fd)) is not None:
            return answer
        if not hidden and (permits := permits_of(HOST, fd)) is not None:
            return answer_slots(who, LockAnswer(name, path, FREE), permits)
        if not hidden and (answer := databases.answer(name, path, fd, files)) is not None:
            return answer
        answer = _steady(LockAnswer(name, path, FREE, note=hidden), fd, files)
        if answer.holder is None and hidden:
            blank = _is_blank(fd, found, files)
            return replace(answer, note=EMPTY) if blank else replace(answer, state=SUSPECT)
        if answer.holder is None:
            answer = _unheld(answer, fd, found, files)
    finally:
        HOST.close(fd)
    return _with_removed(answer, files) if removed else answer


def _is_blank(fd: int, found: os.stat_result, files: ForeignFiles) -> bool:
    """Whether the kernel's table says it all: it is whole, and the file has nothing to read."""
    if found.st_size or not stat.S_ISREG(found.st_mode) or not sees_all_locks():
        return False
    return files.lines(key_of(fd)) is not None


def _opened(path: str, files: ForeignFiles) -> tuple[int | None, str]:
    """A descriptor, and why it cannot be read from, "" when it can. FileNotFoundError: it went.

    Closing any descriptor of a file drops all fcntl locks that this very process has on it, which
    is what POSIX wants: so a file that we have such a lock on is not opened. Nor is one that a
    process has a write lease on: the signal that tells it of an open kills who does not expect it.
    """
    fd = None
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        lines = files.lines(key_of(fd)) or []
        if any(line.kind == POSIX and line.pid == os.getpid() for line in lines):
            return fd, OURS_BY_FCNTL
        if any(line.ends_by_open for line in lines):
            return fd, LEASED
    except (OSError, AttributeError):  # no such thing but on Linux
        pass
    try:
        readable = HOST.open(path, READ_ONLY)
    except FileNotFoundError:
        if fd is not None:
            os.close(fd)
        raise
    except OSError as error:
        return fd, _cannot_be_read(error)
    if fd is not None:
        os.close(fd)
    return readable, ""


def _steady(answer: LockAnswer, fd: int, files: ForeignFiles) -> LockAnswer:
    """Who holds it, looked at again when it changed hands while we looked."""
    before = None
    for _ in range(kernel_holders.LOOKS):
        files.forget()
        seen = kernel_holders.look_at(
            HOST, answer.path, fd, readable=not answer.note, table=files.lines
        )
        found = _holders(seen, files, None if answer.note else fd)
        waiting = queue(seen, files)
        if not found:
            return replace(answer, waiting=waiting)
        told = replace(
            answer,
            state=STATES[found[0][1].alive],
            holder=found[0][1],
            kind=found[0][0],
            others=tuple(holder for _, holder in found[1:]),
            waiting=waiting,
        )
        held = [line for line in seen.lines or () if not line.waiting]
        now = files.lines(seen.key)
        if now is None or all(line in now for line in held):
            setters = seen.setters(FLOCK)
            now_said = kernel_holders.said(found[0][1])
            if not setters or now_said == before:
                return told
            if kernel_holders.is_recorded(seen, setters[0], found[0][1]):
                return told
            before = now_said
    return replace(
        told,
        holder=Holder(alive=ALIVE, evidence=kernel_holders.RESTLESS, lock=seen.lock),
        others=(),
    )


def _holders(seen: HolderLook, files: ForeignFiles, fd: int | None) -> list[tuple[str, Holder]]:
    """Each with its kind: flock(2) first, which our own locks are. `fd`: to ask by, if there is."""
    setters = seen.setters(FLOCK)
    found = [("flock", kernel_holders.held_by(seen, line, files.of)) for line in setters[:MANY]]
    if not setters and fd is not None:
        holder = _unshown(seen)
        found = [("flock", holder)] if holder is not None else []
    of_bytes = fcntl_holders(seen, files)
    if not of_bytes and fd is not None and not sees_all_locks():
        of_bytes = unshown_bytes(seen, fd, files)
    return found + of_bytes + lease_holders(seen)


def _unshown(seen: HolderLook) -> Holder | None:
    """Where /proc/locks does not show everybody, it is tried whether anybody holds it."""
    holder = kernel_holders.holder_of(HOST, seen.path, False)
    if holder is not None and holder.alive == ALIVE:
        return holder
    if process.namespace("pid") == INITIAL_PID_NAMESPACE:
        return holder
    how = kernel_holders.how_taken(HOST, seen.path)
    if how == kernel_holders.SHARED:
        return kernel_holders.sharer(seen)
    return kernel_holders.holder_of(HOST, seen.path, True) if how else None


def _unheld(answer: LockAnswer, fd: int, found: os.stat_result, files: ForeignFiles) -> LockAnswer:
    """No kernel lock is held: the record of the last holder, or a lock of another tool."""
    last, version = _read(fd)
    if not version:
        known = answer_existence(answer.name, answer.path, files.eyes, found, fd)
        if known is None and stat.S_ISREG(found.st_mode):
            as_lock = not found.st_size or families.may_be(os.path.basename(answer.path))
            return replace(answer, note=EMPTY) if as_lock else answer
        return answer if known is None else replace(known, waiting=answer.waiting)
    if version > record.VERSION:  # L12
        note = (
            f"its record has version {version}, of a newer lifehold, which may know other holders"
        )
        return replace(answer, state=SUSPECT, note=note)
    return replace(answer, last=last)


def _with_removed(answer: LockAnswer, files: ForeignFiles) -> LockAnswer:
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


# ------------------------------------------------------------------------------------------------
# Who holds a semaphore: one answer of the answers of its slots.
#
# Promise: as of one lock: held is said only when the kernel says so of a slot.


MOST_SLOTS = 1000  # slots that are looked at


def permits_of(files: Files, fd: int) -> int | None:
    """How many may hold, of a semaphore's file; None of any other file."""
    found: os.stat_result = files.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size != kernel_semaphore.LENGTH:
        return None
    return kernel_semaphore.parsed(files.pread(fd, kernel_semaphore.LENGTH, 0))


def numbers_of(path: str, count: int) -> list[int]:
    """The slots that were ever used, in order: what the file says may be anything up to 999999."""
    folder, name = os.path.split(slot_path(path, 0))
    front, _, end = name.rpartition("#0")
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            number = entry.name.removeprefix(f"{front}#").removesuffix(end)
            if number.isdecimal() and number.isascii() and len(number) <= kernel_semaphore.WIDTH:
                if entry.name == f"{front}#{int(number)}{end}" and int(number) < count:
                    found.append(int(number))
    return sorted(found)


def _halted_first(path: str) -> Holder | None:
    """Who is first in line for a slot and cannot run: nobody passes it."""
    try:
        first = process.as_it_runs(kernel_holders.holder_of(HOST, path, held=False))
    except OSError:
        return None
    return kernel_semaphore.as_first(first) if first is not None and first.halted else None


def answer_slots(who: Callable[..., LockAnswer], empty: LockAnswer, count: int) -> LockAnswer:
    """The answer for the semaphore of `empty`, whose file says `count`."""
    numbers = numbers_of(empty.path, count)
    paths = {n: slot_path(empty.path, n) for n in numbers[:MOST_SLOTS]}
    files = ForeignFiles(paths.values())
    found = [who(f"{empty.name}#{n}", path, plain=True, files=files) for n, path in paths.items()]
    taken = [each for each in found if each.holder is not None]
    are = "is" if len(taken) == 1 else "are"
    note = f"a semaphore: {len(taken)} of its {count} slots {are} taken"
    note += f", of the first {MOST_SLOTS} that were ever used" if len(numbers) > MOST_SLOTS else ""
    removed = tuple(holder for each in found for holder in each.removed)
    waiting = {each.pid: each for one in found for each in one.waiting}
    known = replace(empty, note=note, removed=removed, waiting=tuple(waiting.values()))
    if len(taken) < count and (first := _halted_first(empty.path)) is not None:
        taken.append(replace(known, state=HELD, holder=first))
    if not taken:
        last = [each.last for each in found if each.last is not None]
        latest = max(last, key=lambda holder: holder.since or 0.0, default=None)
        unclear = next((each.state for each in found if each.state != known.state), known.state)
        return replace(known, last=latest, state=unclear)
    others = [one for each in taken for one in each.others]
    others += [each.holder for each in taken[1:] if each.holder is not None]
    states = {each.state for each in taken}
    worst = taken[0].state if len(states) == 1 else "held" if "held" in states else taken[0].state
    return replace(known, state=worst, holder=taken[0].holder, others=tuple(others))


# ------------------------------------------------------------------------------------------------
# What `who` says of a lock whose record is the lock, its kind being found, not told.


WHY = {
    FROM_NEWER: "its record was written by a newer lifehold than this one: upgrade lifehold here",
    UNREADABLE: "its record is damaged; whoever waits for it leaves it alone for a while",
}


def answer_present(name: str, path: str, fd: int | None = None) -> LockAnswer | None:
    """The answer for `soft`, `link` and `generation`; None when no such record is there.

    `fd`: of the path, when it is open for reading already.
    """
    try:
        found = identify.standing(HOST, path, fd)
    except OSError as error:
        gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
        if gone or not os.path.isdir(path):  # of a file who asks the kernel tells more
            return None
        note = f"the lock's folder cannot be read here: {error.strerror}"
        return LockAnswer(name, path, SUSPECT, note=note)
    if found is None:
        return None
    kind = found.marker.kind
    if found.marker.state == OLDER and not kinds.is_record(kind):
        kind = "pidfile"
    holder = identify.holder_of(found)
    if identify.is_free(found):
        return LockAnswer(name, path, FREE, last=replace(holder, lock=""), kind=kind)
    state, note = identify.STATES[found.state], _note(found)
    return LockAnswer(name, path, state, holder, note=note, kind=kind or _kind(found))


def _note(found: Judgement) -> str:
    marker = found.marker
    if marker.content == UNSEEN:
        return ""  # its evidence tells why
    if marker.state in WHY:
        return WHY[marker.state]
    if found.state == UNKNOWN and marker.ttl is not None:
        return (
            f"a lease: whoever waits takes it when it was not renewed for {marker.ttl:g} s; "
            "whether its holder lives cannot be seen from here"
        )
    return ""


def _kind(found: Judgement) -> str:
    """Of a record that cannot be read: as it was judged."""
    return next(kind for kind in kinds.KINDS if f"({kind} lock" in found.lock)


# ------------------------------------------------------------------------------------------------
# What `who` says of the locks of other tools: the family, the verdict, and what to do next.
#
# Promise: `stale` is said only of what verdict.py proves (L2); a remedy is safe for that family,
# and runs as printed.


NOTHING = "nothing to do"
KERNEL = "the lock is the kernel's and ends with its holder: never remove the file"


def answer_existence(
    name: str,
    path: str,
    eyes: ProcessTable,
    found: os.stat_result | None = None,
    fd: int | None = None,
) -> LockAnswer | None:
    """The answer for a lock that no kernel lock holds; None for what no family knows."""
    sight = families.LockPath(path, found, fd)
    known = families.recognised(sight)
    if known is None:
        return None
    family, claim = known
    empty = LockAnswer(name, path, FREE, kind="existence", family=family.name)
    if family.kernel:
        return replace(empty, kind="flock", note=KERNEL)
    if claim.frees:
        return replace(empty, note=f"{family.title}, which says itself that nobody holds it")
    holder, claim = families.first_living(sight, family, claim, eyes)
    state = STATES[holder.alive]
    kind = "existence" if families.numbers.pid_of(sight) is None else "pidfile"
    return replace(
        empty,
        state=state,
        holder=holder,
        kind=kind,
        note=_existence_note(family, claim),
        remedy=_remedies(path, state, holder, claim),
    )


def beside(name: str, path: str, eyes: ProcessTable) -> LockAnswer | None:
    """Of filelock's SoftReadWriteLock, whose state is a folder beside its path; None for no such.

    The answer's path is that of the folder.
    """
    folder = f"{path}.rw"
    try:
        found = os.lstat(folder)
    except OSError:
        return None
    told = answer_existence(name, folder, eyes, found) if stat.S_ISDIR(found.st_mode) else None
    return told if told is not None and told.family == "filelock-rw" else None


def family_of(path: str, found: LockAnswer, *, readable: bool) -> LockAnswer:
    """An answer about a kernel lock, or about one of ours, with its family.

    `readable`: whether the file may be opened, which drops our own fcntl locks.
    """
    holder = found.holder or found.last
    if holder is not None and holder.nonce is not None:
        return replace(found, family="lifehold")
    if found.kind == "folder" and holder is not None:
        return replace(found, family="lockfolder")
    known = None
    if readable and found.exists and found.kind in ("flock", "fcntl", "ofd"):
        try:
            known = families.recognised(families.LockPath(path))
        except OSError:
            known = None
    return replace(found, family=known[0].name if known else found.kind)


def _existence_note(family: Family, claim: StatedHolder) -> str:
    if family is families.PID_FILE:
        return "a pid file: no kernel lock is held on it, only its number can be judged"
    parts = [f"{family.title}: no kernel lock is held on it, what it says is judged"]
    if claim.words:
        parts.append(claim.words)
    return "; ".join(parts)


def _remedies(path: str, state: str, holder: Holder, claim: StatedHolder) -> tuple[str, ...]:
    """What to do next, each a command behind its word."""
    quoted = explain.quote(path)
    if state == HELD:
        end = f"see it:  ps -fp {holder.pid_here}" if holder.pid_here else ""
        return tuple(filter(None, (end,)))
    if state == SUSPECT and claim.waits:
        return (f"wait for it:  {claim.waits}",)
    if state == SUSPECT:
        if os.name == "posix" and os.geteuid() != 0 and not process.sees_all_processes():
            return (f"look as root:  sudo lifehold who {quoted}",)
        return (f"see who runs:  ps -fC {','.join(claim.programs)}",) if claim.programs else ()
    if claim.takes_over:
        return (f"{NOTHING}:  its next holder takes it over at once, by the same proof",)
    if claim.kept:
        return (f"keep it:  {claim.kept}",)
    return (f"clear it:  {claim.stale or f'lifehold clear {quoted}'}",)


# ------------------------------------------------------------------------------------------------
# Who reads, who writes and who waits to write, of a reader/writer lock of kind "soft".
#
# Promise: of its records alone, as the lock's own parties judge them; nothing is made, written or
# removed, and a record's own kernel lock is tried shared, for a moment. While readers are in, a
# claim is a writer that waits for them; later readers wait for it.


MOST_READERS = 1000  # readers that are judged; more of them are counted
ODD = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ESPIPE)  # links, sockets, folders, FIFOs
CLAIMS = "CLAIM"  # how a writer waits for readers: with its record in its place


def answer_readers(name: str, path: str, fd: int | None = None) -> LockAnswer | None:
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
        found = [_judged(path, f"{path}{SUFFIX}/{each}") for each in names[:MOST_READERS]]
    except OSError as error:
        if os.path.lexists(path + SUFFIX):
            note = f"who is in cannot be read here: {error.strerror}"
            return LockAnswer(name, path, SUSPECT, note=note, kind=soft_readwrite.KIND)
        return None
    readers = [each for each in found if each is not None]
    return _told(LockAnswer(name, path, FREE, kind=soft_readwrite.KIND), claim, readers, len(names))


def _names(folder: str) -> list[str]:
    try:
        return sorted(filter(is_marker, os.listdir(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _told(
    empty: LockAnswer, claim: Judgement | None, readers: list[Judgement], count: int
) -> LockAnswer:
    living = [each for each in readers if each.state != DEAD]
    living.sort(key=lambda each: each.state != ALIVE)
    writes = claim is not None and claim.state != DEAD
    if living:
        holders = [_reader(each) for each in living]
        waiting: tuple[KernelWaiter, ...] = ()
        if writes and claim is not None:
            waiting = (KernelWaiter(_pid(claim), True, CLAIMS),)
        state = STATES[ALIVE] if any(each.state == ALIVE for each in living) else SUSPECT
        many = (
            f"{count} readers, of whom {MOST_READERS} were looked at"
            if count > MOST_READERS
            else ""
        )
        note = many or f"{len(living)} reader{'s' * (len(living) > 1)}"
        return replace(
            empty,
            state=state,
            holder=holders[0],
            others=tuple(holders[1:]),
            waiting=waiting,
            note=f"a reader/writer lock: {note}{', and a writer waits for them' * writes}",
        )
    if claim is not None:
        note = "a reader/writer lock: a writer"
        return replace(empty, state=STATES[claim.state], holder=holder_of(claim), note=note)
    if not readers:
        return empty
    note = "a reader/writer lock: readers that are gone; the next writer removes what they left"
    return replace(empty, state=STALE, holder=_reader(readers[0]), note=note)


def _reader(found: Judgement) -> Holder:
    holder = holder_of(found)
    return replace(holder, evidence=f"{holder.evidence}; a reader")


def _pid(claim: Judgement) -> int:
    holder = holder_of(claim)
    owner = holder.owner
    return holder.pid_here or (owner.pid if owner and holder.pid_here is None else 0)


def _judged(path: str, file: str) -> Judgement | None:
    """None: it is gone, or no record of such a lock; of a marker's name it is one all the same."""
    certain, fd = file != path, -1
    try:
        fd = HOST.open(file, READ_ONLY)
        return _of_fd(path, fd, certain=certain)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno not in ODD:
            raise
        kind = soft_readwrite.KIND
        return identify.unread(path, os.path.basename(file), kind, error) if certain else None
    finally:
        if fd >= 0:
            HOST.close(fd)


def _of_fd(path: str, fd: int, *, certain: bool = False) -> Judgement | None:
    """`certain`: by its name it is a marker, whatever can be read of it."""
    try:
        found = read(HOST.pread(fd, READ_SIZE, 0))
    except IsADirectoryError:
        if certain:
            raise
        return None
    if not certain and not (found.state == CURRENT and found.kind == soft_readwrite.KIND):
        return None
    return LivenessJudge(soft_readwrite.KIND, WATCHED).judged(
        path, BorrowedRecord(HOST, fd), place_of(fd), clock.now
    )
