"""The kernel's reader/writer lock: flock(2), shared or exclusive, behind one line.

Promise: at most one writer, and no reader beside it; readers together. Neither side starves: of two
who wait, the one that came first goes first, so a writer waits for the readers that were in before
it and for no later one, and a reader for no writer that came after it. The kernel frees what a dead
holder held. Writers carry a growing token, readers that of the last writer.

How it could fail, and what keeps it: flock(2) lets readers in while a writer waits, for ever if
they overlap. So who asks first looks whether somebody stands in the line of runtime/flock_wait.py,
and if so stands there too (L10). The line only orders; who excludes is flock(2) alone (L1).
A thread that reads already passes the line: the writer there waits for it.

Where the system has no such line (macOS), the kernel's own order counts, and readers that overlap
without end may keep a writer out.
"""

from __future__ import annotations

import os
from itertools import count

from ..core.errors import CorruptRecord, InvalidArgument, UnsafeGround
from ..core.grant import Grant, Held, Lost
from ..runtime import flock_wait, fork
from ..runtime.held_here import asker, held_by
from . import kernel_record
from .files import CALLS, LOCK_NB, LOCK_SH, Files
from .ground import is_far, place_of_path
from .handles import RELEASED, not_open
from .kernel import LinedKernelLock, made
from .record import SIZE, WIDTH, head_of, parse
from .refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.ports import Runtime
    from .handles import LockFile

IN_LINE = "others asked for it before and stand in line"
BETWEEN = "another writer came in while it was downgraded: this system does not do that in one step"


class LinedFiles(Files):
    """The seam as it is, but for tries of flock(2): those look at the line first."""

    def __init__(self, below: Any) -> None:
        self._flock = below.flock
        self.in_line = False  # whether the last "held" was said by the line
        for name in CALLS:
            if name != "flock":
                setattr(self, name, getattr(below, name))

    def flock(self, fd: int, operation: int) -> None:
        if operation & LOCK_NB:
            self.in_line = False
            if flock_wait.stands(fd, operation) and not self._reads_already(fd, operation):
                self.in_line = True
                raise BlockingIOError
        self._flock(fd, operation)

    def _reads_already(self, fd: int, operation: int) -> bool:
        if not operation & LOCK_SH:
            return False
        found = self.fstat(fd)
        return held_by(f"{found.st_dev}:{found.st_ino}", *self.asker()) is not None

    def asker(self) -> tuple[int, object]:
        """The thread that asks, and its task where tasks are told apart (set by the async face)."""
        return asker(), None


class KernelReadWrite(LinedKernelLock):
    """One side of it: `exclusive=True` for writers, False for readers."""

    def __init__(self, path: str, runtime: Runtime, **more: Any) -> None:
        super().__init__(path, runtime, **more)
        self._lined: LinedFiles | None = None
        if flock_wait.has_ranges():
            self.files = self._lined = LinedFiles(self.table.files)
            self._operation |= flock_wait.FAIR

    def asked_by(self, asker: Any) -> None:
        """How to tell who asks: the async face tells tasks apart."""
        if self._lined is not None:
            self._lined.asker = asker  # type: ignore[method-assign]

    def attempt(self) -> Grant | Held:
        answer = super().attempt()
        if type(answer) is Held and self._lined is not None and self._lined.in_line:
            return Held(answer.reason or IN_LINE, answer.key)
        return answer

    def _enter(self, slot: LockFile) -> Grant | Held | None:
        """As the kernel lock; for readers a shorter way while no writer has been in since."""
        if self.exclusive:
            return super()._enter(slot)
        files = self.files
        if not (slot.glimpsed() or slot.leads_here(files)):  # L1
            return None
        if slot.expected is None or files.pread(slot.fd, slot.length, 0) != slot.expected:
            answer = self._without_writing(slot)
            if isinstance(answer, Grant) and answer.token is not None:
                head = head_of(slot.ino)
                slot.length, slot.last = len(head) + WIDTH, answer.token
                slot.expected = head + b"%20d" % answer.token
            return answer
        # The head names the inode, so these are the first bytes of our own file, and its token.
        mark, now = f"{_random()}{next(_count):x}", files.clock_ns()
        return made(Grant, (self.path, mark, slot.last, None, now, slot.key, [slot], None))

    def downgrade(self, grant: Grant) -> Grant | Lost:
        """The writer becomes a reader in one step: no other writer comes in between.

        L6  The slot is taken out of the grant meanwhile, so that a release in another thread does
        not unlock what it is not. After an interrupt it is there again, of a reader at least; it is
        closed where another writer may have come in between.
        """
        slot: LockFile | None = None
        try:
            try:
                if grant.handle[0].generation != fork.here():
                    return not_open(grant.handle[0])
                slot = ours = grant.handle.pop()
            except IndexError:
                return Lost(RELEASED)
            found = kernel_record.look(self.files, self.path, ours)
            lost = found if isinstance(found, Lost) else self._share(ours, grant)
            if lost is not None:
                ours.close()
                return lost
            grant.handle.append(ours)
            slot = None  # another thread may release it from here on
            return grant
        except BaseException as error:
            if slot is not None and slot not in grant.handle:
                if isinstance(error, OSError) or not flock_wait.has_ranges():
                    slot.close()
                else:
                    grant.handle.append(slot)
            if isinstance(error, OSError):
                raise refused(self.path, error) from error
            raise

    def _share(self, slot: LockFile, grant: Grant) -> Lost | None:
        """Linux converts at once. Elsewhere the record tells whether a writer came in between."""
        try:
            self.table.files.flock(slot.fd, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return Lost(BETWEEN, gone=True)
        try:
            record = parse(self.files.pread(slot.fd, SIZE, 0))
        except CorruptRecord:
            record = None
        if record is not None and grant.token is not None and record.token != grant.token:
            return Lost(BETWEEN, gone=True)
        return None


_count = count()
_randoms: dict[int, str] = {}  # one for each process: by the generation of fork.py


def _random() -> str:
    """What makes the nonces of this process unlike those of all others."""
    found = _randoms.get(fork.generation)
    if found is None:
        found = _randoms[fork.generation] = os.urandom(8).hex()
    return found


def side(path: str, runtime: Runtime, **more: Any) -> KernelReadWrite:
    """One side of the lock at `path`. Raises UnsafeGround on a file server."""
    if is_far(path):
        raise UnsafeGround(
            f"{path!r} lies on {place_of_path(path).kind}: a file server may keep flock(2) and the "
            "line of a reader/writer lock as one and the same lock. Use kind='soft' with a "
            "ttl, or lock a file on a local disk",
            name=path,
        )
    if more.get("cleanup"):
        raise InvalidArgument("a reader/writer lock takes no cleanup=: readers may be in")
    return KernelReadWrite(path, runtime, **more)
