"""A lock that is one file: how it is opened, looked at and recognised. What `link` stands on."""

from __future__ import annotations

import errno
import stat
from functools import partial
from stat import ST_DEV, ST_INO

from ..core.grant import Lost
from ..runtime import fork
from . import residue
from .files import GUARD_APART, LOCK_EX, LOCK_NB, LOCK_UN, READ_ONLY, READ_WRITE
from .marker import SIZE, read
from .present import Present
from .refusals import asked_again, no_flock, not_lockable
from .seen import Seen
from .stake import Stake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Holder
    from .evidence import Judged
    from .paper import Paper


class OneFile(Present):
    """What is asked of the file at `path`."""

    def _gone(self, stake: Stake) -> Lost | None:
        try:
            if not self.near:
                self._ask_anew()
            found = asked_again(partial(self.files.lstat, self.path))
        except FileNotFoundError:
            return Lost("its lock file was removed: others may be in", gone=True)
        except OSError as error:
            return Lost(f"its lock file cannot be looked at any more ({error.strerror})", gone=True)
        if (found[ST_DEV], found[ST_INO]) != stake.key:
            return Lost("its lock file was replaced by another: others may be in", gone=True)
        return None

    def _open(self, *, write: bool) -> Stake | None:
        """The file that is there, to be judged; None for none. Raises for what is no lock file.

        `write`: to be taken over. Who only looks does not: the kernel tells all who wait of the
        closing of what was open for writing, the one who looked among them.
        """
        if not fork.page[0]:
            fork.awoke()
        for flags in (READ_WRITE, READ_ONLY) if write else (READ_ONLY,):
            try:
                with fork.gate:
                    opened = [self.files.open(self.path, flags)]
                    try:
                        stake = Stake(self.table, self.path, flags, opened=opened)
                    finally:
                        for fd in opened:  # L6  interrupted before it was the stake's
                            self.files.close(fd)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EROFS) and flags is not READ_ONLY:
                    continue
                if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
                    raise not_lockable(
                        self.path, self.files.lstat(self.path).st_mode, self.kind
                    ) from error
                raise
            stake.writable = flags is READ_WRITE
            mode = self.files.fstat(stake.fd).st_mode
            if stat.S_ISREG(mode):
                return stake
            stake.close()
            raise not_lockable(self.path, mode, self.kind)
        raise AssertionError

    def _bears(self, stake: Stake) -> bool:
        """Whether it is our own record that stands in the file."""
        content = self.files.pread(stake.fd, SIZE, 0)
        if content == stake.sheet.text:
            return True
        # By its mark: the token is another where an error came between its choice and the write.
        return bool((read(content).nonce or "").partition("-")[0] == stake.sheet.mark)

    def _leads(self, stake: Stake) -> bool | None:
        """Whether the path leads to this very file; None when to nothing.

        A file server is asked anew for the names in the folder, and for the file by an open.
        """
        if self.near:
            try:
                found = self.files.lstat(self.path)
            except FileNotFoundError:
                return None
            return bool((found[ST_DEV], found[ST_INO]) == stake.key)
        try:
            self._ask_anew()
            fd = self.files.open(self.path, READ_ONLY)
        except FileNotFoundError:
            return None
        except OSError:
            return False  # a symbolic link, somebody's private file: not ours
        try:
            found = self.files.fstat(fd)
        finally:
            self.files.close(fd)
        return bool((found[ST_DEV], found[ST_INO]) == stake.key)

    def _ask_anew(self) -> None:
        """What the path leads to: else the client of a file server says what it remembers."""
        self.files.anew(self.path[: self.path.rindex("/")] or "/")

    def _forget(self, aside: str) -> None:
        try:
            self.files.unlink(aside)
        except FileNotFoundError:
            pass

    def break_(self, reason: str) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free."""
        return residue.by_order(self, reason, lambda why: residue.remove(self, why))

    def judged_of(self, found: Paper) -> Judged:
        """Who is there, as `residue` asks."""
        return self.evidence.judged(self.path, found, self.place, self.runtime.now)

    def _guard(self, stake: Stake) -> bool | None:
        """Keep others from adopting or removing it (paper.py). None: one does. False: no locks."""
        try:
            self.files.guard(stake.fd)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in no_flock:
                return False
            raise
        return True

    def _unguard(self, stake: Stake) -> None:
        self.files.guard(stake.fd, False)
        if not GUARD_APART and not stake.witness:
            self.files.flock(stake.fd, LOCK_UN)

    def _look(self) -> Judged | None:
        try:
            fd = self.files.open(self.path, READ_ONLY)
        except FileNotFoundError:
            return None
        try:
            return self.judged(self.path, Seen(self.files, fd, by_touch=True))
        finally:
            self.files.close(fd)

    def _lock(self, stake: Stake) -> bool | None:
        """True: it is ours. None: somebody else has it. False: no locks here."""
        try:
            self.files.flock(stake.fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in no_flock:
                return False
            raise
        return True
