"""A lock that is a folder with one entry: how that is opened, looked at, guarded and removed.

What `directory` stands on. Each removal names an entry, or happens under its guard.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from ..core.grant import Lost
from ..core.liveness import UNKNOWN
from . import named
from .evidence import Judged
from .files import READ_ONLY, READ_WRITE
from .marker import UNREADABLE, Marker
from .named import Entry
from .present import Present
from .refusals import asked_again, no_flock, refuse_read_only
from .seen import Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .stake import Stake

EMPTY = "an empty folder, as mkdir(1) makes one: another program's lock, or left by one"
OTHERS = "a folder with things in it that are not lifehold's: another program's lock, or data"
# What a file server's client makes of a name that is removed while it has the file open. They stay
# behind when that machine fails before it closes it.
REMAINS = (".nfs", ".fuse_hidden")


class OneEntry(Present):
    """What is asked of the folder at `path`."""

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """What tells of a loss when it changes, and whether events of that do not reach us."""
        return f"{self.path}/", self.far

    @property
    def at(self) -> str:
        return f"{self.path}/"

    def _opened(self, name: str) -> Entry | None:
        """An entry, to be judged. One of another user may be read only, and cannot be guarded."""
        for flags in (READ_WRITE, READ_ONLY):
            try:
                entry = Entry(self.table, self.path, name, flags, 0)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EROFS) or flags is READ_ONLY:
                    raise
            else:
                entry.writable = flags is READ_WRITE
                return entry
        raise AssertionError

    def _cleared(self, names: list[str]) -> bool:
        """Whether nothing but remains of removed files was there, which are removed again."""
        if not all(name.startswith(REMAINS) for name in names):
            return False
        for name in names:
            try:
                self.files.unlink(f"{self.path}/{name}")
            except OSError:
                return False  # in use: wait
        return True

    def _guard(self, entry: Entry) -> bool | None:
        """L3  Keep others from moving the folder. None: somebody does. False: not to be had."""
        if not entry.writable:
            refuse_read_only(self.files, self.path, f"{self.path}/{entry.name}")
            return None
        try:
            self.files.guard(entry.fd)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in no_flock:
                return False
            raise
        return True

    def _move_away(self, entry: Entry, before: Callable[[], object] = tuple) -> bool:
        """L3  Under the guard of its entry, which was seen to be in there: the whole folder."""
        before()
        aside = named.beside(self.path, os.urandom(named.NONCE // 2).hex())
        self.files.rename(self.path, aside)
        named.discard(self.files, aside, entry.name)
        return True

    def _take_out(self, entry: Entry) -> bool:
        """Remove one entry by its name, which no other grant ever has."""
        try:
            self.files.unlink(f"{self.path}/{entry.name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _gone(self, stake: Stake) -> Lost | None:
        assert isinstance(stake, Entry)
        try:
            if not self.near:
                self._ask_anew()
            found = asked_again(partial(self.files.lstat, f"{self.path}/{stake.name}"))
        except (FileNotFoundError, NotADirectoryError):
            return Lost("its record was removed: others may be in", gone=True)
        except OSError as error:
            return Lost(f"its folder cannot be looked at any more ({error.strerror})", gone=True)
        if (found.st_dev, found.st_ino) != stake.key:
            return Lost("its record was replaced by another: others may be in", gone=True)
        return None

    def _ask_anew(self) -> None:
        """Where the path leads, and what is in there: else a client says what it remembers."""
        self.files.anew(self.path[: self.path.rindex("/")] or "/")
        self.files.anew(self.path)

    def _leads(self, entry: Entry) -> bool:
        """Whether the path leads to this entry. A file server is asked anew."""
        where = f"{self.path}/{entry.name}"
        try:
            if self.near:
                found = self.files.lstat(where)
            else:
                self._ask_anew()
                fd = self.files.open(where, READ_ONLY)
                try:
                    found = self.files.fstat(fd)
                finally:
                    self.files.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == entry.key

    def _look(self) -> Judged | None:
        seen = named.look(self.files, self.path)
        if seen is None or (not seen[0] and seen[1]):
            return None
        name = next(filter(named.is_entry, seen[0]), None)
        if name is None:
            why = OTHERS if seen[0] else EMPTY
            return Judged(UNKNOWN, why, Marker(UNREADABLE, b""), None, self.path)
        entry = self._opened(name)
        if entry is None:
            return None
        try:
            return self.judged(f"{self.path}/{name}", Seen(self.files, entry.fd))
        finally:
            entry.close()
