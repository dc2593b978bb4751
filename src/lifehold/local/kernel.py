"""A lock that is flock(2) on a file which is never unlinked.

Promise: at most one exclusive holder per file, among us and all others who use flock(2) on that
path; the kernel frees it with its holder; while held, the file tells who holds it and under which
fencing token. Rule: the open file description is the holder (local/descriptors.py). Waiting is
flock(2) itself, made interruptible (runtime/block.py): nothing is asked of the releaser.

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

from ..core.errors import SystemRefused
from ..core.fence import next_token
from ..core.grant import Grant, Held, Lost
from ..runtime import fork
from . import content
from . import record as form
from .asked import Asked
from .descriptors import CLOSED, KEEP, TABLE, Descriptors, Slot, table_for
from .files import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN
from .glance import DEVICE, INODE
from .record import numbered
from .refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.acquire import Ask
    from ..core.ports import Runtime

# Grant() without the call of its constructor, which takes 0.2 us.
made: Callable[[type[Grant], tuple[object, ...]], Grant] = tuple.__new__  # type: ignore[assignment]
STRAYS = 100  # how often a path may lead elsewhere after a flock: beyond, inodes are not stable
RETRY = 0.25  # seconds between two looks where the kernel has no queue for what we wait for


class KernelLock(Asked):
    """The mechanism of one path. Made once per Lock object.

    Holds no state that a lock depends on.
    """

    def __init__(
        self, path: str, runtime: Runtime, *, table: Descriptors = TABLE, exclusive: bool = True,
        label: str = "", record: bool = True, cleanup: bool = False, mode: int | None = None,
        shared: bool = False,
    ) -> None:  # fmt: skip
        table = table_for(path, table)
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self.record, self.cleanup = label, record, cleanup
        self.mode, self.shared, self.exclusive = mode, shared, exclusive
        self._bare_only = not (record and exclusive)
        self._operation = LOCK_EX if exclusive else LOCK_SH
        self._now_or_never = self._operation | LOCK_NB
        self._last = 0  # the greatest token this object was given
        self._idle = table.idle

    # ---- one try, plain code: both faces and the explorer run it

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        if not fork.page[0]:
            fork.awoke()  # L9  what is idle is our parent's too
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
                if isinstance(error, OSError) and type(error) is not SystemRefused:
                    raise refused(self.path, error) from error
                raise
            slot.close()
            if grant is not None:
                return grant
            strays += 1
        raise refused(self.path, OSError(errno.ESTALE, "inode numbers are not stable here"))

    def _enter(self, slot: Slot) -> Grant | Held | None:
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
            content.prepare(slot, self.label)
        stored = slot.last
        if (found := files.pread(slot.fd, slot.length, 0)) != slot.expected:
            answer = content.judge(files, self.path, slot, found, self.cleanup)
            if not isinstance(answer, int):
                return answer if isinstance(answer, Held) else self._bare(slot, answer)
            stored = max(stored, answer)
        now = files.clock_ns()
        stamp = token = now // 1000
        if token <= stored or token <= self._last:
            token = next_token(stored, self._last, stamp)
        text = numbered(slot.parts, token, stamp)
        if files.pwrite(slot.fd, text, 0) != form.SIZE:  # one write
            raise content.cut_short(files, slot)
        slot.expected = text[: slot.length]
        slot.last = self._last = token
        return made(Grant, (self.path, slot.mark, token, None, now, slot.key, [slot], None))

    def _still_held(self, slot: Slot) -> bool:
        """Whether "held" was said of the file that the path leads to. Keeps the slot then."""
        try:
            found = slot.ours() and slot.leads_here(self.files)
        except BaseException:
            slot.close()
            raise
        if found:
            self.table.keep(self.path, slot)
        return found

    def _open(self) -> Slot:
        return Slot(self.table, self.path, self.mode, self.shared)

    # ---- the paths that are rare

    def _without_writing(self, slot: Slot) -> Grant | Held:
        """A shared lock, a file we may only read, or record=False."""
        if slot.mark:  # it was kept: other code may have closed it, and the number be used again
            content.same_file(self.files, self.path, slot)
        if self.cleanup:
            raise content.cleanup_refused(
                self.path, "it may only be read here, so it is not ours to unlink"
            )
        found = content.unwritten(self.files, self.path, slot, self.record, self.exclusive)
        if isinstance(found, Held):
            return found
        token, reason = found
        if token is not None:
            slot.mark = ""  # one token for many readers: a new mark makes another nonce
        return self._bare(slot, reason, token)

    def _bare(self, slot: Slot, reason: str | None, token: int | None = None) -> Grant:
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
                content.prepare(slot, self.label)  # to be read now, not when the lock has come
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
            fork.awoke()
        try:
            if grant.handle[0].generation != fork.generation:
                return content.not_open(grant.handle[0])
            slot: Slot = grant.handle.pop()  # L5  one atomic step
        except IndexError:
            return Lost("released already")
        try:
            lost = None
            if self.cleanup or not slot.glimpsed():
                found = content.look(self.files, self.path, slot)
                lost = found if isinstance(found, Lost) else None  # told, never silent (L5)
            # L4  The counter goes with its file: the clock must be past it, or the file stays.
            if self.cleanup and lost is None and (grant.token or 0) < self.files.clock_ns() // 1000:
                self.files.unlink(self.path)  # L7  under the lock
            # Not by close alone: some child may still have a copy of the descriptor.
            self.files.flock(slot.fd, LOCK_UN)
        except BaseException as error:
            gone = isinstance(error, OSError) and error.errno == errno.EBADF and not slot.ours()
            slot.close()
            if gone:
                return Lost(content.CLOSED_BY_OTHERS, gone=True)
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
            slot: Slot = grant.handle[0]
        except IndexError:
            return Lost("released already")
        if slot.generation != fork.here():
            return content.not_open(slot)
        found = content.look(self.files, self.path, slot)
        if isinstance(found, Lost):
            return found
        if found.st_size == 0 and self.exclusive:
            content.restore(self.files, slot, grant, self.label)
        return None
