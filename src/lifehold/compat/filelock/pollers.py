"""Turns for programs that poll: filelock's processes look now and then, and stand in no queue.

The kernel hands a lock to the next process in its queue, and our own next acquire finds it free
before a poller looks again. So pollers would get one turn in thirty.

Promise: beside such a program an acquire of ours leaves the lock alone until that program has
looked once, or for WINDOW. But ours that such programs have kept waiting for longer uses the lock
freely for SHARE of that: they take it again at once, before a waiter is awake. Where nobody else
uses the file, an acquire that finds the lock free makes no call for this.
Rule: evidence of the last second, by class of lock.
    A native lock, or a database: another program has opened the file. The first contended wait
    watches it by inotify (IN_OPEN). This process knows its own opens, and processes of ours that
    lock it often keep it open, so an open is another program's look. SQLite opens it once for each
    acquire, and then asks again and again: the next open tells that the turn was taken.
    A soft lock: we met a holder that another program's record names; ours bear a witness line.
    A strict lock: we met a claim whose token is not of our making (strict_claims.py).
    A soft reader/writer lock: we met a member whose record bears no witness line. Who waits has a
    record too, so it is known whether anybody does; and the log counts the turns of others, so ours
    uses it freely for as many.
Not promised: a turn for a program that looks less often than once in QUIET, or that keeps the file
open and tries again by it; where inotify is missing, and on a file system without witnesses.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ...runtime import clock, fork, native
from . import pidfile
from .system_calls import OPENED, WATCHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.ports import Runtime
    from ...runtime import watch_table
    from .sides import WaitTerms
    from .waits import AcquireRequest
else:
    watch_table = fork.later("lifehold.runtime.watch_table", globals())

WINDOW = 0.055  # seconds: a little more than filelock's default pause between two looks
SQLITE, MEMBERS = 2.0, 5.0  # the same for a database and a soft reader/writer lock, in WINDOWs
STEP = 0.003  # seconds between two questions whether the other program has looked
QUIET = 1.0  # seconds without evidence after which nobody polls any more
# For each second of waiting behind such programs ours uses a lock freely for so many, FREE at most:
# their turns follow one another at once, ours each after a wake-up.
SHARE, FREE = 1.5, 5.0
MOST = 16  # files watched by one process: of 128 inotify instances that a user has
expected: dict[str, OpenWatch | MetPeer] = {}  # path -> how another program's look is seen


class OpenWatch:
    """A file: who opens it, by inotify. Raises OSError where that is missing.

    Any thread asks, and any thread may forget it meanwhile: its number could then be read as the
    descriptor of something else. So one at a time has it, and who has it last gives it back.
    """

    def __init__(self, path: str, windows: float) -> None:
        self._path, self._opens, self.windows = path, watch_table.Inotify(), windows
        self._busy = native.allocate_lock()  # never waited for: a signal handler may ask too
        self._forgotten = self._closed = False
        try:
            self._opens.add_opens(path)
        except BaseException:
            self._opens.close()
            raise
        OPENED.discard(path)
        WATCHED.add(path)
        self.since = clock.now()  # of the last evidence; at first, of the watch
        self._any = False

    def due(self) -> bool:
        """Whether another program polls."""
        return self.looked() or (self._any and clock.now() - self.since < QUIET)

    def again(self) -> None:
        """As of `MetPeer`. Who waits for such a lock stands in the kernel's queue."""
        self.since = clock.now()

    def over(self) -> bool:
        """Whether nobody polls any more."""
        return clock.now() - self.since >= QUIET

    def came(self) -> None:
        """As of `MetPeer`."""

    def looked(self) -> bool:
        """Whether it has looked since the last question."""
        if not self._read():
            return False
        if self._path in OPENED:  # the kernel tells two opens in a row as one: it was ours alone
            OPENED.discard(self._path)
            return False
        self.since, self._any = clock.now(), True
        return True

    def _read(self) -> bool:
        """Whether the file was opened. Another thread that is reading tells nobody else."""
        if not self._busy.acquire(False):
            return False
        try:
            return not self._forgotten and bool(self._opens.read())
        finally:
            self._busy.release()
            if self._forgotten:
                self._give_back()

    def asked(self) -> Callable[[], bool]:
        """As of `MetPeer`."""
        return self.looked

    def close(self) -> None:
        """Watch no more."""
        WATCHED.discard(self._path)
        self._forgotten = True
        self._give_back()

    def _give_back(self) -> None:
        """Once, and not while somebody reads: that one does it then."""
        if not self._busy.acquire(False):
            return
        try:
            if not self._closed:
                self._closed = True
                self._opens.close()
        finally:
            self._busy.release()

    def close_in_child(self) -> None:
        """L9  Whichever thread of the parent was reading, it is not here."""
        self._busy = native.allocate_lock()
        self.close()


class MetPeer:
    """A lock in files: another program has held it, and takes it again when it is free."""

    windows = 1.0
    free_until = 0.0  # who waited for long has its turns

    def __init__(self, path: str) -> None:
        self._path, self.since = path, clock.now()
        self._behind: float | None = self.since  # since when ours waits behind other programs

    def due(self) -> bool:
        """Whether another program has just held it, and it is its turn."""
        now = clock.now()
        return self.free_until <= now < self.since + QUIET

    def again(self) -> None:
        """Another program holds it."""
        self.since = clock.now()
        if self._behind is None:
            self._behind = self.since

    def over(self) -> bool:
        """Whether nobody polls any more."""
        return clock.now() - self.since >= QUIET

    def came(self) -> None:
        """A wait of ours is over."""
        behind, self._behind = self._behind, None
        waited = 0.0 if behind is None else clock.now() - behind
        if waited > WINDOW:
            self.free_until = clock.now() + min(waited * SHARE, FREE)

    def asked(self) -> Callable[[], bool]:
        """A wait of ours begins: what tells whether another program has looked since."""
        return self.looked

    def looked(self) -> bool:
        """Whether another program holds it now. A holder of ours is no reason to go on."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            named = pidfile.read(os.read(fd, pidfile.LONGEST + 1))
        except OSError:
            return False
        finally:
            os.close(fd)
        return named is not None and not named.witness

    def close(self) -> None:
        """Nothing to give back."""

    def close_in_child(self) -> None:
        """Nothing to give back."""


def expect(path: str, windows: float = 1.0) -> None:
    """A wait for a file's lock begins: from now on its opens are counted, if possible."""
    if path in expected:
        return
    for other, found in list(expected.items()):
        if _is_over(found):
            forget(other)
    if len(expected) >= MOST:
        return
    fork.here()
    with fork.gate:
        if path not in expected:
            try:
                expected[path] = OpenWatch(path, windows)
            except (OSError, ImportError):
                return  # no inotify here, or none left: no turns for pollers


def _is_over(found: OpenWatch | MetPeer) -> bool:
    """Whether nobody polls there any more. Raises OSError, but not of what other code closed."""
    try:
        return not found.due() and found.over()
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return True


def met(path: str, make: Callable[[], MetPeer] | None = None) -> None:
    """A lock in files is held by another program. `make`: how that is seen; None by the file."""
    found = expected.get(path)
    if found is not None:
        found.again()
    elif len(expected) < MOST:
        expected[path] = make() if make else MetPeer(path)


def came(path: str) -> None:
    """A wait for the lock is over, and it is ours."""
    found = expected.get(path)
    if found is not None:
        found.came()


async def let_in(path: str, want: AcquireRequest | WaitTerms, runtime: Runtime) -> None:
    """Leave the lock alone until a program that polls it has looked once."""
    found = expected.get(path)
    if found is None or not want.blocking:
        return
    try:
        if found.due():
            looked = found.asked()
            until = min(clock.now() + WINDOW * found.windows, want.deadline)
            while clock.now() < until and not (want.cancel is not None and want.cancel()):
                await runtime.sleep(STEP)
                if looked():
                    return
        elif found.over():
            forget(path)
    except OSError as error:
        if error.errno != errno.EBADF:  # other code has closed it
            raise
        forget(path)


def forget(path: str) -> None:
    """Expect nobody there any more."""
    found = expected.pop(path, None)
    if found is not None:
        found.close()


@fork.in_child
def _drop() -> None:
    """L9  A child that reads its parent's watch would take the events from it."""
    for found in expected.values():
        found.close_in_child()
    expected.clear()
