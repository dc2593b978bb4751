"""When it is worth to look again, and what has changed: for `ls --watch` and `top`.

Promise: a change in a watched folder is told at once, by its event; one in the kernel's table of
locks within BEAT, by a look at that table alone. What neither shows, as the death of a process that
a lock file names, is seen when the caller looks again by itself: `pace` says when.
"""

from __future__ import annotations

import os
import select

from ..core.value import value
from ..local.ground import place_of_path
from ..local.proc_locks import whole_table
from ..runtime import clock, watch_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .answer import LockAnswer

BEAT = 0.5  # seconds between two looks at the table
BREATH, LULL = 0.2, 4  # seconds at least between two looks, and how many times as long as one took
SHARE = 20  # times, where nothing changed
MOST = 200  # folders that are watched
APPEARED, CHANGED, GONE = "appeared", "changed", "gone"


class Changes:
    """What happens from now on, until `close()`."""

    def __init__(self) -> None:
        self._told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watches: dict[str, watch_thread.PathWatch] = {}
        self._table = whole_table()

    @property
    def wakeup(self) -> int:
        """Who writes a byte to this descriptor ends a `wait`: a signal."""
        return self._wakeup[1]

    def follow(self, folders: Iterable[str]) -> None:
        """Watch these folders and no others."""
        wanted = list(dict.fromkeys(folders))[:MOST]
        for folder in [each for each in self._watches if each not in wanted]:
            self._watches.pop(folder).close()
        for folder in wanted:
            if folder not in self._watches:
                blind = place_of_path(folder).far
                path = f"{folder.rstrip('/')}/"
                made = watch_thread.watch(path, self._ring, blind=blind, content=False)
                self._watches[folder] = made

    def _ring(self) -> None:
        try:
            os.write(self._told[1], b"!")
        except OSError:
            return  # it rings already, or is closed

    def wait(
        self, seconds: float, fds: Sequence[int] = (), *, deaf: bool = False
    ) -> tuple[bool, list[int]]:
        """Until something changed, one of `fds` can be read, it was woken, or the time is over.

        Whether something changed, and which of `fds` can be read. `deaf`: changes are no reason to
        return; they are kept for the next call.
        """
        until = clock.now() + seconds
        readable = [self._wakeup[0], *fds] if deaf else [self._wakeup[0], self._told[0], *fds]
        while (left := until - clock.now()) > 0:
            ready = select.select(readable, [], [], left if deaf else min(left, BEAT))[0]
            for fd in (self._wakeup[0], self._told[0]):
                if fd in ready:
                    os.read(fd, 4096)
            changed = self._told[0] in ready or (not deaf and not ready and self._moved())
            if ready or changed:
                return changed, [fd for fd in fds if fd in ready]
        return False, []

    def _moved(self) -> bool:
        before, self._table = self._table, whole_table()
        return before != self._table

    def close(self) -> None:
        """Give all of it back."""
        self.follow(())
        for fd in (*self._told, *self._wakeup):
            os.close(fd)


@value
class LookPace:
    """When to look again: `soonest` after a change, `latest` where none is told."""

    soonest: float
    latest: float


def pace(began: float, every: float) -> LookPace:
    """After a look that began then and has just ended.

    So looking takes a twentieth of a processor, and a fifth of one where changes never end.
    """
    now = clock.now()
    took = now - began
    return LookPace(now + max(BREATH, LULL * took), now + max(every, SHARE * took))


@value
class Change:
    """What became of one lock. `what`: APPEARED, CHANGED or GONE; `answer`: of GONE the last."""

    what: str
    answer: LockAnswer


def between(before: Sequence[LockAnswer], after: Sequence[LockAnswer]) -> list[Change]:
    """What the second look shows that the first did not, in its order; what has gone comes last."""
    old = {answer.path or answer.name: answer for answer in before}
    new = {answer.path or answer.name: answer for answer in after}
    told = [
        Change(CHANGED if path in old else APPEARED, answer)
        for path, answer in new.items()
        if path not in old or _facts(old[path]) != _facts(answer)
    ]
    return told + [Change(GONE, answer) for path, answer in old.items() if path not in new]


def _facts(answer: LockAnswer) -> tuple[object, ...]:
    """What makes a difference to a reader; an age does not."""
    holders = tuple(
        (each.nonce, each.pid_here, None if each.owner is None else each.owner.pid, each.alive)
        for each in (answer.holder, *answer.others, *answer.removed)
        if each is not None
    )
    return answer.state, answer.kind, holders, tuple(each.pid for each in answer.waiting)
