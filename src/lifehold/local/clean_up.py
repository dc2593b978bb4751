"""What a crash may leave beside a lock, and what an order takes away."""

from __future__ import annotations

import errno
import os
import stat

from ..core import events
from ..core.errors import InvalidArgument, SystemRefused, UnsafeGround, pass_up
from ..core.grant import is_grant_of
from ..core.mask import printable
from ..core.value import as_dict
from ..runtime import clock, fork
from ..runtime.process import here
from .files import CREATE
from .record import is_temporary
from .record_handle import look
from .refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from collections.abc import Callable
    from typing import Any

    from ..core.grant import Holder
    from .handles import Descriptors
    from .judge import Judgement
    from .record_handle import RecordFile
else:
    json = fork.later("json", globals())

AUDIT = ".audit"
TRIES = 200
PAUSE = 0.005  # seconds between them: a release or a takeover guards the record for less


def forget_name(ours: RecordFile) -> None:
    """Take away the name that a record of ours had before it was published."""
    name, ours.name = ours.name, ""
    if name:
        try:
            ours.table.files.unlink(name)
        except OSError as error:
            pass_up(error)
            return  # swept, or a file server that had done it; a name of its own hurts nobody


def sweep(table: Descriptors, path: str) -> None:
    """Remove what crashes have left in the folder of a lock: names that are used once, unlocked.

    Only where a kernel shows who lives; called after a takeover, for a crash has just been seen.
    """
    folder = os.path.dirname(path) or "/"
    for name in table.files.listdir(folder):
        if not is_temporary(name):
            continue
        try:
            left = look(table, f"{folder.rstrip('/')}/{name}", write=False)
            if left is None:
                continue
            try:
                if left.has_witness() is False:
                    table.files.unlink(f"{folder.rstrip('/')}/{name}")
            finally:
                left.close()
        except (OSError, InvalidArgument) as error:
            pass_up(error)
            continue  # another's, who may sweep it himself


def by_order(lock: Any, reason: str, attempt: Callable[[], Holder | bool]) -> Holder | None:
    """Break a lock, whoever holds it. Who it was, None when nobody was to be broken.

    Noted before it is done, in the append-only file beside the lock. The holder finds out by
    `check()`, and the next holder's token is greater. `attempt`: the holder that was broken; True
    for none; False when somebody was in the way.
    """
    refuse_no_reason(reason)
    try:
        lock.ready()
        for _ in range(TRIES):
            done = attempt()
            if done is True:
                return None
            if done is not False:
                events.tell(events.Broken(lock.path, done, reason))
                return done
            clock.pause(PAUSE)
    except OSError as error:
        raise refused(lock.path, error) from error
    raise not_to_be_kept_away(lock.path)


def not_to_be_kept_away(path: str) -> SystemRefused:
    """Somebody moves the lock all the time, or a guard is not to be had."""
    return SystemRefused(
        f"{path!r}: whoever holds it cannot be kept from it here: end that process instead",
        name=path,
        errno=errno.EBUSY,
        filename=path,
    )


def remove(lock: Any, reason: str, whom: Holder | None) -> Holder | bool:
    """One try to remove a record that is a file of its own, under its guard (record_handle.py)."""
    found = look(lock.table, lock.path)
    if found is None:
        return True
    try:
        case: Judgement = lock.judged_of(found)
        if case.mixed:
            raise UnsafeGround(case.mixed, name=lock.path)
        if not found.guard() or not found.is_at(lock.path):
            return False
        if found.read() != case.marker.content:
            case = lock.judged_of(found)  # who has adopted it in place, before our guard
        if not is_grant_of(case.holder(), whom):
            return True
        note(lock, case.holder(), reason, 0o600 if lock.mode is None else lock.mode)
        lock.files.unlink(lock.path)
        return case.holder()
    finally:
        found.close()


def refuse_no_reason(reason: object) -> None:
    """Raises InvalidArgument."""
    if not str(reason or "").strip():
        raise InvalidArgument("break_ needs a reason in words: it is noted, with who gave it")


def note(lock: Any, holder: Holder, reason: str, mode: int) -> None:
    """One line for who was broken, by whom, when and why."""
    line = {
        "lifehold": 1,
        "kind": "audit",
        "at": clock.utc_now(),
        "path": lock.path,
        "reason": printable(reason),
        "by": as_dict(here(lock.label)),
        "holder": holder.owner and as_dict(holder.owner),
        "since": holder.since,
        "token": holder.token,
        "nonce": holder.nonce,
        "alive": holder.alive,
        "evidence": holder.evidence,
    }
    fd = _audit(lock, mode)
    try:
        lock.files.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        lock.files.close(fd)


def _audit(lock: Any, mode: int) -> int:
    """The file of notes, open and made if need be: a plain file with one name, or none (L7)."""
    files, path = lock.files, lock.path + AUDIT
    try:
        fd: int = files.open(path, APPEND)
    except FileNotFoundError:
        try:
            fd = files.open(path, APPEND | CREATE, mode)
        except FileExistsError:
            fd = files.open(path, APPEND)
        else:
            if lock._exactly:
                files.fchmod(fd, mode)  # the next one who breaks it may be another user
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _no_place_for_notes(path) from error
        raise
    found = files.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return fd
    files.close(fd)
    raise _no_place_for_notes(path)


def _no_place_for_notes(path: str) -> UnsafeGround:
    return UnsafeGround(
        f"{path!r}, which is to say who was broken and why, is no plain file of one name, so "
        "nothing is written there and the lock is not broken: remove it, or end the holder instead",
        name=path,
    )


# O_NONBLOCK: a FIFO without a reader refuses, and holds nobody up.
APPEND: int = (
    os.O_WRONLY
    | os.O_APPEND
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
