"""The locks of a folder: ours by their record, those of other tools by what the kernel shows.

Promise: one look at the kernel's table and one at each file that can be a lock; no file is opened
that cannot be ours, and a file that vanishes meanwhile is left out. Takes no lock, but for the
shared try of `who` from inside a PID namespace.
"""

from __future__ import annotations

import os
import stat

from ..core.errors import CorruptRecord, InvalidArgument, SystemRefused
from ..core.mask import printable
from ..local import kernel_semaphore, lock_names, record
from ..local.files import HOST, READ_ONLY
from ..runtime import fork
from . import existence, families, present, readers
from .foreign import Files, inode_of, several
from .tree import Tree, is_kept_in, is_plain, lock_of, refused
from .who import FREE, HELD, SUSPECT, Answer, FolderMissing, as_it_runs, unread, who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.grant import Holder

ORDER = {"stale": 0, SUSPECT: 1, HELD: 2, FREE: 3}


def names_in(folder: str) -> list[str]:
    """The lock files of plain names in a folder, which may be missing."""
    try:
        with os.scandir(folder) as entries:
            found = {lock_of(e): e for e in entries}
            return [name for name, e in found.items() if name.endswith(lock_names.SUFFIX)
                    and (is_plain(e) or is_kept_in(e))]  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise refused(folder, error) from error


def names() -> dict[str, str]:
    """The path of every lock with a plain name, and what to call it.

    In the folder in use it is called by its name, in others by its path.
    """
    paths = {}
    for number, folder in enumerate(lock_names.candidates()):
        try:
            files = names_in(folder)
        except SystemRefused:
            if number == 0:
                raise
            continue  # root's own, of no concern to other users' names
        for file in files:
            name, path = file.removesuffix(lock_names.SUFFIX), f"{folder}/{file}"
            usable = number == 0 and name.isprintable() and name[:1] not in ("", "-")
            paths[path] = name if usable else path
    return paths


def of_names() -> list[Answer]:
    """Every lock with a plain name."""
    return of_paths(names(), every=True)


def of_folder(
    folder: str, *, deep: bool = False, tell: Callable[[int], None] | None = None
) -> list[Answer]:
    """Every lock in `folder`, `deep`: and in all below it. Raises FolderMissing, SystemRefused.

    `tell`: hears now and then how many files were seen.
    """
    if lock_names.is_store(folder):
        stored: Any = fork.lazily("lifehold.ops.stored")
        return stored.answers(folder)  # type: ignore[no-any-return]
    tree = Tree(folder, tell)
    tree.read(folder, deep=deep)
    found = of_paths({path: path for path in tree.paths})
    shown = (f"'{printable(each)}' could not be read" for each in tree.unread)
    return found + [Answer(each, each, SUSPECT, note=note)
                    for each, note in zip(tree.unread, shown, strict=True)]  # fmt: skip


def of_paths(paths: dict[str, str], *, every: bool = False) -> list[Answer]:
    """The answer for each path with its name, without those that have vanished.

    `every`: each of them is a lock. Else what nobody locks and nobody knows is left out.
    """
    each = list(paths.items())
    found = several(list(paths), lambda at, files: _safe(each[at][1], each[at][0], files, every))
    return [as_it_runs(answer) for answer in found if answer is not None]


def _safe(name: str, path: str, files: Files, every: bool) -> Answer | None:
    """L13  The same, whatever the file makes of it: one hostile file hides no other."""
    try:
        return _of(name, path, files, every)
    except Exception as error:  # noqa: BLE001
        return unread(name, path, error)


def _of(name: str, path: str, files: Files, every: bool) -> Answer | None:
    """The answer for one file; None when it has vanished."""
    if files.ours_by_fcntl and inode_of(path) in files.ours_by_fcntl:
        return _worth(_asked(name, path, files), every)
    if (answer := present.answer(name, path) or readers.answer(name, path)) is not None:
        return answer
    if (locked := files.inodes) is None:
        return _worth(_asked(name, path, Files([path])), every)
    try:
        found = os.lstat(path)
        counted = (
            found.st_size == kernel_semaphore.LENGTH
        )  # a semaphore is held where its slots are
        if stat.S_ISREG(found.st_mode) and found.st_ino not in locked and not counted:
            return _unlocked(name, path, found, files, every)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Answer(name, path, SUSPECT, note=f"it cannot be read here: {error.strerror}")
    return _worth(_asked(name, path, files), every)


def _worth(answer: Answer | None, every: bool) -> Answer | None:
    """The answer, unless it is only that nobody locks what may be no lock at all."""
    if every or answer is None or answer.state != FREE or answer.last is not None:
        return answer
    if answer.family not in ("", "flock"):
        return answer
    return answer if answer.kind != "flock" or _ours(answer.path) else None


def _unlocked(
    name: str, path: str, found: os.stat_result, files: Files, every: bool
) -> Answer | None:
    """What no kernel lock is on: free, another tool's, or no lock at all."""
    if (last := _last(path)) is not None or every:
        return Answer(name, path, FREE, last=last, family="lifehold")
    known = existence.answer(name, path, files.eyes, found)
    return known if known is not None or not _ours(path) else Answer(name, path, FREE)


def _ours(path: str) -> bool:
    """Whether it bears a record of ours, damaged as it may be."""
    return families.Sight(path).content.startswith(record.MAGIC)


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
