"""An open record of a lock whose presence is the lock: ours, or somebody's whom we judge.

Rule: **whoever removes or replaces what the path leads to has guarded that very inode, and has seen
since that the path still leads there.** Holder, breaker and whoever breaks by order exclude one
another by that, so a removal never hits what the decision was not about (L3). The guard is a lock
of its own: the witness, flock(2), tells that the holder lives, and a paused holder keeps it.
Inode numbers are used again at once, so they are compared only while a descriptor is open.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from _thread import RLock
from functools import partial
from stat import ST_DEV, ST_INO, ST_MODE

from ..core.grant import Lost
from ..runtime import fork
from .files import (
    CREATE,
    LOCK_EX,
    LOCK_NB,
    LOCK_SH,
    LOCK_UN,
    NAMELESS,
    O_NOATIME,
    READ_ONLY,
    READ_WRITE,
)
from .handles import CLOSED, Descriptors, Slot
from .record import READ_SIZE, temporary
from .refusals import asked_again, make_folders, no_flock, not_lockable, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    from .files import Files
    from .judge import Judged

# What open(2) says where a file cannot be made without a name.
NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, 524)  # 524: ENOTSUPP of the kernel
GONE = "its record was removed or replaced: others may be in"


class Paper(Slot):
    """One open record.

    `posted`: the path at which it is, or is about to be, our lock; `granted`: it is; `fresh`: where
    a path leads is known to a server, and asked anew; `name`: a temporary one.
    """

    __slots__ = (
        "content",
        "fresh",
        "granted",
        "mode",
        "name",
        "nonce",
        "posted",
        "renewals",
        "text",
    )
    text: Any
    content: bytes

    def __init__(
        self, table: Descriptors, call: Callable[[], tuple[int, bool]], opened: Any = None
    ) -> None:
        """`opened`: what `call` would give, and the generation, made just now under `fork.gate`.

        The list is empty when the descriptor is ours to close.
        """
        self.table, self.generation, self.posted, self.key = table, CLOSED, "", ""
        if opened is None and not fork.page[0]:
            fork.awoke()
        with fork.gate:
            generation = fork.generation if opened is None else opened[2]
            self.fd, self.writable = call() if opened is None else (opened[0], opened[1])
            if generation != fork.generation:  # L9  a signal handler has forked: we are its child
                table.files.close(self.fd)
                self.fd, self.writable = call()
            self.generation = fork.generation
            if opened is not None:
                opened.clear()  # it is ours to close
            table.noted(self)
        self.name = self.nonce = ""
        self.fresh = self.granted = False
        self.renewals, self.text = 0, None
        try:
            found = table.files.fstat(self.fd)
        except BaseException:
            self.close()
            raise
        self.dev, self.ino = found[ST_DEV], found[ST_INO]
        self.key = f"{self.dev}:{self.ino}"
        self.mode = found[ST_MODE]

    def read(self) -> bytes:
        """Its content."""
        return self.table.files.pread(self.fd, READ_SIZE, 0)  # type: ignore[no-any-return]

    def touched(self) -> int:
        """Its renewals stand in it; its times tell nothing."""
        return 0

    def write(self, content: bytes) -> None:
        """All of its content."""
        if self.table.files.pwrite(self.fd, content, 0) != len(content):
            raise OSError(errno.EFBIG, "the record could not be written whole")

    def is_at(self, path: str) -> bool:
        """Whether the path leads to it. The names in its folder are asked for anew over NFS."""
        files = self.table.files
        try:
            if self.fresh:
                files.anew(path[: path.rindex("/")] or "/")
                found = asked_again(partial(files.lstat, path))
            else:
                found = files.lstat(path)
        except FileNotFoundError:
            return False
        return bool(found[ST_INO] == self.ino and found[ST_DEV] == self.dev)

    def opens_at(self, path: str) -> bool:
        """The same by an open(2), which asks the server for the file too: of one just posted.

        It may be lent to us by that (files.py); who enters gives it back.
        """
        if not self.fresh:
            return self.is_at(path)
        there = asked_again(partial(look, self.table, path, write=False, fresh=True))
        if there is None:
            return False
        there.close()
        return there.key == self.key

    def bear_witness(self) -> bool:
        """Lock it for as long as we live. False where nothing can be locked.

        Raises FileNotFoundError when somebody has taken its name for a left-over, and sweeps it.
        """
        try:
            self.table.files.flock(self.fd, LOCK_EX | LOCK_NB)
        except OSError as error:
            if error.errno in NO_FLOCK:
                return False
            if isinstance(error, BlockingIOError):
                raise FileNotFoundError(errno.ENOENT, "swept", self.name) from error
            raise
        return True

    def has_witness(self) -> bool | None:
        """Whether somebody who lives locks it; None where nothing can be locked.

        Asked shared: two who ask do not mislead a third.
        """
        try:
            self.table.files.flock(self.fd, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in NO_FLOCK:
                return None
            raise
        return False

    def guard(self) -> bool:
        """Take the right to remove it. False: somebody else is about to."""
        try:
            self.table.files.guard(self.fd)
        except BlockingIOError:
            return False
        return True

    def can_be_guarded(self) -> bool:
        """Whether files can be locked here at all. For one of ours that nobody knows yet."""
        try:
            self.table.files.guard(self.fd)
            self.table.files.guard(self.fd, False)
        except OSError as error:
            if error.errno in NO_FLOCK:
                return False
            raise
        return True

    def withdraw(self) -> Lost | None:
        """Remove our lock and close it: the one way in which a grant ends (L5)."""
        path, self.posted = self.posted, ""
        files = self.table.files
        try:
            try:
                files.guard(self.fd)
            except BlockingIOError:
                return Lost("somebody is taking it over", gone=True)
            if not self.is_at(path):
                return Lost(GONE, gone=True)
            try:
                files.unlink(path)
            except FileNotFoundError:
                pass  # over NFS: done, and the answer was lost
        finally:
            Slot.close(self)
        return None

    def close(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Close it. L6  What is posted still, nobody has a handle of: it is withdrawn."""
        if self.generation != _fork.generation:
            return
        if self.posted and self.generation == _fork.here():
            try:
                self.withdraw()
            except Exception:  # noqa: BLE001 - a dead record at least; or the interpreter exits
                Slot.close(self)
            return
        Slot.close(self)


def taken(table: Descriptors, call: Callable[[], Any], opened: Any, kind: type[Paper]) -> Paper:
    """The record of what was opened just now. Whatever comes between, it is closed (L6)."""
    try:
        return kind(table, call, opened)
    finally:
        if opened:
            table.files.close(opened[0])


def look(
    table: Descriptors, path: str, *, write: bool = True, kind: type[Paper] = Paper,
    fresh: bool = False,
) -> Paper | None:  # fmt: skip
    """What is at a path, opened afresh; None when nothing is. L7  Regular files only.

    `write`: so that it can be guarded. Who only looks does not: the kernel tells all who wait of
    the closing of what was open for writing. `fresh`: as a file server has it (files.py).
    """
    files, wished = table.files, (READ_WRITE if write else READ_ONLY) | O_NOATIME
    if not fork.page[0]:
        fork.awoke()

    def call() -> tuple[int, bool]:
        flags = wished
        while True:
            try:
                return files.open(path, flags), flags & 3 != 0
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EACCES) and flags & O_NOATIME:
                    flags &= ~O_NOATIME
                elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and flags & 3:
                    flags = READ_ONLY
                elif error.errno in (errno.EMFILE, errno.ENFILE) and table.close_idle():
                    continue
                else:
                    raise

    try:
        if fresh:
            files.anew(path[: path.rindex("/")] or "/")
        with fork.gate:
            began = fork.generation
            try:
                opened: Any = [files.open(path, wished), write, began]
            except FileNotFoundError:
                return None
            except OSError:
                opened = None  # `call` asks once more, for less
            paper = taken(table, call, opened, kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            _refuse_odd(table, path)
        raise
    if not stat.S_ISREG(paper.mode):
        paper.close()
        raise not_lockable(path, paper.mode, "soft")
    return paper


def _refuse_odd(table: Descriptors, path: str) -> None:
    try:
        mode = table.files.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise not_lockable(path, mode, "soft")


def blank(
    table: Descriptors,
    path: str,
    mode: int,
    nonce: str,
    *,
    nameless: bool,
    kind: type[Paper] = Paper,
) -> Paper:
    """An empty file in the folder of `path`, which nobody can find yet, for a record of ours.

    Without a name where the file system can do that: a crash leaves nothing then. `paper.name`:
    the name it has.
    """
    files, folder = table.files, path[: path.rindex("/")] or "/"
    name = "" if nameless and NAMELESS else temporary(path, nonce)
    if not fork.page[0]:
        fork.awoke()

    def call() -> tuple[int, bool]:
        if name:
            return files.open(name, READ_WRITE | CREATE, mode), True
        return files.open(folder, NAMELESS | READ_WRITE, mode), True

    for again in (True, False):
        try:
            with fork.gate:
                began = fork.generation
                paper = taken(table, call, [*call(), began], kind)
        except FileNotFoundError:
            if not again:
                raise
            make_folders(files, path)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and again and table.close_idle():
                continue
            if not name and error.errno in NO_NAMELESS:
                return blank(table, path, mode, nonce, nameless=False, kind=kind)
            raise
        else:
            paper.name, paper.nonce = name, nonce
            return paper
    raise refused(path, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))


# ------------------------------------------------------------------------------------------------
# The open record of one grant: the handle of a lock that is there because its record is.
#
# Promise: whoever pops it from the grant's handle ends the grant, once (L5); when it is garbage, or
# an exception drops it, it lets go (L6); a forked child lets nothing go and keeps no copy of the
# descriptor, which may be the witness (L9); a renewal and a release never meet half way, so that no
# renewal writes through a descriptor that is somebody else's by then.


class Stake:
    """An open file of ours. `let_go`: what gives the lock up, called before it is closed."""

    __slots__ = (
        "__weakref__",
        "below",
        "deadline",
        "fd",
        "generation",
        "key",
        "let_go",
        "mutex",
        "number",
        "over",
        "sheet",
        "stamp_ns",
        "table",
        "untold",
        "witness",
        "writable",
    )

    def __init__(
        self,
        table: Descriptors,
        path: str,
        flags: int,
        mode: int = 0o600,
        opened: list[int] | None = None,
    ) -> None:
        """`opened`: the descriptor of the path, made just now under the same `fork.gate`.

        It is taken out of the list when it is ours to close.
        """
        self.table, self.generation = table, -1  # not open
        self.key = (0, 0)  # not known yet
        self.let_go: Callable[[Stake], object] | None = None
        self.sheet: Any = None  # the text of its record
        self.deadline: float | None = None
        self.untold: str | None = None  # why its token is none
        self.witness, self.writable = False, True
        self.number, self.stamp_ns = 0, 0
        self.over: Judged | None = None  # the dead holder whom it replaces
        self.below: tuple[int, ...] = ()  # of numbered records: those that this one makes useless
        self.mutex: Any = RLock()  # reentrant: a signal handler may release while we renew
        if opened is None and not fork.page[0]:
            fork.awoke()
        with fork.gate:
            self.fd = opened[0] if opened else table.files.open(path, flags, mode)
            self.generation = fork.generation
            if opened:
                opened.clear()
            mine: Any = self  # of the table's own kind as far as the table asks
            table.noted(mine)
        try:
            found = table.files.fstat(self.fd)
        except BaseException:
            self.close()
            raise
        self.key = (found[ST_DEV], found[ST_INO])

    @property
    def dev(self) -> int:
        """The number of its device; 0 before we know it."""
        return self.key[0]

    def is_of(self, found: os.stat_result) -> bool:
        """Whether these are the numbers of our file; true before we know them."""
        return self.key == (0, 0) or (found.st_dev, found.st_ino) == self.key

    @property
    def here(self) -> bool:
        """Whether it is open, in the process that opened it."""
        if not fork.page[0]:
            fork.awoke()
        return self.generation == fork.generation

    def write(self, text: bytes, *, sync: bool) -> None:
        """The whole record. `sync`: others see it only when the file server has it."""
        files = self.table.files
        written = files.pwrite(self.fd, text, 0)
        if written != len(text):
            import errno

            raise OSError(errno.EFBIG, "the record could not be written whole")
        if sync:
            files.fsync(self.fd)

    _ending = staticmethod(sys.is_finalizing)

    # The names are bound early: at interpreter exit module globals are gone before the last one is.
    def close(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Let go and close. Safe to repeat; in a forked child it does nothing."""
        if self.generation != _fork.generation or self.generation != _fork.here():
            return  # nor is the mutex: a thread of our parent may have it
        # A daemon thread that the exit froze in a renewal will never end it.
        entered = self.mutex.acquire(not self._ending())
        try:
            if self.generation != _fork.generation:
                return
            let_go, self.let_go = self.let_go, None
            try:
                if let_go is not None:
                    let_go(self)
            except OSError:
                pass  # the storage failed: the witness goes with the descriptor, else the ttl ends
            finally:
                self.shut(_gate, _fork)
        finally:
            if entered:
                self.mutex.release()

    def shut(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Close the descriptor, which frees the witness."""
        entered = _gate.acquire(not self._ending())
        try:
            if self.generation != _fork.generation:
                return
            self.generation = -1
            try:
                self.table.files.close(self.fd)
            except OSError:
                pass
            finally:
                self.table.open.pop(self.fd, None)
        finally:
            if entered:
                _gate.release()

    def __del__(self, _fork: Any = fork) -> None:
        if getattr(self, "generation", -1) == _fork.generation:  # its making may be interrupted
            _fork.collected(self.close)


def made(table: Descriptors, path: str, mode: int, shared: bool, exactly: bool = False) -> Stake:
    """A new file of ours, which nobody else has. `exactly`: whatever the umask is.

    Raises OSError.
    """
    wished = 0o666 if shared else mode
    stake = Stake(table, path, READ_WRITE | CREATE, wished)
    if shared or exactly:
        try:
            table.files.fchmod(stake.fd, wished)
        except BaseException:
            stake.close()
            raise
    return stake


# ------------------------------------------------------------------------------------------------
# A record that is looked at through a descriptor which somebody else closes: what a judge asks.


class Seen:
    """An open record. `by_touch`: whether its times tell that it was renewed, as liblockfile's."""

    __slots__ = ("by_touch", "dev", "fd", "files", "ino", "key")

    def __init__(self, files: Files, fd: int, *, by_touch: bool = False) -> None:
        found = files.fstat(fd)
        self.files, self.fd, self.by_touch = files, fd, by_touch
        self.dev, self.ino = found.st_dev, found.st_ino
        self.key: Hashable = (found.st_dev, found.st_ino)

    def read(self) -> bytes:
        """Its content."""
        return self.files.pread(self.fd, READ_SIZE, 0)  # type: ignore[no-any-return]

    def touched(self) -> int:
        """What a touch changes."""
        return getattr(self.files.fstat(self.fd), "st_mtime_ns", 0) if self.by_touch else 0

    def has_witness(self) -> bool | None:
        """Whether somebody who lives locks it; None where nothing can be locked.

        Tried shared, and let go at once: judges do not meet.
        """
        try:
            self.files.flock(self.fd, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in no_flock:
                return None
            raise
        self.files.flock(self.fd, LOCK_UN)
        return False
