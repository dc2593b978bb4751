"""Who among the holders and waiters of a name is proven dead, and who is watched for it.

L2  (a)  On a file system that one kernel alone can mount, a process gone by identity is dead
(core/liveness.py), and so is a waiter whose pipe nobody reads. L3: judged inside the step that then
lets the next one in. A holder with a lock delay is not followed before its lease and the delay are
over: who asks for a delay fears what it has sent.

The first waiter in line watches the processes of the holders, every other the process of the one
before it: so a death wakes one waiter, within milliseconds, and no other.
"""

from __future__ import annotations

import os

from ..core.liveness import DEAD, Ground, judge
from ..runtime import fork, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..core.storage import Request
    from ..runtime.pipes import Bells
    from .ledger import Book, Chair

MOST = 64  # processes that one waiter watches


def bury(book: Book, asked: Request, bells: Bells) -> bool:
    """End the chairs, and the places before ours, of the dead. Whether there were any."""
    found = False
    me = process.here()
    ground = Ground(True, None, me, False, process.look)
    for chair in book.chairs:
        if chair.mark != asked.mark and not chair.delay and _dead(chair, ground):
            chair.ends_at, chair.clock = float("-inf"), book.clock
            found = True
    room = sum(chair.weight for chair in book.chairs if chair.ends_at > 0) + asked.weight
    if room <= book.capacity or found:
        gone = set()
        for place in book.line:
            if place.mark == asked.mark or not bells.dead(place.bell):
                break  # behind one who lives nobody is in our way
            gone.add(place.mark)
        if gone:
            book.line = [place for place in book.line if place.mark not in gone]
            found = True
    return found


def _dead(chair: Chair, ground: Ground) -> bool:
    owner = chair.owner
    return owner is not None and judge(owner, ground).state == DEAD


def to_watch(book: Book, mark: str) -> set[int]:
    """The processes whose death lets this waiter go on, as far as we can watch them."""
    me = process.here()
    before = None
    for place in book.line:
        if place.mark == mark:
            break
        before = place
    if before is not None:
        pid, _, rest = before.bell.partition(".")
        space = rest.partition(".")[0]
        found = {int(pid)} if pid.isdecimal() and space == str(me.pid_ns or 0) else set()
    else:
        owners = [chair.owner for chair in book.chairs[:MOST] if not chair.delay]
        found = {
            owner.pid
            for owner in owners
            if owner is not None and owner.pid_ns == me.pid_ns and owner.boot_id == me.boot_id
        }
    return found - {os.getpid()}


class Vigil:
    """The processes that the waiters of this process watch."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[int, Any]] = {}
        fork.in_child(self._watches.clear)

    def keep(self, mark: str, pids: Iterable[int], ring: Callable[[], object]) -> None:
        """Ring once when one of them has ended.

        Who was watched before and has ended is not again: that was told, and proved nothing.
        """
        mine = self._watches.setdefault(mark, {})
        wanted = set(pids)
        wake: Any = fork.lazily("lifehold.runtime.wake")
        for pid in [pid for pid in mine if pid not in wanted]:
            mine.pop(pid).close()
        for pid in wanted - set(mine):
            mine[pid] = watch = wake.ProcessWatch(pid, ring)
            try:
                watch.start()
            except RuntimeError:
                pass  # no thread to be had: it looks by itself

    def drop(self, mark: str) -> None:
        """No more."""
        for watch in self._watches.pop(mark, {}).values():
            watch.close()
