"""Who holds a semaphore: one answer of the answers of its slots.

Promise: as of one lock: held is said only when the kernel says so of a slot.
"""

from __future__ import annotations

import stat

from ..core.value import replace
from ..local import permits
from ..local.permits import slot_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

    from .who import Answer


def permits_of(files: Any, fd: int) -> int | None:
    """How many may hold, of a semaphore's file; None of any other file."""
    found: os.stat_result = files.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size != permits.LENGTH:
        return None
    return permits.parsed(files.pread(fd, permits.LENGTH, 0))


def answer(who: Callable[..., Answer], empty: Answer, count: int) -> Answer:
    """The answer for the semaphore of `empty`, whose file says `count`."""
    paths = [slot_path(empty.path, number) for number in range(count)]
    found = [who(f"{empty.name}#{n}", path, plain=True) for n, path in enumerate(paths)]
    taken = [each for each in found if each.holder is not None]
    note = f"a semaphore: {len(taken)} of its {count} slots are taken"
    removed = tuple(holder for each in found for holder in each.removed)
    waiting = {each.pid: each for one in found for each in one.waiting}
    known = replace(empty, note=note, removed=removed, waiting=tuple(waiting.values()))
    if not taken:
        last = [each.last for each in found if each.last is not None]
        latest = max(last, key=lambda holder: holder.since or 0.0, default=None)
        unclear = next((each.state for each in found if each.state != known.state), known.state)
        return replace(known, last=latest, state=unclear)
    others = [one for each in taken for one in each.others]
    others += [each.holder for each in taken[1:] if each.holder is not None]
    states = {each.state for each in taken}
    worst = taken[0].state if len(states) == 1 else "held" if "held" in states else taken[0].state
    return replace(known, state=worst, holder=taken[0].holder, others=tuple(others))
