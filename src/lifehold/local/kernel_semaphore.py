"""N holders at once: N lock files with one kernel lock each, and a file that says how many.

Promise: never more than `permits` holders; each has a slot of its own, 0 to N-1, whose token only
grows; a dead holder's slot is free at once; who waits is woken by the kernel, and first come is
first served among those who wait. Processes that disagree about N never hold together.

Acquire   1 Look whether somebody waits (a byte that every waiter locks, shared); if so, wait too.
          2 Try the lock of each slot file, from the slot that we had last.
          3 *After* a slot is ours, read N: it must be ours, else let go and say so.
Wait      4 Stand in the queue of the file itself: who gets through is the first.
          5 The first stands in the queues of all slots (runtime/flock_wait.py); one comes: 3.
Change N  Only with the file's own lock and all old slots in hand: nobody holds, nobody waits.

How it could fail: somebody locks a slot under an old N while N changes. He reads N after his lock
(3), and the change was made by one who had that very lock: so he sees the new one (L1, L3).
L4, L5, L6, L7, L9: each slot is a kernel lock (local/kernel.py).
"""

from __future__ import annotations

import errno
import os

from ..core.errors import CorruptRecord, InvalidArgument, SystemRefused, UnsafeGround
from ..core.grant import Grant, Held, Holder, Lost
from ..core.value import replace
from ..runtime import flock_wait, fork
from .files import LOCK_EX, LOCK_NB
from .ground import is_far, place_of_path
from .handles import TABLE, Descriptors, LockFile, table_for
from .kernel import Asked, KernelLock
from .record import MAGIC, VERSION
from .refusals import JUST_RELEASED, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    from ..core.acquire import Ask
    from ..core.ports import Runtime
    from .files import Files

MOST = 512  # permits: the first waiter stands in so many queues, with a thread in each
IN_LINE = "others asked for it before and wait"
STRAYS = 100  # how often the file may lead elsewhere under our hands


class SemaphoreWait:
    """What one wait keeps between two calls: its place before the slots, and then in them."""

    __slots__ = ("first", "gate", "stands")

    def __init__(self, gate: LockFile) -> None:
        self.gate = gate
        self.first = False
        self.stands: Any = None


class KernelSemaphore(Asked):
    """The mechanism of one path. Made once per Semaphore object."""

    exclusive = True  # of its slot

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        permits: int,
        *,
        table: Descriptors = TABLE,
        label: str = "",
        mode: int | None = None,
        shared: bool = False,
    ) -> None:
        if isinstance(permits, bool) or not isinstance(permits, int):
            raise InvalidArgument(
                f"permits must be a whole number, not {type(permits).__name__} {permits!r}"
            )
        if not 1 <= permits <= MOST:
            raise InvalidArgument(f"permits must be from 1 to {MOST}, not {permits}")
        if is_far(path):
            raise UnsafeGround(
                f"{path!r} lies on {place_of_path(path).kind}, a file server: a semaphore counts "
                "by kernel locks, which the server may drop. Use a file on a local disk",
                name=path,
            )
        table = table_for(path, table)
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.permits, self.label, self.mode, self.shared = permits, label, mode, shared
        more: dict[str, Any] = {"table": table, "label": label, "mode": mode, "shared": shared}
        self.slots = [KernelLock(slot_path(path, n), runtime, **more) for n in range(permits)]
        self.numbers = {lock.path: n for n, lock in enumerate(self.slots)}
        self._slot_by_key: dict[Hashable, int] = {}
        self._start = 0

    def refuse_mixed(self) -> None:
        """Every try looks what the file is (kernel_semaphore.py)."""

    # ---- one try

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        if not fork.page[0]:
            fork.catch_up()  # L9  what is idle is our parent's too
        try:
            for _ in range(STRAYS):
                gate = self.table.idle.pop(self.path, None) or self._open()
                try:
                    answer = self._attempt(gate)
                except BaseException:
                    gate.close()
                    raise
                if answer is not None:
                    self.table.keep(self.path, gate)
                    return answer
                gate.close()
        except SystemRefused:
            raise
        except OSError as error:
            raise refused(self.path, error) from error
        raise refused(self.path, OSError(errno.ESTALE, "inode numbers are not stable here"))

    def _attempt(self, gate: LockFile) -> Grant | Held | None:
        """None: the path leads to another file by now."""
        if not gate.glimpsed() and not gate.leads_here(self.files):
            return None
        if self._somebody_waits(gate):
            return Held(IN_LINE, gate.key)
        answer = self._any()
        if type(answer) is Grant:
            return self._agreed(answer, gate)
        if stored(self.files, gate) not in (None, self.permits):
            change(self.files, self.path, gate, self.permits, self._opened)
        return answer

    def _any(self) -> Grant | Held:
        """The first slot that is free."""
        answer: Grant | Held = Held()
        slots, start = self.slots, self._start
        for n in range(len(slots)):
            answer = slots[start - len(slots) + n].attempt()
            if type(answer) is Grant:
                return self._ours(answer)
        return answer

    def _ours(self, grant: Grant) -> Grant:
        """The grant of a slot, under the semaphore's name. `key`: the slot's file."""
        self._start = self._slot_by_key[grant.key] = self.numbers[grant.name]
        return replace(grant, name=self.path)

    def _agreed(self, grant: Grant, gate: LockFile, *, ours: bool = False) -> Grant | Held:
        """3: with a slot in hand, and the gate if it is `ours`. L6  On any error it is let go."""
        agreed = False
        try:
            agreed = stored(self.files, gate) == self.permits or change(
                self.files,
                self.path,
                gate,
                self.permits,
                self._opened,
                self._lock_of(grant).path,
                ours=ours,
            )
        finally:
            if not agreed:
                for slot in grant.handle[:]:
                    slot.close()
                grant.handle.clear()
        return grant if agreed else Held(BEING_MADE, gate.key)

    def _open(self) -> LockFile:
        return self._opened(self.path)

    def _opened(self, path: str) -> LockFile:
        return LockFile(self.table, path, self.mode, self.shared)

    def _somebody_waits(self, gate: LockFile) -> bool:
        return flock_wait.has_ranges() and flock_wait.stands(gate.fd, LOCK_EX)

    # ---- waiting

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """4 and 5. Held before `until`: a notice is due, or look again."""
        line: SemaphoreWait | None = ask.slot
        if line is not None and line.gate.generation != fork.generation:
            ask.leave()  # L9  forked in a signal handler: what began in the child is ended (L6)
            line = None
        if line is None:
            line = ask.slot = SemaphoreWait(self._open())
            if flock_wait.has_ranges():
                flock_wait.show(line.gate.fd)
        try:
            if not line.first and not await self._before(ask, line, until):
                return Held(IN_LINE)
            return await self._first(ask, line, until)
        except BaseException as error:
            if ask.place is None:
                line.gate.close()
                if line.stands is not None:
                    line.stands.undo()
            if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                raise refused(self.path, error) from error
            raise

    async def _before(self, ask: Ask, line: SemaphoreWait, until: float) -> bool:
        """4: behind those who wait already. True: we are the first."""
        if not await self.runtime.block(ask, line.gate, LOCK_EX, until):
            if self._patient(ask) and line.gate.leads_here(self.files):
                return False
            ask.slot = None
            ask.leave()
            return False
        if line.gate.generation != fork.generation:
            return False  # L9  forked just now: it is our parent who is first
        if not line.gate.leads_here(self.files):
            ask.slot = None
            line.gate.close()
            return False
        line.first = True
        return True

    async def _first(self, ask: Ask, line: SemaphoreWait, until: float) -> Grant | Held:
        """5: nobody waits before us."""
        if line.stands is None:
            answer = self._any()  # one may have come free before we stood here
            if type(answer) is Grant:
                return self._through(ask, line, answer)
            slots = [lock._open() for lock in self.slots]
            ask.place = line.stands = flock_wait.FlockAny(slots, LOCK_EX, line.gate)
            line.stands.start()
        if not await self.runtime.block(ask, None, LOCK_EX, until):
            if self._patient(ask):
                return Held()
            ask.slot, place = None, ask.place
            came_first = place is not None and place.leave()
            ask.place = None
            if not came_first:
                return Held()
        slot: LockFile = line.stands.slot
        line.stands = None
        try:
            found = self.slots[self.numbers[slot.path]]._enter(slot)
        except BaseException:
            slot.close()
            raise
        if not isinstance(found, Grant):
            slot.close()
            return found or Held("a slot's path led to another file")
        return self._through(ask, line, self._ours(found))

    def _through(self, ask: Ask, line: SemaphoreWait, grant: Grant) -> Grant | Held:
        """With a slot in hand: the next one is first."""
        ask.slot = None
        gate = line.gate if line.gate.generation == fork.generation else self._open()
        try:
            return self._agreed(grant, gate, ours=gate is line.gate)
        finally:
            gate.close()

    def _patient(self, ask: Ask) -> bool:
        return self.runtime.now() < ask.deadline and not ask.cancelled

    # ---- a grant is its slot's

    def slot_of(self, grant: Grant) -> int:
        """The number of the slot of a grant."""
        return self._slot_by_key[grant.key]

    def _lock_of(self, grant: Grant) -> KernelLock:
        return self.slots[self._slot_by_key[grant.key]]

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code: no step of it waits."""
        return self._lock_of(grant).drop(grant)

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    async def renew(self, grant: Grant) -> Grant | Lost:
        """A kernel lock does not run out."""
        return self.check(grant) or grant

    def check(self, grant: Grant) -> Lost | None:
        """One lstat(2)."""
        return self._lock_of(grant).check(grant)

    # ---- questions

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """The folder: which of the slots a lease has, is its own affair."""
        return os.path.dirname(self.path) + "/", self.far

    def taken(self) -> bool:
        """Whether every slot is taken."""
        return all(os.path.exists(lock.path) and lock.taken() for lock in self.slots)

    def inspect(self, *, held: bool = False) -> Holder | None:
        """One of those who hold it."""
        for lock in self.slots:
            if os.path.exists(lock.path) and (found := lock.inspect()) is not None:
                return found
        if not held:
            return None
        first = super().inspect()
        return Holder(evidence=JUST_RELEASED) if first is None else as_first(first)


# ------------------------------------------------------------------------------------------------
# How many may hold a semaphore: the number that its file keeps, and how it may change.
#
# Rule (L1): it changes only in the hands of one who holds the file's own lock and the locks of all
# slots that the old number allows, so that nobody holds or waits under another number.


KIND = "semaphore"
FRONT = b'%s%d,"kind":"%s","permits":' % (MAGIC, VERSION, KIND.encode())
WIDTH = 6
LENGTH = len(FRONT) + WIDTH + len(b"}\n")
ANOTHER = 6  # looks at what another, who has the gate, is writing or has just written
PAUSE = 0.001  # seconds between the first two of them, longer between the others
FIRST_IN_LINE = "kernel witness; it is first in line, and takes the slot that is free"
BEING_MADE = "somebody else is just making it"


def as_first(holder: Holder) -> Holder:
    """Who has the lock of the semaphore's own file: it waits, and nobody passes it."""
    return replace(holder, evidence=FIRST_IN_LINE)


def slot_path(path: str, number: int) -> str:
    """The file of a slot: `gpu#0.lock` beside `gpu.lock`, `gpu#0` beside `gpu`."""
    stem, dot, end = path.rpartition(".lock")
    if dot and not end:
        return f"{stem}#{number}.lock"
    return f"{path}#{number}"


def stored(files: Files, gate: LockFile) -> int | None:
    """N as the file has it; None for a file without. Raises CorruptRecord, UnsafeGround."""
    content: bytes = files.pread(gate.fd, LENGTH, 0)
    if not content.strip(b"\0"):
        return None
    found = parsed(content)
    if found is not None and 1 <= found <= MOST:
        return found
    if content.startswith(FRONT[: len(MAGIC) + 1]) and b'"kind":"semaphore"' in content:
        raise CorruptRecord(
            f"{gate.path!r} is a semaphore's file, and the number in it cannot be read. To begin "
            "anew, when nobody holds it, remove the file",
            name=gate.path,
        )
    raise UnsafeGround(
        f"{gate.path!r} is no semaphore's file: another kind of lock, or other data, lives there. "
        "Give the semaphore a file of its own",
        name=gate.path,
    )


def parsed(content: bytes) -> int | None:
    """N in the first bytes of a file; None when they are not a semaphore's."""
    digits = content[len(FRONT) : len(FRONT) + WIDTH].strip()
    if not content.startswith(FRONT) or not digits.isdigit():
        return None
    return int(digits)


def change(
    files: Files,
    path: str,
    gate: LockFile,
    permits: int,
    opened: Callable[[str], LockFile],
    slot: str = "",
    *,
    ours: bool = False,
) -> bool:
    """Make N `permits`, if nobody holds or waits. False: another is about to write the first N.

    That may take it as long as it likes, so nothing is decided by how long we look: who waits,
    waits for the gate. `opened`: opens a file, and makes one that is not there; `slot`: the slot
    file that the caller has locked; `ours`: it has locked the gate as well.

    Raises InvalidArgument, which tells N and who stands in the way.
    """
    # `gate` may not be locked twice
    taken = [gate] if ours else [opened(path)]
    lock = taken[0]
    try:
        mine, found = ours, stored(files, gate)
        for number in range(ANOTHER):
            mine = mine or _locked(files, lock)
            found = stored(files, gate)
            if found == permits:
                return True  # somebody else has just written it
            if mine or found is not None:
                break
            files.pause(PAUSE * (1 + number))
        if not mine and found is None:
            return False
        if not mine:
            raise _differs(path, permits, found, "others wait for it")
        for number in range(found or 0):
            if slot_path(path, number) == slot:
                continue
            taken.append(opened(slot_path(path, number)))
            if not _locked(files, taken[-1]):
                raise _differs(path, permits, found, f"its slot {number} is held")
        if files.pwrite(lock.fd, b"%s%6d}\n" % (FRONT, permits), 0) != LENGTH:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return True
    finally:
        for each in taken[1:] if ours else taken:
            each.close()


def _locked(files: Files, slot: LockFile) -> bool:
    try:
        files.flock(slot.fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _differs(path: str, permits: int, found: int | None, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path!r} has {found} permits, not {permits}, and {why}: all who use it must give the "
        f"same number. Give permits={found}, or change it while nobody holds or waits",
        name=path,
    )
