"""What the native lock of this face asks of our kernel lock, in filelock's terms.

Rule: below here "not now" is a value and errors are lifehold's; above they are Timeout and OSError.
What lifehold has to say goes along: in `Timeout.holder` and its text, as a note of the OSError.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any
from weakref import ref

from ...core.acquire import Ask, acquire
from ...core.errors import (
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    NotHeld,
    SystemRefused,
    UnsafeGround,
    WouldBlock,
)
from ...core.errors import Timeout as NotInTime
from ...core.grant import Grant, Held
from ...local.files import LOCK_UN
from ...local.refusals import refused
from ...lock import Lease, refusal
from ...registry import maker
from ...runtime import clock, notify
from ...runtime.blocking import BLOCKING
from .errors import Timeout
from .system_calls import ANCHORED, TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never, Self

    from .waits import AcquireRequest, LockHold

FULL = (errno.ENOSPC, errno.EDQUOT)
LEASED = "another process has a lease on its file, and was asked to give it back"


def mechanism(path: str, mode: int | None, record: bool, runtime: object = BLOCKING) -> Any:
    """Our kernel lock of an absolute path."""
    return WrittenKernelLock(path, runtime, mode=mode, record=record, table=TABLE)


def attempt(kernel: Any) -> Grant | Held:
    """One try. Raises OSError."""
    try:
        return kernel.attempt()  # type: ignore[no-any-return]
    except SystemRefused as error:
        if leased(kernel.path, error):
            return Held(LEASED)
        bare = without_record(kernel, error)
        if bare is None:
            raise plain(error) from error
        return attempt(bare)
    except InvalidArgument as error:  # a folder, a symlink, a FIFO stands there
        raise not_a_file(kernel.path, error) from error
    except UnsafeGround as error:  # L13  and it is root who asks
        made = OSError(errno.EXDEV, os.strerror(errno.EXDEV), kernel.path)
        made.add_note(str(error))
        raise made from error
    except CorruptRecord:  # a lock file is a lock file, whatever was written into it
        bare = mechanism(kernel.path, kernel.mode, False)
        return bare.attempt()  # type: ignore[no-any-return]


def without_record(kernel: Any, error: SystemRefused) -> Any:
    """The same lock where there is no room to say who holds it; None where that was not why."""
    if error.errno not in FULL or not getattr(kernel, "record", False):
        return None
    return mechanism(kernel.path, kernel.mode, False, kernel.runtime)


async def waited(
    kernel: Any,
    runtime: Any,
    name: str,
    answer: Held,
    want: AcquireRequest,
    refuse: Callable[..., Timeout],
) -> Grant:
    """The lock, once it is granted. Raises what `refuse` makes, OSError."""
    begun = clock.now()
    ask = Ask(name, want.deadline, None, notify.waiting)
    source: Any = FolderBoundWait(kernel, want.pause)
    if want.cancel is not None:
        source = CancelCheckedWait(source, want.pause, want.cancel)
    ANCHORED[id(ask)] = os.path.dirname(kernel.path)
    try:
        found = await acquire(source, runtime, ask, answer)
    except SystemRefused as error:
        bare = without_record(kernel, error)
        if bare is None:
            raise plain(error) from error
        found = attempt(bare)
        if not isinstance(found, Grant):
            return await waited(bare, runtime, name, found, want, refuse)
    finally:
        ANCHORED.pop(id(ask), None)
    if isinstance(found, Grant):
        return found
    refuse_lost_folder(kernel.path)
    raise refuse(clock.now() - begun)


def kernel_refusal(
    kernel: Any,
    name: str,
    waited: float | None = None,
    following: list[str] | None = None,
    *,
    later: bool = False,
) -> Timeout:
    """The Timeout that says who holds the lock. `later`: found out when somebody asks for it."""
    kind = WouldBlock if waited is None else NotInTime

    def tell(error: Timeout) -> None:
        error._told = refusal(kind, name, kernel, "", waited, kernel.path, following)

    error = Timeout(name)
    error._unasked.append(tell)
    if not later:
        error._look()
    return error


def plain(error: SystemRefused) -> OSError:
    """The system's own error, of the class that its number has, with our words as a note."""
    number = error.errno or 0
    made = OSError(number, os.strerror(number), error.filename)
    made.add_note(str(error))
    return made


class LeaseOfHold(Lease):
    """What lifehold knows of the hold of a lock of this face. Its end is the end of that hold."""

    __slots__ = ("_face", "_hold")

    def belongs(self, face: Any, hold: LockHold) -> Self:
        """Say whose it is. It keeps neither alive."""
        self._face, self._hold = ref(face), ref(hold)
        return self

    def release(self, *more: Never, **unknown: Never) -> None:
        """Let the lock go, however often it is held. Raises NotHeld, LeaseLost, OSError."""
        face, hold = self._face(), self._hold()
        held = face is not None and hold is not None and hold.grant is self._grant
        if more or unknown or face is None or not held or self._of_parent():
            super().release(*more, **unknown)
            return
        face._ended_by_lease(hold, self._grant)
        if self._lost is not None and self._lost.reason is not None:
            raise self._error(self._lost.reason)

    def _excused(self, other: BaseException, error: BaseException | None) -> bool:
        """What the system did not let go of is held, and the lock knows of it."""
        return isinstance(other, LeaseLost | NotHeld) and super()._excused(other, error)


def drop(kernel: Any, grant: Grant, lease: Any) -> str:
    """Let go; why the lock was lost before, empty when it was not. Raises OSError."""
    try:
        if lease is None:
            lost = kernel.drop(grant)
            return "" if lost is None else lost.reason
        Lease.release(lease)
    except SystemRefused as error:
        raise plain(error) from error
    except (LeaseLost, NotHeld) as error:
        return str(error)
    return ""


def not_a_file(path: str, told: InvalidArgument) -> OSError:
    """What open(2) says of something that is no regular file."""
    try:
        mode = os.lstat(path).st_mode
    except NotADirectoryError:  # what mkdir(2) says of the part that is a file
        path, mode = os.path.dirname(path), 0
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    if stat.S_ISLNK(mode):
        number = errno.ELOOP
    number = number if mode else errno.EEXIST
    made = OSError(number, os.strerror(number), path)
    made.add_note(str(told))
    return made


class FolderBoundWait:
    """A lock whose wait ends with the folder that it was begun in: another is another lock's."""

    def __init__(self, kernel: Any, pause: float) -> None:
        self._kernel, self._pause = kernel, pause

    def __getattr__(self, name: str) -> object:
        return getattr(self._kernel, name)

    async def wait(self, ask: Ask, until: float) -> object:
        """As the lock's own. Raises FileNotFoundError when its folder has gone."""
        refuse_lost_folder(self._kernel.path)
        try:
            return await self._kernel.wait(ask, until)
        except SystemRefused as error:
            if not leased(self._kernel.path, error):
                raise
        await self._kernel.runtime.sleep(max(0.0, min(self._pause, until - clock.now())))
        return Held(LEASED)


def refuse_lost_folder(path: str) -> None:
    """Raises FileNotFoundError when a folder was removed, or renamed, behind a waiter's back."""
    try:
        os.stat(os.path.dirname(path))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except OSError:
        return  # who waits with the file open needs no right to look at its folder


def leased(path: str, error: SystemRefused) -> bool:
    """Whether open(2) would wait for who has the file for himself (F_SETLEASE): held, not wrong."""
    if error.errno != errno.EWOULDBLOCK:
        return False
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            fd = TABLE.files.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError:
            return True
        except OSError:
            continue
        TABLE.files.close(fd)
        return False
    return False


class CancelCheckedWait:
    """A kernel lock whose wait asks the caller now and then whether to go on.

    The place in the queue is kept between two questions.
    """

    def __init__(self, kernel: Any, pause: float, cancel: Callable[[], bool]) -> None:
        self._kernel, self._pause, self._cancel = kernel, max(pause, 0.001), cancel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    async def wait(self, ask: Ask, until: float) -> object:
        """As the lock's own, until the caller says that he has enough: that is his deadline."""
        while True:
            if self._cancel():
                ask.deadline = clock.now()
                return Held("cancelled")
            found = await self._kernel.wait(ask, min(until, clock.now() + self._pause))
            if not isinstance(found, Held) or clock.now() >= until:
                return found


# ------------------------------------------------------------------------------------------------
# Our kernel lock, for who expects of a lock file that he may write it.
#
# flock(2) needs no right to write, and lifehold's own kernel lock locks such a file; filelock
# answers PermissionError, and programs rely on it as a check of whose file it is. Left as it is: a
# program, which is opened for reading so that it can be run meanwhile, and a file system that
# nobody writes.


Kernel: Any = maker("kernel")


class WrittenKernelLock(Kernel):  # type: ignore[misc]
    """As the kernel lock. Refuses a file that this process may only read (SystemRefused)."""

    def _open(self) -> object:
        slot = super()._open()
        if slot.writable:
            return slot
        try:
            if self._is_left(slot.fd):
                return slot
        except BaseException as error:
            slot.close()
            if isinstance(error, OSError):
                raise refused(self.path, error) from error
            raise
        slot.close()
        raise refused(self.path, OSError(errno.EACCES, os.strerror(errno.EACCES), self.path))

    def _is_left(self, fd: int) -> bool:
        """Whether it is locked all the same, or tried: where flock(2) is missing, that is said."""
        if self.files.fstat(fd).st_mode & 0o111 or os.fstatvfs(fd).f_flag & os.ST_RDONLY:
            return True
        try:
            self.files.flock(fd, LOCK_UN)
        except OSError as error:
            return error.errno == errno.ENOSYS
        return False
