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
import stat

from ..core.errors import InvalidArgument, UnsafeGround
from ..core.value import value
from ..local.files import CREATE, READ_ONLY, READ_WRITE
from ..local.refusals import refused
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
            self._refuse_strangers(path, found)
            pieces: list[bytes] = []
            at = 0
            while at < found.st_size and (piece := self.files.pread(fd, PIECE, at)):
                pieces.append(piece)
                at += len(piece)
            return b"".join(pieces)
        finally:
            self.files.close(fd)

    def _refuse_strangers(self, path: str, found: Any) -> None:
        owner = getattr(found, "st_uid", 0)
        if not self.shared and owner not in (0, os.geteuid()):
            raise UnsafeGround(
                f"{path!r} was made by another user (uid {owner}), who could make any result of "
                "it: keep results in a folder of your own, or give shared=True to trust all who "
                "may write there",
                name=path,
            )

    def check_folder(self) -> None:
        """L7  Results are not put where somebody's link leads."""
        try:
            found = self.files.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            raise InvalidArgument(
                f"{self.path!r} is no folder of results: move it away, or choose another name",
                name=self.path,
            )
        self._refuse_strangers(self.path, found)

    def make(self, path: str) -> int:
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

    def begin(self, token: int, check: Callable[[], None]) -> Any:
        """The run of a grant. Raises LeaseLost, SystemRefused."""
        runs: Any = fork.lazily("lifehold.recipes.once_run")
        return runs.begin(self, token, check)

    # ---- the output of a command

    def spool(self, number: int) -> int:
        """The file for the output of a run, made and open. Raises SystemRefused."""
        path = self.name(number, OUT)
        try:
            flags = READ_WRITE | CREATE | os.O_APPEND
            return self.files.open(path, flags, 0o600)  # type: ignore[no-any-return]
        except OSError as error:
            raise refused(path, error) from error

    def output(self, number: int, _content: bytes) -> int:
        """The output of a result, open. Raises FileNotFoundError when a later one has come."""
        path = self.name(number, OUT)
        try:
            return self.files.open(path, READ_ONLY)  # type: ignore[no-any-return]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refused(path, error) from error

    def with_output(self, _fd: int, _size: int) -> bytes:
        """What of the output stands in the result itself: nothing, it has a file of its own."""
        return b""

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
