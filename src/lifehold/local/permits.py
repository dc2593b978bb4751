"""How many may hold a semaphore: the number that its file keeps, and how it may change.

Rule (L1): it changes only in the hands of one who holds the file's own lock and the locks of all
slots that the old number allows, so that nobody holds or waits under another number.
"""

from __future__ import annotations

import errno
import os

from ..core.errors import CorruptRecord, InvalidArgument, UnsafeGround
from .descriptors import Descriptors, Slot
from .files import LOCK_EX, LOCK_NB
from .record import MAGIC, VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .files import Files

KIND = "semaphore"
FRONT = b'%s%d,"kind":"%s","permits":' % (MAGIC, VERSION, KIND.encode())
WIDTH = 6
LENGTH = len(FRONT) + WIDTH + len(b"}\n")
ANOTHER = 6  # looks at what another, who has the gate, is writing or has just written
PAUSE = 0.001  # seconds between the first two of them, longer between the others
BEING_MADE = "somebody else is just making it"


def slot_path(path: str, number: int) -> str:
    """The file of a slot: `gpu#0.lock` beside `gpu.lock`, `gpu#0` beside `gpu`."""
    stem, dot, end = path.rpartition(".lock")
    if dot and not end:
        return f"{stem}#{number}.lock"
    return f"{path}#{number}"


def stored(files: Files, gate: Slot) -> int | None:
    """N as the file has it; None for a file without. Raises CorruptRecord, UnsafeGround."""
    content: bytes = files.pread(gate.fd, LENGTH, 0)
    if not content.strip(b"\0"):
        return None
    found = parsed(content)
    if found is not None:
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
    files: Files, path: str, gate: Slot, permits: int, table: Descriptors, slot: str = "",
    *, ours: bool = False,
) -> bool:  # fmt: skip
    """Make N `permits`, if nobody holds or waits. False: another is about to write the first N.

    That may take it as long as it likes, so nothing is decided by how long we look: who waits,
    waits for the gate. `slot`: the slot file that the caller has locked; `ours`: it has locked the
    gate as well.

    Raises InvalidArgument, which tells N and who stands in the way.
    """
    taken = [gate] if ours else [Slot(table, path, None, False)]  # `gate` may not be locked twice
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
            taken.append(Slot(table, slot_path(path, number), None, False))
            if not _locked(files, taken[-1]):
                raise _differs(path, permits, found, f"its slot {number} is held")
        if files.pwrite(lock.fd, b"%s%6d}\n" % (FRONT, permits), 0) != LENGTH:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return True
    finally:
        for each in taken[1:] if ours else taken:
            each.close()


def _locked(files: Files, slot: Slot) -> bool:
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
