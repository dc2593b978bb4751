"""The last token of a name, in a file beside the lock: no release and no takeover removes it.

L4  Read and written by the holder alone, while it holds and before it goes on. A counter that is
    lost, torn or set back is made up for by the clock: the token is max(stored + 1, clock).
"""

from __future__ import annotations

import errno
import os

from ..core.errors import CorruptRecord, pass_up
from ..core.fence import LARGEST, next_token
from .files import READ_ONLY, READ_WRITE, Files, born_ns, hand_back
from .record import MAGIC, VERSION

SUFFIX = ".token"
FRONT = b'%s%d,"kind":"token","token":' % (MAGIC, VERSION)
START, END = len(FRONT), len(FRONT) + 20
LENGTH = len(FRONT) + 20 + len(b"}\n")
FOREIGN = "the file beside it that would carry the token holds somebody else's data"
CLOSED = "the file beside it that carries the token may not be written by this user"


def counter_of(path: str) -> str:
    """The file that carries the token of a lock."""
    return path + SUFFIX


def draw(
    files: Files,
    path: str,
    own_last: int,
    clock_us: int,
    mode: int,
    exactly: bool,
    far: bool = False,
) -> int | str:
    """The next token of the lock at `path`, noted; a text when it can carry none, and why.

    `mode`: of a new file; `exactly`: whatever the umask; `far`: it lies on a file server.
    """
    name = path + SUFFIX
    try:
        try:  # `fs.protected_regular` refuses O_CREAT on another user's file in a sticky folder
            fd = files.open(name, READ_WRITE)
        except FileNotFoundError:
            fd = files.open(name, READ_WRITE | os.O_CREAT, mode)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return CLOSED
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return FOREIGN  # a symbolic link, a folder, a FIFO: neither followed nor replaced (L7)
        raise
    try:
        try:
            content = files.pread(fd, LENGTH, 0)
        except OSError as error:
            if error.errno == errno.ESPIPE:
                return FOREIGN  # a FIFO, which Linux opens for both at once
            raise
        stored = stored_in(content, path)
        if stored is None:
            return FOREIGN
        if exactly and not content:
            files.fchmod(fd, mode)
        token = next_token(stored, own_last, clock_us)
        if files.pwrite(fd, b"%s%20d}\n" % (FRONT, token), 0) != LENGTH:
            raise OSError(errno.EFBIG, "the token could not be written whole")
        if far:
            hand_back(files, fd)  # who follows us writes into it
        return token
    finally:
        files.close(fd)


def stored_in(content: bytes, path: str) -> int | None:
    """The token that was noted last, 0 when none can be read; None: not a file of ours.

    Raises CorruptRecord for a number after which no other can be given.
    """
    if not content.startswith(FRONT):
        return 0 if content.startswith(MAGIC) or not content.strip(b"\0") else None
    digits = content[START:END].strip()
    if not digits.isdigit():
        return 0
    token = int(digits)
    if token > LARGEST:
        raise CorruptRecord(
            f"{counter_of(path)!r} carries the token {token}, which lifehold cannot have "
            "written: no greater one would fit 64 bits. Remove that file to begin anew",
            name=path,
        )
    return token


def is_left_empty(files: Files, path: str) -> bool:
    """Whether an empty folder is a lock of kind "folder" that nobody holds.

    An empty folder may as well be a lock that mkdir(2) makes, beside the counter of a lock of kind
    "directory". That one is born as it is taken, after the last token, and nothing was ever in it.
    """
    try:
        counter, found = files.lstat(path + SUFFIX), files.lstat(path)
        fd = files.open(path + SUFFIX, READ_ONLY)
    except OSError as error:
        pass_up(error)
        return False
    try:
        ours = files.pread(fd, LENGTH, 0).startswith(FRONT)
    finally:
        files.close(fd)
    born = born_ns(path)
    return ours and born is not None and born < max(counter.st_mtime_ns, found.st_mtime_ns)
