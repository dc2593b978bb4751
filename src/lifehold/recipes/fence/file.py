"""`FencedFile`: a plain file that refuses a late writer.

    guard = FencedFile("report.csv", lease)
    guard.advance()                     # before the first read: older tokens are refused from here
    rows = guard.read().data
    guard.write(rows + more)            # StaleToken, when a later holder has been here

Promise: a write is whole or not there, and none is accepted under a token older than one that was
admitted before, also when writers are killed at any step (file.py says how). Rule: compare, note
and rename happen under one kernel lock, `PATH.fence.lock`, which no lease can outlive: it is free
when its process is gone, and waits, told who holds it, while that process is only stopped.
Not promised: anything against programs that write PATH by other means.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat

from ...core.errors import (
    CorruptRecord,
    InvalidArgument,
    LifeholdError,
    SystemRefused,
    UnsafeGround,
)
from ...core.fence import LARGEST, admit
from ...core.value import value
from ...data_file import COPY, DIGITS, NEW, refuse_torn
from ...lease import BlockEntry, part
from ...local import ground
from ...local.files import CREATE, FOLDER, READ_ONLY, READ_WRITE
from ...local.handles import files_for
from ...local.refusals import make_folders, refused
from ...lock import Lock
from ...runtime import fork
from .rule import token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ...lease import Holding
    from ...local.files import Files
    from .rule import Carrier

    T = TypeVar("T")

__all__ = ["Fenced", "FencedFile"]


class FencedFile:
    """A file at `path` that only the newest holder may write.

    `lease`: whose token guards the writes, or that token; None is for reading alone. `wait`:
    seconds to wait for another writer of this file, who holds it for one write; None until it is
    free. `mode`: of the files, whatever the umask; without it the data keeps the mode it has.
    `shared=True`: several users write it, mode 0666, in a folder without the sticky bit.
    `durable=False`: nothing is flushed, so a power failure may take the last writes and the fence
    back; kill -9 may not. `server_locks=True`: believe in the locks of a file server. They end
    with its connection, so a writer that was cut off in the middle of its write may finish it late.

    Raises InvalidArgument; UnsafeGround where other machines may write the file.
    """

    __slots__ = ("_lease", "_lock", "_pair", "path")

    def __init__(
        self,
        path: str | os.PathLike[str],
        lease: Carrier | int | None = None,
        *,
        wait: float | None = None,
        mode: int | None = None,
        shared: bool = False,
        durable: bool = True,
        server_locks: bool = False,
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"path must be a str or a Path, not {type(path).__name__}")
        where = os.fspath(path)
        if not where or "\0" in where or where.endswith("/"):
            raise InvalidArgument(f"{where!r} cannot be the path of a file")
        if shared and mode is None:
            mode = 0o666
        self.path = os.path.abspath(where)
        if not server_locks and ground.is_unproven(self.path):
            raise UnsafeGround(
                f"{self.path!r} lies on a file system that another machine may mount, whose locks "
                "end with a connection: keep what must be guarded in a database, or give "
                "server_locks=True to rely on them",
                name=self.path,
            )
        self._lease = lease
        self._pair = FencedPair(files_for(self.path), self.path, durable, mode)
        self._lock = Lock(
            f"{self.path}{SUFFIX}.lock",
            kind="kernel",
            wait=wait,
            mode=mode,
            label=f"a write to {os.path.basename(self.path)}"[:100],
        )

    def advance(self) -> None:
        """Refuse older tokens from now on. To be called before the first read under a lease.

        Raises StaleToken when this one is older itself; Timeout, SystemRefused, CorruptRecord.
        """
        token = token_of(self._lease, self.path)
        self._under_the_lock(lambda held: self._told(self._pair.advance, token, held.check))

    def read(self) -> Fenced:
        """(data, token, fence): the bytes, under which token they were written, and the fence.

        Takes no lock and needs no lease. `data` is None when there is no file; `token` is None for
        bytes that something else has written. Raises SystemRefused, CorruptRecord.
        """
        return self._told(self._pair.read)  # type: ignore[no-any-return]

    def write(self, data: bytes) -> None:
        """Replace the content in one step. On the disk when this returns, if `durable`.

        Raises StaleToken, and nothing is written, when a later holder has been here; UnsafeGround
        for a lock file, and for a file of several names; Timeout, SystemRefused, CorruptRecord.
        """
        content = as_bytes(self.path, data)
        token = token_of(self._lease, self.path)

        def work(held: Holding) -> None:
            self._told(self._pair.refuse_torn)
            self._told(self._pair.put, content, token, held.check)

        self._under_the_lock(work)

    def update(self, change: Callable[[bytes | None], bytes]) -> bytes:
        """`write(change(data))` with no other writer in between; what was written.

        `change` gets None when there is no file. It runs under the lock of the file: keep it short.
        """
        token = token_of(self._lease, self.path)

        def work(held: Holding) -> bytes:
            self._told(self._pair.refuse_torn)
            self._told(self._pair.advance, token, held.check)
            seen, of = self._told(self._pair.look)
            made = as_bytes(self.path, change(seen.data))
            self._told(self._pair.put, made, token, held.check, of)
            return made

        return self._under_the_lock(work)

    def _under_the_lock(self, work: Callable[[Holding], T]) -> T:
        """`work(lease)`. L6  Our caller has no handle, so an interrupt leaves nothing held."""
        self._told(make_folders, self._pair.files, self.path)
        block = part()
        begins: Any = BlockEntry(block=block)
        try:
            try:
                answer = work(self._lock.acquire(begins))
            except BaseException as error:
                if block.lease is not None:
                    block.lease._leave(error)
                raise
            block.lease._leave(None)
        except BaseException as error:
            block.undo(error)
            raise
        return answer

    def _told(self, step: Callable[..., object], *given: object) -> Any:
        """`step(*given)`, an error of the system in our words."""
        try:
            return step(*given)
        except LifeholdError:
            raise
        except OSError as error:
            raise refused(self.path, error) from error

    def __repr__(self) -> str:
        return f"<FencedFile {self.path!r}>"


def as_bytes(name: str, data: object) -> bytes:
    """Data of a guarded thing. Raises InvalidArgument."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgument(f"{name!r}: data is bytes, not {type(data).__name__}", name=name)
    return bytes(data)


# ------------------------------------------------------------------------------------------------
# A data file and its fence beside it, as the file system keeps the two.
#
#    > PATH  the data, as anybody may read it
#    > PATH.fence  one line of JSON: the newest token admitted, and of which write the data is
#
# Promise, of code that holds the lock of the two, wherever it is killed: the data is all of one
# write; a token older than one that was admitted is refused; `read` says under which token the very
# bytes it returns were written. How it could fail, and what keeps it:
# - Killed between the two files: the fence is on the disk *before* the data is renamed. So there
#   may be a newer fence beside older data, whose own token stands in the fence, and never the
#   reverse.
# - A reader between the two: the fence names the data before and after by inode, size and time, so
#   that either is known for what it is. What somebody else put there has no token.
# - Power: each file is flushed before its rename, the folder after it (`durable=False` does not).
# - Somebody who has the lock no more, as a forked child: each copy has a name by chance, as one of
#   `locked_file`, and nobody removes or renames one that is not his own. `still()` is asked first,
#   and before each rename.
# The next writer removes what a killed one left (L7: it is never opened).


SUFFIX = ".fence"
FIXED = (f"{SUFFIX}{NEW}", f"{SUFFIX}.data{NEW}", NEW)  # of copies, before they were by chance
PIECE = 1 << 20  # bytes of one read or write
LONGEST = 4096  # bytes of a fence
SPECIAL = stat.S_ISUID | stat.S_ISGID
TRIES = 100  # how often data may be replaced while we read it
VERSION = 1

Identity = tuple[int, int, int]  # inode, size, mtime in ns


@value
class Fence:
    """What stands beside the data. `written`, `before`: (token, identity of the data)."""

    fence: int = 0
    written: tuple[int, Identity] | None = None
    before: tuple[int, Identity] | None = None

    def token_of(self, found: Identity) -> int | None:
        """Under which token this very data was written, None when by somebody else."""
        for known in (self.written, self.before):
            if known is not None and known[1] == found:
                return known[0]
        return None


@value
class Fenced:
    """What a guarded thing holds.

    `data`: None when there is none yet. `token`: under which it was written, None when by nobody
    with a token. `fence`: the least token that is admitted.
    """

    data: bytes | None
    token: int | None
    fence: int


class Copy:
    """A new file of ours that is not at its place yet. L6  Its end is `abandon`, in any case."""

    __slots__ = ("fds", "files", "generation", "name")

    def __init__(self, files: Files, name: str) -> None:
        self.files, self.name, self.generation = files, name, fork.here()
        self.fds: list[int] = []

    def make(self, mode: int) -> int:
        """Open it, in one step with the note of its descriptor."""
        self.fds.extend(map(self.files.open, (self.name,), (READ_WRITE | CREATE,), (mode,)))
        return self.fds[0]

    def move(self, path: str, still: Callable[[], object]) -> None:
        """Put it at its place. `still()` is asked last, and raises when it must not be."""
        if not self._is_ours():
            raise OSError(errno.ESTALE, "the new file was taken away before it came to its place")
        still()
        try:
            self.files.rename(self.name, path)
        except PermissionError as error:
            if self._is_sticky(os.path.dirname(path)):
                raise anothers_file(path, error) from error
            raise
        self.name = ""

    def abandon(self) -> None:
        """Close it, and remove it when it did not come to its place. Safe to repeat."""
        try:  # L9  a child leaves its parent's alone
            if self.name and self.fds and self.generation == fork.here() and self._is_ours():
                self.files.unlink(self.name)
        except OSError:
            pass  # gone, or out of reach: the next writer removes it, and what went wrong is told
        finally:
            self.name = ""
            while self.fds:
                self.files.close(self.fds.pop())

    def _is_sticky(self, folder: str) -> bool:
        try:
            fd = self.files.open(folder, FOLDER)
        except OSError:
            return False  # it may not be read
        try:
            return bool(self.files.fstat(fd).st_mode & stat.S_ISVTX)
        finally:
            self.files.close(fd)

    def _is_ours(self) -> bool:
        """Whether the name still leads to what was written."""
        try:
            found = self.files.lstat(self.name)
        except FileNotFoundError:
            return False
        made = self.files.fstat(self.fds[0])
        return (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino)


class FencedPair:
    """The two files. Writing is for whoever holds their lock; reading is for anybody."""

    __slots__ = ("durable", "files", "mode", "path")
    chance = staticmethod(os.urandom)  # the explorer has its own, to play the same game twice

    def __init__(self, files: Files, path: str, durable: bool, mode: int | None) -> None:
        self.files, self.path, self.durable, self.mode = files, path, durable, mode

    # ---- with the lock in hand

    def advance(self, token: int, still: Callable[[], object]) -> None:
        """From now on older tokens are refused, though nothing has been written yet.

        `still()` raises when the lock is not in hand any more.
        """
        still()
        known, of = self._noted()
        if admit(self.path, token, known.fence) > known.fence:
            self._sweep(self.path + SUFFIX)
            self._note(Fence(token, known.written, known.before), still, of)

    def refuse_torn(self) -> None:
        """Raises UnsafeGround for data that others would still have, were it replaced."""
        if (there := self._there()) is None:
            return
        fd = self._opened(empty=not there.st_size)
        try:
            found = there if fd is None else self.files.fstat(fd)
            refuse_torn(self.files, self.path, fd, found)
        finally:
            if fd is not None:
                self.files.close(fd)

    def _opened(self, *, empty: bool) -> int | None:
        """The data, for a look. None for none, and for what may be replaced and not read."""
        if empty:  # it may be locked, which over NFS only a writer's descriptor can tell
            try:
                return self._open(self.path, READ_WRITE | os.O_NONBLOCK)
            except PermissionError:
                pass
        try:
            return self._open(self.path, READ_ONLY | os.O_NONBLOCK)  # a FIFO does not keep us
        except PermissionError:
            return None

    def put(
        self, data: bytes, token: int, still: Callable[[], object], of: os.stat_result | None = None
    ) -> None:
        """Replace the data in one step.

        `of`: what stat(2) said of the file that `data` was made from, if of any. The new one lets
        in whom that one let in, whatever stands at its path by now.
        """
        still()
        known, noted = self._noted()
        admit(self.path, token, known.fence)
        there = self._there()
        self._sweep(self.path + SUFFIX)
        copy = self._copy()
        try:
            made = self._fill(copy, data, self.path, there if of is None else of)
            before = None
            if there is not None and (older := known.token_of(identity(there))) is not None:
                before = (older, identity(there))
            self._note(Fence(token, (token, made), before), still, noted)
            copy.move(self.path, still)
        finally:
            copy.abandon()
        self._flush_folder()

    def _note(
        self, fence: Fence, still: Callable[[], object], before: os.stat_result | None
    ) -> None:
        """The fence is on the disk when this returns. `before`: the stat(2) of the old one."""
        text = {"lifehold": VERSION, "kind": "fence", "fence": fence.fence}
        more = {"written": fence.written, "before": fence.before}
        line = json.dumps(text | more, separators=(",", ":")) + "\n"
        self._place(self.path + SUFFIX, line.encode(), still, before)

    def place(
        self, content: bytes, still: Callable[[], object], before: os.stat_result | None
    ) -> None:
        """Replace the data in one step, without a fence; on the disk when it returns.

        `before`: as of `_fill`.
        """
        self._sweep(self.path)
        self._place(self.path, content, still, before)

    def _place(
        self, name: str, content: bytes, still: Callable[[], object], before: os.stat_result | None
    ) -> None:
        copy = self._copy()
        try:
            self._fill(copy, content, name, before)
            copy.move(name, still)
        finally:
            copy.abandon()
        self._flush_folder()

    def _start(self) -> str:
        """How the names of our copies begin: a long name stays short."""
        named = os.fsencode(os.path.basename(self.path) + SUFFIX)
        digest = hashlib.blake2b(named, digest_size=DIGITS // 2).hexdigest()
        return f"{COPY}{digest}-"

    def _copy(self) -> Copy:
        name = f"{self._start()}{self.chance(DIGITS // 2).hex()}{NEW}"
        return Copy(self.files, os.path.join(os.path.dirname(self.path), name))

    def _sweep(self, path: str) -> None:
        """Remove what a killed writer left: we hold the lock, so nobody makes it whole any more.

        `path`: what is written, beside which an older lifehold made its copies.
        """
        folder, start = os.path.dirname(self.path), self._start()
        fixed = FIXED[:2] if path != self.path else FIXED[2:]
        old = {os.path.basename(self.path) + each for each in fixed}
        try:
            names = self.files.listdir(folder)
        except OSError:
            return  # a folder that may be written and not read
        for name in names:
            by_chance = name.startswith(start) and len(name) == len(start) + DIGITS + len(NEW)
            if by_chance or name in old:
                try:
                    self.files.unlink(os.path.join(folder, name))
                except OSError:
                    pass  # gone, or not ours to remove: it is in nobody's way

    def _fill(
        self, copy: Copy, content: bytes, path: str, before: os.stat_result | None
    ) -> Identity:
        """A new file with this content, flushed. `before`: the stat(2) of what it replaces.

        L13  It belongs to whom that one belonged, and lets in whom it let in: root's write into a
        user's file makes no file of root's that holds a user's words. None has more than rwx.
        """
        files = self.files
        if before is not None and before.st_mode & SPECIAL:
            raise UnsafeGround(
                f"{path!r} runs as its owner or group: a copy is not made of it. For data that "
                "is no program, take the bits away: chmod ug-s",
                name=self.path,
            )
        mode = self.mode
        if mode is None and before is not None:
            mode = before.st_mode & 0o777
        fd = copy.make(0o666 if mode is None else 0o600)  # nobody has it open too early
        if before is not None:
            self._hand_on(fd, before)
        if mode is not None:
            files.fchmod(fd, mode)
        at = 0
        while at < len(content):
            at += files.pwrite(fd, content[at : at + PIECE], at)
        if self.durable:
            files.fsync(fd)
        return identity(files.fstat(fd))

    def _hand_on(self, fd: int, before: os.stat_result) -> None:
        """Give it to the owner and group of what it replaces, as far as we may."""
        made = self.files.fstat(fd)
        if (made.st_uid, made.st_gid) == (before.st_uid, before.st_gid):
            return
        for uid, gid in ((before.st_uid, before.st_gid), (-1, before.st_gid)):
            try:
                os.fchown(fd, uid, gid)
            except OSError as error:
                if error.errno != errno.EPERM:
                    raise
            else:
                return

    def _there(self) -> os.stat_result | None:
        """What lstat(2) says of the data, None when there is none. Refuses what is no file (L7)."""
        try:
            found: os.stat_result = self.files.lstat(self.path)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise no_file(self.path)
        return found

    def _flush_folder(self) -> None:
        if not self.durable:
            return
        folder = self.files.open(os.path.dirname(self.path), FOLDER)
        try:
            self.files.fsync(folder)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise  # else: a file system whose folders cannot be flushed
        finally:
            self.files.close(folder)

    # ---- for anybody

    def read(self) -> Fenced:
        """The data, under which token it was written, and the fence. Takes no lock."""
        return self.look()[0]

    def look(self) -> tuple[Fenced, os.stat_result | None]:
        """What `read` says, and the stat(2) of the file that was read; None for none."""
        last: Any = None
        for _ in range(TRIES):
            fd = self._open(self.path)
            try:  # open until the fence is read: so its inode is not given to another file
                data, of = (None, None) if fd is None else self._content(fd, self.path, None)
                known = self.fence()
            finally:
                if fd is not None:
                    self.files.close(fd)
            which = None if of is None else identity(of)
            token = None if which is None else known.token_of(which)
            if token is not None or (which, known) == last:  # alike twice: it is somebody else's
                return Fenced(data, token, known.fence), of
            last = (which, known)
        raise OSError(errno.ESTALE, "it is replaced faster than it is read")

    def bare(self) -> tuple[bytes | None, Any]:
        """The data alone and the stat(2) of its file, twice None when there is none."""
        fd = self._open(self.path)
        if fd is None:
            return None, None
        try:
            return self._content(fd, self.path, None)
        finally:
            self.files.close(fd)

    def fence(self) -> Fence:
        """What stands beside the data. Raises CorruptRecord."""
        return self._noted()[0]

    def _noted(self) -> tuple[Fence, os.stat_result | None]:
        """And the stat(2) of the file that says so; None for none."""
        path = self.path + SUFFIX
        fd = self._open(path)
        if fd is None:
            return Fence(), None
        try:
            content, found = self._content(fd, path, LONGEST)
        finally:
            self.files.close(fd)
        return read_fence(content, path), found

    def _open(self, path: str, how: int = READ_ONLY) -> int | None:
        try:
            return self.files.open(path, how)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise no_file(path) from error
            raise

    def _content(self, fd: int, path: str, limit: int | None) -> tuple[bytes, os.stat_result]:
        """All of an open file, and its stat(2)."""
        found: os.stat_result = self.files.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise no_file(path)
        pieces: list[bytes] = []
        at = 0
        end = found.st_size if limit is None else min(found.st_size, limit)
        while at < end and (piece := self.files.pread(fd, min(PIECE, end - at), at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces), found


def identity(found: Any) -> Identity:
    """What tells this content of a file from another one."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def anothers_file(path: str, error: OSError) -> SystemRefused:
    """Where `shared=True` is not enough."""
    return SystemRefused(
        f"{path!r} belongs to another user, and its folder has the sticky bit: nobody replaces "
        "another user's file there. Keep what several users write in a folder without that bit, "
        "which they alone may write",
        name=path,
        errno=error.errno,
        filename=path,
    )


def no_file(path: str) -> InvalidArgument:
    """L7  Neither followed nor replaced."""
    return InvalidArgument(
        f"{path!r} is not a regular file: name the file itself, a symbolic link is not followed",
        name=path,
    )


def read_fence(content: bytes, path: str) -> Fence:
    """What a fence file says. Raises CorruptRecord: a fence that was lost must not admit."""
    try:
        text = json.loads(content)
        if text["kind"] != "fence":
            raise ValueError(text)
        if natural(text["lifehold"]) > VERSION:
            raise CorruptRecord(f"{path!r} was written by a newer lifehold: update", name=path)
        fence = natural(text["fence"], LARGEST + 1)
        return Fence(fence, known(text["written"]), known(text["before"]))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CorruptRecord(
            f"{path!r} is no fence that lifehold has written, so no write can be told from a late "
            "one. Where its content is lost for good, and every old holder is gone: remove it.",
            name=path,
        ) from error


def known(entry: Any) -> tuple[int, Identity] | None:
    """(token, identity) of a fence file."""
    if entry is None:
        return None
    token, (inode, size, mtime_ns) = entry
    if type(mtime_ns) is not int:  # before 1970 it is negative
        raise ValueError(entry)
    return natural(token, LARGEST + 1), (natural(inode), natural(size), mtime_ns)


def natural(given: Any, most: int = 1 << 64) -> int:
    """A whole number, not negative. Raises ValueError for what JSON can hold besides."""
    if type(given) is not int or not 0 <= given <= most:
        raise ValueError(given)
    return given
