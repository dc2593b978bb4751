"""What a lock file holds when we come to it, and whether our record may be written there.

Rule: written is only into an empty or all-NUL file or one that carries our mark. `flock "$0"`, data
files and other people's records are real lock files too: their bytes are never changed.
"""

from __future__ import annotations

from ..core.errors import CorruptRecord, UnsafeGround
from ..core.grant import Held
from ..runtime import fork
from . import record as form

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .descriptors import Slot
    from .files import Files

FOREIGN_REASON = "the file holds somebody else's data, which is never written over"


def judge(files: Files, path: str, slot: Slot, content: bytes, cleanup: bool) -> int | str | Held:
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
    now = files.fstat(slot.fd)
    if (now.st_dev, now.st_ino) != slot.key:
        slot.generation = -1  # not ours any more: neither written nor closed
        raise RuntimeError(
            f"descriptor {slot.fd} of {path!r} was closed by other code and its number reused; "
            "nothing was written"
        )
    if whose is form.NEWER:
        return Held(_newer(content), slot.key)
    if whose is form.FOREIGN:
        if cleanup:
            raise _cleanup_refused(path, "it holds somebody else's data")
        return FOREIGN_REASON
    if whose is form.FRESH and cleanup and now.st_size:
        raise _cleanup_refused(path, "it was not made by lifehold")
    return salvage(files, path, slot) if whose is form.COPY else 0


def salvage(files: Files, path: str, slot: Slot) -> int:
    """The token of a damaged or copied record: the greater that can still be read, 0 for none."""
    try:
        found = form.parse(files.pread(slot.fd, form.SIZE, 0))
    except CorruptRecord as error:
        raise _corrupt(path, error) from None
    return (found and found.token) or 0


def _corrupt(path: str, error: CorruptRecord) -> CorruptRecord:
    quoted = fork.lazily("lifehold.core.explain").quote(path)
    return CorruptRecord(
        f"{path!r}: {error.text}. To begin anew: truncate -s 0 {quoted}", name=path
    )


def _newer(content: bytes) -> str:
    version = content[len(form.MAGIC) :].partition(b",")[0].decode(errors="replace")
    return (
        f"its record has version {version}, written by a newer lifehold than this one, which "
        f"knows version {form.VERSION}: treated as held. Upgrade lifehold here"
    )


def _cleanup_refused(path: str, why: str) -> UnsafeGround:
    return UnsafeGround(
        f"{path!r}: cleanup=True would unlink it, but {why}: another program may use flock(2) on "
        "it without looking at the path again, and would then hold a file that is gone. "
        "Drop cleanup=True",
        name=path,
    )
