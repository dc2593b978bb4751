"""An opened folder of records, by the names in it.

The seam below the log of the reader/writer lock, and below the claims of the strict one.
Rule: by a descriptor, so that no symbolic link on the way is followed. The explorer plays the same
protocol in a room of its own.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from ...local.files import NAMELESS
from . import folder
from .pin import Pin

if TYPE_CHECKING:
    from collections.abc import Callable

NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.ENOENT)
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Room:
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
        return os.open(name, flags | folder.FLAGS, mode, dir_fd=self.fd)

    def kept(self, name: str, flags: int = os.O_RDONLY) -> Pin:
        """A record that stays open. Raises OSError."""
        return Pin(self.table, lambda: self.open(name, flags), self.dev)

    def nameless(self) -> Pin | None:
        """A new file that no crash leaves behind; None where there is no such thing."""
        if not NAMELESS:
            return None
        flags = os.O_RDWR | NAMELESS | os.O_CLOEXEC
        try:
            return Pin(self.table, lambda: os.open(".", flags, 0o600, dir_fd=self.fd), self.dev)
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
            return folder.read(self.fd, name, MOST)
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
        return folder.read(self.fd, name, most)

    def write(self, fd: int, content: bytes) -> None:
        """All of it, into what is open. Raises OSError."""
        folder.write_all(fd, content)

    def stat(self, name: str) -> os.stat_result:
        """Of the name itself, be it a symbolic link. Raises OSError."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def key_at(self, name: str) -> tuple[int, int] | None:
        """Which file has a name; None for none."""
        return folder.key_at(self.fd, name)

    def created(
        self, name: str, content: bytes, sync: Callable[[int], None] | None
    ) -> tuple[int, int]:
        """A new file of that name, whole: its device and inode. Raises FileExistsError, OSError."""
        file = self.open(name, CREATE)
        try:
            folder.write_all(file, content)
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
        folder.linked(self.fd, one, other, key)

    def rename(self, one: str, other: str) -> None:
        """Raises OSError."""
        os.rename(one, other, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def unlink(self, name: str) -> None:
        """Remove it, if it is there. Raises OSError."""
        folder.unlinked(self.fd, name)

    def names(self) -> list[str]:
        """What is in it."""
        return os.listdir(self.fd)

    def scanned(self) -> list[str]:
        """The same, for who reads each of them anyway."""
        with os.scandir(self.fd) as entries:
            return [entry.name for entry in entries]


MOST = 1 << 20  # bytes of a record
