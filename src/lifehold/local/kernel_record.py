"""What a lock file holds when we come to it, and whether our record may be written there.

Rule: written is only into an empty or all-NUL file or one that carries our mark. `flock "$0"`, data
files and other people's records are real lock files too: their bytes are never changed.
"""

from __future__ import annotations

import errno
import os
from _thread import get_ident
from stat import ST_DEV, ST_INO

from ..core.errors import CorruptRecord, SystemRefused, UnsafeGround, pass_up
from ..core.grant import Held, Lost
from ..runtime import fork
from ..runtime.process import here
from . import record as form
from .refusals import mixed_kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core import explain
    from ..core.grant import Grant
    from .files import Files
    from .handles import LockFile
else:
    explain = fork.later("lifehold.core.explain", globals())

NO_RECORD_REASON = "record=False"
READ_ONLY_REASON = "the file can only be read here, so it can carry no record"
SHARED_REASON = "no exclusive holder has written a token yet"
FOREIGN_REASON = "the file holds somebody else's data, which is never written over"


def prepare(slot: LockFile, label: str) -> None:
    """All of the record but its numbers, for this file, process, thread and label."""
    slot.mark = os.urandom(8).hex()
    slot.parts = form.parts(slot.ino, slot.mark, here(label))
    slot.length = len(slot.parts[0]) + form.WIDTH
    slot.expected = None  # whoever reads the file now must look whose it is, an empty one too
    slot.thread, slot.label = get_ident(), label


def restore(files: Files, slot: LockFile, grant: Grant, label: str) -> None:
    """The record of a grant, after another tool has emptied the file.

    The lock is held without it as well, so a full disk does not make a check fail.
    """
    if grant.token is None or not slot.ours():
        return  # other code has closed our descriptor, and may write its data through the number
    parts = form.parts(slot.ino, grant.mark, here(label))
    text = form.numbered(parts, grant.token, grant.acquired_at_ns // 1000)
    try:
        if files.pwrite(slot.fd, text, 0) != form.SIZE:
            cut_short(files, slot)
    except OSError:
        return


def look(files: Files, path: str, slot: LockFile) -> Lost | os.stat_result:
    """Whether the path still leads to the file we locked. One lstat(2)."""
    try:
        found = files.lstat(path)
    except FileNotFoundError:
        return Lost("its lock file was removed or renamed: others may be in", gone=True)
    except OSError as error:
        pass_up(error)
        return Lost(f"its lock file cannot be looked at any more ({error.strerror})", gone=True)
    if found.st_ino != slot.ino or found.st_dev != slot.dev:
        return Lost("its lock file was replaced by another: others may be in", gone=True)
    return found


def cut_short(files: Files, slot: LockFile) -> OSError:
    """A record that was written in part (a limit of file size): half a mark would be foreign."""
    if files.fstat(slot.fd).st_size < form.SIZE:
        files.truncate(slot.fd, 0)
    return OSError(errno.EFBIG, "the record could not be written whole")


def judge(
    files: Files, path: str, slot: LockFile, content: bytes, cleanup: bool
) -> int | str | Held:
    """Of content that is not as we left it: the stored token, if it may be written over.

    A text: why it may not. Held: its record is of a newer version (L12). Raises CorruptRecord for a
    token that cannot be, UnsafeGround when `cleanup` would unlink what is not ours.
    """
    head = slot.parts[0]
    whose = form.classify(head, content)
    if whose is form.OURS:
        try:
            return form.token_of(head, content) or salvage(files, path, slot)
        except CorruptRecord as error:
            raise _corrupt(path, error) from None
    now = same_file(files, path, slot)
    if whose in (form.COPY, form.FOREIGN):
        refuse_other_kind(path, content)
    if whose is form.FRESH and now.st_size and not _blank(files, slot, now.st_size):
        whose = form.FOREIGN
    if whose is form.NEWER:
        return Held(_newer(content), slot.key)
    if whose is form.FOREIGN:
        if cleanup:
            raise cleanup_refused(path, "it holds somebody else's data")
        return FOREIGN_REASON
    if whose is form.FRESH and cleanup and now.st_size:
        raise cleanup_refused(path, "it was not made by lifehold")
    return salvage(files, path, slot) if whose is form.COPY else 0


def refuse_other_kind(path: str, content: bytes) -> None:
    """Raises UnsafeGround for the record of a kind whose file is the lock.

    A file of liblockfile's kind has a process number before its record.
    """
    before, ours, rest = content.partition(form.MAGIC)
    if ours and not before.strip(b"0123456789\n"):
        version, _, kind = rest.partition(b',"kind":"')
        named = kind.partition(b'"')[0].decode(errors="replace")
        if version.isdigit() and named != "kernel":
            raise UnsafeGround(mixed_kinds(path, "kernel", named), name=path)


def same_file(files: Files, path: str, slot: LockFile) -> os.stat_result:
    """L1  Raises SystemRefused when what we have locked is another file: that excludes nobody."""
    found: os.stat_result = files.again(slot.fd)
    if found[ST_INO] == slot.ino and found[ST_DEV] == slot.dev:
        return found
    raise SystemRefused(
        f"{path!r}: its descriptor {slot.fd} was closed by other code and the number used "
        "again; nothing was written. Find what closes descriptors that it did not open",
        name=path,
        errno=errno.EBADF,
        filename=path,
    )


def unwritten(
    files: Files, path: str, slot: LockFile, record: bool, exclusive: bool
) -> tuple[int | None, str | None] | Held:
    """The token of a grant that writes nothing, and why it has none.

    L4  Readers carry the writer generation. L12  Held: the record is of a newer version.
    """
    content = files.pread(slot.fd, form.SIZE, 0) if record or not slot.mark else b""
    if content:
        refuse_other_kind(path, content)
    if not record:
        return None, NO_RECORD_REASON
    head = form.head_of(slot.ino)
    whose = form.classify(head, content)
    if whose is form.OURS and not exclusive and (token := _whole(path, head, content)):
        return token, None
    if whose is form.NEWER:
        return Held(_newer(content), slot.key)
    if whose is form.FOREIGN:
        return None, FOREIGN_REASON
    if exclusive:
        return None, READ_ONLY_REASON
    token = _token(path, content)
    return (token, None) if token else (None, SHARED_REASON)


def _blank(files: Files, slot: LockFile, size: int) -> bool:
    """Whether it is our own size of NULs at most: many a disk image begins with more."""
    return size <= form.SIZE and not files.pread(slot.fd, form.SIZE, 0).strip(b"\0")


def salvage(files: Files, path: str, slot: LockFile) -> int:
    """The token of a damaged or copied record: the greater that can still be read, 0 for none."""
    return _token(path, files.pread(slot.fd, form.SIZE, 0))


def _whole(path: str, head: bytes, content: bytes) -> int | None:
    """The token of an undamaged record of ours, found fast: every reader asks for it."""
    try:
        return form.token_at_both_ends(head, content)
    except CorruptRecord as error:
        raise _corrupt(path, error) from None


def _token(path: str, content: bytes) -> int:
    try:
        found = form.parse(content)
    except CorruptRecord as error:
        raise _corrupt(path, error) from None
    return (found and found.token) or 0


def _corrupt(path: str, error: CorruptRecord) -> CorruptRecord:
    quoted = explain.quote(path)
    return CorruptRecord(
        f"{path!r}: {error.text}. To begin anew: truncate -s 0 {quoted}", name=path
    )


def _newer(content: bytes) -> str:
    version = content[len(form.MAGIC) :].partition(b",")[0].decode(errors="replace")
    return (
        f"its record has version {version}, written by a newer lifehold than this one, which "
        f"knows version {form.VERSION}: treated as held. Upgrade lifehold here"
    )


def cleanup_refused(path: str, why: str) -> UnsafeGround:
    return UnsafeGround(
        f"{path!r}: cleanup=True would unlink it, but {why}: another program may use flock(2) on "
        "it without looking at the path again, and would then hold a file that is gone. "
        "Drop cleanup=True",
        name=path,
    )
