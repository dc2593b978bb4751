"""A lock that is flock(2) on a file which is never unlinked.

Promise: at most one exclusive holder per file, among us and all others who use flock(2) on that
path; the kernel frees it with its holder; while held, the file tells who holds it and under which
fencing token. Rule: the open file description is the holder (local/handles.py). Waiting is
flock(2) itself, made interruptible (runtime/flock_wait.py): nothing is asked of the releaser.

L1  flock, and *after* it lstat: the path must still lead to the file we locked, else start again.
    Tools that unlink or replace lock files under the lock therefore cannot make two holders of us.
L3  A dead holder's lock is taken over by that same flock, one atomic step of the kernel.
L4  The token is max(stored + 1, clock, own last + 1), read and written under the lock.
L5  A slot is popped out of its grant, one atomic step: of two releasing threads one wins.
L6  On any exception the slot is closed, which unlocks it.
L7  The file is not unlinked, but by cleanup=True: under the lock, as every acquirer checks the
    path.
"""

from __future__ import annotations

import errno
import os
from _thread import get_ident

from ..core.deadline import RETRY
from ..core.errors import InvalidArgument, SystemRefused, UnsafeGround, pass_up
from ..core.fence import next_token
from ..core.grant import Grant, Held, Holder, Lost
from ..runtime import fork
from . import kernel_record
from . import record as form
from .files import CALLS, DEVICE, INODE, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, READ_ONLY, Files
from .ground import is_far, place_of_path
from .handles import (
    CLOSED,
    CLOSED_BY_OTHERS,
    KEEP,
    RELEASED,
    TABLE,
    Descriptors,
    LockFile,
    not_open,
    table_for,
)
from .kernel_record import refuse_other_kind
from .record import numbered
from .refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.acquire import Ask
    from ..core.ports import Runtime
    from ..runtime import flock_wait
    from . import kernel_holders
else:
    flock_wait = fork.later("lifehold.runtime.flock_wait", globals())
    kernel_holders = fork.later("lifehold.local.kernel_holders", globals())


# ------------------------------------------------------------------------------------------------
# What can be asked of a kernel lock without holding it: who has it, who waits, where it lies.
#
# Promise: no question takes the lock away from somebody. Only `taken` tries, shared and for a
# moment, and only where the kernel hides other namespaces.


HEAD = 64  # bytes in which a record tells its kind


class Asked:
    """The questions of the mechanism `KernelLock`."""

    path: str
    files: Files

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """What tells of a loss when it changes, and whether events of that do not reach us."""
        return self.path, self.far

    def far(self) -> bool:
        """Whether its calls may wait for a file server: no event loop should make them then."""
        return is_far(self.path)

    def refuse_mixed(self) -> None:
        """Raises UnsafeGround when what holds the file is a lock of another kind."""
        try:
            fd = self.files.open(self.path, READ_ONLY)
        except OSError as error:
            pass_up(error)
            return
        try:
            refuse_other_kind(self.path, self.files.pread(fd, HEAD, 0))
        except OSError as error:
            pass_up(error)
            return
        finally:
            self.files.close(fd)

    def taken(self) -> bool:
        """Whether anybody holds it. Looks at /proc/locks.

        Where that hides other namespaces, tries for a moment.
        """
        return kernel_holders.is_taken(self.files, self.path)

    def inspect(self, *, held: bool = False) -> Holder | None:
        return kernel_holders.holder_of(self.files, self.path, held)

    def waiters(self) -> int | None:
        return kernel_holders.waiters(self.files, self.path)


# ------------------------------------------------------------------------------------------------


# Grant() without the call of its constructor, which takes 0.2 us.
made: Callable[[type[Grant], tuple[object, ...]], Grant] = tuple.__new__  # type: ignore[assignment]
STRAYS = 100  # how often a path may lead elsewhere after a flock: beyond, inodes are not stable


class KernelLock(Asked):
    """The mechanism of one path. Made once per Lock object.

    Holds no state that a lock depends on.
    """

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        *,
        table: Descriptors = TABLE,
        exclusive: bool = True,
        label: str = "",
        record: bool = True,
        cleanup: bool = False,
        mode: int | None = None,
        shared: bool = False,
    ) -> None:
        table = table_for(path, table)
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self.record, self.cleanup = label, record, cleanup
        self.mode, self.shared, self.exclusive = mode, shared, exclusive
        self._bare_only = not (record and exclusive)
        self._operation = LOCK_EX if exclusive else LOCK_SH
        self._now_or_never = self._operation | LOCK_NB
        self._last = 0  # the greatest token this object was given
        self._idle = table.idle

    @property
    def option(self) -> str:
        """Of the command that takes the same lock."""
        return "" if self.exclusive else "-s "

    # ---- one try, plain code: both faces and the explorer run it

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        if not fork.page[0]:
            fork.catch_up()  # L9  what is idle is our parent's too
        files = self.files
        strays = 0
        while strays < STRAYS:
            slot = self._idle.pop(self.path, None) or self._open()
            try:
                files.flock(slot.fd, self._now_or_never)
                grant = self._enter(slot)
                if type(grant) is Grant:
                    return grant
            except BlockingIOError:
                if self._still_held(slot):
                    return Held("", slot.key)
                grant = None  # "held" of a kept slot whose file is gone says nothing of the path
            except BaseException as error:
                anew = isinstance(error, OSError) and (
                    (error.errno == errno.EBADF and not slot.ours())  # closed by other code
                    or (error.errno == errno.EROFS and slot.writable)  # read-only by now
                )
                slot.close()
                if anew:
                    continue
                if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                    raise refused(self.path, error) from error
                raise
            slot.close()
            if grant is not None:
                return grant
            strays += 1
        raise refused(self.path, OSError(errno.ESTALE, "inode numbers are not stable here"))

    def _enter(self, slot: LockFile) -> Grant | Held | None:
        """With the flock held: the grant; None when the path leads to another file by now (L1)."""
        files = self.files
        if (
            slot.glance is None
            or slot.glance()  # after the flock: before, it would be of another time
            or slot.words[INODE] != slot.ino
            or slot.words[DEVICE] != slot.device
        ) and not slot.leads_here(files):
            return None
        if self._bare_only or not slot.writable:
            return self._without_writing(slot)
        if slot.thread != get_ident() or slot.label != self.label:
            kernel_record.prepare(slot, self.label)
        stored = slot.last
        if (found := files.pread(slot.fd, slot.length, 0)) != slot.expected:
            answer = kernel_record.judge(files, self.path, slot, found, self.cleanup)
            if not isinstance(answer, int):
                return answer if isinstance(answer, Held) else self._bare(slot, answer)
            stored = max(stored, answer)
        now = files.clock_ns()
        stamp = token = now // 1000
        if token <= stored or token <= self._last:
            token = next_token(stored, self._last, stamp)
        text = numbered(slot.parts, token, stamp)
        if files.pwrite(slot.fd, text, 0) != form.SIZE:  # one write
            raise kernel_record.cut_short(files, slot)
        slot.expected = text[: slot.length]
        slot.last = self._last = token
        return made(Grant, (self.path, slot.mark, token, None, now, slot.key, [slot], None))

    def _still_held(self, slot: LockFile) -> bool:
        """Whether "held" was said of the file that the path leads to. Keeps the slot then."""
        try:
            found = slot.ours() and slot.leads_here(self.files)
        except BaseException:
            slot.close()
            raise
        if found:
            self.table.keep(self.path, slot)
        return found

    def _open(self) -> LockFile:
        return LockFile(self.table, self.path, self.mode, self.shared)

    # ---- the paths that are rare

    def _without_writing(self, slot: LockFile) -> Grant | Held:
        """A shared lock, a file we may only read, or record=False."""
        if slot.mark:  # it was kept: other code may have closed it, and the number be used again
            kernel_record.same_file(self.files, self.path, slot)
        if self.cleanup:
            raise kernel_record.cleanup_refused(
                self.path, "it may only be read here, so it is not ours to unlink"
            )
        found = kernel_record.unwritten(self.files, self.path, slot, self.record, self.exclusive)
        if isinstance(found, Held):
            return found
        token, reason = found
        if token is not None:
            slot.mark = ""  # one token for many readers: a new mark makes another nonce
        return self._bare(slot, reason, token)

    def _bare(self, slot: LockFile, reason: str | None, token: int | None = None) -> Grant:
        if not slot.mark:
            slot.mark, slot.thread = os.urandom(8).hex(), 0
        now = self.files.clock_ns()
        return made(Grant, (self.path, slot.mark, token, reason, now, slot.key, [slot], None))

    # ---- waiting

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Stand in the kernel's queue. Held before `until`: led elsewhere, or a newer record."""
        slot = ask.slot
        if slot is not None and slot.generation != fork.generation:
            ask.place = slot = None  # L9  forked in a signal handler: the helper thread is not here
        if slot is None:
            slot = ask.slot = self._idle.pop(self.path, None) or self._open()
            if not self._bare_only and slot.writable and slot.thread != get_ident():
                kernel_record.prepare(
                    slot, self.label
                )  # to be read now, not when the lock has come
        try:
            got = await self.runtime.block(ask, slot, self._operation, until)
        except OSError as error:
            raise refused(self.path, error) from error
        if not got:
            patient = self.runtime.now() < ask.deadline and not ask.cancelled
            if patient and slot.leads_here(self.files):
                return Held("", slot.key)  # time for a notice; the place in the queue is kept
            ask.slot = None
            came_first = ask.place is not None and ask.place.leave()
            ask.place = None  # not before: an exception out of leave() must find it (L6)
            if not came_first:
                return Held("", slot.key)
        ask.slot = None
        try:
            answer = self._enter(slot)
            if isinstance(answer, Grant):
                return answer
        except BaseException as error:
            slot.close()
            if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                if slot.generation not in (CLOSED, fork.generation):
                    return Held("", slot.key)  # L9  forked just now: the descriptor is not ours
                raise refused(self.path, error) from error
            raise
        slot.close()
        if answer is not None:  # a newer record and nobody in the queue: look again now and then
            pause = min(RETRY, until - self.runtime.now())
            if pause > 0:
                await self.runtime.sleep(pause)
            return answer
        return Held("the path led to another file", slot.key)

    # ---- the end of a grant

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code: no step of it waits."""
        if not fork.page[0]:
            fork.catch_up()
        slot: Any = None
        try:
            try:
                slot = grant.handle[0]
                if slot.generation != fork.generation:
                    return not_open(slot)
                grant.handle.pop()  # L5  one atomic step
            except IndexError:
                return Lost(RELEASED)
            lost = None
            if self.cleanup or not slot.glimpsed():
                found = kernel_record.look(self.files, self.path, slot)
                lost = found if isinstance(found, Lost) else None  # told, never silent (L5)
            # L4  The counter goes with its file: the clock must be past it, or the file stays.
            if self.cleanup and lost is None and (grant.token or 0) < self.files.clock_ns() // 1000:
                self.files.unlink(self.path)  # L7  under the lock
            # Not by close alone: some child may still have a copy of the descriptor.
            self.files.flock(slot.fd, LOCK_UN)
        except BaseException as error:
            if slot is None:
                raise
            gone = isinstance(error, OSError) and error.errno == errno.EBADF and not slot.ours()
            slot.close()  # L6  not left to the last reference: a frame that is kept may have it too
            if gone:
                return Lost(CLOSED_BY_OTHERS, gone=True)
            if isinstance(error, OSError):
                raise refused(self.path, error) from error
            raise
        idle = self._idle
        blind = self.exclusive and not slot.writable  # the next one may be able to write by then
        if (
            self.cleanup
            or blind
            or lost is not None
            or idle.setdefault(self.path, slot) is not slot
        ):
            slot.close()
        elif len(idle) > KEEP:
            self.table.close_idle(KEEP)
        return lost

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    async def renew(self, grant: Grant) -> Grant | Lost:
        """A kernel lock does not run out: the same grant, as long as the path leads to its file."""
        return self.check(grant) or grant

    def check(self, grant: Grant) -> Lost | None:
        """One lstat(2). A file that was emptied gets its record back: the lock is not lost."""
        try:
            slot: LockFile = grant.handle[0]
        except IndexError:
            return Lost(RELEASED)
        if slot.generation != fork.here():
            return not_open(slot)
        found = kernel_record.look(self.files, self.path, slot)
        if isinstance(found, Lost):
            return found
        if found.st_size == 0 and self.exclusive:
            kernel_record.restore(self.files, slot, grant, self.label)
        return None


# ------------------------------------------------------------------------------------------------
# The kernel lock for fair askers: first come, first served among all of them.
#
# Promise: all that the kernel lock promises, to everybody; and of two who ask with `fair=True`, the
# one that waited first is served first, across threads, tasks and processes. Rule that keeps it:
# who asks stands in the line of runtime/flock_wait.py until the lock is there. Also a try without
# patience and a holder that comes back at once: both find the line and do not pass it.


IN_LINE = "others asked for it before and stand in line"


class FairFiles(Files):
    """The seam as it is, but for tries of flock(2): those look at the line."""

    def __init__(self, path: str, below: Any) -> None:
        self._path, self._flock = path, below.flock
        self.in_line = False  # whether the last "held" was said by the line; for people only
        for name in CALLS:
            if name != "flock":
                setattr(self, name, getattr(below, name))

    def flock(self, fd: int, operation: int) -> None:
        if operation & LOCK_NB:
            self.in_line = True
            flock_wait.try_now(self._path, fd, operation, self._asked)
        else:
            self._flock(fd, operation)

    def _asked(self, fd: int, operation: int) -> None:
        self.in_line = False
        self._flock(fd, operation)


class LinedKernelLock(KernelLock):
    """One that is asked for in a line: to be refused may mean the line, while nobody holds it."""

    def inspect(self, *, held: bool = False) -> Holder | None:
        if not flock_wait.has_ranges():
            return super().inspect(held=held)
        found = super().inspect()
        if found is None and held:
            return kernel_holders.those_in_line(self.files, self.path)
        return found


class FairKernelLock(LinedKernelLock):
    """As KernelLock, made with `fair=True`."""

    def __init__(self, path: str, runtime: Runtime, *, cleanup: bool = False, **more: Any) -> None:
        super().__init__(path, runtime, **more)
        if not flock_wait.has_ranges():
            raise InvalidArgument(
                "fair=True needs locks of open file descriptions, which this system does not "
                "offer: leave it out; the kernel still queues the waiters"
            )
        if cleanup:
            raise InvalidArgument(
                "fair=True and cleanup=True cannot both be: the line goes with the file that is "
                "unlinked. Leave one of them out"
            )
        self.files = self._seam = FairFiles(path, self.table.files)
        self._operation |= flock_wait.FAIR

    def attempt(self) -> Grant | Held:
        if is_far(self.path):
            raise UnsafeGround(
                f"{self.path!r} lies on {place_of_path(self.path).kind}: a file server may keep "
                "flock(2) and the line of fair=True as one and the same lock, and they would wait "
                "for each other. Lock a file on a local disk, or leave out fair=True",
                name=self.path,
            )
        answer = super().attempt()
        if self._seam.in_line and isinstance(answer, Held) and not answer.reason:
            return Held(IN_LINE, answer.key)
        return answer
