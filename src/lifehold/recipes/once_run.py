"""One run on a shelf: its begin, which shuts out all earlier ones, and how its result is published.

Promise and rule: see once_shelf.py. `begin` makes NUMBER.run, removes every lower one, then looks
for results; `publish` renames. The kernel orders the removal and the rename of one file.
"""

from __future__ import annotations

import errno

from ..core.errors import LeaseLost
from ..local.files import READ_ONLY
from ..local.refusals import refused
from .once_shelf import DONE, OUT, PIECE, RUN, TRIES, Listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .once_shelf import Shelf


def begin(shelf: Shelf, token: int, check: Callable[[], None]) -> Run:
    """The run of a grant, which nobody with a lower number can publish over any more.

    `check` raises LeaseLost when the lock is not ours by now.
    """
    shelf.check_folder()
    for _ in range(TRIES):
        highest = shelf.listing().highest
        if highest >= token:
            check()  # a later holder has begun; or else the counter was lost
        number = max(token, highest + 1)
        try:
            fd = shelf.make(shelf.name(number, RUN))
        except FileExistsError:
            continue  # of our own, made by a request whose answer was lost
        run = Run(shelf, number, fd)
        try:
            run.settle()
        except BaseException:
            run.withdraw()
            raise
        return run
    raise refused(shelf.path, OSError(errno.ESTALE, "its runs come and go too fast"))


class Run:
    """One run, from its begin to `publish` or `withdraw`.

    `latest`: the number of the latest result at its begin.
    """

    __slots__ = ("_fd", "latest", "number", "older", "published", "shelf")

    def __init__(self, shelf: Shelf, number: int, fd: int) -> None:
        self.shelf, self.number, self._fd = shelf, number, fd
        self.older = Listing()
        self.latest = 0
        self.published = False

    def settle(self) -> None:
        """Shut out every earlier run, then see what there is. Raises LeaseLost for a later one."""
        shelf = self.shelf
        seen = shelf.listing()
        earlier = [number for number in seen.runs if number < self.number]
        for number in earlier:
            shelf.remove(number, RUN)
        if earlier:
            seen = shelf.listing()  # one of them may have come first
        if seen.highest > self.number:
            raise superseded(shelf.path)
        for number in set(seen.outs) - set(seen.dones) - {self.number}:
            shelf.remove(number, OUT)
        self.older, self.latest = seen, seen.latest

    def publish(self, content: bytes) -> None:
        """Make this the latest result, for good once it returns.

        Raises LeaseLost when a later run has begun, whose result it then is not.
        """
        shelf, files = self.shelf, self.shelf.files
        run, done = shelf.name(self.number, RUN), shelf.name(self.number, DONE)
        try:
            at = 0
            while at < len(content):
                at += files.pwrite(self._fd, content[at : at + PIECE], at)
            if shelf.shared:
                files.fchmod(self._fd, 0o666)
            files.fsync(self._fd)
            try:
                files.rename(run, done)
            except FileNotFoundError:
                if not self._is_at(done):  # over NFS: done, and the reply was lost
                    raise superseded(shelf.path) from None
            self.published = True
            self._flush_folder()
        except OSError as error:
            raise refused(shelf.path, error) from error
        for number in self.older.dones:
            self._discard(number, DONE, OUT)
        self._close()

    def _is_at(self, path: str) -> bool:
        files = self.shelf.files
        try:
            found = files.lstat(path)
        except FileNotFoundError:
            return False
        mine = files.fstat(self._fd)
        return bool(found.st_ino == mine.st_ino)

    def _flush_folder(self) -> None:
        """So that power loss does not take the name away; where a folder can be flushed."""
        files = self.shelf.files
        try:
            folder = files.open(self.shelf.path, READ_ONLY)
            try:
                files.fsync(folder)
            finally:
                files.close(folder)
        except OSError:
            return

    def withdraw(self) -> None:
        """Leave nothing of this run, unless it was published."""
        if not self.published:
            self._discard(self.number, RUN, OUT)
        self._close()

    def _discard(self, number: int, *what: str) -> None:
        for each in what:
            try:
                self.shelf.files.unlink(self.shelf.name(number, each))
            except OSError:
                continue  # the next run removes it

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.shelf.files.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self._close()


def superseded(path: str) -> LeaseLost:
    """Somebody with a later grant has begun."""
    reason = "a later run has begun, so this one's lock was lost"
    return LeaseLost(f"{path!r}: {reason}: its result is not published", name=path, reason=reason)
