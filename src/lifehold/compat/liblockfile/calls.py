"""The functions of lockfile_create(3): make, remove, touch and look at lock files.

Promise: arguments, numbers and files are liblockfile's, so that both exclude each other; each
answer is a Status, an int that also says why. What ours adds: dotlock.py and dotlock.py; a waiter
is woken; a lock of ours that somebody took over is not removed under its new holder, which is told
by the logger `lifehold`. Threads may share the functions.
How it could fail: the file names no thread, and without L_PID no process either. Whoever calls
`lockfile_remove` on another's file removes it, as with the original: that is how locks of programs
that died are cleared by hand.
"""

from __future__ import annotations

import errno
import os
import stat

from ...core.errors import LifeholdError
from ...core.owner import ALIVE, DEAD, LifeVerdict, judge
from ...core.value import replace, value
from ...local.ground import place_of_path
from ...local.handles import files_for
from ...runtime import fork, process
from . import spool
from .create import RetryTerms, create
from .dotlock import DotLock
from .status import (
    L_ERROR,
    L_MAXTRYS,
    L_NAMELEN,
    L_ORPHANED,
    L_PID,
    L_PPID,
    L_SUCCESS,
    Status,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

    from ...core import explain
    from ...core.grant import Grant
    from ...core.owner import Owner

    Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
else:
    explain = fork.later("lifehold.core.explain", globals())
    logging = fork.later("logging", globals())

LONGEST_PATH, INIT, ORPHANED = 4096, 1, -1


@value
class MadeLock:
    """A lock file, and the process that made it."""

    lock: DotLock
    key: tuple[int, int]
    nonce: str
    maker: Owner

    def is_of_the_living(self) -> bool:
        """Whether it stands, and its maker is not proven dead. Raises LifeholdError, OSError."""
        if not self.lock.stands(self.key, self.nonce):
            return False
        return judge(self.maker, process.ground(True, None)).state != DEAD


_made: dict[str, MadeLock] = {}  # by what `_name` says
_of_parents: dict[str, MadeLock] = {}  # what stood there when we were forked


@fork.in_child
def _forget() -> None:
    """L9  A child removes no lock file of its parent, while that one lives."""
    _of_parents.update(_made)
    _made.clear()


def lockfile_create(lockfile: Path, retrycnt: int = 5, flags: int = 0) -> Status:
    """Make a lock file, for this program or, without L_PID, for whoever removes it.

    `retrycnt`: tries after the first, with pauses of 5, 10, ... 60 s between them, which end early
    when the file changes; -1 tries not at all, as with the original. `flags`: L_PID writes the
    number of this process, L_PPID that of its parent, and what is there is judged by its process.
    Both are refused (L_ERROR, errno EOPNOTSUPP) on file systems that other machines may use, where
    a process number means nothing. Without them the lock counts for 300 s after its last touch:
    call `lockfile_touch` every minute. Returns L_SUCCESS or another Status; raises nothing but
    TypeError, for what is no path or no whole number.
    From lockfile_create(3). Not promised: exclusion beside an original that sleeps between its look
    and its removal of a stale file.
    """
    path, unfit = _place(lockfile)
    retrycnt, flags = whole("retrycnt", retrycnt), whole("flags", flags)
    if unfit is not None:
        return unfit
    if flags & ~(L_PID | L_PPID):
        return Status(L_ERROR, f"flags are L_PID and L_PPID, not {flags}", errno.EINVAL)
    status, lock, grant = make(path, flags, RetryTerms(retrycnt))
    if lock is None or grant is None:
        return status  # made by the set-gid program, or not at all
    stake = grant.handle.pop()
    key = stake.dev, stake.ino
    _made[_name(path)] = MadeLock(lock, key, stake.sheet.nonce, process.here())
    stake.let_go = None  # it stays: that it is there is the lock
    stake.shut()
    return status


def make(
    path: str, flags: int, patience: RetryTerms, *, keep: bool = False
) -> tuple[Status, DotLock | None, Grant | None]:
    """The same, with the grant. `keep`: it lives as long as this process, which touches it."""
    if len(os.fsencode(path)) >= LONGEST_PATH:
        why = f"a path has {LONGEST_PATH - 1} bytes at most"
        return Status(L_NAMELEN, why, errno.ENAMETOOLONG), None, None
    if (refused := no_processes_there(path, flags)) is not None:
        return refused, None, None
    number, owner = _whose(flags, keep)
    if number == ORPHANED:
        return Status(L_ORPHANED, "the parent process is gone", errno.ESRCH), None, None
    lock = DotLock(
        path,
        number=number,
        owner=owner,
        by_process=bool(flags),
        keep=keep,
    )
    status, grant = create(lock, patience)
    if status == L_MAXTRYS:
        status = Status(L_MAXTRYS, _held(lock) or status.why, status.errno)
    return status, lock, grant


def absolute(path: str) -> str:
    """The same file by a name that a later chdir(2) does not change."""
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:  # a folder that was removed under us: let the system say so
        return os.path.join("/proc/self/cwd", path)


def whole(name: str, given: int) -> int:
    """The number that was given for an argument. Raises TypeError."""
    if not isinstance(given, int):
        raise TypeError(f"{name} must be an int, not {type(given).__name__} {given!r:.40}")
    return given


def _place(path: Path) -> tuple[str, Status | None]:
    """The absolute path, and why no file can have that name, if so. Raises TypeError."""
    given = os.fsdecode(path)
    unfit = None
    if not given or "\0" in given:
        why = f"a path has one character or more, and no NUL character: not {given!r}"
        unfit = Status(L_ERROR, why, errno.EINVAL if given else errno.ENOENT)
    try:
        os.fsencode(given)
    except UnicodeEncodeError as error:
        why = f"{given!r} cannot be a file name in {error.encoding}: {error.reason}"
        unfit = Status(L_ERROR, why, errno.EINVAL)
    return absolute(given), unfit


def _name(path: str) -> str:
    """One name for all spellings of a path: the lock itself is never followed."""
    fork.here()  # L9  before what is known by this name is looked for
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def lockfile_remove(lockfile: Path) -> Status:
    """Remove a lock file. 0 also when there is none, -1 with `errno` when that cannot be done.

    A file that this process made and somebody has taken over meanwhile stays: 0, and a warning of
    the logger `lifehold`. A forked child removes none that its parent made, while that one lives:
    EPERM. A symbolic link or a folder is never removed.
    """
    path, unfit = _place(lockfile)
    if unfit is not None:
        return Status(-1, unfit.why, unfit.errno)
    name = _name(path)
    made, of_parent = _made.pop(name, None), _of_parents.get(name)
    try:
        if made is not None:
            return _given_back(path, name, made)
        if of_parent is not None and of_parent.is_of_the_living():
            why = f"{path!r} is the lock of the process that this one was forked from"
            return Status(-1, why, errno.EPERM)
        files = files_for(path)
        mode = files.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            number = errno.ELOOP if stat.S_ISLNK(mode) else errno.EISDIR
            return Status(-1, f"{path!r} is no regular file, and stays", number)
        files.unlink(path)
    except FileNotFoundError:
        return Status(0)
    except LifeholdError as error:
        return Status(-1, error.text, errno.EEXIST)
    except OSError as error:
        refused = Status(-1, f"{path!r}: {error.strerror}", error.errno or 0)
        return spool.by_the_program("-u", path, refused)
    return Status(0)


def lockfile_touch(lockfile: Path) -> Status:
    """Make it young again. -1 when there is none; with ESTALE when it is no more ours.

    A symbolic link is never followed: -1 with ELOOP.
    """
    path, unfit = _place(lockfile)
    if unfit is not None:
        return Status(-1, unfit.why, unfit.errno)
    try:
        made = _made.get(_name(path))
        if made is None:
            files = files_for(path)
            if stat.S_ISLNK(files.lstat(path).st_mode):
                return Status(-1, f"{path!r} is a symbolic link, and no lock", errno.ELOOP)
            files.utime(path, follow_symlinks=False)
        elif not made.lock.stands(made.key, made.nonce, touch=True):
            return Status(-1, f"{path!r} was taken over by somebody else", errno.ESTALE)
    except OSError as error:
        return Status(-1, f"{path!r}: {error.strerror}", error.errno or 0)
    except LifeholdError as error:  # a folder or a link is in its place
        return Status(-1, error.text, errno.ESTALE)
    return Status(0)


def lockfile_check(lockfile: Path, flags: int = 0) -> Status:
    """0 when a valid lock file is there, else -1. Makes nothing. `flags`: of `lockfile_create`."""
    path, unfit = _place(lockfile)
    flags = whole("flags", flags)
    if unfit is not None:
        return Status(-1, unfit.why, unfit.errno)
    if (refused := no_processes_there(path, flags)) is not None:
        return Status(-1, refused.why, refused.errno)
    try:
        found = DotLock(path, by_process=bool(flags & (L_PID | L_PPID))).standing()
    except LifeholdError as error:
        return Status(-1, error.text, errno.EINVAL)
    except OSError as error:
        return Status(-1, f"{path!r}: {error.strerror}", error.errno or 0)
    if found is None:
        return Status(-1, "there is none", errno.ENOENT)
    return Status(0 if found.state == ALIVE else -1, found.evidence)


def no_processes_there(path: str, flags: int) -> Status | None:
    """L2  Why L_PID and L_PPID cannot be used there, if so."""
    if not flags & (L_PID | L_PPID):
        return None
    place = place_of_path(os.path.realpath(os.path.dirname(path)))
    if not place.kind or place.one_kernel:
        return None
    return Status(
        L_ERROR,
        f"{path!r} lies on {place.kind}, a file system that other machines may use: there a "
        "process number says nothing, and L_PID and L_PPID (dotlockfile -p) must not be used. "
        "Leave them out, and touch the lock every minute",
        errno.EOPNOTSUPP,
    )


def _whose(flags: int, keep: bool) -> tuple[int, Owner | None]:
    """The number for the first line, and who is told to hold it, None for us."""
    if flags & L_PPID:
        parent = os.getppid()
        if parent == 0:  # of another PID namespace
            return 0, None
        if parent == INIT or not process.look(parent).exists:
            return ORPHANED, None
        return parent, _owner(parent)
    if flags & L_PID:
        return os.getpid(), None
    return 0, None if keep else _owner(os.getppid() or os.getpid())  # the script that we serve


def _owner(pid: int) -> Owner:
    """Another process of our PID namespace, with all that proves its life or death.

    Its begin is read by us, and so counted in our time namespace, whichever is its own.
    """
    us, seen = process.here(), process.look(pid)
    return replace(
        process.owner_of(pid),
        machine_id=us.machine_id,
        time_ns=us.time_ns,
        start_ticks=seen.start_ticks,
        pidfd_ino=seen.pidfd_ino,
    )


def _held(lock: DotLock) -> str:
    """Who holds it, in one line."""
    try:
        found = lock.standing()
    except (OSError, LifeholdError):
        return ""
    if found is None:
        return ""
    if isinstance(found, LifeVerdict) or found.marker.owner is None:
        return f"it is held: {found.evidence}"
    return f"it is held by {explain.by(found.holder())}: {found.evidence}"


def _given_back(path: str, name: str, made: MadeLock) -> Status:
    """Remove the lock that this process made. Raises FileNotFoundError, LifeholdError, OSError."""
    try:
        why = made.lock.remove(made.key, made.nonce)
    except FileNotFoundError:
        raise
    except BaseException:
        _made.setdefault(name, made)  # L2  who tries again may find somebody else's there
        raise
    return _reported(path, why)


def _reported(path: str, why: str) -> Status:
    """L5  What became of a lock that we let go of."""
    if why:
        logging.getLogger("lifehold").warning(
            "the lock file %r was not ours any more when we removed it: %s", path, why
        )
    return Status(L_SUCCESS, why)
