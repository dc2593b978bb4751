"""Who holds a semaphore: one answer of the answers of its slots.

Promise: as of one lock: held is said only when the kernel says so of a slot.
"""

from __future__ import annotations

import os
import stat

from ..core.value import replace
from ..local import kernel_semaphore
from ..local.kernel_semaphore import slot_path
from .foreign import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .who import Answer


MOST = 1000  # slots that are looked at


def permits_of(files: Any, fd: int) -> int | None:
    """How many may hold, of a semaphore's file; None of any other file."""
    found: os.stat_result = files.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size != kernel_semaphore.LENGTH:
        return None
    return kernel_semaphore.parsed(files.pread(fd, kernel_semaphore.LENGTH, 0))


def numbers_of(path: str, count: int) -> list[int]:
    """The slots that were ever used, in order: what the file says may be anything up to 999999."""
    folder, name = os.path.split(slot_path(path, 0))
    front, _, end = name.rpartition("#0")
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            number = entry.name.removeprefix(f"{front}#").removesuffix(end)
            if number.isdecimal() and number.isascii() and len(number) <= kernel_semaphore.WIDTH:
                if entry.name == f"{front}#{int(number)}{end}" and int(number) < count:
                    found.append(int(number))
    return sorted(found)


def answer(who: Callable[..., Answer], empty: Answer, count: int) -> Answer:
    """The answer for the semaphore of `empty`, whose file says `count`."""
    numbers = numbers_of(empty.path, count)
    paths = {n: slot_path(empty.path, n) for n in numbers[:MOST]}
    files = Files(paths.values())
    found = [who(f"{empty.name}#{n}", path, plain=True, files=files) for n, path in paths.items()]
    taken = [each for each in found if each.holder is not None]
    note = f"a semaphore: {len(taken)} of its {count} slots are taken"
    note += f", of the first {MOST} that were ever used" if len(numbers) > MOST else ""
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
