"""What a store in SQLite says: what it promises and what not, and what went wrong."""

from __future__ import annotations

import errno
import os

from ...core.backend import Unable, Unreachable
from ...core.errors import CorruptRecord, SystemRefused, UnsafeGround
from . import schema as sql

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUSY, LOCKED, READONLY, IOERR, CORRUPT = 5, 6, 8, 10, 11  # SQLite's result codes
FULL_DISK, CANTOPEN, AUTH, NOTADB = 13, 14, 23, 26
LONGEST = 504  # bytes of a path, with `-journal` behind it 512
UNABLE = (FULL_DISK, READONLY, IOERR, CORRUPT, NOTADB)  # patience alone mends none of these

TOGETHER = (
    "processes of this machine exclude each other, containers that share the file too; another "
    "machine must not open it"
)
CLOCK = "leases run by the kernel's clock that counts suspend; a step of UTC moves none"
DEATH = (
    "a holder whose process is proven dead is followed at once; one in another PID namespace when "
    "its ttl has passed"
)
TOKENS = "tokens repeat only when an older copy of the file is put in its place: then bump them"
ALWAYS = (TOGETHER, CLOCK, DEATH, TOKENS)
FULL = "synchronous=full: every step is on the disk before it is answered"
NORMAL = (
    "synchronous=normal: a power loss may take the last steps, and has ended their holders too; "
    "tokens stay below a ceiling that is on the disk, and start above it after a restart"
)


def sentences(kind: str, version: str, synchronous: str) -> tuple[str, ...]:
    """`kind` of file system; `version` of SQLite."""
    place = f"in one file on {kind or 'an unknown file system'}, SQLite {version} with WAL"
    return place, *ALWAYS, FULL if synchronous == "full" else NORMAL


def code_of(error: object) -> int:
    """The primary result code."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def told(error: object, busy: float) -> Unreachable:
    """Nothing has happened, and why. `busy`: seconds that were waited."""
    code, text = code_of(error), str(error)
    if code in (BUSY, LOCKED):
        text = (
            f"the database was busy for {busy:g} s: another process is in the middle of "
            "writing to it, or was stopped there"
        )
    elif code == AUTH:
        text = "this process was forked in the middle of the step, which is its parent's"
    elif code == FULL_DISK:
        text = "the disk is full: nothing was written"
    elif code in (CORRUPT, NOTADB):
        text = (
            f"the database is damaged ({text}): restore it, or move it away together with its "
            "-wal and -shm, while no lock in it is held; then bump the tokens"
        )
    elif code == READONLY:
        text = f"the database cannot be written ({text}): look at its owner, mode and mount"
    elif code == IOERR:
        text = f"the disk failed, or is full ({text}, {getattr(error, 'sqlite_errorname', '')})"
    kind = Unable if code in UNABLE else Unreachable
    return kind(text)


def refused(error: Any, path: str, busy: float, *, looks: bool = False) -> Exception:
    """It cannot be opened. `looks`: to be read alone."""
    code = code_of(error)
    if code in (CORRUPT, NOTADB):
        return CorruptRecord(f"{path!r} is no database that SQLite can read: {error}")
    if code == CANTOPEN and (size := len(os.fsencode(path))) > LONGEST:
        return SystemRefused(
            f"{path!r} has {size} bytes, and SQLite opens no longer path than one of {LONGEST}: "
            "put the file nearer to the root, or give it a shorter name",
            errno=errno.ENAMETOOLONG,
            filename=path,
        )
    if looks and code in (READONLY, CANTOPEN):
        return SystemRefused(
            f"{path!r} cannot be read ({error}): to look at its locks needs the right to read the "
            "file and those beside it, -wal and -shm. What a dead process has left half done is "
            "put right by whoever takes a lock next",
            errno=13,
            filename=path,
        )
    if code in (READONLY, CANTOPEN):
        return SystemRefused(
            f"{path!r} cannot be opened for writing ({error}): a store needs to write to "
            "the file and to make others beside it in its folder",
            errno=13,
            filename=path,
        )
    return told(error, busy)


def damaged(path: str) -> CorruptRecord:
    """L13  The one row that all names stand on was written by another program."""
    return CorruptRecord(
        f"{path!r}: the row of lifehold_meta is none of ours. Restore it, or move the file away "
        "together with its -wal and -shm, while no lock in it is held; then bump the tokens"
    )


def refuse_newer(path: str, version: int, least: int) -> None:
    """L12  Whose tables we do not know, we leave alone. Raises UnsafeGround, CorruptRecord."""
    if type(least) is not int:
        raise damaged(path)
    if least > sql.VERSION:
        raise UnsafeGround(
            f"{path!r} was written by a newer lifehold (tables of version {version}, for code of "
            f"version {least} or later; this is {sql.VERSION}): update this one"
        )
