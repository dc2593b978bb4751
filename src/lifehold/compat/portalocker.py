"""portalocker's locks on files: `from lifehold.compat import portalocker`.

    with portalocker.Lock("orders.csv", "r+", timeout=5) as file:
        file.write(...)

Promise: these locks and portalocker's own exclude each other on the same files, both ways;
arguments, defaults, return values and the names of exceptions are portalocker's. Rule: flock(2) on
the file that the caller gets (local/open_file.py). What ours adds:
L1  After the lock the path is looked at again: a file that was replaced meanwhile is no lock.
L5  What was written stands in the file before it is unlocked; a file is unlinked by its holder.
L6  The lock ends with its file, not with the object that took it: who keeps the file has the lock.
L7  No symbolic link is followed to a file that is a lock and no data: it would be emptied.
L9  A forked child has nothing of it: its `release()` leaves lock and file to the parent. A daemon
    whose parent has ended has the file, and so the lock.
How it could fail: as `Lock.on_file`; and an object that two threads share is held by both, as
portalocker's is.
"""

from __future__ import annotations

import atexit
import enum
import errno
import logging
import os
import random
import tempfile
import warnings
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from ..core.deadline import LONGEST
from ..core.errors import InvalidArgument, LifeholdError, NotAcquired, NotHeld, UnsafeGround
from ..core.owner import DEAD, judge
from ..local import files
from ..local.handles import files_for, leads_astray
from ..local.open_file import OpenFileLock, opened
from ..lock import Lease, absolute, fill
from ..lock import Lock as LifeholdLock
from ..runtime import clock, fork, process
from ..runtime.blocking import BLOCKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from types import TracebackType

    from ..core import explain

    OpenFile = IO[Any]  # of text or of bytes, as its mode says
else:
    explain = fork.later("lifehold.core.explain", globals())

__all__ = [
    "LOCK_EX",
    "LOCK_NB",
    "LOCK_SH",
    "LOCK_UN",
    "AlreadyLocked",
    "BoundedSemaphore",
    "Lock",
    "LockException",
    "LockFlags",
    "NamedBoundedSemaphore",
    "RLock",
    "TemporaryFileLock",
    "exceptions",
    "lock",
    "unlock",
]

LOGGER = logging.getLogger("lifehold")
DEFAULT_TIMEOUT = 5.0
DEFAULT_CHECK_INTERVAL = 0.25
FIRST = 0.002  # seconds between the first two looks
STRAYS = 100  # how often a path may lead to another file, once it was locked, for one try

Result_co = TypeVar("Result_co", covariant=True)


# ---- the words


class LockFlags(enum.IntFlag):
    """How to lock: `EXCLUSIVE` or `SHARED`, and `NON_BLOCKING` for one that may be refused."""

    EXCLUSIVE = files.LOCK_EX
    SHARED = files.LOCK_SH
    NON_BLOCKING = files.LOCK_NB
    UNBLOCK = files.LOCK_UN


LOCK_EX, LOCK_SH = LockFlags.EXCLUSIVE, LockFlags.SHARED
LOCK_NB, LOCK_UN = LockFlags.NON_BLOCKING, LockFlags.UNBLOCK
LOCK_METHOD = LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING


class BaseLockException(Exception):
    """The root of what goes wrong with a lock.

    `fh`: the file; `fh_name`: its name, if it has one; `strerror`: the reason in words.
    """

    LOCK_FAILED = 1
    strerror: str | None = None

    def __init__(self, *args: Any, fh: Any = None, **_: Any) -> None:
        super().__init__(*args)
        self.fh = fh
        name = getattr(fh, "name", None)
        self.fh_name = name if isinstance(name, str) else None
        if len(args) > 1 and isinstance(args[1], str):
            self.strerror = args[1]

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, which cannot have the file."""
        return type(self), self.args, {**self.__dict__, "fh": None}


class LockException(BaseLockException):
    """It could not be locked."""


class AlreadyLocked(LockException):
    """Somebody else has it. `holder_pid`: the number of its process, where the system tells it."""

    holder_pid: int | None = None

    def __init__(self, *args: Any, holder_pid: int | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.holder_pid = holder_pid


class FileToLarge(LockException):
    """Kept for who catches it; never raised."""


exceptions = SimpleNamespace(
    BaseLockException=BaseLockException,
    LockException=LockException,
    AlreadyLocked=AlreadyLocked,
    FileToLarge=FileToLarge,
)


# ---- a file that is open already


def lock(file: object, flags: LockFlags | int) -> None:
    """flock(2) on an open file, an object with `fileno()` or a descriptor.

    Without `NON_BLOCKING` it waits in the kernel, as long as it takes. Raises AlreadyLocked,
    LockException; RuntimeError for flags with both or neither of `EXCLUSIVE` and `SHARED`, or with
    `UNBLOCK`.
    """
    try:
        _check(flags)
        files.HOST.flock(_number(file), int(flags))
    except OSError as error:
        held = error.errno in (errno.EACCES, errno.EAGAIN)
        kind = AlreadyLocked if held else LockException
        raise kind(error, str(error), fh=file) from error


def unlock(file: object) -> None:
    """Let it go. Raises LockException, from the system's OSError."""
    try:
        files.HOST.flock(_number(file), files.LOCK_UN)
    except OSError as error:
        raise LockException(error, str(error), fh=file) from error


def _number(file: Any) -> int:
    if isinstance(file, str | os.PathLike):
        raise TypeError(
            f"file must be an open file or a descriptor, not the path {file!r}: Lock(path) opens it"
        )
    return file if isinstance(file, int) else file.fileno()


def _text(filename: Any) -> str:
    found = os.fspath(filename) if isinstance(filename, os.PathLike) else filename
    if not isinstance(found, str):  # str() of anything is a file name: nobody else would lock it
        raise TypeError(
            f"filename must be a str or a path, not {type(found).__name__} {found!r}: an open file "
            "is locked by lock(file, flags)"
        )
    return str(found)


def _check(flags: LockFlags | int) -> None:
    """Raises RuntimeError, as portalocker; OSError for what is no flag."""
    if flags & LOCK_UN:
        raise RuntimeError("flags with UNBLOCK lock nothing: unlock(file) lets go")
    if bool(flags & LOCK_EX) == bool(flags & LOCK_SH):
        raise RuntimeError("flags say for what to ask: add one of EXCLUSIVE and SHARED")
    if int(flags) & ~int(LOCK_EX | LOCK_SH | LOCK_NB):
        # Linux refuses all but LOCK_MAND (32), with which it says yes and locks nothing.
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


# ---- locks


class LockBase(ABC, Generic[Result_co]):
    """What all locks have: three defaults, and `with`."""

    def __init__(
        self,
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool | None = None,
    ) -> None:
        self.timeout = DEFAULT_TIMEOUT if timeout is None else timeout
        self.check_interval = DEFAULT_CHECK_INTERVAL if check_interval is None else check_interval
        self.fail_when_locked = bool(fail_when_locked)

    @abstractmethod
    def acquire(
        self,
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool | None = None,
    ) -> Result_co:
        """Wait for it, at most `timeout` seconds."""

    @abstractmethod
    def release(self) -> None:
        """Let it go. Safe to repeat."""

    def _patience(self, timeout: float | None) -> float | None:
        """The seconds of `timeout`, or the lock's own; None for ever."""
        given = self.timeout if timeout is None else timeout
        if not isinstance(given, int | float):
            raise TypeError(
                f"timeout must be a number of seconds, not {type(given).__name__} {given!r}"
            )
        if not given > 0:  # also NaN
            return 0.0
        return None if given >= LONGEST else float(given)

    def _at_once(self, fail_when_locked: bool | None) -> bool:
        return self.fail_when_locked if fail_when_locked is None else fail_when_locked

    def __enter__(self) -> Result_co:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __delete__(self, owner: object) -> None:
        """`del owner.lock` of a lock that is an attribute of a class lets it go."""
        self.release()


class OpenedFileLock(LockBase[IO[Any]]):
    """A lock on a file, which it opens: `acquire()` and `with` give the open file.

    `filename`: a relative one is found when the lock is made, not when it is acquired. `mode`,
    `file_open_kwargs`: as of open(); "w" empties the file once it is locked. `timeout`:
    seconds to wait, 5 by default. `fail_when_locked`: one try. `flags`: without `NON_BLOCKING` it
    waits until it has the lock. `check_interval` is taken and not needed: a waiter looks every
    50 ms at the least. `raise_on_release_error`: else what goes wrong at the release is a warning
    of the logger `lifehold`. An object that is dropped lets nothing go: the lock ends when its file
    is closed, which dropping both of them does.

    Raises AlreadyLocked, LockException; OSError when the file cannot be opened.
    """

    fh: OpenFile | None = None
    _no_data = False  # L7  whether the file is a lock alone

    def __init__(
        self,
        filename: str | os.PathLike[str],
        mode: str = "a",
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool = False,
        flags: LockFlags = LOCK_METHOD,
        *,
        raise_on_release_error: bool = False,
        **file_open_kwargs: Any,
    ) -> None:
        if timeout is not None and not flags & LOCK_NB:
            _warn_of_timeout()
        super().__init__(timeout, check_interval, fail_when_locked)
        self.filename = absolute(_text(filename))  # a daemon changes its folder
        self.truncate = "w" in mode
        self.mode = mode.replace("w", "a")
        self.flags = flags
        self.raise_on_release_error = raise_on_release_error
        self.file_open_kwargs = file_open_kwargs
        self._held: list[tuple[OpenFile, Lease]] = []

    def acquire(
        self,
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool | None = None,
    ) -> OpenFile:
        """The open file, locked. The same one while this object holds it."""
        blocking = not self.flags & LOCK_NB
        if timeout is not None and blocking:
            _warn_of_timeout()
        file = self._still()
        if file is not None:
            return file
        wait = None if blocking else self._patience(timeout)
        if self._at_once(fail_when_locked) and not blocking:
            wait = 0.0
        ends = None if wait is None else clock.now() + wait
        strays = 0
        try:
            while strays < STRAYS or wait != 0.0:
                file = self._taken(wait)
                if file is not None:
                    return file
                strays += 1
                if strays > STRAYS:
                    clock.pause(FIRST)
                wait = None if ends is None else max(0.0, ends - clock.now())
        except BaseException as error:
            self._undo(self._held, error)
            raise
        why = f"{self.filename!r} is replaced by another file whenever it is locked"
        raise AlreadyLocked(BaseLockException.LOCK_FAILED, why)

    def _taken(self, wait: float | None) -> OpenFile | None:
        """Open and lock: the file; None when the path leads to another one by now."""
        file = self._get_fh()
        try:
            lease = _lease(file, self.flags, wait)
            if "opener" in self.file_open_kwargs or _fh_matches_path(file, self.filename):
                file = self._prepare_fh(file)
                self._maker = process.here()
                self._held.append((file, lease))
                self.fh = file
                return file
        except BaseException:
            file.close()  # L6  its descriptor is the lock
            raise
        lease.release()
        file.close()
        return None

    def _get_fh(self) -> OpenFile:
        """For a subclass: what is locked."""
        if not self._no_data:
            return open(self.filename, self.mode, **self.file_open_kwargs)
        try:
            return open(self.filename, self.mode, opener=opened)
        except (InvalidArgument, UnsafeGround) as error:
            raise LockException(error, str(error)) from error

    def _prepare_fh(self, fh: OpenFile) -> OpenFile:
        """For a subclass: what is done first with the file that was locked."""
        if self.truncate:
            fh.seek(0)
            fh.truncate(0)
            _unappend(fh.fileno())
        return fh

    def _still(self) -> OpenFile | None:
        """The file, while this object holds it; what was lost or is a parent's is forgotten."""
        for entry in list(self._held):
            if entry[1].held:
                return entry[0]
            with suppress(ValueError):
                self._held.remove(entry)
            self.fh = None
            self._ended(*entry)
        return None

    def release(self) -> None:
        last = self._held[-1:]
        try:
            if last and self._is_taken_out(last[0]):
                self.fh = None
                self._ended(*last[0])
        except BaseException as error:
            if not isinstance(error, Exception):
                self._undo(last, error)
            raise

    def _let_go(self) -> None:
        """L6  `release()` of an object that will not be asked again."""
        try:
            OpenedFileLock.release(self)
        except BaseException as error:
            self._undo(self._held, error)
            raise

    def _is_taken_out(self, entry: tuple[OpenFile, Lease]) -> bool:
        try:
            self._held.remove(entry)  # L5  one atomic step
        except ValueError:
            return False  # by another thread
        return True

    def _undo(self, entries: list[tuple[OpenFile, Lease]], error: BaseException) -> None:
        """L6  Interrupted: nobody comes back to what is held."""
        for _, lease in list(entries):
            lease._lock._undo(lease._grant, error)

    def _ended(self, file: OpenFile, lease: Lease) -> None:
        """Write out, unlock, close."""
        failed: list[Exception] = []
        fork.here()
        if lease._of_parent() and judge(self._maker, process.ground(True, None)).state != DEAD:
            _turn_away(file)
        for end in (lease.release, file.close):
            try:
                end()
            except NotHeld:
                pass  # a forked child: the lock is its parent's
            except Exception as error:  # noqa: BLE001 - kept, and raised or told below
                failed.append(error)
        if failed and self.raise_on_release_error:
            raise failed[0] from (failed[1] if failed[1:] else failed[0].__cause__)
        for each in failed:
            LOGGER.warning("the release of %r: %s", self.filename, each)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except Exception as other:
            if error is None:
                raise
            other.__context__, error.__context__ = error.__context__, other
            with suppress(Exception):  # an error that cannot be shown
                error.add_note(f"the release of {self.filename!r} failed: {other!r}")


Lock = OpenedFileLock


class RLock(OpenedFileLock):
    """A lock that its object may take again: as many `release()` as `acquire()` end it."""

    def __init__(
        self,
        filename: str | os.PathLike[str],
        mode: str = "a",
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool = False,
        flags: LockFlags = LOCK_METHOD,
    ) -> None:
        super().__init__(filename, mode, timeout, check_interval, fail_when_locked, flags)
        self._acquire_count = 0

    def acquire(
        self,
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool | None = None,
    ) -> OpenFile:
        """The open file, locked. The same one while this object holds it."""
        if self._still() is None:
            self._acquire_count = 0  # L9  a parent's
        self._acquire_count += 1
        try:
            return super().acquire(timeout, check_interval, fail_when_locked)
        except BaseException as error:
            self._acquire_count -= 1
            if self._acquire_count == 0:
                self._undo(self._held, error)
            raise

    def release(self) -> None:
        """Once for each `acquire()`. Raises LockException for one too many."""
        if self._acquire_count == 0:
            raise LockException("it is released more often than it was acquired")
        self._acquire_count -= 1
        try:
            if self._acquire_count == 0:
                super().release()
        except BaseException as error:
            self._undo(self._held, error)  # L6  it is not asked again
            raise


class TemporaryFileLock(OpenedFileLock):
    """A lock whose file is there only while it is held. It fails at once by default.

    The holder unlinks the file before it unlocks it; who waited opens the next one. Raises
    LockException where a symbolic link is in its place.
    """

    _no_data = True

    def __init__(
        self,
        filename: str | os.PathLike[str] = ".lock",
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool = True,
        flags: LockFlags = LOCK_METHOD,
        *,
        raise_on_release_error: bool = False,
    ) -> None:
        super().__init__(
            filename,
            "w",
            timeout,
            check_interval,
            fail_when_locked,
            flags,
            raise_on_release_error=raise_on_release_error,
        )
        _temporary.add(self)

    def _ended(self, file: OpenFile, lease: Lease) -> None:
        try:
            if lease.held and lease.exclusive and _fh_matches_path(file, self.filename):
                with suppress(FileNotFoundError):
                    _remove(self.filename)  # L7  under the lock
        finally:
            super()._ended(file, lease)

    def __del__(self) -> None:
        for file, lease in getattr(self, "_held", ()):
            with suppress(Exception):
                if lease._here() and lease.exclusive:
                    found = os.fstat(file.fileno())
                    which = found.st_dev, found.st_ino
                    left = weakref.finalize(file, _unlink, self.filename, which, fork.generation)
                    left.atexit = False  # it may be kept, and locked, for longer


def _unlink(path: str, which: tuple[int, int], generation: int) -> None:
    """L7  The file of a lock that was dropped, after it was closed: under its lock, taken anew."""
    if fork.here() != generation:
        return  # L9  its parent's
    with suppress(OSError, LifeholdError):
        fd = opened(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) == which:
                files.HOST.flock(fd, int(LOCK_METHOD))
                if os.path.samestat(found, os.stat(path)):
                    _remove(path)
        finally:
            os.close(fd)


def _remove(path: str) -> None:
    """By the caller's own os.unlink, unless others can lead root elsewhere by that (L13)."""
    if leads_astray(path):
        files_for(path).unlink(path)
    else:
        os.unlink(path)


_temporary: weakref.WeakSet[TemporaryFileLock] = weakref.WeakSet()


@atexit.register
def _unlink_the_rest() -> None:
    for each in list(_temporary):
        with suppress(Exception):
            each.release()


def _turn_away(file: OpenFile) -> None:
    """L9  What a child has in its buffer is its parent's, which writes it itself."""
    with suppress(OSError, ValueError):  # closed already
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.dup2(nowhere, file.fileno(), inheritable=False)
        finally:
            os.close(nowhere)


def _unappend(fd: int) -> None:
    """A file that was opened for appending is written where it stands from now on."""
    import fcntl

    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)


def _fh_matches_path(fh: OpenFile, filename: str) -> bool:
    """Whether the path leads to the open file still (L1). Raises OSError."""
    return OpenFileLock(fh, BLOCKING).is_at(filename)


class _FileLease(Lease):
    """A lease that its file keeps: dropped, it neither unlocks nor warns. Python warns of files."""

    __slots__ = ()

    def _dropped(self) -> None:
        self._grant.handle.clear()


class _FileLock(LifeholdLock):
    """What gives it."""

    __slots__ = ()
    _hand = _FileLease

    def _by_asker(self, key: Hashable) -> list[str]:
        return super()._by_asker(key) or explain.in_program(self._target, argument="timeout")


def _lease(file: OpenFile, flags: LockFlags, wait: float | None) -> Lease:
    """The lock of a file that was opened for it. Raises AlreadyLocked, LockException."""
    try:
        _check(flags)
        found = OpenFileLock(file, BLOCKING, exclusive=bool(flags & LOCK_EX), alone=True)
        made = _FileLock.__new__(_FileLock)
        fill(made, found.path, found, wait, None, None, False)
        lease = made.acquire()
        made._give_away(lease)  # else each of the two would keep the other, and the file
        return lease
    except NotAcquired as error:
        holder = error.holder
        owner = None if holder is None else holder.owner
        pid = None if holder is None else holder.pid_here or (None if owner is None else owner.pid)
        raise AlreadyLocked(error, str(error), fh=file, holder_pid=pid) from error
    except (LifeholdError, OSError, RuntimeError) as error:
        raise LockException(error, str(error), fh=file) from error


def _warn_of_timeout() -> None:
    warnings.warn("a lock without NON_BLOCKING waits for ever: timeout is not used", stacklevel=3)


# ---- one of several files


class BoundedSemaphore(LockBase["OpenedFileLock | None"]):
    """At most `maximum` hold it at once: each locks one of the files `filename_pattern`.

    `name`: of the semaphore, in `directory`. `acquire()` and `with` give the lock of one file.
    `timeout`: seconds to wait; then AlreadyLocked, or None with `fail_when_locked=False`. Who waits
    looks every `check_interval` seconds at the least. There is no order among those who wait.
    """

    lock: OpenedFileLock | None = None

    def __init__(
        self,
        maximum: int,
        name: str = "bounded_semaphore",
        filename_pattern: str = "{name}.{number:02d}.lock",
        directory: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool | None = True,
    ) -> None:
        super().__init__(timeout, check_interval, fail_when_locked)
        self.maximum, self.name, self.filename_pattern = maximum, name, filename_pattern
        self.directory = tempfile.gettempdir() if directory is None else directory
        if not name or name == "bounded_semaphore":
            text = "a semaphore without a name is shared by all that give it none: give name="
            warnings.warn(text, DeprecationWarning, stacklevel=2)

    def get_filenames(self) -> Sequence[Path]:
        """All files of the semaphore."""
        return [self.get_filename(number) for number in range(self.maximum)]

    def get_random_filenames(self) -> Sequence[Path]:
        """All files of the semaphore in an order by chance, for `try_lock`."""
        names = self.get_filenames()
        return random.sample(names, len(names))

    def get_filename(self, number: int) -> Path:
        """One file, `number` from 0."""
        name = self.filename_pattern.format(name=self.name, number=number)
        return Path(self.directory) / name

    def acquire(
        self,
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool | None = None,
    ) -> OpenedFileLock | None:
        """The lock of one file. Raises AlreadyLocked, LockException when it is held already."""
        if self.lock is not None and self.lock._still() is None:
            self.lock = None  # L9  its parent's, or closed by other code
        if self.lock is not None:
            raise LockException("this object holds it already", fh=self.lock.fh)
        wait = self._patience(timeout)
        ends = None if wait is None else clock.now() + wait
        longest = self.check_interval if check_interval is None else check_interval
        names, pause = self.get_filenames(), FIRST
        while not self.try_lock(names):
            left = pause if ends is None else ends - clock.now()
            if left <= 0:
                if self._at_once(fail_when_locked):
                    why = f"all {self.maximum} of {self.name!r} are held"
                    raise AlreadyLocked(BaseLockException.LOCK_FAILED, why)
                return None
            clock.pause(min(pause, left))
            pause = max(FIRST, min(2 * pause, longest))
        return self.lock

    def try_lock(self, filenames: Sequence[str | os.PathLike[str]]) -> bool:
        """One try of each file: whether one was free."""
        for filename in filenames:
            slot = OpenedFileLock(filename, fail_when_locked=True)
            slot._no_data = True
            try:
                slot.acquire()
                self.lock = slot
            except AlreadyLocked:
                continue
            except BaseException:
                slot._let_go()  # L6  interrupted before we had it
                raise
            return True
        return False

    def release(self) -> None:
        slot, self.lock = self.lock, None
        if slot is not None:
            slot._let_go()


class NamedBoundedSemaphore(BoundedSemaphore):
    """A semaphore with a name of its own when it is given none: see its `name`."""

    def __init__(
        self,
        maximum: int,
        name: str | None = None,
        filename_pattern: str = "{name}.{number:02d}.lock",
        directory: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        check_interval: float | None = None,
        fail_when_locked: bool | None = True,
    ) -> None:
        name = f"bounded_semaphore.{os.urandom(4).hex()}" if name is None else name
        super().__init__(
            maximum, name, filename_pattern, directory, timeout, check_interval, fail_when_locked
        )
