"""The kernel lock of a file that is open already: `Lock.on_file(file)`.

Promise: flock(2) on the caller's own descriptor, which excludes every lock by flock on that file;
one grant at a time for one file and process. Rule: the kernel grants flock again on one open file
description, as often as it is asked; so our own table says which files are held here. A file that
was opened for one grant alone (`alone=True`) stands there by itself: the kernel keeps others out.
L4  Nothing is written to somebody's data file, so there is no token, and its holder leaves no name.
L5  The descriptor stays the caller's: it is never closed here, and unlocked only while it leads to
    the file that was locked.
L6  What is interrupted between two steps is unlocked: by `OpenFileClaim.close`, at the latest when
    the part of the grant is collected. A file of one grant alone is unlocked by its own end: its
    caller closes it, and who keeps it has the lock, whatever else the collector finds.
L9  A forked child has the same description: it neither holds the lock nor unlocks it, and it is
    refused: it opens the file again.
"""

from __future__ import annotations

import errno
import os
import stat

from ..core.errors import InvalidArgument, SystemRefused
from ..core.grant import Grant, Held, Lost, Single
from ..runtime import fork
from .files import HOST, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN
from .handles import CLOSED_BY_OTHERS, RELEASED, TABLE, files_for
from .kernel import Asked, made
from .refusals import UntrustedPath, not_lockable, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.acquire import Ask
    from ..core.ports import Runtime

UNNUMBERED = "the file is yours: nothing is written into it, so no token can be kept there"
UNLOCKED = "other code unlocked its descriptor, or closed it and opened the file again"
FIRST, LONGEST = 0.002, 0.05  # seconds between two looks of who waits
_ITSELF: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

_here: dict[str, OpenFileClaim] = {}  # by what is locked: whose it is, until it is unlocked
_of_parents: set[str] = set()  # what was locked here when we were forked


@fork.in_child
def _forget() -> None:
    """L9  A child holds nothing of what its parent holds."""
    _of_parents.update(each.lock.key for each in _here.values())
    _here.clear()


class OpenFileClaim:
    """The right of one grant to lock and unlock: it stands in `_here` until the kernel let go."""

    __slots__ = ("asked", "lock")

    def __init__(self, lock: OpenFileLock) -> None:
        self.lock = lock
        self.asked = False  # whether the kernel may have granted it

    def stands(self) -> bool:
        """Whether the file is ours."""
        return _here.get(self.lock.claimed) is self

    def made(self) -> bool:
        """Claim it. False when another grant of this process has it still."""
        key = self.lock.claimed
        with fork.gate:
            while (found := _here.setdefault(key, self)) is not self:
                if found.lock.leads_here():
                    return False
                if _here.get(key) is found:  # closed by others, which freed it: it unlocks nothing
                    del _here[key]
        return True

    def close(self) -> None:
        """Unlock, if it is ours. Safe to repeat. Raises OSError."""
        fork.here()  # L9  a child has no claims
        if not self.stands():
            return
        lock = self.lock
        try:
            if self.asked and lock.leads_here():
                lock.files.flock(lock.fd, LOCK_UN)
        except OSError:
            self.end()
            raise
        self.end()  # L6  last, and not when a signal handler raised: then it is to be done again

    def end(self) -> None:
        """From here on another may ask the kernel."""
        if self.stands():
            del _here[self.lock.claimed]

    def undo(self) -> None:
        """Unlock, whatever there is to be said of it."""
        try:
            self.close()
        except OSError:
            pass  # it is given up all the same


class OpenFilePart(Single):
    """What a grant has in its handle."""

    __slots__ = ("claim", "fd", "generation", "listed")

    def __init__(self, claim: OpenFileClaim, generation: int) -> None:
        self.claim, self.generation, self.fd = claim, generation, claim.lock.fd
        self.listed = False  # whether the kernel shows the lock where it is asked for later

    def close(self) -> None:
        """Unlock: for who undoes."""
        self.claim.undo()

    def __del__(self, _collected: Any = fork.collected) -> None:
        # L6  Whatever an exception between two bytecodes drops is unlocked.
        claim = getattr(self, "claim", None)  # not there when its making was interrupted
        if claim is not None and claim.stands():
            _collected(claim.end if claim.lock.alone else claim.undo)


class OpenFileLock(Asked):
    """The mechanism of one open file.

    `alone`: a description of the caller's own, so the kernel sees to all others, and this process
    may have the file locked by several (shared locks).
    """

    def __init__(
        self, file: object, runtime: Runtime, *, exclusive: bool = True, alone: bool = False
    ) -> None:
        self.file, self.runtime, self.exclusive, self.files = file, runtime, exclusive, HOST
        self._generation = fork.here()
        self.fd = _descriptor(file)
        found = _looked_at(self.fd, file)
        self._id = found.st_dev, found.st_ino
        self.key = f"{found.st_dev}:{found.st_ino}"
        self.alone, self.claimed = alone, f"{self.key}, {id(self)}" if alone else self.key
        self.path = _path(self.fd, self._id)
        self._operation = LOCK_EX if exclusive else LOCK_SH

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        generation = fork.here()
        if not self.leads_here():
            raise InvalidArgument(f"{self.path!r}: the file was closed: open it again")
        if self._generation != generation:
            raise self._of_parent()
        if self._is_anothers():
            raise InvalidArgument(
                f"{self.path!r}: another lock of this program holds this very descriptor, "
                f"{self.fd}: both would end with the first of them. Use that lock, or open the "
                "file again"
            )
        claim = OpenFileClaim(self)
        try:
            if not claim.made():
                return Held("this process holds it already", self.key)
            if self.key in _of_parents and self._is_locked():
                raise self._of_parent()
            part = OpenFilePart(claim, generation)
            handle = [part]
            claim.asked = True
            self.files.flock(self.fd, self._operation | LOCK_NB)
            part.listed = not self.alone and self._is_locked(untold=False)
            nonce, now = os.urandom(8).hex(), self.files.clock_ns()
            return made(Grant, (self.path, nonce, None, UNNUMBERED, now, self.key, handle, None))
        except BaseException as error:
            claim.undo()
            if isinstance(error, BlockingIOError):
                return Held("", self.key)
            if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                raise refused(self.path, error) from error
            raise

    def _is_anothers(self) -> bool:
        """L1  The kernel would grant it again, and our unlock would be the end of both."""
        if self.alone:
            return False  # a description of our own
        whose = TABLE.open.get(self.fd)
        slot = None if whose is None else whose()
        if slot is not None and slot.key == self.key and slot.ours():
            return True
        others = [each.lock for each in list(_here.values())]
        return any(each.fd == self.fd and each.key == self.key and each.alone for each in others)

    def _of_parent(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self.path!r}: this file was opened by the parent process, which would share its "
            "lock: open the file again in the child"
        )

    def _is_locked(self, untold: bool = True) -> bool:
        """Whether this very description has a lock; `untold` where that cannot be told."""
        try:
            with open(f"/proc/self/fdinfo/{self.fd}", encoding="utf-8", errors="replace") as told:
                return "FLOCK" in told.read()
        except OSError:
            return untold

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """A look now and then: a helper thread in flock(2) could hold what nobody asks for."""
        pause = ask.slot or FIRST
        ask.slot = min(2 * pause, LONGEST)
        await self.runtime.sleep(max(0.0, min(pause, until - self.runtime.now())))
        return self.attempt()

    def drop(self, grant: Grant) -> Lost | None:
        """Write out what the program's buffer has, and unlock. Raises SystemRefused."""
        claim: OpenFileClaim | None = None
        try:
            try:
                part: OpenFilePart = grant.handle[0]
                if part.generation != fork.here():
                    return Lost("it belongs to the parent process")
                claim = part.claim
                grant.handle.pop()  # L5  one atomic step
            except IndexError:
                claim = None  # its end is another's
                return Lost(RELEASED)
            if not self.leads_here():
                claim.close()
                return Lost(CLOSED_BY_OTHERS, gone=True)
            if not claim.stands():
                return Lost(RELEASED)
            flush = getattr(self.file, "flush", None)
            if flush is not None:
                flush()
            claim.close()
            return None
        except BaseException as error:  # L6
            if claim is not None:
                claim.undo()
            if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                raise refused(self.path, error) from error
            raise

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    async def renew(self, grant: Grant) -> Grant | Lost:
        return self.check(grant) or grant

    def check(self, grant: Grant) -> Lost | None:
        """Whether the descriptor leads to the file, and is locked, still.

        Other code may have closed it and opened the file again, which gives the same number; or
        have unlocked it.
        """
        for part in grant.handle:  # not handle[0]: max_hold may end it meanwhile
            if part.generation != fork.here():
                return Lost("it belongs to the parent process")
            if not self.leads_here():
                return Lost(CLOSED_BY_OTHERS, gone=True)
            if part.listed and not self._is_locked():
                part.claim.end()  # it unlocks nothing, and keeps nobody out
                return Lost(UNLOCKED, gone=True)
            if part.claim.stands():
                return None
        return Lost(RELEASED)

    def is_at(self, path: str) -> bool:
        """Whether `path` leads to the locked file still. Raises OSError (L1)."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._id

    def leads_here(self) -> bool:
        """Whether the descriptor leads to the file that is locked."""
        if getattr(self.file, "closed", False):
            return False
        try:
            found = self.files.fstat(self.fd)
        except OSError as error:
            if error.errno == errno.EBADF:
                return False
            raise refused(self.path, error) from error
        return (found.st_dev, found.st_ino) == self._id


def opened(path: str, flags: int) -> int:
    """An opener for open(), of a file that is a lock and no data, at an absolute path.

    L7, L13  No link is followed and no FIFO waited for, and root goes nowhere that another user
    leads it. Raises OSError; InvalidArgument, UnsafeGround for what is refused by that.
    """
    files = files_for(path)
    try:
        return files.open(path, flags | _ITSELF, 0o666)
    except UntrustedPath as error:
        raise refused(path, error) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            mode = files.lstat(path).st_mode
            if not stat.S_ISREG(mode):
                raise not_lockable(path, mode) from error
        raise


def _descriptor(file: object) -> int:
    if isinstance(file, int) and not isinstance(file, bool):
        return file
    try:
        number = file.fileno()  # type: ignore[attr-defined]
    except (AttributeError, ValueError, OSError) as error:
        if getattr(file, "closed", False) is True:
            named = f"file {getattr(file, 'name', file)!r}"
            raise InvalidArgument(f"{named} is closed: open it again") from error
        raise InvalidArgument(
            f"file must be an open file or the number of a descriptor, not {file!r}: for a path "
            "use Lock(path) or locked_file(path)"
        ) from error
    if not isinstance(number, int):
        raise InvalidArgument(
            f"file must be an open file or the number of a descriptor, not {file!r}: its fileno() "
            f"answers {type(number).__name__} {number!r}"
        )
    return number


def _looked_at(fd: int, file: object) -> os.stat_result:
    try:
        found = HOST.fstat(fd)
    except (OSError, OverflowError) as error:
        raise InvalidArgument(f"file {file!r} is not open: {error}") from error
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise InvalidArgument(f"file {file!r} is a pipe, socket or device: lock a regular file")
    return found


def _path(fd: int, which: tuple[int, int]) -> str:
    """The name under which it was opened, while it leads there; else what people know it by."""
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
        found = os.lstat(name)
    except (OSError, SystemRefused):
        return f"/proc/self/fd/{fd}"
    return name if (found.st_dev, found.st_ino) == which else f"/proc/self/fd/{fd}"
