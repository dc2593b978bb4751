"""A folder whose one entry is named by who holds it: its listing, its making, what is left of it.

Promise: it is there with its entry or not at all, since a prepared one is renamed to its place. An
entry's name is used once. What ours leave empty bears MARK, a bit of the mode that mkdir(2) cannot
give; so an empty folder without it is another program's lock.
"""

from __future__ import annotations

import errno
import os
import stat

from ..core.errors import InvalidArgument, SystemRefused, UnsafeGround, pass_up
from ..runtime.process import here
from .files import CREATE, READ_ONLY, READ_WRITE, group_bit
from .record import CURRENT, READ_SIZE, RELEASED, RecordTemplate, WrittenRecord, read
from .record_handle import RecordFile, opened_as
from .refusals import DIGITS, is_number, make_folders, mixed_kinds, not_lockable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .files import Files
    from .ground import MountInfo
    from .handles import Descriptors

FRONT = "owner-"  # and the nonce
ASIDE = ".lifehold-"  # and a nonce, which is longer than that of kind "generation"
MARK = stat.S_ISUID
NONCE = 32  # hexadecimal digits
HEX = frozenset("0123456789abcdef")


def is_entry(name: str) -> bool:
    """Whether an entry of a folder is a holder's record."""
    return _is_named(name, FRONT)


def _is_named(name: str, front: str) -> bool:
    nonce = name[len(front) :]
    return name.startswith(front) and len(nonce) == NONCE and HEX.issuperset(nonce)


class FolderEntry(RecordFile):
    """The open record of one grant. `name`: in its folder; `exact`: see local/directory.py."""

    __slots__ = ("exact",)

    def __init__(
        self, table: Descriptors, call: Callable[[], tuple[int, bool]], opened: object = None
    ) -> None:
        self.exact = False
        super().__init__(table, call, opened)


def open_entry(
    table: Descriptors, folder: str, name: str, flags: int, mode: int = 0
) -> FolderEntry:
    """The entry of a folder that has this name. Raises OSError."""
    entry = opened_as(FolderEntry, table, f"{folder}/{name}", flags, mode)
    entry.name = name
    return entry


def look(files: Files, path: str) -> tuple[list[str], bool] | None:
    """(the names in a lock's folder, whether it is marked as ours); None when there is none.

    Raises InvalidArgument for what is no such folder.
    """
    try:
        mode = files.lstat(path).st_mode
        if not stat.S_ISDIR(mode):
            raise _no_folder(files, path, mode)
        names = sorted(files.listdir(path))
    except (FileNotFoundError, NotADirectoryError):  # the second: replaced since; or its parent
        return None
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return None  # over NFS what was there is removed; our own rename asks the server
    if kind_of(names) not in ("", "directory"):
        raise UnsafeGround(mixed_kinds(path, "directory", kind_of(names)), name=path)
    return names, bool(mode & MARK)


def is_bid(name: str) -> bool:
    """Whether an entry of a folder is a bid of kind "folder", and of lockfolder."""
    guid, dot, end = name.rpartition(".")
    parts = guid.split("-")
    return (
        dot + end == ".json"
        and list(map(len, parts)) == [8, 4, 4, 4, 12]
        and HEX.issuperset("".join(parts))
    )


def kind_of(names: list[str]) -> str:
    """The kind of lock whose folder has such names in it; "" for none of ours."""
    for name in names:
        if is_entry(name):
            return "directory"
        if is_bid(name):
            return "folder"
        if is_number(name):
            return "generation"
    return ""


def _no_folder(files: Files, path: str, mode: int) -> InvalidArgument | UnsafeGround:
    if not stat.S_ISREG(mode):
        return not_lockable(path, mode)
    refuse_other_kind(files, path, "directory")
    return InvalidArgument(
        f"{path!r} is a file, as kinds 'kernel', 'soft' and 'link' make one; kind 'directory' "
        "needs that name for a folder, and the two do not exclude each other: use one kind "
        "everywhere, or another path",
        name=path,
    )


def prepare(table: Descriptors, path: str, mode: int, *, exactly: bool) -> tuple[str, FolderEntry]:
    """(a folder that nobody knows, with an entry in it; that entry). Raises OSError.

    FileNotFoundError: it was swept meanwhile.
    """
    files, nonce = table.files, os.urandom(NONCE // 2).hex()
    aside = beside(path, nonce)
    try:
        files.mkdir(aside, 0o700)
    except FileNotFoundError:
        make_folders(files, path)
        files.mkdir(aside, 0o700)
    try:
        if mode & 0o077:
            files.chmod(aside, with_search(mode) | group_bit(files, aside))
        entry = open_entry(table, aside, FRONT + nonce, READ_WRITE | CREATE, mode)
        if exactly:
            files.fchmod(entry.fd, mode)
    except BaseException:
        discard(files, aside, FRONT + nonce)
        raise
    return aside, entry


def begin(files: Files, path: str, mode: int) -> None:
    """Make an empty folder for records of that mode, whatever the umask, unless there is one.

    It comes with its mode: who finds it may use it.
    """
    aside = beside(path, os.urandom(NONCE // 2).hex())
    files.mkdir(aside, 0o700)
    try:
        files.chmod(aside, with_search(mode) | group_bit(files, aside))
        files.rename_new(aside, path)
    except FileExistsError:
        pass
    finally:
        discard(files, aside)


def beside(path: str, nonce: str) -> str:
    """A temporary name in the folder of a lock."""
    return f"{os.path.dirname(path).rstrip('/')}/{ASIDE}{nonce}"


def mark(files: Files, aside: str) -> bool:
    """Mark a folder of ours that may be left empty. Whether the ground keeps the mark."""
    try:
        files.chmod(aside, stat.S_IMODE(files.lstat(aside).st_mode) | MARK)
    except PermissionError:  # vfat; a service that may set no such bit
        return False
    return bool(files.lstat(aside).st_mode & MARK)


def discard(files: Files, aside: str, *names: str) -> None:
    """Remove a folder under its temporary name, which is nobody's lock."""
    for name in names:
        try:
            files.unlink(f"{aside}/{name}")
        except OSError as error:
            pass_up(error)
            continue
    try:
        files.rmdir(aside)
    except OSError as error:
        pass_up(error)
        return  # it is in its place, or holds what is not ours


def sweep(files: Files, path: str, fd: int) -> None:
    """Remove what crashed processes left beside a lock, by the clock of the file server.

    `fd`: a file written just now. Removing one that is in use costs its maker another try.
    """
    folder = os.path.dirname(path) or "/"
    try:
        now, names = files.fstat(fd).st_mtime, files.listdir(folder)
    except OSError as error:
        pass_up(error)
        return  # the lock is ours already: that is not worth its loss
    for name in names:
        if not _is_named(name, ASIDE):
            continue
        aside = f"{folder.rstrip('/')}/{name}"
        try:
            if files.lstat(aside).st_mtime < now - LEFT_OVER:
                discard(files, aside, *filter(is_entry, files.listdir(aside)))
        except OSError as error:
            pass_up(error)
            continue


# ------------------------------------------------------------------------------------------------
# A folder of numbered records: its listing, its beginning, what is left over in it.
#
# Promise: the folder is there with its first record or not at all, since a prepared one is renamed
# to its place; a first record that could come and go would let its number be given twice.


LEFT_OVER = 3600.0  # seconds after which a temporary record of somebody else is swept


def name_of(number: int) -> str:
    """The name of a numbered record."""
    return str(number).zfill(DIGITS)


def listed(files: Files, path: str) -> tuple[list[int], list[str]] | None:
    """(the numbers in a folder, in order; the temporary names); None when there is no folder.

    Raises InvalidArgument for what is no folder of ours.
    """
    try:
        names = files.listdir(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        refuse_other_kind(files, path)
        raise InvalidArgument(
            f"{path!r} is a file, as kinds 'kernel', 'soft' and 'link' make one; kind "
            "'generation' needs a folder of its own there, and the two do not exclude each "
            "other: use one kind everywhere, or another path",
            name=path,
        ) from None
    numbers = sorted(int(name) for name in names if is_number(name))
    aside = [name for name in names if name.startswith(".lifehold-")]
    if not numbers and len(aside) != len(names):
        raise InvalidArgument(
            f"{path!r} is a folder with other things in it ({min(names)!r}): lock a path of "
            f"its own, for example {path + '.lock'!r}",
            name=path,
        )
    return numbers, aside


def refuse_other_kind(files: Files, path: str, ours: str = "generation") -> None:
    """Raises UnsafeGround for a file that is a lock of another kind."""
    try:
        fd = files.open(path, READ_ONLY)
    except OSError as error:
        pass_up(error)
        return
    try:
        found = read(files.pread(fd, READ_SIZE, 0))
    except OSError as error:  # a FIFO
        pass_up(error)
        return
    finally:
        files.close(fd)
    if found.state == CURRENT:
        raise UnsafeGround(mixed_kinds(path, ours, found.kind or "link"), name=path)


def begin_numbered(
    files: Files,
    path: str,
    place: MountInfo,
    mode: int,
    nonce: str,
    mark: Callable[[Files, str], object],
) -> None:
    """Publish the folder with a released record in it. Whether it is ours, the next listing shows.

    `mark`: makes it known as ours, should it be emptied. Numbers begin at the clock, so those of a
    folder that was removed do not come back.
    """
    clock_us = files.clock_ns() // 1000
    aside = f"{os.path.dirname(path).rstrip('/')}/.lifehold-{nonce}"
    first = f"{aside}/{name_of(clock_us)}"
    try:
        files.mkdir(aside, 0o700)
    except FileNotFoundError:
        make_folders(files, path)
        files.mkdir(aside, 0o700)
    try:
        _write_first(files, first, place, mode, clock_us)
        if mode & 0o077:
            files.chmod(aside, with_search(mode) | group_bit(files, aside))
        mark(files, aside)
        files.rename(aside, path)
    except FileNotFoundError:
        pass  # over NFS also when it was done: the reply was lost and the request sent again
    except OSError as error:
        pass_up(error)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
    finally:
        for remove, name in ((files.unlink, first), (files.rmdir, aside)):
            try:
                remove(name)
            except OSError:
                pass  # it is in its place


def _write_first(files: Files, first: str, place: MountInfo, mode: int, clock_us: int) -> None:
    fd = files.open(first, READ_WRITE | CREATE, mode)
    try:
        found = files.fstat(fd)
        words = RecordTemplate("generation", here(), None, place, witness=False)
        sheet = WrittenRecord(words, found.st_ino, clock_us, clock_us)
        if mode & 0o077:
            files.fchmod(fd, mode)
        text = sheet.now(RELEASED)
        if files.pwrite(fd, text, 0) != len(text):
            raise OSError(errno.EFBIG, "the record could not be written whole")
        files.fsync(fd)
    finally:
        files.close(fd)


def with_search(mode: int) -> int:
    """The mode of a folder for records of that mode."""
    return mode | (mode & 0o444) >> 2 | 0o700


def sweep_numbered(files: Files, path: str, aside: Iterable[str], fd: int) -> None:
    """Remove the temporary records that crashed processes left, by the clock of the file server.

    `fd`: a file written just now.

    Removing one that is in use costs its maker another try and nothing else: it is linked under
    its number or it is not, and its name is never used twice.
    """
    try:
        now = files.fstat(fd).st_mtime
    except OSError as error:
        pass_up(error)
        return  # the lock is ours already: that is not worth its loss
    for name in aside:
        try:
            if files.lstat(f"{path}/{name}").st_mtime < now - LEFT_OVER:
                files.unlink(f"{path}/{name}")
        except OSError as error:
            pass_up(error)
            continue


def refuse_empty(path: str) -> SystemRefused:
    """A folder without a record is not ours, or was emptied by hand."""
    return SystemRefused(
        f"{path!r} is an empty folder: another program's lock made by mkdir, or a folder whose "
        "records were removed by hand. If nothing holds it, remove it: rmdir " + repr(path),
        name=path,
        errno=errno.EEXIST,
        filename=path,
    )
