"""A file under its lock, written whole or not at all.

    with locked_file("data.json", "r+") as file: ...

Promise: who reads sees the file as one writer left it; who writes works on a copy, which takes the
place of the file in one step when the block ends. A block that raises, is killed or has lost its
lock replaces nothing. Rule: the lock is the companion `PATH.lock`, never the data's own inode: that
one is replaced, and whoever waited for it would hold a file that nobody reads.
L7  Links and what is no regular file are neither followed nor replaced.
L13 Owner, mode, access list and `user.` attributes are those of the file before, or it is not
    replaced.
Not promised: anything against programs that write PATH without this lock. Where one did meanwhile,
that is told, and nothing is replaced.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from .checks import check_bool
from .core.errors import InvalidArgument, SystemRefused, UnsafeGround
from .core.events import report
from .core.grant import Bound, Single
from .described import PLAIN, OtherFace, explained
from .lease import BlockEntry, part
from .local import ground, record
from .local.files import CREATE, FOLDER, LOCK_EX, LOCK_NB, LOCK_UN, READ_ONLY, READ_WRITE
from .local.handles import files_for
from .local.refusals import make_folders, refused
from .lock import Lock, LockFace, lock_path
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import fcntl
    import hashlib
    from collections.abc import Callable
    from types import TracebackType
    from typing import IO, Any

    from . import words
    from .core.errors import LifeholdError
    from .local.files import Files
    from .lock import Lease

    OpenFile = IO[Any]  # of text or of bytes, as its mode says
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
_NO_FLUSH = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})  # of a folder
HAND_ON = "hand on the open file"  # who locks the file already
OPENED = OtherFace("the file comes with its block: write `with locked_file(...) as file:`")


class FileDraft(Single):
    """The file while its lock is held: what is read, or the copy that will take its place.

    Plain code, which may wait for the disk; the face calls it, in a thread apart where it must.
    """

    def __init__(self, path: str, mode: str, durable: bool, text: dict[str, Any]) -> None:
        self.path, self.mode, self.durable, self.text = path, mode, durable, text
        self.kind = mode.strip("bt+")
        self.writes = self.kind != "r" or "+" in mode
        self.files: Files = files_for(path)
        self.generation = fork.here()
        self.fds: dict[str, int] = {}  # what `abandon` closes; by its path what becomes `file`
        self.fd = -1  # of the copy: one of them
        self.copy = ""  # its path, until it has come to its place
        self.before: Any = None  # what stood there
        self.file: Any = None

    def begin(self) -> FileDraft:
        """Open it. Raises SystemRefused, InvalidArgument, UnsafeGround; nothing is left behind."""
        try:
            if self.writes:
                make_folders(self.files, self.path)  # those of its lock
                self._copy()
            else:
                if self._existing(self.path, READ_ONLY) is None:
                    raise _missing(self.path)
                self.file = self._opened()
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                raise _refused(self.path, error) from error
            raise
        return self

    def _open(self, key: str, *given: object) -> int:
        """L6  A descriptor that `abandon` closes, whatever comes between two steps."""
        made = map(self.files.open, *((each,) for each in given))
        self.fds.update(zip((key,), made, strict=False))
        return self.fds[key]

    def _existing(self, key: str, flags: int) -> int | None:
        """The file that is there; None for none."""
        try:
            fd = self._open(key, self.path, flags | os.O_NONBLOCK)  # a FIFO does not keep us
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
                raise _no_file(self.path) from error
            raise
        self.before = self.files.fstat(fd)
        if not stat.S_ISREG(self.before.st_mode):
            raise _no_file(self.path)
        return fd

    def _copy(self) -> None:
        there = self._existing("there", READ_WRITE)  # what may not be written is not replaced
        self._sweep()
        if there is not None:
            self.before = self.files.fstat(there)  # it may have had a second name
        self._refuse(there)
        self.fd = self._made()
        if there is not None:
            self._inherit(there)
            if self.kind in ("r", "a"):
                at = 0
                while piece := self.files.pread(there, PIECE, at):
                    at += self.files.pwrite(self.fd, piece, at)
        if self.kind == "a":  # last: pwrite(2) would append too
            flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_APPEND)
        self.fds.update(zip((self.path,), map(os.dup, (self.fd,)), strict=False))
        self.file = self._opened()

    def _refuse(self, there: int | None) -> None:
        if there is None and self.kind == "r":
            raise _missing(self.path)
        if there is not None and self.kind == "x":
            raise FileExistsError(errno.EEXIST, "mode 'x' makes a new file, and it is there")
        if there is not None:
            refuse_torn(self.files, self.path, there, self.before)
        if there is not None and self._is_mounted(there):
            raise UnsafeGround(
                f"{self.path!r} is a mount of its own, as a single file that a container is given: "
                "no other file can take its place. Mount its folder instead, or write it in place "
                "under a `Lock`",
                name=self.path,
            )
        if there is not None and (
            self.before.st_mode & 0o6000 or "security.capability" in _attributes(there)
        ):
            raise UnsafeGround(
                f"{self.path!r} runs as its owner or group, or with rights of its own: a copy is "
                "not made of it",
                name=self.path,
            )

    def _is_mounted(self, there: int) -> bool:
        try:
            flags = FOLDER | getattr(os, "O_PATH", 0)
            folder = self._open("place", os.path.dirname(self.path), flags)
        except PermissionError:
            return False
        return _mount(there) != _mount(folder)

    def _made(self) -> int:
        folder, start = self._copies()
        self.copy = os.path.join(folder, f"{start}{os.urandom(DIGITS // 2).hex()}{NEW}")
        mode = 0o666 if self.before is None else 0o600
        try:
            return self._open("copy", self.copy, READ_WRITE | CREATE, mode)
        except FileExistsError:
            self.copy = ""  # somebody else's
            raise

    def _copies(self) -> tuple[str, str]:
        """(the folder of the copies, how the name of each begins)."""
        folder, name = os.path.split(self.path)
        named = hashlib.blake2b(os.fsencode(name), digest_size=DIGITS // 2).hexdigest()
        return folder, f"{COPY}{named}-"

    def _sweep(self) -> None:
        """Remove what a killed writer left: we hold the lock, so nobody makes it whole any more.

        Also the first name of a file that was about to lose it: rename(2) may be link and unlink.
        """
        folder, start = self._copies()
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
                ours = found.st_uid in (os.geteuid(), getattr(self.before, "st_uid", -1))
                placed = self.before is not None and os.path.samestat(found, self.before)
                if ours and (placed or found.st_nlink == 1) and stat.S_ISREG(found.st_mode):
                    self.files.unlink(left)
            except OSError:
                pass  # gone, or not ours to remove: it is in nobody's way

    def _is_ours(self) -> bool:
        """Whether the name of the copy still leads to what was written."""
        try:
            found = self.files.lstat(self.copy)
        except FileNotFoundError:
            return False
        if self.fd >= 0:
            return os.path.samestat(found, self.files.fstat(self.fd))
        # L6  Interrupted when it had just been made: nobody else knows the name.
        fresh = stat.S_ISREG(found.st_mode) and found.st_size == 0 and found.st_nlink == 1
        return fresh and found.st_uid == os.geteuid()

    def _inherit(self, there: int) -> None:
        """L13  The copy belongs to whom the file belonged, and lets in whom it let in."""
        made, before = self.files.fstat(self.fd), self.before
        try:
            for name in _attributes(there):
                if name.startswith("user."):  # first: whose it is then may not write them
                    os.setxattr(self.fd, name, os.getxattr(there, name))
            if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(self.fd, before.st_uid, before.st_gid)
            self._inherit_acl(there)
        except OSError as error:
            raise UnsafeGround(
                f"{self.path!r} cannot be replaced: its owner, access list or attributes cannot be "
                f"kept ({error.strerror}). Write it as its owner, or in place under a `Lock`",
                name=self.path,
            ) from error
        self.files.fchmod(self.fd, before.st_mode & 0o777)  # L13  nothing of ours is sticky

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

    def _opened(self) -> OpenFile:
        """The file object of the descriptor under our path.

        L6  open() takes it out of `fds` by one call without a line of Python, and closes it from
        then on, also when it refuses the encoding.
        """
        try:
            plus, binary = "+" if self.writes else "", "b" if "b" in self.mode else ""
            how = {"r": "r", "a": "a"}.get(self.kind, "w")
            return open(self.path, how + plus + binary, opener=self.fds.pop, **self.text)
        except (LookupError, ValueError) as error:
            raise InvalidArgument(f"{self.path!r} cannot be opened as text: {error}") from error

    def commit(self, check: Callable[[], object]) -> None:
        """Put the copy in the file's place. `check()` is asked last, and raises when it must not.

        Raises SystemRefused, UnsafeGround, and what `check` raises: then nothing is replaced.
        """
        try:
            self._finished()
            if self.writes:
                if self.durable:
                    self.files.fsync(self.fd)
                check()
                self._replace()
        except OSError as error:
            if isinstance(error, SystemRefused):
                raise
            raise _refused(self.path, error) from error
        finally:
            self.abandon()

    def _finished(self) -> None:
        """Flush and close it: a full disk is told here."""
        try:
            if not self.file.closed:
                self._close(self.file)
        except ValueError as error:
            raise InvalidArgument(
                f"{self.path!r}: the file of the block was taken apart ({error}): nothing was "
                "replaced. Write through the file as it came"
            ) from error

    def _replace(self) -> None:
        try:
            now = self.files.lstat(self.path)
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
        folder = self._folder() if self.durable else -1
        if now is None:
            self.files.rename_new(self.copy, self.path)  # fails if it has come since
        else:
            self.files.rename(self.copy, self.path)
        self.copy = ""  # its name is not ours to remove any more
        if folder >= 0:
            self._flush(folder)

    def _folder(self) -> int:
        """Opened before anything is replaced: who may not open it cannot flush it."""
        try:
            return self._open("folder", os.path.dirname(self.path), FOLDER)
        except PermissionError as error:
            raise SystemRefused(
                f"the folder of {self.path!r} may not be read by you, so its new name cannot be "
                "flushed to the disk: nothing was replaced. Give durable=False, or read that "
                "folder",
                name=self.path,
                errno=error.errno,
                filename=self.path,
            ) from error

    def _flush(self, folder: int) -> None:
        try:
            self.files.fsync(folder)
        except OSError as error:
            if error.errno in _NO_FLUSH:
                return  # a file system whose folders cannot be flushed
            raise SystemRefused(
                f"{self.path!r} was replaced, and its folder could not be flushed to the disk "
                f"({error.strerror}): a power failure may bring the old one back",
                name=self.path,
                errno=error.errno,
                filename=self.path,
            ) from error

    def abandon(self) -> None:
        """Close it, and remove the copy that did not come to its place. Safe to repeat."""
        file, self.file = self.file, None
        try:
            if file is not None and not file.closed:
                self._close(file)
        except (OSError, ValueError):
            pass  # a full disk: what was written is thrown away all the same
        finally:
            if self.copy:
                self._remove()
            while self.fds:
                self.files.close(self.fds.popitem()[1])

    def __del__(self, _collected: Any = fork.collected) -> None:
        # L6  Whatever an exception between two bytecodes drops is closed, and its copy removed.
        if getattr(self, "fds", None):
            _collected(self._dropped)

    def _dropped(self) -> None:
        try:
            self.abandon()
        except Exception as error:  # noqa: BLE001 - nobody is there to be told
            report(error)

    def _close(self, file: OpenFile) -> None:
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
        except OSError:
            pass  # gone, or out of reach: the next writer removes it, and what went wrong is told
        finally:
            self.copy = ""


def refuse_torn(files: Files, path: str, fd: int | None, found: os.stat_result) -> None:
    """Raises UnsafeGround for a file that others would still have, were it replaced.

    `fd`: None for what could not be opened. `found`: it has 0 names when another writer has just
    put a file in its place: there is nothing left to tear.
    """
    if found.st_nlink > 1:
        raise UnsafeGround(
            f"{path!r} has {found.st_nlink} names: to replace one of them would tear it from the "
            "others. Remove the other links, or write it under a `Lock`",
            name=path,
        )
    if fd is not None and _is_lock(files, fd):
        raise UnsafeGround(
            f"{path!r} is a lock file: another in its place would let a second holder in. Name "
            "the file of your data, which is never the file of its lock",
            name=path,
        )


def _is_lock(files: Files, fd: int) -> bool:
    """L1  By its record; who only reads leaves none, and is seen by flock(2)."""
    if content := files.first(fd, record.READ_SIZE):
        return record.begins(content)
    try:
        files.flock(fd, LOCK_EX | LOCK_NB)
        files.flock(fd, LOCK_UN)
    except BlockingIOError:
        return True
    return False


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    """The file, its content, and by its ctime its owner, mode, access list and names."""
    if found is None:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _mount(fd: int) -> list[str]:
    """Of which mount an open file is, where that can be seen."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="utf-8", errors="replace") as told:
            return [line for line in told if line.startswith("mnt_id:")]
    except OSError:
        return []


def _attributes(fd: int) -> list[str]:
    if sys.platform != "linux":
        return []
    try:
        return os.listxattr(fd)
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
        return []


_RIGHTS = (
    "who reads it needs the right to read it; who writes it needs the right to read and write it, "
    "and to write its folder"
)
_REMEDIES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "its file system is read-only: it can be read, and not replaced",
    errno.ENOSPC: "free some space: the copy that replaces it needs as much as the file",
    errno.EDQUOT: "free some of your quota: the copy that replaces it needs as much as the file",
    errno.EFBIG: "raise the limit of file size (ulimit -f)",
    errno.EBADF: "its descriptor was closed by other code",
}


def _refused(path: str, error: OSError) -> LifeholdError:
    if error.errno not in _REMEDIES:
        return refused(path, error)
    return SystemRefused(
        f"{path!r}: {error.strerror}: {_REMEDIES[error.errno]}",
        name=path,
        errno=error.errno,
        filename=path,
    )


def refuse_at_once(path: str, mode: str) -> None:
    """What no lock would change: for that no lock file and no folder is made.

    A file that is missing is waited for where its lock has ever been used.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise _no_file(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if mode.strip("bt+") == "r" and not os.path.lexists(f"{path}.lock"):
            raise refused(path, _missing(path)) from error
    except OSError:
        pass  # told under the lock


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such file", path)


def _no_file(path: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path!r} is not a regular file: name the file itself; a symbolic link is not followed, "
        "a folder, FIFO or device is not opened",
        name=path,
    )


def checked(
    path: str | os.PathLike[str],
    mode: str,
    durable: bool,
    text: dict[str, Any],
    options: dict[str, Any],
) -> tuple[str, bool]:
    """(the absolute path, whether it is written). Raises InvalidArgument, UnsafeGround."""
    where = lock_path(os.fspath(path) if isinstance(path, os.PathLike) else path)
    given: object = mode
    kinds = sorted(given) if isinstance(given, str) else []
    plain = [each for each in kinds if each in "rwax"]
    if len(plain) != 1 or len({*kinds}) != len(kinds) or {*kinds} - set("rwaxbt+"):
        if isinstance(given, int) and not isinstance(given, bool) and given > 7:
            raise InvalidArgument(
                f"mode={oct(given)}: mode is as of open(), for example 'r+'; permissions cannot be "
                "given here: the file keeps its own"
            )
        raise InvalidArgument(
            f"mode must be one of r, w, a, x, with +, b or t, for example 'r+', not {mode!r}"
        )
    if {"b", "t"} <= {*kinds}:
        raise InvalidArgument(f"mode is of text or of bytes, not both: {mode!r}")
    if "b" in kinds and any(text.values()):
        raise InvalidArgument(f"mode {mode!r} is of bytes: it takes no {', '.join(_OF_TEXT)}")
    check_bool("durable", durable)
    _refuse_strange(options)
    writes = plain != ["r"] or "+" in kinds
    if (writes or options.get("kind", "auto") == "auto") and ground.is_unproven(where):
        raise UnsafeGround(
            f"{where!r} lies on a file system that another machine may mount, where a lock may end "
            "before the file is replaced: use lifehold.fence.FencedFile, which refuses a late "
            "writer, and reads without a lock",
            name=where,
        )
    return where, writes


class LockedFile(Bound):
    """What `locked_file()` answers: `with` it, once at a time."""

    __slots__ = ("_block", "_draft", "_free", "_lock", "_make", "lease")
    _refusal = "a locked file cannot be copied or pickled: it is open in this process"
    if not TYPE_CHECKING:
        __aenter__ = PLAIN
        read = readline = readlines = write = OPENED

    def __init__(self, lock: Lock, make: Callable[[], FileDraft]) -> None:
        self._lock, self._make = lock, make
        self._block = part()
        self._draft: FileDraft | None = None
        self._free = [True]  # whoever takes it has the block
        self.lease: Lease | None = None  # while it is held

    def __enter__(self) -> OpenFile:
        refuse_second(self._free)
        block = self._block = part()
        entry: Any = BlockEntry(..., block)
        try:
            draft = self._make()
            self.lease = self._lock.acquire(entry)
            self._draft = draft
            return draft.begin().file  # type: ignore[no-any-return]
        except BaseException as error:
            try:
                self._end(error)
            finally:
                block.undo(error)  # L6  it may have been interrupted before we knew of the lease
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block = self._block
        try:
            try:
                if error is None and self._draft is not None and self.lease is not None:
                    self._draft.commit(self.lease.check)
            except BaseException as other:
                self._end(other)
                raise
            self._end(error)
        except BaseException as other:
            block.undo(other)  # L6  the end was interrupted
            raise

    def _end(self, error: BaseException | None) -> None:
        """Let all of it go; `error` has ended the block, or None."""
        lease, self.lease = self.lease, None
        draft, self._draft = self._draft, None
        try:
            if draft is not None:
                draft.abandon()
        finally:
            self._free[:] = [True]
            if lease is not None:
                lease._leave(error)


def refuse_second(free: list[bool]) -> None:
    """Raises InvalidArgument while another block has it."""
    try:
        free.pop()  # one atomic step
    except IndexError:
        raise InvalidArgument("one locked_file() is one block: call it again for another") from None


@explained(
    "locked_file()",
    "locked_file('data.json', 'w')",
    "name it, for example locked_file(.., wait={value})",
)
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
    meanwhile without the lock, and on a file server; LeaseLost at the end of the block. Nothing is
    replaced then, and no file is made where there was none to read.
    """
    text = {"encoding": encoding, "errors": errors, "newline": newline}
    where, writes = checked(path, mode, durable, text, options)
    lock = Lock(f"{where}.lock", exclusive=writes, **options)
    lock._cure = HAND_ON
    return LockedFile(lock, lambda: drafted(where, mode, durable, text))


def drafted(where: str, mode: str, durable: bool, text: dict[str, Any]) -> FileDraft:
    """What will be opened, when the lock is there. Raises what no lock would change."""
    refuse_at_once(where, mode)
    return FileDraft(where, mode, durable, text if "b" not in mode else {})


def _refuse_strange(options: dict[str, Any]) -> None:
    """Raises UnknownArgument for what a locked file is not made with."""
    made = {"exclusive", "mode"}  # `mode` is the file's, and says whether it is shared
    known = {*(LockFace.__init__.__kwdefaults__ or ())} - made
    if own := sorted({"reentrant", "singleton"} & {*options}):
        raise InvalidArgument(
            f"locked_file() takes no {own[0]}={options[own[0]]!r}: each block has a copy of its "
            "own, so a block inside of a block would lose what one of them wrote: hand on the file"
        )
    if strange := {key: options[key] for key in options if key not in known}:
        known -= {"reentrant", "singleton"}
        raise words.unknown("locked_file()", strange, {*known, "durable", *_OF_TEXT})
