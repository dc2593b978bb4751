"""The files of a folder, or of a whole tree, that can be locks.

Promise: no symbolic link is followed, so no loop is entered; no other file system is: what hangs
there holds nobody up. A folder that may not be read, or vanishes, is counted and left out. Of a
file that cannot be a lock nothing but its name is read.
"""

from __future__ import annotations

import itertools
import os

from ..core.errors import SystemRefused
from ..core.mask import printable
from ..local import record, record_folders
from ..local import record as marker
from ..local import record as sheet
from ..local.files import HOST, READ_ONLY
from ..local.ground import mount_points
from ..local.proc_locks import by_file, key_of
from ..local.soft_readwrite import SUFFIX, is_marker
from . import families
from .who import FolderMissing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = 16  # names of a folder, by which it is known
STEP = 5_000  # files after which progress is told


class Tree:
    """The paths that are worth a question. `unread`: folders that could not be read."""

    def __init__(self, folder: str, tell: Callable[[int], None] | None = None) -> None:
        self.paths: list[str] = []
        self.unread: list[str] = []
        self.seen = 0
        self._tell = tell
        self._locked = locked_in(folder)
        self._mounts = frozenset(mount_points())

    def read(self, folder: str, *, deep: bool) -> None:
        """Raises FolderMissing, SystemRefused of the folder itself."""
        try:
            inner = self._look(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FolderMissing(f"'{printable(folder)}' is not a folder") from error
        except OSError as error:
            raise refused(folder, error) from error
        while deep and inner:
            each = inner.pop()
            try:
                inner += self._look(each)
            except FileNotFoundError:
                continue
            except OSError:
                self.unread.append(each)

    def _look(self, folder: str) -> list[str]:
        """Notes what can be a lock; the folders in it, but for those of other file systems."""
        inner = []
        of_restic = families.keeps_restic_locks(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                self.seen += 1
                if self._tell is not None and self.seen % STEP == 0:
                    self._tell(self.seen)
                path = os.path.join(folder, entry.name)
                if is_folder(entry):
                    if os.path.abspath(path) in self._mounts:
                        continue
                    inner.append(path)
                    if is_kept_in(entry) or families.may_be(entry.name):
                        self.paths.append(os.path.join(folder, lock_of(entry)))
                    continue
                locked = entry.inode() in self._locked
                named = families.may_be(entry.name) or (of_restic and families.is_id(entry.name))
                if entry.name.endswith("-shm") and os.path.lexists(path.removesuffix("-shm")):
                    continue  # of an SQLite database, whose answer tells of it
                if locked or named or has_record(entry):
                    self.paths.append(path)
        return inner


def locked_in(folder: str) -> frozenset[int]:
    """The inodes of a folder's file system on which the kernel's table shows a lock."""
    table = by_file()
    if table is None:
        return frozenset()
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FolderMissing(f"'{printable(folder)}' is not a folder") from error
    except OSError as error:
        raise refused(folder, error) from error
    try:
        device = key_of(fd).device
    finally:
        os.close(fd)
    return frozenset(key.inode for key in table if key.device == device)


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def is_plain(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def is_kept_in(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder that is a lock, or that of a lock's readers, by its first names."""
    try:
        if not is_folder(entry):
            return False
        with os.scandir(entry.path) as inside:
            names = [each.name for each in itertools.islice(inside, FIRST)]
    except OSError:
        return False
    if entry.name.endswith(SUFFIX):
        return any(map(is_marker, names))
    return record_folders.kind_of(names) != ""


def lock_of(entry: os.DirEntry[str]) -> str:
    """The name of the lock that a folder of readers belongs to; of all else its own."""
    front, mark, _ = entry.name.rpartition(SUFFIX)
    of_readers = mark and entry.name.endswith(mark) and front and is_kept_in(entry)
    return front if of_readers else entry.name


def has_record(entry: os.DirEntry[str]) -> bool:
    """Whether it begins as our records do; only files of their size are opened."""
    try:
        if not is_plain(entry):
            return False
        if not sheet.ROOM <= entry.stat(follow_symlinks=False).st_size <= marker.READ_SIZE:
            return False
        fd = os.open(entry.path, READ_ONLY)
    except OSError:
        return False
    try:
        return record.MAGIC in HOST.pread(fd, len(record.MAGIC) + marker.LINE, 0)
    except OSError:
        return False
    finally:
        os.close(fd)


def refused(folder: str, error: OSError) -> SystemRefused:
    return SystemRefused(
        f"the folder '{printable(folder)}' cannot be listed: {error.strerror}",
        errno=error.errno, filename=folder,
    )  # fmt: skip
