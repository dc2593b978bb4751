"""The folder of one `once`: who has begun a run, and what came of the last one.

    NUMBER.run     a run under way, or what a crash left of it
    NUMBER.done    the result of a run; the highest number is the latest
    NUMBER.out     what a command wrote, if it was a command

Promise: a result is seen whole or not at all; a run that has lost its lock never puts its result
over, nor after, that of a later run. How it could fail, and what keeps it:
- Killed while writing: the result is written into NUMBER.run, flushed, and then renamed.
- A late writer, paused until its lock was taken over: whoever begins later removes every lower
  NUMBER.run *before* it looks for results. The late rename comes before that, and the later run
  finds the result and need not run; or it comes after, and the kernel finds no such file.
- A late beginner, paused between its grant and its NUMBER.run: it looks again after making the
  file, sees a higher number, and withdraws.
The number is the fencing token of the grant. Where the counter was lost and the clock set back
(L4), it is one more than the highest here, once the lock is known to be still ours.
"""

from __future__ import annotations

import errno
import os

from ..core.errors import LeaseLost, UnsafeGround
from ..core.value import value
from ..local.files import CREATE, READ_ONLY, READ_WRITE
from ..local.refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..local.files import Files

DIGITS = 20
RUN, DONE, OUT = ".run", ".done", ".out"
TRIES = 100  # how often a result may be replaced while we open it
PIECE = 1 << 20  # bytes of one read


@value
class Listing:
    """The numbers in the folder, by what they stand for."""

    runs: tuple[int, ...] = ()
    dones: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()

    @property
    def highest(self) -> int:
        return max((0, *self.runs, *self.dones, *self.outs))

    @property
    def latest(self) -> int:
        """The number of the latest result, 0 when there is none."""
        return max((0, *self.dones))


class Shelf:
    """The results of one name. `shared`: all users who may write there are trusted."""

    __slots__ = ("files", "path", "shared")

    def __init__(self, files: Files, path: str, shared: bool = False) -> None:
        self.files, self.path, self.shared = files, path, shared

    def name(self, number: int, what: str) -> str:
        """The path of a file in here."""
        return f"{self.path}/{number:0{DIGITS}d}{what}"

    def listing(self) -> Listing:
        """What is there now. One look."""
        try:
            names = self.files.listdir(self.path)
        except FileNotFoundError:
            return Listing()
        except OSError as error:
            raise refused(self.path, error) from error
        found: dict[str, list[int]] = {RUN: [], DONE: [], OUT: []}
        for name in names:
            number, end = name[:DIGITS], name[DIGITS:]
            if end in found and number.isdigit():
                found[end].append(int(number))
        return Listing(*(tuple(sorted(found[end])) for end in (RUN, DONE, OUT)))

    def read(self) -> tuple[int, bytes] | None:
        """(number, content) of the latest result; None when there is none.

        Raises UnsafeGround for what another user has put there.
        """
        for _ in range(TRIES):
            number = self.listing().latest
            if not number:
                return None
            try:
                return number, self._content(self.name(number, DONE))
            except FileNotFoundError:
                continue  # a later one has come
            except OSError as error:
                raise refused(self.path, error) from error
        raise refused(self.path, OSError(errno.ESTALE, "its results come and go too fast"))

    def _content(self, path: str) -> bytes:
        fd = self.files.open(path, READ_ONLY)
        try:
            found = self.files.fstat(fd)
            owner = getattr(found, "st_uid", 0)
            if not self.shared and owner not in (0, os.geteuid()):
                raise UnsafeGround(
                    f"{path!r} was made by another user (uid {owner}), who could make any result "
                    "of it: keep results in a folder of your own, or give shared=True to trust "
                    "all who may write there",
                    name=path,
                )
            pieces: list[bytes] = []
            at = 0
            while at < found.st_size and (piece := self.files.pread(fd, PIECE, at)):
                pieces.append(piece)
                at += len(piece)
            return b"".join(pieces)
        finally:
            self.files.close(fd)

    # ---- a run

    def begin(self, token: int, check: Callable[[], None]) -> Run:
        """The run of a grant, which nobody with a lower number can publish over any more.

        `check` raises LeaseLost when the lock is not ours by now.
        """
        for _ in range(TRIES):
            highest = self.listing().highest
            if highest >= token:
                check()  # a later holder has begun; or else the counter was lost
            number = max(token, highest + 1)
            try:
                fd = self._make(self.name(number, RUN))
            except FileExistsError:
                continue  # of our own, made by a request whose answer was lost
            run = Run(self, number, fd)
            try:
                run.settle()
            except BaseException:
                run.withdraw()
                raise
            return run
        raise refused(self.path, OSError(errno.ESTALE, "its runs come and go too fast"))

    def _make(self, path: str) -> int:
        mode = 0o666 if self.shared else 0o600
        try:
            return self.files.open(path, READ_WRITE | CREATE, mode)  # type: ignore[no-any-return]
        except FileNotFoundError:
            self._make_folder()
        except FileExistsError:
            raise
        except OSError as error:
            raise refused(path, error) from error
        try:
            return self.files.open(path, READ_WRITE | CREATE, mode)  # type: ignore[no-any-return]
        except FileExistsError:
            raise
        except OSError as error:
            raise refused(path, error) from error

    def _make_folder(self) -> None:
        try:
            self.files.mkdir(self.path, 0o777 if self.shared else 0o700)
            if self.shared:
                self.files.chmod(self.path, 0o777)
        except FileExistsError:
            return
        except OSError as error:
            raise refused(self.path, error) from error

    def forget(self) -> int:
        """Remove all results; how many there were. A run under way goes on."""
        seen = self.listing()
        for number in seen.dones:
            self.remove(number, DONE)
        for number in set(seen.outs) - set(seen.runs):
            self.remove(number, OUT)
        return len(seen.dones)

    def remove(self, number: int, what: str) -> None:
        """Unlink one file, if it is there."""
        try:
            self.files.unlink(self.name(number, what))
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused(self.path, error) from error


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
