"""Removing stale locks: only existence locks, only on proof, and never by a bare path.

Promise: a lock is removed only while its holder is proven gone (L2), as the one that was judged
(L3), and after a line about it was written to the audit log. A file that a kernel lock may be taken
on is never removed (L7): the lock is free as soon as its holder ends, and two files under one name
are two locks. Where its words stand in the way, it is emptied. A live or a suspect lock is removed
only by who types the word that names that very lock. Root does all this with the rights of who owns
the place (rights.py), and what is left there stays theirs (L13).

Our own kinds are cleared by taking the lock, which is their takeover, and giving it back. Others'
files and links: clear.py. What a tool clears by itself, or only it can clear, is left to it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from .. import registry
from ..core import events, explain
from ..core.errors import LifeholdError, SystemRefused
from ..core.mask import printable
from ..core.owner import INITIAL_PID_NAMESPACE
from ..core.value import replace, value
from ..local import files, identify, kinds, lock_names, record, record_folders
from ..local.files import F_SETSIG, HOST, LOCK_EX, LOCK_NB, READ_ONLY, READ_WRITE, rename_new
from ..local.soft_readwrite import KIND as SOFT_READWRITE
from ..lock import absolute
from ..runtime import clock, fork, process, rights
from . import families, history
from .answer import (
    FREE,
    FREED,
    HELD,
    KEPT,
    NOTHING,
    REMOVED,
    STALE,
    SUSPECT,
    WOULD,
    WOULD_FREE,
    ClearOutcome,
)
from .who import NOTHING as NOTHING_TO_DO
from .who import who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .. import lock as lock_module
    from ..core.grant import Holder
    from ..core.owner import Owner
    from . import stored
    from .answer import LockAnswer
    from .foreign import ForeignFiles
else:
    lock_module = fork.later("lifehold.lock", globals(), "lock_module")
    stored = fork.later("lifehold.ops.stored", globals())

KERNEL = ("flock", "fcntl", "ofd")


def clear(
    path: str,
    *,
    dry_run: bool = False,
    force: str = "",
    earlier_boot: bool = False,
    found: bool = False,
    files: ForeignFiles | None = None,
) -> ClearOutcome:
    """Remove the lock at `path` if it is stale. `force`: the word of this very lock.

    `earlier_boot`: only if an earlier boot of this machine has left it; `found`: in a tree, nobody
    has named it: what may be data as well is kept; `files`: a look at all processes which several
    locks share. It is no proof: who is removed is looked at anew. Raises what `who` raises;
    SystemRefused when the audit log cannot be written.
    """
    if lock_names.is_store(path):
        return stored.clear(path, dry_run=dry_run, force=force)
    path = absolute(path)
    answer = who(path, path, plain=True, files=files, removed=files is None)
    path = answer.path  # of one whose state stands beside it, that
    kept = _never(path, answer)
    if kept is not None:
        return kept
    if found and answer.state == STALE and (why := families.doubt_of(answer.family, path)):
        return ClearOutcome(path, KEPT, why, answer, next=f"lifehold clear {explain.quote(path)}")
    if earlier_boot and answer.state == STALE and not _is_of_earlier_boot(path, answer):
        why = "its holder is gone, but it was made since this machine has started"
        return ClearOutcome(path, KEPT, why, answer, next=f"lifehold clear {explain.quote(path)}")
    word = word_of(path, answer.holder)
    forced = bool(force) and force == word
    if answer.state != STALE and not forced:
        return _unproven(path, answer, word, force)
    evidence = answer.holder.evidence if answer.holder else ""
    why = f"by order, although {evidence}" if forced and answer.state != STALE else evidence
    try:
        case = ClearCase.of(path, answer)
    except SystemRefused as error:
        return ClearOutcome(path, KEPT, error.text, answer)
    if record.is_unpublished(os.path.basename(path)):
        why = f"left by a process that was killed before it had the lock: {why}"
    if dry_run:
        return _tried(path, answer, why, case)
    return _removed(path, answer, why, forced and answer.state != STALE, case)


@value
class ClearCase:
    """How one lock is cleared. `actor`: with whose rights; `found`: its lstat(2).

    `emptied`: its words go, and the file stays; `stays`: what stays, in words, "" for nothing.
    """

    found: os.stat_result
    actor: rights.UserRights | None
    emptied: bool
    stays: str

    @classmethod
    def of(cls, path: str, answer: LockAnswer) -> ClearCase:
        """Raises SystemRefused where it cannot be done safely."""
        found = os.lstat(path)
        emptied = (
            not kinds.is_record(answer.kind)
            and stat.S_ISREG(found.st_mode)
            and families.also_locks(answer.family)
        )
        row = kinds.KINDS.get(answer.kind)
        stays = MAY_BE_LOCKED if emptied else "" if row is None else row.stays
        if record.is_unpublished(os.path.basename(path)):
            stays = ""  # it is no lock
        return cls(found, rights.actor_for(path, found), emptied, stays)


def word_of(path: str, holder: Holder | None = None) -> str:
    """The word of the lock that stands there now: another lock, or another content, has another.

    `holder`: where a grant of ours has a nonce, that: a heartbeat, or a waiter, writes times anew.
    """
    import hashlib

    if holder is not None and holder.nonce:
        key = holder.nonce.encode()
    else:
        try:
            found = os.lstat(path)
            said = b"" if os.path.isdir(path) else words_of(path)
        except OSError:
            return ""
        key = f"{found.st_dev} {found.st_ino} {found.st_ctime_ns} ".encode() + said
    return hashlib.sha256(key).hexdigest()[:8]


def _never(path: str, answer: LockAnswer) -> ClearOutcome | None:
    """What is not removed by anybody's order."""
    if not answer.exists:
        return ClearOutcome(path, NOTHING, "no such file or folder", answer)
    if answer.kind == SOFT_READWRITE:  # each of its records is removed by who comes next
        if answer.state == STALE:
            why = "nobody is in: the next to come removes what the dead have left"
            return ClearOutcome(path, NOTHING, why, answer)
        word = NOTHING if answer.state == FREE else KEPT
        return ClearOutcome(path, word, answer.note or "it is free", answer)
    if answer.kind in KERNEL or (
        not kinds.is_record(answer.kind) and answer.kind not in ("existence", "pidfile")
    ):
        if answer.family not in ("", "flock") or answer.holder is not None:
            why = "a kernel lock's file: removed, it would let a second holder in"
        elif answer.last is not None:
            why = "a kernel lock's file, which is free: nothing is in anybody's way"
        elif answer.state == SUSPECT and answer.note:
            why = answer.note  # a record of a newer version, or what cannot be read here
        else:
            why = "it is free, and not known as a lock that a file makes by being there"
        return ClearOutcome(path, NOTHING if answer.state == FREE else KEPT, why, answer)
    if answer.state == FREE:
        return ClearOutcome(path, NOTHING, "it is free", answer)
    for each in answer.remedy:
        what, _, command = each.partition(":  ")
        if what == NOTHING_TO_DO:
            return ClearOutcome(path, NOTHING, command, answer)
        if what == "keep it":
            return ClearOutcome(path, KEPT, command, answer)
        if what == "clear it" and not command.startswith("lifehold "):
            return ClearOutcome(path, KEPT, "its own tool clears it", answer, next=command)
    if answer.kind == "existence" and os.path.isdir(path) and not os.path.islink(path):
        return ClearOutcome(path, KEPT, "a folder, which its own tool must clear", answer)
    return None


def _is_of_earlier_boot(path: str, answer: LockAnswer) -> bool:
    """By the boot that its record names; else by its time, which proves nothing and only narrows.

    That its holder is gone is proven already, without any clock.
    """
    owner = answer.holder.owner if answer.holder else None
    if owner is not None and owner.boot_id is not None:
        return owner.boot_id != process.here().boot_id
    began = process.began_at(0)
    try:
        return began is not None and os.lstat(path).st_ctime < began
    except FileNotFoundError:
        return False


def _unproven(path: str, answer: LockAnswer, word: str, force: str) -> ClearOutcome:
    evidence = answer.holder.evidence if answer.holder else answer.note
    why = f"{'it is held' if answer.state == HELD else 'no proof that its holder is gone'}: "
    why += evidence
    if force:
        why = f"the word {printable(force)!r} is not of the lock that stands there now; {why}"
    return ClearOutcome(path, KEPT, why, answer, word)


def _tried(path: str, answer: LockAnswer, why: str, case: ClearCase) -> ClearOutcome:
    """What would become of it, as far as that can be told without a change."""
    try:
        if case.emptied:
            rights.act(case.actor, lambda: could_empty(path, case.found))
    except (ChangedMeanwhile, OSError) as error:
        return ClearOutcome(path, KEPT, f"it would stay: {_in_words(error, case)}", answer)
    return ClearOutcome(path, WOULD_FREE if case.stays else WOULD, why, answer)


def _in_words(error: Exception, case: ClearCase) -> str:
    text = error.text if isinstance(error, LifeholdError) else str(error)
    if isinstance(error, OSError) and error.strerror and not isinstance(error, LifeholdError):
        text = f"the system refused: {error.strerror}"
        text += f" (tried with the rights of {case.actor.name})" if case.actor else ""
    return text


def _removed(
    path: str, answer: LockAnswer, why: str, forced: bool, case: ClearCase
) -> ClearOutcome:
    words = b""
    owner = answer.holder.owner if answer.holder else None
    if not kinds.is_record(answer.kind):
        words = words_of(path)
        again = who(path, path, plain=True)  # the proof, of what was read
        if not forced and again.state != STALE:
            return _unproven(path, again, word_of(path), "")
    note = f"{why} (with the rights of {case.actor.name})" if case.actor else why
    _note(path, answer, note, history.CLEAR)
    try:
        if kinds.is_record(answer.kind):
            order, kind = (why, answer.holder) if forced else None, answer.kind
            _load(kind)
            if record.is_unpublished(os.path.basename(path)):
                rights.act(case.actor, lambda: _discard(path, case.found))
            else:
                rights.act(case.actor, lambda: _take_and_release(path, kind, order, case.found))
        elif case.emptied:
            rights.act(case.actor, lambda: empty(path, case.found, words))
        else:
            rights.act(case.actor, lambda: remove_judged(path, case.found, words, owner))
    except (ChangedMeanwhile, LifeholdError, OSError) as error:
        text = _in_words(error, case)
        _note(path, answer, text, history.KEPT)
        return ClearOutcome(path, KEPT, f"not removed: {text.partition(chr(10))[0]}", answer)
    events.tell(events.Cleared(path, answer.holder, why))
    freed = replace(answer, state=FREE)
    if case.stays:
        remove = f"rm -- {explain.quote(path)}" if case.emptied else ""
        return ClearOutcome(path, FREED, f"{why}; {case.stays}", freed, next=remove)
    return ClearOutcome(path, REMOVED, why, freed)


MAY_BE_LOCKED = (
    "the file stays, emptied, since its program may lock it by the kernel too. Only if that "
    "program takes its mere presence as the lock, remove it"
)
# What a takeover may load on its way: who owns the place may not be able to read our modules.
NEEDED = (
    "ctypes",
    "functools",
    "json",
    "logging",
    "pwd",
    "select",
    "encodings.ascii",
    "lifehold.lock",
    "lifehold.core.explain",
    "lifehold.local.ground",
    "lifehold.local.ground_probe",
    "lifehold.local.kernel_holders",
    "lifehold.local.clean_up",
    "lifehold.local.token_file",
    "lifehold.local.folder",
    "lifehold.runtime.flock_wait",
    "lifehold.runtime.process",
    "lifehold.runtime.watch_table",
    "lifehold.runtime.change_wait",
    "lifehold.runtime.watch_thread",
    "lifehold.runtime.notify",
)


def _load(kind: str) -> None:
    for module in NEEDED:
        fork.lazily(module)
    registry.maker(kind)
    process.here()


def _take_and_release(
    path: str, kind: str, order: tuple[str, Holder | None] | None, found: os.stat_result
) -> None:
    """By the lock's own takeover, or by order: why, and whom it is for.

    What it makes has the rights of what was there. Raises ChangedMeanwhile.
    """
    standing_now = identify.standing(HOST, path)
    ttl = standing_now.marker.ttl if standing_now is not None else None
    terms: dict[str, Any] = {} if ttl is None else {"ttl": ttl}
    if stat.S_IMODE(found.st_mode) & 0o066 == 0o066:
        terms["shared"] = True
    made = lock_module.Lock(path, kind=kind, **terms)
    if order is not None:
        if registry.breaker(made._mechanism)(*order) is None:
            raise ChangedMeanwhile("whom the word names has let go meanwhile")
        return
    with made.acquire(wait=0):
        return


def _discard(path: str, found: os.stat_result) -> None:
    """Remove what its maker left under a name of its own: no lock, and nobody ever takes it.

    Its witness is tried once more, and kept meanwhile. Raises ChangedMeanwhile, OSError.
    """
    if not _is(os.lstat(path), found):
        raise ChangedMeanwhile("it was removed by another")
    inside = os.listdir(path) if stat.S_ISDIR(found.st_mode) else []
    if not all(map(record_folders.is_entry, inside)):
        raise ChangedMeanwhile("there is more in it than a record")
    for file in [os.path.join(path, each) for each in inside] or [path]:
        fd = os.open(file, files.READ_ONLY)
        try:
            HOST.flock(fd, LOCK_EX | LOCK_NB)
            os.unlink(file)
        except BlockingIOError as error:
            raise ChangedMeanwhile("somebody locks it") from error
        finally:
            os.close(fd)
    if inside:
        os.rmdir(path)


def _note(path: str, answer: LockAnswer, why: str, event: str) -> None:
    """One line, written before it is done. Raises SystemRefused."""
    us = process.here()
    holder = answer.holder
    entry = history.HistoryEntry(
        event,
        path,
        clock.utc_now(),
        pid=us.pid,
        user=us.user,
        host=us.host,
        command=us.command or "",
        reason=why,
        label=answer.family,
        holder=explain.by(holder) if holder else "",
        holder_pid=holder.owner.pid if holder and holder.owner else None,
        holder_since=holder.since if holder else None,
    )
    log = history.log_path()
    if not history.append(log, entry, own=True):
        raise SystemRefused(
            f"the audit log '{printable(history.path_of(log))}' cannot be written: nothing was "
            "removed. Set LIFEHOLD_DIR to a folder that can be written",
        )


# ------------------------------------------------------------------------------------------------
# The removal of a foreign lock that is a bare path, proven stale: a file or a symbolic link.
#
# Promise: what is removed is the very file that was judged, unchanged, in the very folder that was
# opened: a folder swapped on its path is not followed. A lock that another process made since is
# put back, and its path was never free meanwhile. Nothing of ours has a set-user-id, set-group-id
# or sticky bit (L13). Whose rights this is done with: rights.py.
#
# `remove`, for families that lock by presence alone: 1 Open what was judged, so that its inode
# number is not given on; lock it, against our own kind. 2 Post a placeholder under a name of its
# own: a lock of this process, as that family writes it. 3 Exchange the two names in one step (L3):
# the path is a lock all the time. 4 Look at what came back. The judged file, unchanged: go on.
# Another: exchange again, and leave it. 5 Remove the judged file by its new name; then rename the
# placeholder away and remove it.
#
# `empty`, for files that their program may lock by the kernel as well, and for what no family knows
# better (L7): who waits in flock(2) or fcntl(2) for the inode wakes with it after an unlink(2), and
# beside it the next one holds a new file. So the file stays, without its words: under both kinds of
# kernel lock, while nobody else has it open, and with a lease that holds up who opens it just then.
#
# filelock takes over by such an exchange too, and two kinds of breakers that judge the same dead
# lock can lose a fresh one between them (seen twice in 3,000 rounds). So its locks are left to
# itself where it can prove the death (clear.py); elsewhere nobody else breaks them.
#
# What remains: another tool that judged the same dead lock, and removes it by its path, may remove
# the placeholder between 3 and 5, so that a third one acquires, and our rename takes its lock. It
# is looked at and put back (by a rename that replaces nothing); for that moment its path was free.
# Two tools that clean up by path can rob each other's successors with or without us.


try:
    import _signal  # type: ignore[import-not-found]
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

MOST = 1 << 20  # bytes of a lock file that are compared
PATIENCE, STALL, PAUSE = 1.0, 0.01, 0.0005  # seconds for others to undo an exchange
ASIDE = ".lifehold-"  # and a nonce: what a crash leaves is swept as other leftovers are
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
FOLDER |= getattr(os, "O_CLOEXEC", 0)
PLAIN = 0o666  # of a mode, the bits that anything of ours may have


class ChangedMeanwhile(Exception):
    """It is not what was judged any more, or somebody uses it: nothing was removed."""


def words_of(path: str, at: int | None = None) -> bytes:
    """What a lock says: the content of a file, the target of a link. Raises OSError.

    `at`: the descriptor of the folder that `path` begins in.
    """
    if stat.S_ISLNK(os.lstat(path, dir_fd=at).st_mode):
        return os.fsencode(os.readlink(path, dir_fd=at))
    fd = os.open(path, READ_ONLY, dir_fd=at)
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "another thing than a file stands there")
    return HOST.pread(fd, MOST, 0)


def remove_judged(
    path: str,
    found: os.stat_result,
    words: bytes,
    dead: Owner | None,
    step: Callable[[str], None] = lambda name: None,
) -> None:
    """Remove the lock at `path` if it is `found`, with these words.

    Raises ChangedMeanwhile, OSError.
    `dead`: whom it names; `step`: hears the name of each step, for tests.
    """
    at, name = _anchored(path)
    try:
        step("anchored")
        link = stat.S_ISLNK(found.st_mode)
        fd = _kept_open(name, at, link=link)
        try:
            if not _is(os.fstat(fd), found):
                raise ChangedMeanwhile("it was replaced by another")
            if not link:
                _lock(fd)
            if (words_of(name, at) if link else _read(fd)) != words:
                raise ChangedMeanwhile("it was written to")
            step("judged")
            _by_exchange(at, name, found, words, dead, step)
        finally:
            os.close(fd)
    finally:
        os.close(at)


def empty(
    path: str,
    found: os.stat_result,
    words: bytes,
    step: Callable[[str], None] = lambda name: None,
) -> None:
    """Take the words out of the file at `path` if it is `found`, with these words; it stays.

    Its time becomes that of 1970, so that tools which go by the age of an empty lock file (the rule
    of 5 minutes) take it at once. Raises ChangedMeanwhile, OSError.
    """
    at, name = _anchored(path)
    try:
        step("anchored")
        fd = os.open(name, READ_WRITE, dir_fd=at)
        try:
            _refuse_another(fd, found)
            _lock(fd, needed=True)
            _refuse_open(fd)  # from here on, who opens it waits for us
            if _read(fd) != words:
                raise ChangedMeanwhile("it was written to")
            step("judged")
            os.ftruncate(fd, 0)
            os.utime(fd, (0, 0))
        finally:
            os.close(fd)
    finally:
        os.close(at)


def could_empty(path: str, found: os.stat_result) -> None:
    """Raises what `empty` would, as far as that can be told without its locks or a change."""
    at, name = _anchored(path)
    try:
        fd = os.open(name, READ_WRITE, dir_fd=at)
        try:
            _refuse_another(fd, found)
            _refuse_open(fd)
        finally:
            os.close(fd)
    finally:
        os.close(at)


def _refuse_another(fd: int, found: os.stat_result) -> None:
    """What is not the file that was found, or not that alone. Raises ChangedMeanwhile."""
    here = os.fstat(fd)
    if not _is(here, found) or not stat.S_ISREG(here.st_mode):
        raise ChangedMeanwhile("it was replaced by another")
    if here.st_nlink != 1:
        raise ChangedMeanwhile("it has another name, which may be somebody's data")


def _anchored(path: str) -> tuple[int, str]:
    """L13  The folder of `path`, open: wherever its path leads later, we stay in this one."""
    if os.name != "posix":
        raise ChangedMeanwhile("this system cannot exchange two names in one step")
    folder, name = os.path.split(path)
    return os.open(folder or "/", FOLDER), name


def _kept_open(name: str, at: int, *, link: bool) -> int:
    """A descriptor, as long as which nothing else gets its inode's number."""
    flags = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC if link else READ_ONLY
    return os.open(name, flags, dir_fd=at)


def _lock(fd: int, *, needed: bool = False) -> None:
    """Against others of our kind, who do the same: taken without waiting, gone with the file.

    `needed`: by both kinds of lock of the kernel, or not at all.
    """
    try:
        HOST.flock(fd, LOCK_EX | LOCK_NB)
        if needed:
            HOST.guard(fd)
    except BlockingIOError as error:
        raise ChangedMeanwhile("somebody locks it") from error
    except OSError as error:
        if needed:
            raise ChangedMeanwhile("nothing can be locked on this file system") from error


def _refuse_open(fd: int) -> None:
    """A lease of the kernel, gone with `fd`: nobody has it open, and who opens it waits for us."""
    try:
        fcntl.fcntl(fd, F_SETSIG, _signal.SIGURG)  # a signal that is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError as error:
        raise ChangedMeanwhile("somebody has it open") from error
    except (OSError, AttributeError):
        return  # another's file, or another system: the two locks must do


def _by_exchange(
    at: int,
    name: str,
    found: os.stat_result,
    words: bytes,
    dead: Owner | None,
    step: Callable[[str], None],
) -> None:
    """All names are of the folder that `at` has open."""
    aside = f"{ASIDE}{os.urandom(16).hex()}"
    post = _post(aside, at, found, placeholder(words, dead, link=stat.S_ISLNK(found.st_mode)))  # 2
    ours = os.fstat(post)
    kept = True
    try:
        step("posted")
        try:
            if not _is(
                os.lstat(name, dir_fd=at), found
            ):  # a live lock is not moved where we can see it
                raise ChangedMeanwhile("another took it meanwhile")
            step("checked")
            if not exchange(aside, name, at):  # 3
                raise ChangedMeanwhile("this file system cannot exchange two names in one step")
        except FileNotFoundError as error:
            raise ChangedMeanwhile("it was removed by another") from error
        step("exchanged")
        if not _is(os.lstat(aside, dir_fd=at), found) or words_of(aside, at) != words:  # 4
            _put_back(at, aside, name, ours)
            raise ChangedMeanwhile("another took it meanwhile")
        os.unlink(aside, dir_fd=at)  # 5
        step("unlinked")
        try:
            if not _stands(at, name, post, ours):
                return
            os.rename(name, aside, src_dir_fd=at, dst_dir_fd=at)
        except FileNotFoundError:
            return  # another tool removed the placeholder for us
        if not _is(os.lstat(aside, dir_fd=at), ours):
            kept = False
            _given_back(at, aside, name)
    finally:
        if kept:
            _forget(at, aside, ours)
        os.close(post)


def _given_back(at: int, aside: str, name: str) -> None:
    """What our last rename took is another's: it goes back. Raises ChangedMeanwhile, OSError."""
    try:
        rename_new(aside, name, at)
    except FileExistsError as error:  # L1  nobody can undo that: it is told
        raise ChangedMeanwhile(
            "it is removed, but other programs remove and make it by its path: two of them have it "
            f"now, and the lock of the first is named {aside!r}. End one of them"
        ) from error


def _stands(at: int, name: str, post: int, ours: os.stat_result) -> bool:
    """Whether our placeholder stands at its path.

    filelock exchanges as we do: who judged the dead lock too may have ours aside, and puts it back.
    """
    until = clock.now() + PATIENCE
    while not _is(os.lstat(name, dir_fd=at), ours):
        if os.fstat(post).st_nlink == 0 or clock.now() > until:
            return False
        clock.pause(PAUSE)
    return True


def _put_back(at: int, aside: str, name: str, ours: os.stat_result) -> None:
    """Until what we took stands at its path again, and ours aside.

    Others may be undoing an exchange too, each on top of the other: so we exchange only while ours
    stands at the path, and what we hold aside is what belongs there. Where all wait for one another
    the one whose patience ends exchanges all the same, which opens the ring.
    """
    until, stirs = clock.now() + 2 * PATIENCE, clock.now() + STALL
    while not _is(os.lstat(aside, dir_fd=at), ours) and clock.now() < until:
        try:
            if not (_is(os.lstat(name, dir_fd=at), ours) or clock.now() >= stirs):
                clock.pause(PAUSE)
                continue
            exchange(aside, name, at)
            stirs = clock.now() + STALL
        except FileNotFoundError:  # the placeholder was removed by another
            try:
                rename_new(aside, name, at)
                return
            except FileExistsError:
                continue


def _post(aside: str, at: int, found: os.stat_result, told: bytes) -> int:
    """A lock of this process in the form of the dead one, open.

    L13  It is ours, or its owner's where we are root, and has no bit of the dead one that means
    more than reading and writing.
    """
    if stat.S_ISLNK(found.st_mode):
        os.symlink(told, os.fsencode(aside), dir_fd=at)
        return _kept_open(aside, at, link=True)
    flags = READ_WRITE | os.O_CREAT | os.O_EXCL
    fd = os.open(aside, flags, 0o600, dir_fd=at)
    try:
        if os.fstat(fd).st_uid == 0 != found.st_uid:
            os.fchown(fd, found.st_uid, found.st_gid)
        os.write(fd, told)
        os.fchmod(fd, stat.S_IMODE(found.st_mode) & PLAIN)
    except BaseException:
        os.unlink(aside, dir_fd=at)
        os.close(fd)
        raise
    return fd


def _forget(at: int, aside: str, ours: os.stat_result) -> None:
    """Remove our placeholder by its own name; never what is another's."""
    try:
        if _is(os.lstat(aside, dir_fd=at), ours):
            os.unlink(aside, dir_fd=at)
    except FileNotFoundError:
        return


def _is(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


# ------------------------------------------------------------------------------------------------
# What a placeholder of `clear` says: the words of the dead lock, with us in its holder's place.
#
# Promise: a tool of that family which judges it finds a living holder, this process: by its number,
# by its begin where the format has it (filelock), and by its PID namespace. So nobody takes it over
# while it stands; and when we are killed, anybody may.


MARK = "?pidns-"  # of filelock, before the number of a PID namespace


def placeholder(words: bytes, dead: Owner | None, *, link: bool) -> bytes:
    """`words` as this process would have written them. `dead`: whom they name, as far as known."""
    if dead is None:
        return words or b"%d\n" % os.getpid()
    us = process.here()
    if words == dead.pid.to_bytes(4, sys.byteorder):  # of a serial line
        return us.pid.to_bytes(4, sys.byteorder)
    told = _replaced(words, str(dead.pid), str(us.pid), last=link)
    if (theirs := _begin(dead)) and (ours := _begin(us)):
        told = told.replace(theirs, ours, 1)
    if dead.pid_ns is not None and us.pid_ns is not None:
        told = told.replace(_mark(dead.pid_ns), _mark(us.pid_ns), 1)
    return told


def _replaced(words: bytes, old: str, new: str, *, last: bool) -> bytes:
    """A number that stands by itself; in a link it comes behind the name of the host."""
    at, found = -1, -1
    while (at := words.find(old.encode(), at + 1)) >= 0:
        around = words[:at].rstrip(b"0")[-1:] + words[at + len(old) : at + len(old) + 1]
        if not any(chr(byte).isdigit() for byte in around):
            found = at
            if not last:
                break
    return words if found < 0 else words[:found] + new.encode() + words[found + len(old) :]


def _begin(owner: Owner) -> bytes:
    """As filelock writes it: the boot id before the ticks since that boot, as one number."""
    if owner.boot_id is None or owner.start_ticks is None:
        return b""
    return b"%d" % (int(owner.boot_id.replace("-", ""), 16) << 64 | owner.start_ticks)


def _mark(pid_ns: int) -> bytes:
    return b"" if pid_ns == INITIAL_PID_NAMESPACE else f"{MARK}{pid_ns:08x}".encode()


# ------------------------------------------------------------------------------------------------
# Two names change places in one step: renameat2(2) with RENAME_EXCHANGE, by ctypes.


EXCHANGE = 2


def exchange(one: str, other: str, at: int = files.AT_FDCWD) -> bool:
    """Whether it was done; False where the file system cannot. Raises OSError.

    `at`: the descriptor of the folder that relative names begin in.
    """
    found = files._load_rename()
    if found is None:
        return False
    call, get_errno = found
    if not call(at, os.fsencode(one), at, os.fsencode(other), EXCHANGE):
        return True
    code = get_errno()
    if code in files.NO_NOREPLACE:
        return False
    raise OSError(code, os.strerror(code), one, None, other)
