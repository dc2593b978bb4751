"""A file under its lock, written whole or not at all.

    with locked_file("data.json", "r+") as file: ...

Promise: who reads sees the file as one writer left it; who writes works on a copy, which takes the
place of the file in one step when the block ends. A block that raises, is killed or has lost its
lock replaces nothing. Rule: the lock is the companion `PATH.lock`, never the data's own inode: that
one is replaced, and whoever waited for it would hold a file that nobody reads.
L7  Links and what is no regular file are neither followed nor replaced.
L13 Owner, mode and access list are those of the file before, or it is not replaced.
Not promised: anything against programs that write PATH without this lock. Where one did meanwhile,
that is told, and nothing is replaced.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from .core.errors import InvalidArgument, SystemRefused, UnsafeGround
from .core.grant import Bound
from .described import PLAIN
from .lease import BlockEntry, part
from .local import ground
from .local.files import CREATE, READ_ONLY, READ_WRITE
from .local.handles import files_for
from .local.refusals import make_folders, refused
from .lock import Lock, LockFace, check_bool, lock_path
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import fcntl
    import hashlib
    from collections.abc import Callable
    from types import TracebackType
    from typing import IO, Any

    from . import words
    from .local.files import Files
    from .lock import Lease
else:
    fcntl = fork.later("fcntl", globals())
    hashlib = fork.later("hashlib", globals())
    words = fork.later("lifehold.words", globals())

# A copy that is not whole yet is `.lifehold-`, 16 digits of its file, a dash, 16 by chance, `.new`:
# a writer who lost the lock has another one than the next writer, and a long name stays short.
COPY, NEW, DIGITS = ".lifehold-", ".new", 16
PIECE = 1 << 20  # bytes of one read or write
_ACL = "system.posix_acl_access"
_NO_ACL = frozenset({getattr(errno, "ENODATA", 0), errno.EOPNOTSUPP, errno.ENOSYS})
_OF_TEXT = ("encoding", "errors", "newline")


class FileDraft:
    """The file while its lock is held: what is read, or the copy that will take its place.

    Plain code, which may wait for the disk; the face calls it, in a thread apart where it must.
    """

    def __init__(self, path: str, mode: str, durable: bool, text: dict[str, Any]) -> None:
        self.path, self.mode, self.durable, self.text = path, mode, durable, text
        self.kind = mode.strip("bt+")
        self.writes = self.kind != "r" or "+" in mode
        self.files: Files = files_for(path)
        self.generation = fork.here()
        self.fd = -1  # of the copy
        self.copy = ""  # its path
        self.before: Any = None  # what stood there
        self.file: Any = None

    def begin(self) -> FileDraft:
        """Open it. Raises SystemRefused, InvalidArgument, UnsafeGround; nothing is left behind."""
        try:
            if self.writes:
                self._copy()
            else:
                fd = self._existing(READ_ONLY)
                if fd is None:
                    raise FileNotFoundError(errno.ENOENT, "there is no such file", self.path)
                self.file = self._opened(fd)
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                raise refused(self.path, error) from error
            raise
        return self

    def _existing(self, flags: int) -> int | None:
        """The file that is there; None for none."""
        try:
            fd = self.files.open(self.path, flags | os.O_NONBLOCK)  # a FIFO does not keep us
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
                raise _no_file(self.path) from error
            raise
        try:
            self.before = self.files.fstat(fd)
            if not stat.S_ISREG(self.before.st_mode):
                raise _no_file(self.path)
        except BaseException:
            self.files.close(fd)
            raise
        return fd

    def _copy(self) -> None:
        there = self._existing(READ_WRITE)  # a file that may not be written is not replaced either
        try:
            self._refuse(there)
            self.fd = self._made()
            if there is not None:
                self._inherit(there)
            if there is not None and self.kind in ("r", "a"):
                at = 0
                while piece := self.files.pread(there, PIECE, at):
                    at += self.files.pwrite(self.fd, piece, at)
            if self.kind == "a":  # last: pwrite(2) would append too
                flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
                fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_APPEND)
            self.file = self._opened(os.dup(self.fd))
        finally:
            if there is not None:
                self.files.close(there)

    def _refuse(self, there: int | None) -> None:
        if there is None and self.kind == "r":
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self.path)
        if there is not None and self.kind == "x":
            raise FileExistsError(errno.EEXIST, "mode 'x' makes a new file, and it is there")
        if there is not None and self.before.st_nlink != 1:
            raise UnsafeGround(
                f"{self.path!r} has {self.before.st_nlink} names: to replace one of them would "
                "tear it from the others. Remove the other links, or write it under a `Lock`",
                name=self.path,
            )
        if there is not None and self.before.st_mode & 0o6000:
            raise UnsafeGround(
                f"{self.path!r} runs as its owner or group: a copy is not made of it",
                name=self.path,
            )

    def _made(self) -> int:
        folder, name = os.path.split(self.path)
        named = hashlib.blake2b(os.fsencode(name), digest_size=DIGITS // 2).hexdigest()
        start = f"{COPY}{named}-"
        self._sweep(folder, start)
        self.copy = os.path.join(folder, f"{start}{os.urandom(DIGITS // 2).hex()}{NEW}")
        return self.files.open(self.copy, READ_WRITE | CREATE, 0o666 if self.before is None else 0)

    def _sweep(self, folder: str, start: str) -> None:
        """Remove what a killed writer left: we hold the lock, so nobody makes it whole any more."""
        try:
            names = self.files.listdir(folder)
        except OSError:
            return  # a folder that may be written and not read
        for name in names:
            if not name.startswith(start) or len(name) != len(start) + DIGITS + len(NEW):
                continue
            left = os.path.join(folder, name)
            try:
                found = self.files.lstat(left)
                ours = found.st_uid == os.geteuid() and found.st_nlink == 1
                if ours and stat.S_ISREG(found.st_mode):
                    self.files.unlink(left)
            except OSError:
                pass  # gone, or not ours to remove: it is in nobody's way

    def _is_ours(self) -> bool:
        """Whether the name of the copy still leads to what was written."""
        try:
            return os.path.samestat(self.files.lstat(self.copy), self.files.fstat(self.fd))
        except FileNotFoundError:
            return False

    def _inherit(self, there: int) -> None:
        """L13  The copy belongs to whom the file belonged, and lets in whom it let in."""
        made, before = self.files.fstat(self.fd), self.before
        try:
            if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(self.fd, before.st_uid, before.st_gid)
            self._inherit_acl(there)
        except OSError as error:
            raise UnsafeGround(
                f"{self.path!r} cannot be replaced: its owner or access list cannot be kept "
                f"({error.strerror}). Write it as its owner, or in place under a `Lock`",
                name=self.path,
            ) from error
        self.files.fchmod(self.fd, stat.S_IMODE(before.st_mode))

    def _inherit_acl(self, there: int) -> None:
        if sys.platform != "linux":
            return
        try:
            listed = os.getxattr(there, _ACL)
        except OSError as error:
            if error.errno not in _NO_ACL:
                raise
        else:
            os.setxattr(self.fd, _ACL, listed)
            return
        try:  # it has none; the copy has one where the folder gives it to all that is made there
            os.removexattr(self.fd, _ACL)
        except OSError as error:
            if error.errno not in _NO_ACL:
                raise

    def _opened(self, fd: int) -> IO[Any]:
        taken: list[str] = []  # from then on open() closes it, also when it refuses the encoding

        def opener(path: str, _: int) -> int:
            taken.append(path)
            return fd

        try:
            plus, binary = "+" if self.writes else "", "b" if "b" in self.mode else ""
            how = {"r": "r", "a": "a"}.get(self.kind, "w")
            return open(self.path, how + plus + binary, opener=opener, **self.text)
        except BaseException as error:
            if not taken:
                os.close(fd)
            if isinstance(error, LookupError | ValueError):
                raise InvalidArgument(f"{self.path!r} cannot be opened as text: {error}") from error
            raise

    def commit(self, check: Callable[[], object]) -> None:
        """Put the copy in the file's place. `check()` is asked last, and raises when it must not.

        Raises SystemRefused, UnsafeGround, and what `check` raises: then nothing is replaced.
        """
        try:
            if not self.file.closed:
                self._close(self.file)  # flushes: a full disk is told here
            if self.writes:
                if self.durable:
                    self.files.fsync(self.fd)
                check()
                self._replace()
        except OSError as error:
            if isinstance(error, SystemRefused):
                raise
            raise refused(self.path, error) from error
        finally:
            self.abandon()

    def _replace(self) -> None:
        try:
            now: Any = self.files.lstat(self.path)
        except FileNotFoundError:
            now = None
        if _identity(now) != _identity(self.before):
            raise UnsafeGround(
                f"{self.path!r} was changed meanwhile by a program that does not hold "
                f"{self.path + '.lock'!r}: nothing was replaced. Read it again, and let all who "
                "write it take that lock",
                name=self.path,
            )
        if not self._is_ours():
            raise UnsafeGround(
                f"the copy of {self.path!r}, {self.copy!r}, was removed or changed for another "
                "file meanwhile: nothing was replaced. Write it again",
                name=self.path,
            )
        if now is None:
            self.files.rename_new(self.copy, self.path)  # fails if it has come since
        else:
            self.files.rename(self.copy, self.path)
        fd, self.fd = self.fd, -1  # the name of the copy is not ours to remove any more
        os.close(fd)
        if self.durable:
            folder = self.files.open(os.path.dirname(self.path), READ_ONLY)
            try:
                self.files.fsync(folder)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise  # else: a file system whose folders cannot be flushed
            finally:
                self.files.close(folder)

    def abandon(self) -> None:
        """Close it, and remove the copy that did not come to its place. Safe to repeat."""
        file, self.file = self.file, None
        try:
            if file is not None and not file.closed:
                self._close(file)
        except (OSError, ValueError):
            pass  # a full disk: what was written is thrown away all the same
        finally:
            if self.fd >= 0:
                self._remove()

    def _close(self, file: IO[Any]) -> None:
        """L9  What a child has in its buffer is its parent's, which writes it itself."""
        if self.writes and self.generation != fork.here():
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.dup2(nowhere, file.fileno(), inheritable=False)
            finally:
                os.close(nowhere)
        file.close()

    def _remove(self) -> None:
        try:  # L9  a child leaves its parent's copy alone
            if self.generation == fork.here() and self._is_ours():
                self.files.unlink(self.copy)
        except FileNotFoundError:
            pass  # the next writer was faster
        finally:
            fd, self.fd = self.fd, -1
            os.close(fd)


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    if found is None:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _no_file(path: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path!r} is not a regular file: name the file itself; a symbolic link is not followed, "
        "a folder, FIFO or device is not opened",
        name=path,
    )


def checked(
    path: str | os.PathLike[str], mode: str, durable: bool, text: dict[str, Any]
) -> tuple[str, bool]:
    """(the absolute path, whether it is written). Raises InvalidArgument, UnsafeGround."""
    where = lock_path(os.fspath(path) if isinstance(path, os.PathLike) else path)
    given: object = mode
    kinds = sorted(given) if isinstance(given, str) else []
    plain = [each for each in kinds if each in "rwax"]
    if len(plain) != 1 or len({*kinds}) != len(kinds) or {*kinds} - set("rwaxbt+"):
        raise InvalidArgument(f"mode must be one of r, r+, w, a, x, with b or t, not {mode!r}")
    if {"b", "t"} <= {*kinds}:
        raise InvalidArgument(f"mode is of text or of bytes, not both: {mode!r}")
    if "b" in kinds and any(text.values()):
        raise InvalidArgument(f"mode {mode!r} is of bytes: it takes no {', '.join(_OF_TEXT)}")
    check_bool("durable", durable)
    writes = plain != ["r"] or "+" in kinds
    if writes and ground.is_unproven(where):
        raise UnsafeGround(
            f"{where!r} lies on a file system that another machine may mount, where a lock may end "
            "before the file is replaced: use lifehold.fence.FencedFile, which refuses a late one",
            name=where,
        )
    return where, writes


class LockedFile(Bound):
    """What `locked_file()` answers: `with` it, once."""

    __slots__ = ("_draft", "_lock", "_make", "lease")
    _refusal = "a locked file cannot be copied or pickled: it is open in this process"
    if not TYPE_CHECKING:
        __aenter__ = PLAIN

    def __init__(self, lock: Lock, make: Callable[[], FileDraft]) -> None:
        self._lock, self._make = lock, make
        self._draft: FileDraft | None = None
        self.lease: Lease | None = None  # while it is held

    def __enter__(self) -> IO[Any]:
        if self.lease is not None:
            raise InvalidArgument("one locked_file() is one block: call it again for another")
        block = part()
        entry: Any = BlockEntry(..., block)
        try:
            self.lease = self._lock.acquire(entry)
            self._draft = self._make().begin()
            return self._draft.file  # type: ignore[no-any-return]
        except BaseException as error:
            lease, self.lease = self.lease, None
            try:
                if lease is not None:
                    lease._leave(error)
            finally:
                block.undo(error)  # L6  it may have been interrupted before we knew of the lease
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease, self.lease = self.lease, None
        draft, self._draft = self._draft, None
        if lease is None or draft is None:
            return
        try:
            if error is None:
                draft.commit(lease.check)
        except BaseException as other:
            error = other
            raise
        finally:
            draft.abandon()
            lease._leave(error)


def locked_file(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    durable: bool = True,
    **options: Any,
) -> LockedFile:
    """An open file, for a `with` block, under the lock `PATH.lock`.

    `mode`, as of `open`: `r` beside other readers; `r+`, `w`, `a`, `x` alone, on a copy that takes
    the place of the file when the block ends without an exception. `durable=False`: nothing is
    flushed, so a power failure may take the last writes. `options`: of the `Lock`: `wait`, `label`,
    `cancel`, `notify`, `max_hold`, `shared`.

    Raises what `Lock.acquire` raises; SystemRefused, with its errno, for a file that is missing,
    may not be written or does not fit the disk; InvalidArgument for a link and for what is no file;
    UnsafeGround where owner or names of the file would be lost, for a file that was changed
    meanwhile without the lock, and, for writing, on a file server; LeaseLost at the end of the
    block. Nothing is replaced then.
    """
    text = {"encoding": encoding, "errors": errors, "newline": newline}
    where, writes = checked(path, mode, durable, text)
    refuse_strange(options)
    lock = Lock(f"{where}.lock", exclusive=writes, **options)

    def draft() -> FileDraft:
        made = FileDraft(where, mode, durable, text if "b" not in mode else {})
        if writes:
            make_folders_of(made)
        return made

    return LockedFile(lock, draft)


def refuse_strange(options: dict[str, Any]) -> None:
    """Raises UnknownArgument for what a locked file is not made with."""
    known = {*(LockFace.__init__.__kwdefaults__ or ())} - {"exclusive"}  # `mode` says that
    if strange := {key: options[key] for key in options if key not in known}:
        raise words.unknown("locked_file()", strange, {*known, "durable", *_OF_TEXT})


def make_folders_of(draft: FileDraft) -> None:
    """The folders of a new file, as those of its lock."""
    try:
        make_folders(draft.files, draft.path)
    except OSError as error:
        raise refused(draft.path, error) from error
