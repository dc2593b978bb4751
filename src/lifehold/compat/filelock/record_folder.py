"""A folder of records that is reached by descriptors: no symlink on the way is followed.

Rule: every call opens the folder anew, part by part, and works in what it opened. So a folder that
was taken away and made again is seen as such, and one that was exchanged for a symlink is refused.
Where one kernel has it, it may stay open from one call to the next, while the path leads to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any

from ...local.files import HOST, NAMELESS
from ...local.handles import CLOSED, Descriptors, LockFile, files_for
from ...local.record_handle import RecordFile
from ...runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

SOME = 16  # of what is idle in this process, beyond which no folder is kept open
ODD = "is not a real directory: it is not a directory or is a symlink"


class NotAFolder(RuntimeError):
    """A symlink, a file, or somebody else's folder stands where a folder of ours should be."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where} {what}")
        self.where = where


class PinnedSnapshot(LockFile):
    """A snapshot of a log that stays open, as the proof that nothing after it was cut.

    As any open file of ours it is closed by a forked child, and what other code has made of its
    number is left alone. `dev`: the device of its folder; who opens it need not ask.
    """

    __slots__ = ()

    def __init__(self, table: Descriptors, call: Callable[[], int], dev: int) -> None:
        self.table, self.generation, self.key = table, CLOSED, ""
        self.dev, self.ino = dev, 0
        if not fork.page[0]:
            fork.catch_up()
        with fork.gate:
            generation = fork.generation
            self.fd = call()
            if generation != fork.generation:  # L9  a signal handler has forked: we are its child
                table.files.close(self.fd)
                self.fd = call()
            self.generation = fork.generation
            table.noted(self)

    def has_name(self) -> bool:
        """Whether it has its name still."""
        found = self.table.files.fstat(self.fd)
        if not self.key:
            self.ino, self.dev = found.st_ino, found.st_dev
            self.key = f"{self.dev}:{self.ino}"
        return found.st_nlink > 0 and self.is_of(found)

    def let_go(
        self, _gate: AbstractContextManager[object] = fork.gate, _fork: ModuleType = fork
    ) -> None:
        """Close it, just after it was seen to have its name."""
        with _gate:
            if self.generation == _fork.generation:
                self.generation = CLOSED
                self.table.open.pop(self.fd, None)
                self.table.files.close(self.fd)


class RecordFolder:
    """`parts` below the existing folder `above`, each a folder of its own."""

    def __init__(self, above: str, *parts: str) -> None:
        self.above, self.parts = above, parts
        self.path = os.path.join(above, *parts)
        self._files = files_for(self.path)
        self._admitted: dict[str, tuple[int, int]] = {}  # whose owner has been looked at

    def _open(self, path: str, flags: int) -> int:
        # L13  Of root's in a folder of others it is anchored; else os.open as it is now.
        call = os.open if self._files is HOST else self._files.open
        return call(path, flags)

    @contextlib.contextmanager
    def opened(self, depth: int | None = None) -> Iterator[int]:
        """A descriptor of it. Raises FileNotFoundError, NotAFolder, OSError."""
        parts = self.parts[:depth]
        if parts:
            fd = self._below(None, parts[0], os.path.join(self.above, parts[0]))
        else:
            fd = self._open(self.above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[1:]:
                above, fd = fd, self._below(fd, part, part)
                os.close(above)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def kept(self, table: Any) -> Iterator[int]:
        """As `opened`, from one block to the next. Of one thread at a time."""
        key = f"{self.path}/"
        handle: RecordFile | None = table.idle.pop(key, None)
        if handle is not None and (handle.generation != fork.here() or not handle.is_at(self.path)):
            handle.close()
            handle = None
        if handle is None:
            with self.opened() as fd:
                handle = RecordFile(table, lambda: (os.dup(fd), False))
        try:
            yield handle.fd
        finally:
            if len(table.idle) < SOME:
                table.keep(key, handle)
            else:
                handle.close()

    def both(self, table: Any, one: str, other: str) -> tuple[RecordFile, RecordFile]:
        """Two folders in it, to be kept open. Raises FileNotFoundError, NotAFolder, OSError."""
        fd = self._below(None, self.parts[0], self.path)
        try:
            first = RecordFile(table, lambda: (self._below(fd, one, one), False))
            try:
                return first, RecordFile(table, lambda: (self._below(fd, other, other), False))
            except BaseException:
                first.close()
                raise
        finally:
            os.close(fd)

    def _below(self, fd: int | None, part: str, name: str) -> int:
        try:
            below = self._open(name, FOLDER) if fd is None else os.open(name, FOLDER, dir_fd=fd)
        except NotADirectoryError as error:
            raise NotAFolder(self._part(part), ODD) from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise NotAFolder(self._part(part), ODD) from error
            raise
        found = os.fstat(below)
        key = found.st_dev, found.st_ino
        if self._admitted.get(part) != key:
            try:
                above = os.stat(self.above) if fd is None else os.fstat(fd)
                self._admit(above, found, self._part(part))
            except BaseException:
                os.close(below)
                raise
            self._admitted[part] = key
        return below

    def _part(self, part: str) -> str:
        if part not in self.parts:
            return os.path.join(self.path, part)
        return os.path.join(self.above, *self.parts[: self.parts.index(part) + 1])

    @staticmethod
    def _admit(above: os.stat_result, found: os.stat_result, where: str) -> None:
        # Under a sticky folder another account's folder could be taken away from under our records.
        if above.st_mode & stat.S_ISVTX and found.st_uid not in (os.geteuid(), above.st_uid):
            raise NotAFolder(
                where,
                f"belongs to uid {found.st_uid}, not to this process's account or the parent's "
                "owner",
            )

    def make(self, mode: int, settle: Callable[[int, os.stat_result], None] | None = None) -> None:
        """See to it that it is there. Raises NotAFolder, OSError."""
        (os if self._files is HOST else self._files).makedirs(self.above, exist_ok=True)
        for depth in range(len(self.parts)):
            with self.opened(depth) as fd:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.parts[depth], mode, dir_fd=fd)
                part = self.parts[depth]
                below = self._below(fd, part, part)
            try:
                if settle is not None:
                    settle(below, os.fstat(below))
            finally:
                os.close(below)

    def names(self) -> list[str]:
        """What is in it."""
        with self.opened() as fd, os.scandir(fd) as entries:
            return [entry.name for entry in entries]


def read(fd: int, name: str, most: int) -> bytes:
    """A regular file's content, up to one byte more than `most`. Raises OSError."""
    file = os.open(name, os.O_RDONLY | FLAGS, dir_fd=fd)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(22, f"{name} is not a regular file")
        parts: list[bytes] = []
        size = 0
        while size <= most and (part := os.read(file, asked := min(most + 1 - size, 65536))):
            parts.append(part)
            size += len(part)
            if len(part) < asked:
                break
        return b"".join(parts)
    finally:
        os.close(file)


def key_at(fd: int | None, name: str) -> tuple[int, int] | None:
    """Which file has a name; None for none."""
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def linked(fd: int | None, one: str, other: str, key: tuple[int, int] | None = None) -> None:
    """Give a file a second name that nobody has. Raises FileExistsError, OSError.

    Over NFS a link that was made is reported as failed when its answer was lost: what the new name
    leads to decides.
    """
    try:
        os.link(one, other, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
    except FileExistsError:
        found = key_at(fd, other)
        if found is None or found != (key or key_at(fd, one)):
            raise


def unlinked(fd: int | None, name: str) -> None:
    """Remove a name, if it is there. Raises OSError."""
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return


def write_all(fd: int, content: bytes) -> None:
    """The whole of it. Raises OSError."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


# ------------------------------------------------------------------------------------------------
# An opened folder of records, by the names in it.
#
# The seam below the log of the reader/writer lock, and below the claims of the strict one. Rule: by
# a descriptor, so that no symbolic link on the way is followed. The explorer plays the same
# protocol in a folder of its own.


NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.ENOENT)
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


class OpenFolder:
    """The folder behind `fd`. `files`: the calls that work on what is open; `dev`: its device.

    `table`: of what stays open; `pin`, `head`: what a log keeps so.
    """

    __slots__ = ("dev", "fd", "files", "head", "pin", "table")

    def __init__(self, fd: int, files: Any, table: Any = None, dev: int = 0) -> None:
        self.fd, self.files, self.table, self.dev = fd, files, table, dev
        self.pin: Any = None
        self.head: Any = None

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """A descriptor of a record. Raises OSError."""
        return os.open(name, flags | FLAGS, mode, dir_fd=self.fd)

    def kept(self, name: str, flags: int = os.O_RDONLY) -> PinnedSnapshot:
        """A record that stays open. Raises OSError."""
        return PinnedSnapshot(self.table, lambda: self.open(name, flags), self.dev)

    def nameless(self) -> PinnedSnapshot | None:
        """A new file that no crash leaves behind; None where there is no such thing."""
        if not NAMELESS:
            return None
        flags = os.O_RDWR | NAMELESS | os.O_CLOEXEC
        try:
            return PinnedSnapshot(
                self.table, lambda: os.open(".", flags, 0o600, dir_fd=self.fd), self.dev
            )
        except OSError as error:
            if not os.fstat(self.fd).st_nlink:  # some file systems say EPERM of a removed folder
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), ".") from error
            if error.errno in NO_NAMELESS:
                return None
            raise

    def named(self, fd: int, name: str) -> bool:
        """Give an open file a name. False without /proc. Raises FileExistsError, OSError."""
        try:
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=self.fd, follow_symlinks=True)
        except FileNotFoundError:
            os.stat(".", dir_fd=self.fd)
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """What a record says; None when there is none, empty for what is no file."""
        try:
            return read(self.fd, name, MOST)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ESTALE:
                return None
            if error.errno in (errno.EINVAL, errno.EISDIR, errno.ENXIO):
                return b""
            raise

    def record(self, name: str, most: int) -> bytes:
        """A regular file's content, up to one byte more than `most`. Raises OSError."""
        return read(self.fd, name, most)

    def write(self, fd: int, content: bytes) -> None:
        """All of it, into what is open. Raises OSError."""
        write_all(fd, content)

    def stat(self, name: str) -> os.stat_result:
        """Of the name itself, be it a symbolic link. Raises OSError."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def key_at(self, name: str) -> tuple[int, int] | None:
        """Which file has a name; None for none."""
        return key_at(self.fd, name)

    def created(
        self, name: str, content: bytes, sync: Callable[[int], None] | None
    ) -> tuple[int, int]:
        """A new file of that name, whole: its device and inode. Raises FileExistsError, OSError."""
        file = self.open(name, CREATE)
        try:
            write_all(file, content)
            if sync is not None:
                sync(file)
            found = os.fstat(file)
        except BaseException:
            os.close(file)
            self.unlink(name)
            raise
        os.close(file)
        return found.st_dev, found.st_ino

    def linked(self, one: str, other: str, key: tuple[int, int] | None = None) -> None:
        """A second name that nobody has. Raises FileExistsError, OSError."""
        linked(self.fd, one, other, key)

    def rename(self, one: str, other: str) -> None:
        """Raises OSError."""
        os.rename(one, other, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def unlink(self, name: str) -> None:
        """Remove it, if it is there. Raises OSError."""
        unlinked(self.fd, name)

    def names(self) -> list[str]:
        """What is in it."""
        return os.listdir(self.fd)

    def scanned(self) -> list[str]:
        """The same, for who reads each of them anyway."""
        with os.scandir(self.fd) as entries:
            return [entry.name for entry in entries]


MOST = 1 << 20  # bytes of a record
