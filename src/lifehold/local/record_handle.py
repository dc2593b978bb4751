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
from _thread import RLock
from functools import partial
from stat import ST_DEV, ST_INO, ST_MODE

from ..core.errors import pass_up
from ..runtime import fork
from .files import (
    CREATE,
    LOCK_EX,
    LOCK_NB,
    LOCK_SH,
    LOCK_UN,
    MADE_NAMELESS,
    NAMELESS,
    O_NOATIME,
    READ_ONLY,
    READ_WRITE,
)
from .handles import CLOSED, Descriptors, LockFile, key_of
from .record import READ_SIZE, temporary
from .refusals import asked_again, make_folders, no_flock, not_lockable, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from .files import Files
    from .judge import Judgement

    R = TypeVar("R", bound="RecordFile")

# What open(2) says where a file cannot be made without a name.
NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
GONE = "its record was removed or replaced: others may be in"


class RecordFile(LockFile):
    """One open record.

    `let_go`: what gives the lock up when nobody has a handle of it, called before it is closed;
    None while it is no lock of ours. `granted`: somebody has a handle; `fresh`: where a path leads
    is known to a server, and asked anew; `name`: one of its own, which no other record ever has.
    Of ours: `text`, `content`, `sheet`, its words; `over`: the dead holder whom it replaces;
    `below`: of numbered records, those that it makes useless; `untold`: why its token is none.
    """

    __slots__ = (
        "below",
        "content",
        "deadline",
        "fresh",
        "granted",
        "let_go",
        "mode",
        "mutex",
        "name",
        "nonce",
        "number",
        "over",
        "renewals",
        "sheet",
        "stamp_ns",
        "text",
        "untold",
        "witness",
    )
    text: Any
    sheet: Any
    content: bytes

    def __init__(
        self, table: Descriptors, call: Callable[[], tuple[int, bool]], opened: Any = None
    ) -> None:
        """`opened`: what `call` would give, and the generation, made just now under `fork.gate`.

        The list is empty when the descriptor is ours to close.
        """
        self.table, self.generation, self.key = table, CLOSED, ""
        self.let_go: Callable[[Any], object] | None = None
        self.mutex = RLock()  # reentrant: a signal handler may release while we renew
        if opened is None and not fork.page[0]:
            fork.catch_up()
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
        self.fresh = self.granted = self.witness = False
        self.deadline: float | None = None
        self.untold: str | None = None
        self.over: Judgement | None = None
        self.below: tuple[int, ...] = ()
        self.renewals = self.number = self.stamp_ns = 0
        self.text = self.sheet = None
        try:
            found = table.files.fstat(self.fd)
        except BaseException:
            self.close()
            raise
        self.dev, self.ino = found[ST_DEV], found[ST_INO]
        self.key = key_of(found)
        self.mode = found[ST_MODE]

    @property
    def here(self) -> bool:
        """Whether it is open, in the process that opened it."""
        if not fork.page[0]:
            fork.catch_up()
        return self.generation == fork.generation

    def read(self) -> bytes:
        """Its content."""
        return self.table.files.pread(self.fd, READ_SIZE, 0)

    def touched(self) -> int:
        """Its renewals stand in it; its times tell nothing."""
        return 0

    def write(self, content: bytes, *, sync: bool = False) -> None:
        """All of its content. `sync`: others see it only when the file server has it."""
        files = self.table.files
        if files.pwrite(self.fd, content, 0) != len(content):
            raise OSError(errno.EFBIG, "the record could not be written whole")
        if sync:
            files.fsync(self.fd)

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

        Raises FileNotFoundError when somebody else locks it: one who has taken its name for a
        left-over, and sweeps it; a judge; a holder who is paused.
        """
        try:
            self.table.files.flock(self.fd, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise FileNotFoundError(errno.ENOENT, "swept", self.name) from error
        except OSError as error:
            if error.errno in no_flock:
                return False
            raise
        return True

    def has_witness(self) -> bool | None:
        """Whether somebody who lives locks it; None where nothing can be locked.

        Asked shared: two who ask do not mislead a third. Its close takes that lock away.
        """
        return is_witnessed(self.table.files, self.fd)

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
            if error.errno in no_flock:
                return False
            raise
        return True

    # The names are bound early: at interpreter exit module globals are gone before the last one is.
    def close(self, _gate: object = fork.gate, _fork: Any = fork) -> None:
        """Let go and close. Safe to repeat; in a forked child it does nothing."""
        if self.generation != _fork.generation:
            return
        if not _fork.page[0]:
            _fork.catch_up()
        if self.generation != _fork.generation:
            return  # nor is the mutex: a thread of our parent may have it
        # A daemon thread that the exit froze in a renewal will never end it.
        entered = self.mutex.acquire(not self._ending())
        try:
            let_go, self.let_go = self.let_go, None
            try:
                if let_go is not None and self.generation == _fork.generation:
                    let_go(self)
            except Exception as error:  # noqa: BLE001 - the storage failed, or it is exit
                pass_up(error)
                return  # its record is a dead one at least: it has no witness, or its ttl ends
            finally:
                self.shut(_gate, _fork)
        finally:
            if entered:
                self.mutex.release()

    def shut(self, _gate: object = fork.gate, _fork: object = fork) -> None:
        """Close the descriptor, which frees the witness."""
        LockFile.close(self, _gate, _fork)


def is_witnessed(files: Files, fd: int) -> bool | None:
    """Whether somebody who lives locks an open record; None where nothing can be locked.

    When it is False, we have it locked, shared.
    """
    try:
        files.flock(fd, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in no_flock:
            return None
        raise
    return False


def opened_as(kind: type[R], table: Descriptors, path: str, flags: int, mode: int = 0o600) -> R:
    """The record at a path, opened with these flags. Raises OSError."""
    if not fork.page[0]:
        fork.catch_up()

    def call() -> tuple[int, bool]:
        return table.files.open(path, flags, mode), flags & 3 != 0

    with fork.gate:
        began = fork.generation
        return taken(table, call, [*call(), began], kind)


def taken(table: Descriptors, call: Callable[[], Any], opened: Any, kind: type[R]) -> R:
    """The record of what was opened just now. Whatever comes between, it is closed (L6)."""
    try:
        return kind(table, call, opened)
    finally:
        if opened:
            table.files.close(opened[0])


def look(
    table: Descriptors,
    path: str,
    *,
    write: bool = True,
    kind: type[RecordFile] = RecordFile,
    fresh: bool = False,
    lock: str = "soft",
) -> RecordFile | None:
    """What is at a path, opened afresh; None when nothing is. L7  Regular files only.

    `write`: so that it can be guarded. Who only looks does not: the kernel tells all who wait of
    the closing of what was open for writing. `fresh`: as a file server has it (files.py). `lock`:
    the kind of lock that is looked for.
    """
    files, wished = table.files, (READ_WRITE if write else READ_ONLY) | O_NOATIME
    if not fork.page[0]:
        fork.catch_up()

    call = partial(_opened_as_may_be, table, path, wished)
    try:
        if fresh:
            files.anew(path[: path.rindex("/")] or "/")
        with fork.gate:
            began = fork.generation
            try:
                opened = [files.open(path, wished), write, began]
            except FileNotFoundError:
                return None
            except OSError as error:
                pass_up(error)
                opened = None  # `call` asks once more
            record = taken(table, call, opened, kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            _refuse_odd(table, path, lock)
        raise
    if not stat.S_ISREG(record.mode):
        record.close()
        raise not_lockable(path, record.mode, lock)
    return record


def _opened_as_may_be(table: Descriptors, path: str, flags: int) -> tuple[int, bool]:
    """(the descriptor, whether it may be written): for less, where the system grants no more."""
    while True:
        try:
            return table.files.open(path, flags), flags & 3 != 0
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES) and flags & O_NOATIME:
                flags &= ~O_NOATIME
            elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and flags & 3:
                flags = READ_ONLY
            elif error.errno in (errno.EMFILE, errno.ENFILE) and table.close_idle():
                continue
            else:
                raise


def _refuse_odd(table: Descriptors, path: str, lock: str) -> None:
    try:
        mode = table.files.lstat(path).st_mode
    except OSError as error:
        pass_up(error)
        return
    if not stat.S_ISREG(mode):
        raise not_lockable(path, mode, lock)


def blank(
    table: Descriptors,
    path: str,
    mode: int,
    nonce: str,
    *,
    nameless: bool,
    kind: type[RecordFile] = RecordFile,
) -> RecordFile:
    """An empty file in the folder of `path`, which nobody can find yet, for a record of ours.

    Without a name where the file system can do that: a crash leaves nothing then. `record.name`:
    the name it has.
    """
    files, folder = table.files, path[: path.rindex("/")] or "/"
    name = "" if nameless and NAMELESS else temporary(path, nonce)
    if not fork.page[0]:
        fork.catch_up()

    def call() -> tuple[int, bool]:
        if name:
            return files.open(name, READ_WRITE | CREATE, mode), True
        return files.open(folder, MADE_NAMELESS, mode), True

    for again in (True, False):
        try:
            with fork.gate:
                began = fork.generation
                record = taken(table, call, [*call(), began], kind)
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
            record.name, record.nonce = name, nonce
            return record
    raise refused(path, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))


def created(table: Descriptors, path: str, mode: int, exactly: bool = False) -> RecordFile:
    """A new file of ours, which nobody else has. `exactly`: whatever the umask is.

    Raises OSError.
    """
    ours = opened_as(RecordFile, table, path, READ_WRITE | CREATE, mode)
    if exactly:
        try:
            table.files.fchmod(ours.fd, mode)
        except BaseException:
            ours.close()
            raise
    return ours


# ------------------------------------------------------------------------------------------------
# A record that is looked at through a descriptor which somebody else closes: what a judge asks.


class BorrowedRecord:
    """An open record. `by_touch`: whether its times tell that it was renewed, as liblockfile's."""

    __slots__ = ("by_touch", "dev", "fd", "files", "ino", "key")

    def __init__(self, files: Files, fd: int, *, by_touch: bool = False) -> None:
        found = files.fstat(fd)
        self.files, self.fd, self.by_touch = files, fd, by_touch
        self.dev, self.ino = found.st_dev, found.st_ino
        self.key = key_of(found)

    def read(self) -> bytes:
        """Its content."""
        return self.files.pread(self.fd, READ_SIZE, 0)

    def touched(self) -> int:
        """What a touch changes."""
        return getattr(self.files.fstat(self.fd), "st_mtime_ns", 0) if self.by_touch else 0

    def has_witness(self) -> bool | None:
        """Whether somebody who lives locks it; None where nothing can be locked.

        Tried shared, and let go at once: judges do not meet.
        """
        found = is_witnessed(self.files, self.fd)
        if found is False:
            self.files.flock(self.fd, LOCK_UN)
        return found
