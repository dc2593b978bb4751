"""The locks of a folder: ours by their record, those of other tools by what the kernel shows.

Promise: one look at the kernel's table and one at each file that can be a lock; no file is opened
that cannot be ours, and a file that vanishes meanwhile is left out. Takes no lock, but for the
shared try of `who` from inside a PID namespace.
"""

from __future__ import annotations

import itertools
import os
import stat

from ..core.errors import CorruptRecord, InvalidArgument, SystemRefused
from ..core.mask import printable
from ..local import marker, named, permits, places, record, sheet
from ..local.files import HOST, READ_ONLY
from ..local.locktable import by_file, key_of
from ..local.soft_marker import SUFFIX, is_marker
from . import present, readers
from .foreign import Files, several
from .who import FREE, HELD, SUSPECT, Answer, FolderMissing, who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Holder

FIRST = 16  # names of a folder, by which it is known
ORDER = {"stale": 0, SUSPECT: 1, HELD: 2, FREE: 3}


def names_in(folder: str) -> list[str]:
    """The lock files of plain names in a folder, which may be missing."""
    try:
        with os.scandir(folder) as entries:
            found = {_lock_of(e): e for e in entries}
            return [name for name, e in found.items() if name.endswith(places.SUFFIX)
                    and (_is_plain(e) or _is_kept_in(e))]  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _refused(folder, error) from error


def of_names() -> list[Answer]:
    """Every lock with a plain name: of the folder in use by its name, of others by its path."""
    answers: list[Answer] = []
    for number, folder in enumerate(places.candidates()):
        paths = {}
        for file in names_in(folder):
            name, path = file.removesuffix(places.SUFFIX), f"{folder}/{file}"
            usable = number == 0 and name.isprintable() and name[:1] not in ("", "-")
            paths[path] = name if usable else path
        if paths:
            answers += _answers(paths)
    return answers


def of_folder(folder: str) -> list[Answer]:
    """Every lock in `folder`. Raises FolderMissing, SystemRefused."""
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if _is_plain(entry) or _is_kept_in(entry)]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FolderMissing(f"'{printable(folder)}' is not a folder") from error
    except OSError as error:
        raise _refused(folder, error) from error
    locked = _locked(folder)
    paths = [
        os.path.join(folder, _lock_of(entry)) for entry in found
        if entry.inode() in locked or _is_kept_in(entry) or _has_record(entry)
    ]  # fmt: skip
    return _answers({path: path for path in paths})


def _answers(paths: dict[str, str]) -> list[Answer]:
    """The answer for each path with its name, without those that have vanished."""
    each = list(paths.items())
    found = several(list(paths), lambda at, files: _of(each[at][1], each[at][0], files))
    return [answer for answer in found if answer is not None]


def _is_plain(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def _is_kept_in(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder that is a lock, or that of a lock's readers, by its first names."""
    try:
        if not entry.is_dir(follow_symlinks=False):
            return False
        with os.scandir(entry.path) as inside:
            names = [each.name for each in itertools.islice(inside, FIRST)]
    except OSError:
        return False
    if entry.name.endswith(SUFFIX):
        return any(map(is_marker, names))
    return named.kind_of(names) != ""


def _lock_of(entry: os.DirEntry[str]) -> str:
    """The name of the lock that a folder of readers belongs to; of all else its own."""
    front, mark, _ = entry.name.rpartition(SUFFIX)
    of_readers = mark and entry.name.endswith(mark) and front and _is_kept_in(entry)
    return front if of_readers else entry.name


def _has_record(entry: os.DirEntry[str]) -> bool:
    """Whether it begins as our records do; only files of their size are opened."""
    try:
        if not sheet.SIZE <= entry.stat(follow_symlinks=False).st_size <= marker.SIZE:
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


def _locked(folder: str) -> frozenset[int]:
    """The inodes of a folder's file system on which the kernel's table shows a lock."""
    table = by_file()
    if table is None:
        return frozenset()
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(folder, error) from error
    try:
        device = key_of(fd).device
    finally:
        os.close(fd)
    return frozenset(key.inode for key in table if key.device == device)


def _of(name: str, path: str, files: Files) -> Answer | None:
    """The answer for one file; None when it has vanished."""
    if (answer := present.answer(name, path) or readers.answer(name, path)) is not None:
        return answer
    if (locked := files.inodes) is None:
        return _asked(name, path, Files([path]))
    try:
        found = os.lstat(path)
        counted = found.st_size == permits.LENGTH  # a semaphore is held where its slots are
        if stat.S_ISREG(found.st_mode) and found.st_ino not in locked and not counted:
            return Answer(name, path, FREE, last=_last(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Answer(name, path, SUSPECT, note=f"it cannot be read here: {error.strerror}")
    return _asked(name, path, files)


def _asked(name: str, path: str, files: Files) -> Answer | None:
    """What `who` says of one file."""
    try:
        return who(name, path, files=files, removed=False)
    except (FileNotFoundError, FolderMissing, InvalidArgument):
        return None  # it has gone, or become something else
    except CorruptRecord as error:
        return Answer(name, path, SUSPECT, note=error.text)
    except OSError as error:
        return Answer(name, path, SUSPECT, note=f"it cannot be read here: {error.strerror}")


def _last(path: str) -> Holder | None:
    """Whom the record of a free lock names; None also for one that is damaged or of others."""
    fd = os.open(path, READ_ONLY)
    try:
        found = record.parse(HOST.pread(fd, record.SIZE, 0))
    except CorruptRecord:
        return None
    finally:
        os.close(fd)
    return record.as_holder(found, "") if found is not None and not found.torn else None


def _refused(folder: str, error: OSError) -> SystemRefused:
    return SystemRefused(
        f"the folder '{printable(folder)}' cannot be listed: {error.strerror}",
        errno=error.errno, filename=folder,
    )  # fmt: skip
