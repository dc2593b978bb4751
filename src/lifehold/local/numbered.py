"""A folder of numbered records: its listing, its beginning, what is left over in it.

Promise: the folder is there with its first record or not at all, since a prepared one is renamed
to its place; a first record that could come and go would let its number be given twice.
"""

from __future__ import annotations

import errno
import os
import stat

from ..core.errors import InvalidArgument, SystemRefused, UnsafeGround
from ..runtime.process import here
from .files import CREATE, READ_ONLY, READ_WRITE
from .marker import OURS, RELEASED, SIZE, read
from .refusals import DIGITS, is_number, make_folders, mixed_kinds
from .sheet import Sheet, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .files import Files
    from .ground import Place

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
    except OSError:
        return
    try:
        found = read(files.pread(fd, SIZE, 0))
    except OSError:  # a FIFO
        return
    finally:
        files.close(fd)
    if found.state == OURS:
        raise UnsafeGround(mixed_kinds(path, ours, found.kind or "link"), name=path)


def begin(
    files: Files, path: str, place: Place, mode: int, nonce: str,
    mark: Callable[[Files, str], object],
) -> None:  # fmt: skip
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
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
    finally:
        for remove, name in ((files.unlink, first), (files.rmdir, aside)):
            try:
                remove(name)
            except OSError:
                pass  # it is in its place


def _write_first(files: Files, first: str, place: Place, mode: int, clock_us: int) -> None:
    fd = files.open(first, READ_WRITE | CREATE, mode)
    try:
        found = files.fstat(fd)
        words = Text("generation", here(), None, place, witness=False)
        sheet = Sheet(words, found.st_ino, clock_us, clock_us)
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


def group_bit(files: Files, folder: str) -> int:
    """A set-group-id folder passes its group on; chmod must not take that away."""
    found: int = files.lstat(folder).st_mode
    return found & stat.S_ISGID


def sweep(files: Files, path: str, aside: Iterable[str], fd: int) -> None:
    """Remove the temporary records that crashed processes left, by the clock of the file server.

    `fd`: a file written just now.

    Removing one that is in use costs its maker another try and nothing else: it is linked under
    its number or it is not, and its name is never used twice.
    """
    try:
        now = files.fstat(fd).st_mtime
    except OSError:
        return  # the lock is ours already: that is not worth its loss
    for name in aside:
        try:
            if files.lstat(f"{path}/{name}").st_mtime < now - LEFT_OVER:
                files.unlink(f"{path}/{name}")
        except OSError:
            continue


def refuse_empty(path: str) -> SystemRefused:
    """A folder without a record is not ours, or was emptied by hand."""
    return SystemRefused(
        f"{path!r} is an empty folder: another program's lock made by mkdir, or a folder whose "
        "records were removed by hand. If nothing holds it, remove it: rmdir " + repr(path),
        name=path, errno=errno.EEXIST, filename=path,
    )  # fmt: skip
